"""What a campaign wants done now: the record that is due, or the jobs that should be live.

Covers the order of jobs, the cap on live ones, the GPU-hour budget, and the jobs' contents. Not covered: handing
them out, and turning their results into events (outcomes.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from outerloop.champion.config import CampaignConfig, Command
from outerloop.champion.decide import Candidates, due_event, gpu_hours_left, rounds_exhausted
from outerloop.champion.events import EvalEvent, Event
from outerloop.champion.state import PACKAGE_LAUNCHES, CampaignState, GenerationState, RunState, reserve_result
from outerloop.champion.work import Job, Member, Role


@dataclass(frozen=True)
class Record:
    """An event that follows from the ledger: append it, fold it, and ask again."""

    event: Event


Work = Record | Job


def next_work(state: CampaignState, config: CampaignConfig, candidates: Candidates = None) -> list[Work]:
    """The record that is due, alone; or else all jobs that should be live, the live ones first.

    Pure: the same ledger, config and candidates give the same list, so a restart goes on where it was killed.
    `candidates` is the parsed file, a BrokenCandidates (the last valid list is kept), or None to keep it as well.
    No more than `parallel` jobs are returned, unless more are live already. An empty list means that there is
    nothing to do until something changes. Costs what is open, not what has happened.
    """
    event = due_event(state, config, candidates)
    if event is not None:
        return [Record(event)]
    if state.cancelled:
        return []
    jobs: list[Work] = [live.job.model_copy(update={"live": True}) for live in state.live.values()]
    if state.stopped or state.generation is None:
        return jobs
    left = gpu_hours_left(state, config)
    for job in _wanted(state, config, state.generation):
        if len(jobs) >= config.parallel:
            break
        if job.key in state.live:
            continue
        # Without a budget `left` is infinite. A dear job that doesn't fit doesn't hold up a cheap one.
        if job.resources.gpu_hours > left:
            continue
        left -= job.resources.gpu_hours
        jobs.append(job)
    return jobs


def finished(state: CampaignState, config: CampaignConfig, candidates: Candidates = None) -> bool:
    """Whether the campaign is at its end: cancelled, or no round may open and nothing is left to do."""
    if state.cancelled:
        return not state.live
    if state.stopped or state.generation is None or not rounds_exhausted(state, config):
        return False
    generation = state.generation
    if generation.split_lost and generation.split_failed and _reading_split(state, config, generation):
        return False  # what is left waits for somebody to bring the split back
    return not next_work(state, config, candidates)


def _wanted(state: CampaignState, config: CampaignConfig, generation: GenerationState) -> list[Job]:
    """Every job that could be live now, most urgent first: what ends work comes before what begins it."""
    if not generation.split_sha256:
        # A split that no round will be trained on is not built; a raised max_rounds asks for it again.
        useless = generation.split_failed or rounds_exhausted(state, config)
        return [] if useless else [_split(config, generation)]
    if generation.split_lost:
        # All but a package reads it. Its digest is known, so that only the very same one is gone on with.
        again = not generation.split_failed and (
            _reading_split(state, config, generation) or not rounds_exhausted(state, config)
        )
        return [*_package(state, config), *([_split(config, generation)] if again else [])]
    return [
        *_reserve(state, config, generation),
        *_package(state, config),
        *_evaluations(state, config, generation),
        *_teacher(state, config, generation),
        *(_training(config, generation, state.runs[ident]) for ident in generation.unlaunched),
    ]


def _reading_split(state: CampaignState, config: CampaignConfig, generation: GenerationState) -> bool:
    """Whether anything that is left to do reads the generation's split."""
    return bool(
        generation.unlaunched
        or _reserve(state, config, generation)
        or _evaluations(state, config, generation)
        or _teacher(state, config, generation)
    )


def _job(command: Command, **values: object) -> Job:
    return Job.model_validate({"command": command.command, "resources": command.resources, **values})


def _split(config: CampaignConfig, generation: GenerationState) -> Job:
    number = generation.number
    fields: dict[str, JsonValue] = {
        "seed": generation.opened.seed,
        "generation": number,
        "validation_fraction": config.validation_fraction,
        "held_out_fraction": config.held_out_fraction,
    }
    return _job(
        config.commands.split,
        key=f"split/g{number:03d}",
        kind="split",
        generation=number,
        fields=fields,
        awaits=(f"split:{number}",),
    )


def _training(config: CampaignConfig, generation: GenerationState, run: RunState) -> Job:
    member = run.member
    assert member is not None  # only members of a round wait for training
    reads = {"split": generation.split_sha256, "base": member.base_sha256}
    if member.student:
        reads["soft_targets"] = member.soft_targets_sha256
    fields: dict[str, JsonValue] = {
        "seed": member.seed,
        "run_id": run.run_id,
        "generation": run.generation,
        "round": run.round,
        "base": member.candidate.base,
        "overrides": dict(member.candidate.overrides),
    }
    return _job(
        config.commands.train,
        key=f"train/{run.run_id}",
        kind="train",
        generation=run.generation,
        round=run.round,
        run_id=run.run_id,
        fields=fields,
        reads=reads,
        awaits=(f"run:{run.run_id}",),
    )


def _scoring(
    config: CampaignConfig,
    generation: GenerationState,
    run: RunState,
    role: Role,
    names: list[str],
) -> Job:
    """One evaluator job for some checkpoints of a run, or for an ensemble."""
    ensemble = run.status == "ensemble"
    command = config.commands.ensemble if ensemble else config.commands.evaluate
    assert command is not None  # no ensemble is recorded without its command
    with_band = role in ("test", "reserve")
    reads = {"split": generation.split_sha256}
    if ensemble:
        members = run.members
        if with_band:
            reads["band_scores"] = run.band_scores(names[0])
    else:
        members = tuple(
            Member(
                run_id=run.run_id,
                checkpoint=name,
                checkpoint_sha256=run.checkpoints[name].sha256,
                config_sha256=run.config_sha256,
                band_scores_sha256=run.band_scores(name) if with_band else "",
            )
            for name in names
        )
    suffix = f"/{names[0]}" if role == "reserve" else ""
    return _job(
        command,
        key=f"evaluate/{role}/{run.run_id}{suffix}",
        kind="evaluate",
        generation=run.generation,
        round=run.round,
        run_id=run.run_id,
        role=role,
        fields={"generation": run.generation, "score_cache": config.score_cache},
        reads=reads,
        members=members,
        ensemble=ensemble,
        awaits=tuple(f"eval:{role}:{run.run_id}/{name}" for name in names),
    )


def _reserve(state: CampaignState, config: CampaignConfig, generation: GenerationState) -> list[Job]:
    check = generation.check
    if check is None or reserve_result(state, check) is not None:
        return []
    ident, _, checkpoint = check.subject.partition("/")
    return [_scoring(config, generation, state.runs[ident], "reserve", [checkpoint])]


def _evaluations(state: CampaignState, config: CampaignConfig, generation: GenerationState) -> list[Job]:
    """Test evaluations, in order of round and run id; first the validation scores that fix a missing band."""
    jobs = []
    for run in sorted((state.runs[ident] for ident in generation.unscored), key=lambda run: (run.round, run.run_id)):
        if f"evaluate/test/{run.run_id}" in state.live:
            continue
        names = sorted(generation.unscored[run.run_id])
        bandless = [name for name in names if not run.band_scores(name) and name not in run.validation]
        if generation.rules.compare == "decided" and bandless:
            jobs.append(_scoring(config, generation, run, "validation", bandless))
        else:
            jobs.append(_scoring(config, generation, run, "test", names))
    return jobs


def _teacher(state: CampaignState, config: CampaignConfig, generation: GenerationState) -> list[Job]:
    """Margins on the development items, one job per group of members that share their inputs; then the average."""
    teacher = generation.teacher
    if teacher.status != "started" or config.commands.teacher is None or config.teacher_file is None:
        return []
    number, attempt = generation.number, teacher.attempt
    groups: dict[str, list[Member]] = {}
    for member in teacher.members:
        run = state.runs[member.run_id]
        # Without a word about its inputs, a run shares them with nobody.
        groups.setdefault(run.inputs_sha256 or run.run_id, []).append(member)
    missing = [group for group in groups if group not in teacher.margins]
    if missing:
        return [
            _job(
                config.commands.evaluate,
                key=f"margins/g{number:03d}/a{attempt}/{group}",
                kind="evaluate",
                generation=number,
                role="development",
                fields={"generation": number, "score_cache": config.score_cache},
                reads={"split": generation.split_sha256},
                members=tuple(groups[group]),
                awaits=(f"margins:{number}:{attempt}:{group}",),
            )
            for group in missing
        ]
    path = config.teacher_file.replace("{generation}", f"{number:03d}")
    return [
        _job(
            config.commands.teacher,
            key=f"teacher/g{number:03d}/a{attempt}",
            kind="teacher",
            generation=number,
            fields={"generation": number, "teacher_file": path},
            reads={
                "split": generation.split_sha256,
                **{f"margins/{group}": digest for group, digest in teacher.margins.items()},
            },
            members=teacher.members,
            awaits=(f"teacher:{number}:{attempt}",),
        )
    ]


def _package(state: CampaignState, config: CampaignConfig) -> list[Job]:
    packaging, command = state.packaging, config.commands.package
    champion: EvalEvent | None = packaging.waiting
    if command is None or champion is None or packaging.running is not None:
        return []
    if packaging.launch_failures >= PACKAGE_LAUNCHES:
        return []
    run = state.runs[champion.run_id]
    members = run.members
    if run.status != "ensemble":
        members = (
            Member(
                run_id=run.run_id,
                checkpoint=champion.checkpoint,
                checkpoint_sha256=run.checkpoints[champion.checkpoint].sha256,
                config_sha256=run.config_sha256,
            ),
        )
    return [
        _job(
            command,
            key=f"package/{champion.subject}",
            kind="package",
            generation=champion.generation,
            round=champion.round,
            run_id=champion.run_id,
            fields={"generation": champion.generation},
            reads={"report": champion.report_sha256},
            members=members,
            ensemble=run.status == "ensemble",
            awaits=(f"package:{champion.subject}",),
        )
    ]
