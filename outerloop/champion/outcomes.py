"""From the end of a job to the events that say so.

Covers trainings and evaluations, whose files have to be judged. Splits, teachers and packages are one event each,
which the controller writes itself (see the package docstring). Not covered: reading slots, appending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outerloop.champion.candidates import text_digest
from outerloop.champion.config import CampaignConfig
from outerloop.champion.events import Checkpoint, EvalEvent, RunEvent
from outerloop.champion.report import ReportError, checkpoints_to_score, parse_report, validation_ranks
from outerloop.champion.state import CampaignState
from outerloop.champion.work import Job

MOST_NAMED = 5
"""Checkpoints that a sentence names."""


@dataclass(frozen=True)
class TrainingEnd:
    """What a finished training left behind.

    `selection` and `pareto` are the texts of its files, None where absent. `checkpoints` maps the names of
    existing checkpoint files to their SHA-256, `validation` the same names to the text of their validation file,
    `validation_scores` to the SHA-256 of their validation scores.
    """

    exit_code: int | None
    selection: str | None = None
    pareto: str | None = None
    marker: bool = False
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[str, str] = field(default_factory=dict)
    validation_scores: Mapping[str, str] = field(default_factory=dict)
    config_sha256: str = ""
    inputs_sha256: str = ""
    gpu_hours: float = 0.0
    detail: str = ""
    problem: str = ""
    """Why a file of the two can't be read."""


@dataclass(frozen=True)
class Scored:
    """What an evaluator left for one checkpoint: the report's text (None: none), and the digest of its scores.

    `problem` says why a report that is there can't be read.
    """

    report: str | None
    scores_sha256: str = ""
    optimism: tuple[float, ...] | None = None
    problem: str = ""


def training_event(job: Job, config: CampaignConfig, end: TrainingEnd) -> RunEvent:
    """The `run` event of a finished training; a training that can't be used says why in `detail`."""
    common = {
        "run_id": job.run_id,
        "generation": job.generation,
        "round": job.round,
        "exit_code": end.exit_code,
        "config_sha256": end.config_sha256,
        "inputs_sha256": end.inputs_sha256,
        "gpu_hours": end.gpu_hours,
    }
    if end.exit_code == config.no_eligible_exit_code and end.marker:
        return RunEvent.model_validate({**common, "status": "no_eligible_checkpoint", "detail": end.detail})
    problem = ""
    if end.exit_code != 0:
        problem = end.detail or f"the train command ended with exit code {end.exit_code}"
    elif end.problem:
        problem = end.problem
    elif end.selection is None:
        problem = "the train command ended well, but wrote no selection.json"
    if not problem and end.selection is not None:
        try:
            selected, names = checkpoints_to_score(end.selection, end.pareto)
        except ReportError as error:
            problem = str(error)
    if problem:
        return RunEvent.model_validate({**common, "status": "train_failed", "detail": problem})
    checkpoints = []
    for name in names:
        auc, errors = validation_ranks(end.validation.get(name))
        checkpoints.append(
            Checkpoint(
                name=name,
                sha256=end.checkpoints.get(name, ""),
                selected=name == selected,
                gate_auc=auc,
                validation_fail_to_pass=errors,
                validation_scores_sha256=end.validation_scores.get(name, ""),
            )
        )
    missing = [checkpoint.name for checkpoint in checkpoints if not checkpoint.sha256]
    detail = f"missing checkpoint files: {_some(missing)}" if missing else end.detail
    return RunEvent.model_validate({**common, "status": "trained", "detail": detail, "checkpoints": tuple(checkpoints)})


def _some(names: Sequence[str]) -> str:
    """A list for a sentence: the first few, and how many there are besides."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def evaluation_events(
    state: CampaignState,
    job: Job,
    results: Mapping[str, Scored],
    *,
    reason: str = "the evaluator wrote no report",
    gpu_hours: float = 0.0,
) -> list[EvalEvent]:
    """The `eval` events that a finished evaluator job still owes, in order of checkpoint.

    `results` maps checkpoint names to what was found; a name without a report is a failed evaluation with
    `reason`. Reports are judged by the rules of the job's generation. Results that stand in the ledger already
    are left out, so calling this again after a crash repeats nothing.
    """
    role = job.role or "test"
    live = state.live.get(job.key)
    missing = live.missing if live is not None else set(job.awaits)
    opened = next((event for event in state.generations if event.generation == job.generation), None)
    current = state.generation
    totals: tuple[int, ...] | None = None
    if role == "test" and current is not None and current.number == job.generation:
        totals = current.totals
    run = state.runs.get(job.run_id)
    events: list[EvalEvent] = []
    prefix = f"eval:{role}:{job.run_id}/"
    for outcome in sorted(missing):
        name = outcome.removeprefix(prefix)
        base = EvalEvent(
            status="failed",
            generation=job.generation,
            round=job.round,
            run_id=job.run_id,
            checkpoint=name,
            role=role,
            gpu_hours=0.0 if events else gpu_hours,
        )
        scored = results.get(name)
        if scored is None or scored.report is None or opened is None or opened.rules is None:
            told = f"report refused: {scored.problem}" if scored is not None and scored.problem else reason
            events.append(base.model_copy(update={"detail": told}))
            continue
        expected = None
        if not job.ensemble and run is not None and name in run.checkpoints:
            expected = run.checkpoints[name].sha256
        try:
            report = parse_report(scored.report, opened.rules, totals=totals, checkpoint_sha256=expected)
        except ReportError as error:
            events.append(base.model_copy(update={"detail": f"report refused: {error}"}))
            continue
        if role == "test":
            totals = report.totals
        events.append(
            base.model_copy(
                update={
                    "status": "scored",
                    "row": dict(report.row),
                    "decided": dict(report.decided) if report.decided is not None else None,
                    "rates": dict(report.rates),
                    "macro_f1": report.macro_f1,
                    "s_f1": report.s_f1,
                    "gate_auc": report.gate_auc,
                    "gate_curve": report.gate_curve,
                    "reject_band": report.reject_band,
                    "optimism": scored.optimism,
                    "checkpoint_sha256": report.checkpoint_sha256,
                    "report_sha256": text_digest(scored.report),
                    "scores_sha256": scored.scores_sha256,
                }
            )
        )
    return events


def ready_order(events: Iterable[EvalEvent]) -> list[EvalEvent]:
    """Evaluations that became ready together, in the order in which they are appended."""
    return sorted(events, key=lambda event: (event.generation, event.round, event.run_id, event.checkpoint, event.role))
