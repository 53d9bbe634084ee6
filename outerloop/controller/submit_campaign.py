"""Submitting a campaign: from campaign.toml and a clone to a durable request, or to a new setting of one that runs.

Covered: the tree, the lanes, the checks that need no job, what a second submission means. Not covered: making the
request durable (submit.py), what the campaign does (campaigns.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from outerloop.champion import BrokenCandidates, CampaignConfig, ConfigError, parse_campaign
from outerloop.champion.config import Commands
from outerloop.controller.campaign_candidates import read_candidates
from outerloop.controller.campaign_request import SETTING_EVENT, CampaignRequest, Setting, campaign_question
from outerloop.controller.campaign_request import settings_in_force as in_force
from outerloop.controller.content import content_digest, content_stamp
from outerloop.controller.deployment import Deployment, account
from outerloop.controller.git import Mirror, Repository
from outerloop.controller.ledger import Behind, Ledger, fold_events
from outerloop.controller.request import Execution, run_name
from outerloop.controller.submit import Refusal, earlier_asks, never_fits
from outerloop.controller.work import lane_mapping
from outerloop.dispatch.submit import walltime_minutes
from outerloop.plain_files import read_plain
from outerloop.record.models import Run
from outerloop.record.store import Record
from outerloop.settings import Settings, choose_lane
from outerloop.slots import StateRoot

__all__ = ["PreparedCampaign", "change_setting", "earlier_campaign", "prepare_campaign"]

TRIES = 50
"""Attempts to write the next event while others write too."""
MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class PreparedCampaign:
    """A campaign that can be submitted, and what a person may want to know before."""

    request: CampaignRequest
    config: CampaignConfig
    candidates: tuple[str, ...]
    """Names of the active candidates."""
    notes: tuple[str, ...] = ()


def prepare_campaign(
    settings: Settings,
    root: StateRoot,
    *,
    path: Path,
    repository: Path | None,
    candidate: str,
    lane: str = "",
    priority: int = 0,
) -> PreparedCampaign:
    """Resolve, check and freeze a campaign. Pins its commit in the mirror and writes nothing else.

    `path` is campaign.toml, `repository` the clone whose tree the commands run in (None: the one that holds `path`).
    Raises ConfigError (of campaign.toml or of the candidates file) with every problem, Refusal, GitError, LaneError.
    """
    path = path.absolute()
    try:
        text = read_plain(path, MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except ValueError as error:
        raise Refusal(f"{path}: {error}; that is no campaign.toml") from None
    config = parse_campaign(text, str(path))
    repo = Repository.open(repository or path.parent)
    mirror = Mirror(root.mirror(repo.identity))
    mirror.ensure()
    commit = repo.seal_worktree() if candidate == "worktree" else repo.commit(candidate)
    mirror.pin(repo, {f"commits/{commit}": commit})
    tree = mirror.tree(commit)
    problems = []
    unusable = mirror.unusable_entries(tree)
    if unusable:
        problems.append("the tree cannot be materialised on a node: " + "; ".join(unusable))
    executions = _executions(settings, config, lane, problems)
    if problems:
        raise Refusal("; ".join(problems))
    setting = Setting(
        source=str(path),
        config=text,
        commit=commit,
        tree=tree,
        revision=candidate,
        subject=repo.subject(commit),
        repository=str(repo.top),
        executions=executions,
    )
    question = campaign_question(repo.identity, config.name)
    request = CampaignRequest(
        id=run_name(account(), str(root.path), question, 0, prefix="s"),
        question=question,
        target=repo.identity,
        name=config.name,
        submitter=account(),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        setting=setting,
        priority=priority,
    )
    listed = read_candidates(setting, (), None)
    if isinstance(listed, BrokenCandidates):
        raise ConfigError(listed.reason.splitlines())
    notes = []
    active = tuple(item.name for item in listed.candidates if item.active)
    if not active:
        notes.append("no candidate is active: no round opens until one is")
    return PreparedCampaign(request, config, active, tuple(notes))


def _executions(settings: Settings, config: CampaignConfig, lane: str, problems: list[str]) -> dict[str, Execution]:
    """How jobs without and with GPUs run; what stands in the way goes into `problems`. Raises LaneError."""
    found: dict[str, Execution] = {}
    for name in Commands.model_fields:
        command = getattr(config.commands, name)
        if command is None:
            continue
        lane_name, chosen = choose_lane(settings, lane, command.gpus)
        walltime = walltime_minutes({"minutes": command.minutes}, settings.dispatch.margin_minutes)
        if chosen.max_minutes is not None and walltime > chosen.max_minutes:
            problems.append(
                f"commands.{name}: {command.minutes:g} minutes and a margin are {walltime:g} of walltime, lane"
                f" {lane_name} allows {chosen.max_minutes:g}"
            )
        never = never_fits(settings, lane_name, cpus=command.cpus, gpus=command.gpus, nodes=1)
        if never:
            problems.append(f"commands.{name}: {never}")
        key = "gpu" if command.gpus else "cpu"
        if key in found:
            continue
        isolation = chosen.isolation or settings.isolation
        image = str(chosen.image) if chosen.image and isolation == "apptainer" else ""
        if isolation == "apptainer" and not image:
            problems.append(f"isolation is apptainer, but lane {lane_name} names no image")
        try:
            # stamp first: whoever writes in between makes the stamp look old, and the digest is taken again
            stamp = content_stamp(Path(image)) if image else ""
            digest = content_digest(Path(image)) if image else ""
        except OSError as error:
            problems.append(f"image {image}: {error.strerror or error}")
            continue
        found[key] = Execution(
            lane=lane_mapping(settings.lane(lane_name)),
            prologue=chosen.prologue,
            cache_seed=str(chosen.cache_seed) if chosen.cache_seed else "",
            isolation=isolation,
            image_path=image,
            image_digest=digest,
            image_stamp=stamp,
            gpu_type=chosen.gpu_type if command.gpus else "",
        )
    return found


def earlier_campaign(record: Record, prepared: PreparedCampaign) -> Run | None:
    """The campaign of this name in this repository, if there is one. Raises Refusal when it has ended."""
    earlier = earlier_asks(record, prepared.request.question)
    if not earlier:
        return None
    run = earlier[0]
    if run.state == "ended":
        raise Refusal(
            f"campaign {prepared.request.name} has ended ({run.verdict}, run {run.id}): its ledger is closed; give the"
            f" new one another name in {Path(prepared.request.setting.source).name}"
        )
    return run


def change_setting(deployment: Deployment, run_id: str, setting: Setting) -> bool:
    """Make `setting` the one in force. False when it hands out the same jobs as the one that is. Raises Refusal."""
    context = deployment.context
    ledger = Ledger(context.root, run_id)
    with context.record.reading() as session:
        run = session.get(Run, run_id)
    if run is None:
        raise LookupError(f"there is no run {run_id}")
    request = CampaignRequest.model_validate(run.request)
    for _ in range(TRIES):
        events = ledger.read()
        if any(event.kind in {"verdict", "cancel"} for event in events):
            raise Refusal(f"campaign {request.name} has ended (run {run_id})")
        if in_force(request, events)[-1].same_as(setting):
            return False
        number = len(in_force(request, events))
        try:
            event = ledger.append(
                len(events),
                SETTING_EVENT,
                {"round": number, "by": account(), "setting": setting.model_dump(mode="json")},
            )
        except Behind:
            continue
        with context.record.transaction("tx.operator") as session:
            row = session.get(Run, run_id, with_for_update=True)
            assert row is not None
            fold_events(session, row, [*events, event], root=context.root)
        if Setting.model_validate(event.body["setting"]).same_as(setting):
            return True
    raise Refusal(f"campaign {request.name} is changing too fast; try again")
