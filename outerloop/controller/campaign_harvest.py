"""From a job that has ended to the events that its campaign appends.

Covered: reading what each kind of job left in its slot, links in the campaign's folder, the teacher file. Not covered:
which jobs have ended and in which order their events are appended (campaigns.py); judging reports (outerloop.champion).

What a command wrote is somebody's accident until it is parsed: nothing here raises for it, it becomes a failure that
says what was wrong.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from outerloop.champion import (
    CampaignConfig,
    Event,
    GenerationEvent,
    Job,
    PackageEvent,
    RunEvent,
    Scored,
    TeacherEvent,
    TrainingEnd,
    evaluation_events,
    text_digest,
    training_event,
)
from outerloop.champion.config import MOST_WHOLE
from outerloop.champion.report import ReportError, checkpoints_to_score, load_object
from outerloop.controller.campaign_candidates import soft_target_path
from outerloop.controller.campaign_ledger import Books, Launch
from outerloop.controller.campaign_optimism import recorded_optimism
from outerloop.controller.campaign_places import Places, epoch_digits, group_digest
from outerloop.controller.campaign_slots import report_path, scores_path
from outerloop.controller.campaign_work import CONFIG
from outerloop.controller.content import content_digest
from outerloop.effects import effect
from outerloop.job.reports import MOST_BYTES
from outerloop.plain_files import read_plain
from outerloop.slots import SlotDirectory
from outerloop.slots.files import make_folder, sync_folder

__all__ = ["Ended", "Memory", "digest_of", "failure_events", "harvest"]

_T = TypeVar("_T")

TOTALS = "totals.json"
"""In a split's folder: the test set's denominators, if the split command tells them."""


@dataclass(frozen=True)
class Ended:
    """How a job's slot ended for good. `output`: what its command's {output} is, None when no attempt says so."""

    launch: Launch
    slot: SlotDirectory
    ok: bool
    exit_code: int | None
    detail: str
    output: Path | None
    gpu_hours: float = 0.0

    @property
    def job(self) -> Job:
        return self.launch.job


class Memory:
    """What a pass has read of jobs that have ended, so that many outcomes of one job cost one reading."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], object] = {}

    def once(self, ended: Ended, read: Callable[[], _T]) -> _T:
        """What `read` gave for this end of a job when it was first asked for."""
        key = (ended.slot.digest, ended.ok, ended.output)
        if key not in self._known:
            self._known[key] = read()
        return cast(_T, self._known[key])


def harvest(
    books: Books, config: CampaignConfig, places: Places, ended: Ended, memory: Memory | None = None
) -> list[Event]:
    """The events that a job's end owes, in order; links what it left into the campaign's folder. Raises OSError."""
    memory = memory or Memory()
    match ended.job.kind:
        case "split":
            return [_split(books, places, ended)]
        case "train":
            return [memory.once(ended, lambda: _training(config, places, ended))]
        case "evaluate" if ended.job.role == "development":
            return [_margins(ended)]
        case "evaluate":
            results = memory.once(ended, lambda: _results(books, places, ended))
            reason = "the evaluator wrote no report" if ended.ok else ended.detail
            return [*evaluation_events(books.state, ended.job, results, reason=reason, gpu_hours=ended.gpu_hours)]
        case "teacher":
            return [_teacher(places, ended)]
        case "package":
            return [_package(places, ended)]


def failure_events(books: Books, job: Job, reason: str, *, gpu_hours: float = 0.0) -> list[Event]:
    """The outcomes of a job that could not be handed out, or was cancelled: failures that say why."""
    match job.kind:
        case "split":
            return [_split_failed(job, reason, gpu_hours)]
        case "train":
            return [_train_failed(job, reason, gpu_hours)]
        case "evaluate" if job.role == "development":
            return [_margins_failed(job, reason, gpu_hours)]
        case "evaluate":
            return [*evaluation_events(books.state, job, {}, reason=reason, gpu_hours=gpu_hours)]
        case "teacher":
            return [_teacher_failed(job, reason, gpu_hours)]
        case "package":
            subject = job.awaits[0].removeprefix("package:")
            return [
                PackageEvent(
                    status="finished" if books.state.packaging.announced else "launch_failed",
                    generation=job.generation,
                    subject=subject,
                    detail=reason,
                    gpu_hours=gpu_hours,
                )
            ]


def _train_failed(job: Job, detail: str, gpu_hours: float) -> RunEvent:
    return RunEvent(
        status="train_failed",
        run_id=job.run_id,
        generation=job.generation,
        round=job.round,
        detail=detail,
        gpu_hours=gpu_hours,
    )


def text_of(path: Path, inside: Path) -> str | None:
    """A command's text file below a folder of its slot; None when it is absent. Raises ReportError for what is no text
    of its own: its digest must be that of the file."""
    try:
        return read_plain(path, MOST_BYTES, inside=inside).decode("utf-8")
    except OSError:
        return None
    except UnicodeDecodeError as error:
        raise ReportError([f"{path.name} is not UTF-8: byte {error.start}"]) from None
    except ValueError as error:
        raise ReportError([f"{path.name}: {error}"]) from None


def digest_of(path: Path) -> str:
    """Digest of a command's file, "" when it is absent."""
    try:
        return content_digest(path)
    except OSError:
        return ""


# -- split


def _split_failed(job: Job, detail: str, gpu_hours: float) -> GenerationEvent:
    return GenerationEvent(status="split_failed", generation=job.generation, detail=detail, gpu_hours=gpu_hours)


def _split(books: Books, places: Places, ended: Ended) -> GenerationEvent:
    job, output = ended.job, ended.output
    if not ended.ok:
        return _split_failed(job, ended.detail, ended.gpu_hours)
    digest = digest_of(output) if output is not None else ""
    if output is None or not digest:
        return _split_failed(job, "the split command ended well, but left nothing at {output}", ended.gpu_hours)
    if other := _another_split(books, places, job.generation, digest):
        return _split_failed(job, other, ended.gpu_hours)
    try:
        totals = _totals(books, job.generation, text_of(output / TOTALS, output))
    except ReportError as error:
        return _split_failed(job, str(error), ended.gpu_hours)
    places.lead(places.split_link(job.generation), output)
    return GenerationEvent(
        status="split_ready",
        generation=job.generation,
        split_sha256=digest,
        totals=totals,
        gpu_hours=ended.gpu_hours,
    )


def _another_split(books: Books, places: Places, number: int, digest: str) -> str:
    """Why a split that was built again can't take the place of the one that is lost; "" when it can."""
    generation = books.state.generation
    if generation is None or generation.number != number or not generation.split_lost:
        return ""
    if digest == generation.split_sha256:
        return ""
    return (
        f"built again it has the SHA-256 {digest[:12]}…, it had {generation.split_sha256[:12]}…, and results on the two"
        f" would not compare. Put the old one at {places.split_link(number)} and say `outerloop campaign retry`, or"
        " begin a new generation with `outerloop campaign advance`"
    )


def _totals(books: Books, generation: int, text: str | None) -> tuple[int, ...] | None:
    """The test set's denominators, in the objectives' order. Raises ReportError."""
    opened = next(event for event in books.state.generations if event.generation == generation)
    if text is None or opened.rules is None:
        return None
    told = load_object(text, TOTALS)
    totals = []
    for objective in opened.rules.objectives:
        value = told.get(objective.total)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WHOLE:
            raise ReportError([f"{TOTALS}: {objective.total} must be a whole number above 0, it is {value!r}"])
        totals.append(value)
    return tuple(totals)


# -- training


def _inside(folder: Path, name: str) -> Path | None:
    """A file or folder below `folder` that exists, through links only inside it."""
    path = folder / name
    top = os.path.realpath(folder) + os.sep
    return path if os.path.realpath(path).startswith(top) and path.exists() else None


def _training(config: CampaignConfig, places: Places, ended: Ended) -> RunEvent:
    job, output = ended.job, ended.output
    if output is not None and output.is_dir():
        places.lead(places.run_folder(job.run_id), output)
    _keep_trained_config(places, ended)
    exit_code = 0 if ended.ok else ended.exit_code
    end = TrainingEnd(
        exit_code=exit_code,
        config_sha256=_config_digest(ended.slot),
        gpu_hours=ended.gpu_hours,
        detail="" if ended.ok else ended.detail,
    )
    if output is None:
        return training_event(job, config, end)
    selection, pareto, problem = None, None, ""
    try:
        selection, pareto = (text_of(output / name, output) for name in ("selection.json", "pareto.json"))
    except ReportError as error:
        problem = str(error)
    names: tuple[str, ...] = ()
    inputs = ""
    if selection is not None:
        try:
            _selected, names = checkpoints_to_score(selection, pareto)
            told = load_object(selection, "selection.json").get("inputs_sha256")
            inputs = told if isinstance(told, str) else ""
        except ReportError:
            names = ()
    checkpoints, validation, scores = {}, {}, {}
    for name in names:
        path = _inside(output, name)
        if path is not None and (digest := digest_of(path)):
            checkpoints[name] = digest
        epoch = epoch_digits(name)
        try:
            text = text_of(output / f"validation-epoch-{epoch}.json", output)
        except ReportError:
            text = None
        if text is not None:
            validation[name] = text
        if digest := digest_of(output / f"validation-epoch-{epoch}.scores.jsonl"):
            scores[name] = digest
    return training_event(
        job,
        config,
        TrainingEnd(
            exit_code=exit_code,
            selection=selection,
            pareto=pareto,
            marker=(output / config.no_eligible_marker).exists(),
            checkpoints=checkpoints,
            validation=validation,
            validation_scores=scores,
            config_sha256=end.config_sha256,
            inputs_sha256=inputs,
            gpu_hours=ended.gpu_hours,
            detail=end.detail,
            problem=problem,
        ),
    )


def _keep_trained_config(places: Places, ended: Ended) -> None:
    """Let the campaign's config be the one that the slot's job was given, where that is another campaign's.

    Equal trainings share a slot, and their configs differ in one path: where each campaign sees the split. Whatever
    else differs was edited by somebody, and stays to be found.
    """
    text, job = _trained_config(ended.slot), ended.job
    path, link = places.config(job.run_id), str(places.split_link(job.generation))
    try:
        own, told = json.loads(path.read_bytes()), json.loads(text or "")
    except (OSError, ValueError, RecursionError):
        return
    if not (isinstance(own, dict) and isinstance(told, dict)):
        return
    if own.get("split") == link != told.get("split") and {**own, "split": ""} == {**told, "split": ""}:
        places.write_config(job.run_id, text)


def _config_digest(slot: SlotDirectory) -> str:
    """Digest of the config that the slot's job was given."""
    text = _trained_config(slot)
    return text_digest(text) if text else ""


def _trained_config(slot: SlotDirectory) -> str:
    work = (slot.spec() or {}).get("work")
    launch = work.get("launch") if isinstance(work, Mapping) else None
    files = launch.get("files") if isinstance(launch, Mapping) else None
    text = files.get(CONFIG) if isinstance(files, Mapping) else None
    return text if isinstance(text, str) else ""


# -- evaluation


def _results(books: Books, places: Places, ended: Ended) -> dict[str, Scored]:
    """What an evaluator left, by checkpoint."""
    job = ended.job
    names = [member.checkpoint for member in job.members]
    if job.ensemble:
        names = [job.awaits[0].rpartition("/")[2]]
    results = {}
    for position, name in enumerate(names):
        optimism, problem, report = None, "", None
        try:
            report = text_of(report_path(ended.slot, position), ended.slot.path)
        except ReportError as error:
            problem = str(error)
        if report is not None and job.role == "reserve":
            optimism = recorded_optimism(books, places)
        results[name] = Scored(report, digest_of(scores_path(ended.slot, position)), optimism, problem)
    return results


# -- teacher


def _group(job: Job) -> str:
    return job.awaits[0].split(":", 3)[3]


def _attempt(job: Job) -> int:
    return int(job.awaits[0].split(":")[2])


def _margins_failed(job: Job, detail: str, gpu_hours: float) -> TeacherEvent:
    return TeacherEvent(
        status="failed",
        generation=job.generation,
        attempt=_attempt(job),
        group=_group(job),
        detail=detail,
        gpu_hours=gpu_hours,
    )


def _margins(ended: Ended) -> TeacherEvent:
    job = ended.job
    if not ended.ok:
        return _margins_failed(job, ended.detail, ended.gpu_hours)
    paths = [scores_path(ended.slot, position) for position in range(len(job.members))]
    missing = [
        f"{member.run_id}/{member.checkpoint}"
        for position, (member, path) in enumerate(zip(job.members, paths, strict=True))
        if not path.is_file() or not report_path(ended.slot, position).is_file()
    ]
    if missing:
        detail = f"the evaluator ended well, but left no margins of {', '.join(missing)}"
        return _margins_failed(job, detail, ended.gpu_hours)
    return TeacherEvent(
        status="margins",
        generation=job.generation,
        attempt=_attempt(job),
        group=_group(job),
        sha256=group_digest(paths),
        gpu_hours=ended.gpu_hours,
    )


def _teacher_failed(job: Job, detail: str, gpu_hours: float) -> TeacherEvent:
    return TeacherEvent(
        status="failed", generation=job.generation, attempt=_attempt(job), detail=detail, gpu_hours=gpu_hours
    )


def _teacher(places: Places, ended: Ended) -> TeacherEvent:
    job, output = ended.job, ended.output
    if not ended.ok:
        return _teacher_failed(job, ended.detail, ended.gpu_hours)
    if output is None or not output.is_file():
        detail = "the teacher command ended well, but left no file at {output}"
        return _teacher_failed(job, detail, ended.gpu_hours)
    told = str(job.fields["teacher_file"])
    path = soft_target_path(places.folder, told)
    digest = content_digest(output)
    if digest_of(path) != digest:
        if os.path.lexists(path):
            places.move_aside(path)
        make_folder(path.parent)
        with effect("campaign.teacher"):
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            shutil.copyfile(output, temporary)
            temporary.replace(path)
            sync_folder(path.parent)
    return TeacherEvent(
        status="finished",
        generation=job.generation,
        attempt=_attempt(job),
        path=told,
        sha256=digest,
        gpu_hours=ended.gpu_hours,
    )


# -- package


def _package(places: Places, ended: Ended) -> PackageEvent:
    job = ended.job
    subject = job.awaits[0].removeprefix("package:")
    if ended.output is not None and ended.output.exists():
        places.lead(places.package_link(subject), ended.output)
    return PackageEvent(
        status="finished",
        generation=job.generation,
        subject=subject,
        exit_code=0 if ended.ok else ended.exit_code,
        detail="" if ended.ok else ended.detail,
        gpu_hours=ended.gpu_hours,
    )
