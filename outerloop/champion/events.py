"""The events of a campaign's ledger, and their JSON Lines form.

Covers the ten kinds, their fields, and export and import. Not covered: what they add up to (ledger.py), and
storing them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from outerloop.champion.candidates import Candidate
from outerloop.champion.config import MOST_WHOLE, Rules
from outerloop.champion.work import Job, Member, Role

Whole = Annotated[int, Field(ge=0, le=MOST_WHOLE)]
"""A number, a count or a seed: what a signed 64-bit integer holds, as databases and splitters have them."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Hours = Annotated[float, Field(ge=0.0)]
Counts = dict[str, Whole]


class LedgerError(ValueError):
    """The ledger can't be read: an event is malformed, missing or out of order."""


class _Event(BaseModel):
    """Common to all: `seq` counts from 1 without gaps per campaign (0: not appended yet); `time` is ISO 8601 UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seq: Whole = Field(default=0, description="Place in the ledger, from 1 without gaps.")
    time: str | None = Field(default=None, description="When it was written, UTC.")


class GenerationEvent(_Event):
    """A generation was opened, or its split was built, could not be, or is gone and is built again.

    `totals` of a split that is ready are the test set's denominators in the objectives' order, if the split command
    told them; else the first valid test row fixes them.
    """

    kind: Literal["generation"] = Field(default="generation", description="Kind.")
    status: Literal["opened", "split_ready", "split_failed", "split_lost"] = Field(
        default="opened", description="What happened."
    )
    generation: Whole = Field(description="Generation.")
    reason: str = Field(default="", description="Why the generation was opened.")
    seed: Whole | None = Field(default=None, description="Seed of its split.")
    rules: Rules | None = Field(default=None, description="How its rows compare.")
    previous_champion: str | None = Field(default=None, description="Champion of the generation before.")
    previous_front: tuple[str, ...] = Field(default=(), description="Front of the generation before.")
    split_sha256: str = Field(default="", description="SHA-256 of the split.")
    totals: tuple[Whole, ...] | None = Field(
        default=None, description="Denominators of the test set, in the objectives' order, if the split told them."
    )
    detail: str = Field(default="", description="Why it failed.")
    gpu_hours: Hours = Field(default=0.0, description="GPU-hours that it took.")


class RoundMember(BaseModel):
    """One training of a round, frozen when the round opens; overrides are expanded."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run_id: str = Field(description="Its training.")
    candidate: Candidate = Field(description="The candidate, `{generation}` expanded.")
    seed: Whole = Field(description="Seed of the training.")
    base_sha256: str = Field(default="", description="SHA-256 of its base config.")
    student: bool = Field(default=False, description="Whether it learns from a teacher.")
    soft_targets_sha256: str = Field(default="", description="SHA-256 of the soft targets that it learns from.")


class RoundEvent(_Event):
    """A round was opened. `candidates` is the whole list it was opened from, as written."""

    kind: Literal["round"] = Field(default="round", description="Kind.")
    generation: Whole = Field(description="Generation.")
    round: Whole = Field(description="Round.")
    members: tuple[RoundMember, ...] = Field(description="What is trained.")
    candidates: tuple[Candidate, ...] = Field(default=(), description="The list it was opened from, as written.")
    candidates_sha256: str = Field(default="", description="SHA-256 of the candidates file.")


class Checkpoint(BaseModel):
    """A checkpoint that a run offers. `sha256` is "" when the file is missing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="Its name.")
    sha256: str = Field(default="", description="SHA-256; empty where the file is missing.")
    selected: bool = Field(default=False, description="Whether the training chose it.")
    gate_auc: Share | None = Field(default=None, description="Area under the gate's curve, on validation.")
    validation_fail_to_pass: Whole | None = Field(default=None, description="Its fail-to-pass errors on validation.")
    validation_scores_sha256: str = Field(default="", description="SHA-256 of its validation scores.")


class RunEvent(_Event):
    """A training ended, or an ensemble was put together. `inputs_sha256` is equal for runs that share inputs."""

    kind: Literal["run"] = Field(default="run", description="Kind.")
    status: Literal["trained", "train_failed", "no_eligible_checkpoint", "stale_run_dir", "ensemble"] = Field(
        description="How it ended."
    )
    run_id: str = Field(description="The training.")
    generation: Whole = Field(description="Generation.")
    round: Whole = Field(description="Round.")
    detail: str = Field(default="", description="Why it failed.")
    exit_code: int | None = Field(default=None, description="Exit code of the command.")
    config_sha256: str = Field(default="", description="SHA-256 of its config.")
    inputs_sha256: str = Field(default="", description="Equal for trainings that share their inputs.")
    checkpoints: tuple[Checkpoint, ...] = Field(default=(), description="What it offers.")
    members: tuple[Member, ...] = Field(default=(), description="Members of an ensemble.")
    gpu_hours: Hours = Field(default=0.0, description="GPU-hours that it took.")


class EvalEvent(_Event):
    """One checkpoint was scored on one role's items, or could not be."""

    kind: Literal["eval"] = Field(default="eval", description="Kind.")
    status: Literal["scored", "failed"] = Field(default="scored", description="Whether it was scored.")
    generation: Whole = Field(description="Generation.")
    round: Whole = Field(description="Round.")
    run_id: str = Field(description="The training.")
    checkpoint: str = Field(description="The checkpoint.")
    role: Role = Field(default="test", description="Whose items were scored.")
    detail: str = Field(default="", description="Why it failed.")
    row: Counts = Field(default_factory=dict, description="Counts of the report.")
    decided: Counts | None = Field(default=None, description="Counts of the decided items alone.")
    rates: dict[str, Share] = Field(default_factory=dict, description="Rates of the report.")
    macro_f1: Share | None = Field(default=None, description="Macro F1.")
    s_f1: Share | None = Field(default=None, description="F1 of the passing class.")
    gate_auc: Share | None = Field(default=None, description="Area under the gate's curve.")
    gate_curve: tuple[tuple[float, ...], ...] | None = Field(default=None, description="Points of that curve.")
    reject_band: tuple[float, float] | None = Field(
        default=None, description="Scores between which items are rejected."
    )
    optimism: tuple[float, ...] | None = Field(
        default=None, description="Expected true rate of the selected one, less its test rate, per objective."
    )
    checkpoint_sha256: str = Field(default="", description="SHA-256 of the checkpoint.")
    report_sha256: str = Field(default="", description="SHA-256 of the report.")
    scores_sha256: str = Field(default="", description="SHA-256 of the scores.")
    gpu_hours: Hours = Field(default=0.0, description="GPU-hours that it took.")

    @property
    def subject(self) -> str:
        """The checkpoint's name within the campaign: run id and checkpoint."""
        return f"{self.run_id}/{self.checkpoint}"


class ChampionEvent(_Event):
    """The champion changed; `eval_seq` is the evaluation that made it one."""

    kind: Literal["champion"] = Field(default="champion", description="Kind.")
    generation: Whole = Field(description="Generation.")
    subject: str = Field(description="Training and checkpoint.")
    eval_seq: Whole = Field(description="The evaluation that made it champion.")
    counts: tuple[Whole, ...] = Field(description="Its error counts.")
    previous: str | None = Field(default=None, description="Champion before it.")


class ParetoSetEvent(_Event):
    """The front changed: who entered, who left (in order of arrival) and how many are on it now."""

    kind: Literal["pareto_set"] = Field(default="pareto_set", description="Kind.")
    generation: Whole = Field(description="Generation.")
    eval_seq: Whole = Field(description="The evaluation that changed the front.")
    entered: str = Field(description="Who entered.")
    left: tuple[str, ...] = Field(default=(), description="Who left, in order of arrival.")
    size: Whole = Field(description="How many are on it now.")


class CheckLine(BaseModel):
    """The reserve test of one objective, numbers and all; see reserve.HoldUpLine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    objective: str = Field(description="Name of the objective.")
    test_count: Whole = Field(description="Errors on the test set.")
    test_total: Whole = Field(description="Items of it.")
    reserve_count: Whole = Field(description="Errors on the reserve.")
    reserve_total: Whole = Field(description="Items of it.")
    optimism: float = Field(description="Expected true rate, less the rate on the set it was chosen on.")
    z: float | None = Field(description="Statistic; none for an exact test.")
    p: Share = Field(description="Its p value.")
    power: Share = Field(description="Chance to notice errors that rose by half.")
    false_alarm: Share = Field(description="Chance of `luck` for a model that was not selected and did not change.")
    false_alarm_selected: Share = Field(description="The same, for the best of so many.")


class ReserveCheckEvent(_Event):
    """A reserve check began or ended.

    `evaluations` is the number of comparable test rows of the generation at the trigger. `not_run` is a check
    whose evaluation failed; `ends` is the reason for which the generation ends, "" if it goes on.
    """

    kind: Literal["reserve_check"] = Field(default="reserve_check", description="Kind.")
    status: Literal["started", "passed", "luck", "stale", "not_run"] = Field(description="How it ended.")
    generation: Whole = Field(description="Generation.")
    subject: str = Field(description="Training and checkpoint.")
    champion_seq: Whole = Field(description="The champion event that is checked.")
    evaluations: Whole = Field(description="Comparable test rows at the trigger.")
    rule: str = Field(default="z", description="The rule.")
    alpha: float | None = Field(default=None, description="Its level.")
    lines: tuple[CheckLine, ...] = Field(default=(), description="Its numbers, per objective.")
    ends: str = Field(default="", description="Why the generation ends; empty: it goes on.")
    detail: str = Field(default="", description="Why it was not run.")


class TeacherEvent(_Event):
    """A step towards a generation's teacher. Members are frozen at `started`; `attempt` counts from 1.

    `group` is set for `margins`, and for a `failed` that ended a margins job.
    """

    kind: Literal["teacher"] = Field(default="teacher", description="Kind.")
    status: Literal["started", "margins", "finished", "failed"] = Field(description="The step.")
    generation: Whole = Field(description="Generation.")
    attempt: Whole = Field(description="Attempt, from 1.")
    members: tuple[Member, ...] = Field(default=(), description="Frozen at `started`.")
    group: str = Field(default="", description="Which group of margins.")
    path: str = Field(default="", description="The file.")
    sha256: str = Field(default="", description="Its SHA-256.")
    detail: str = Field(default="", description="Why it failed.")
    gpu_hours: Hours = Field(default=0.0, description="GPU-hours that it took.")


class PackageEvent(_Event):
    """A champion went to the package command, came back, made room for a newer one, or could not start."""

    kind: Literal["package"] = Field(default="package", description="Kind.")
    status: Literal["launched", "finished", "dropped", "launch_failed"] = Field(description="The step.")
    generation: Whole = Field(description="Generation.")
    subject: str = Field(description="Training and checkpoint.")
    exit_code: int | None = Field(default=None, description="Exit code of the command.")
    detail: str = Field(default="", description="Why it could not start.")
    gpu_hours: Hours = Field(default=0.0, description="GPU-hours that it took.")


class DispatchEvent(_Event):
    """A job was handed out, or somebody said what may be handed out.

    `launched` carries the job as it was handed out, so that a restart asks for the very same work, and in `setting`
    the number of the submission whose tree and environment it runs in. `retry` names in `target` what is tried
    again: "split", "teacher", "package", or "round" where none of its trainings could be handed out.
    """

    kind: Literal["dispatch"] = Field(default="dispatch", description="Kind.")
    action: Literal["launched", "stop", "resume", "cancel", "advance", "retry", "candidates_rejected"] = Field(
        description="What was said."
    )
    job: Job | None = Field(default=None, description="The job, as it was handed out.")
    setting: Whole = Field(default=0, description="Number of the submission whose tree and environment it runs in.")
    target: str = Field(default="", description="What is tried again.")
    reason: str = Field(default="", description="Why.")
    digest: str = Field(default="", description="Digest of the candidates file that was rejected.")


Event = Annotated[
    GenerationEvent
    | RoundEvent
    | RunEvent
    | EvalEvent
    | ChampionEvent
    | ParetoSetEvent
    | ReserveCheckEvent
    | TeacherEvent
    | PackageEvent
    | DispatchEvent,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def outcome_of(event: Event) -> str | None:
    """The outcome that an event is, as jobs name it in `awaits`; None for events that end no job."""
    match event:
        case GenerationEvent(status="split_ready" | "split_failed"):
            return f"split:{event.generation}"
        case RunEvent() if event.status != "ensemble":
            return f"run:{event.run_id}"
        case EvalEvent():
            return f"eval:{event.role}:{event.subject}"
        case TeacherEvent(status="margins" | "failed") if event.group:
            return f"margins:{event.generation}:{event.attempt}:{event.group}"
        case TeacherEvent(status="finished" | "failed"):
            return f"teacher:{event.generation}:{event.attempt}"
        case PackageEvent(status="finished" | "launch_failed"):
            return f"package:{event.subject}"
        case _:
            return None


def stamped(event: Event, seq: int, time: str | None = None) -> Event:
    """The event with its place in the ledger."""
    return event.model_copy(update={"seq": seq, "time": time})


# Written in full, as what they carry (rules, candidates, jobs) must not change with a later version's defaults.
_COMPLETE = (GenerationEvent, RoundEvent, DispatchEvent)


def events_to_jsonl(events: Iterable[Event], *, times: bool = True) -> str:
    """One JSON object per line; `times=False` leaves out clock and GPU-hours, to compare ledgers.

    Empty fields of the frequent kinds are left out: their defaults are part of the format.
    """
    left_out = None if times else {"time", "gpu_hours"}
    lines = []
    for event in events:
        if isinstance(event, _COMPLETE):
            lines.append(event.model_dump_json(exclude_none=True, exclude=left_out) + "\n")
            continue
        body = event.model_dump_json(exclude_defaults=True, exclude=left_out)
        # The kind is a default of its class, but a reader needs it.
        lines.append(f'{{"kind":"{event.kind}"' + ("," if body != "{}" else "") + body[1:] + "\n")
    return "".join(lines)


def events_from_jsonl(text: str, filename: str = "events.jsonl", *, first: int = 1) -> list[Event]:
    """The events of a JSON Lines text whose first has number `first`. Raises LedgerError with the line of the first
    bad or misplaced event."""
    events: list[Event] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            event = _ADAPTER.validate_json(line, strict=True)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(step) for step in problem["loc"])
            raise LedgerError(f"{filename}:{number}: not an event: {place}: {problem['msg']}") from None
        if event.seq != len(events) + first:
            raise LedgerError(f"{filename}:{number}: event number {event.seq} where {len(events) + first} was due")
        events.append(event)
    return events
