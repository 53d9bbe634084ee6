"""The events of a campaign's ledger, and their JSON Lines form.

Covers the ten kinds, their fields, and export and import. Not covered: what they add up to (ledger.py), and
storing them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from outerloop.champion.candidates import Candidate
from outerloop.champion.config import Rules
from outerloop.champion.work import Job, Member, Role

Counts = dict[str, int]


class LedgerError(ValueError):
    """The ledger can't be read: an event is malformed, missing or out of order."""


class _Event(BaseModel):
    """Common to all: `seq` counts from 1 without gaps per campaign (0: not appended yet); `time` is ISO 8601 UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    seq: int = 0
    time: str | None = None


class GenerationEvent(_Event):
    """A generation was opened, or its split was built or could not be.

    `totals` of a split that is ready are the test set's denominators in the objectives' order, if the split command
    told them; else the first valid test row fixes them.
    """

    kind: Literal["generation"] = "generation"
    status: Literal["opened", "split_ready", "split_failed"] = "opened"
    generation: int
    reason: str = ""
    seed: int | None = None
    rules: Rules | None = None
    previous_champion: str | None = None
    previous_front: tuple[str, ...] = ()
    split_sha256: str = ""
    totals: tuple[int, ...] | None = None
    detail: str = ""
    gpu_hours: float = 0.0


class RoundMember(BaseModel):
    """One training of a round, frozen when the round opens; overrides are expanded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    candidate: Candidate
    seed: int
    base_sha256: str = ""
    student: bool = False
    soft_targets_sha256: str = ""


class RoundEvent(_Event):
    """A round was opened. `candidates` is the whole list it was opened from, as written."""

    kind: Literal["round"] = "round"
    generation: int
    round: int
    members: tuple[RoundMember, ...]
    candidates: tuple[Candidate, ...] = ()
    candidates_sha256: str = ""


class Checkpoint(BaseModel):
    """A checkpoint that a run offers. `sha256` is "" when the file is missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str = ""
    selected: bool = False
    gate_auc: float | None = None
    validation_fail_to_pass: int | None = None
    validation_scores_sha256: str = ""


class RunEvent(_Event):
    """A training ended, or an ensemble was put together. `inputs_sha256` is equal for runs that share inputs."""

    kind: Literal["run"] = "run"
    status: Literal["trained", "train_failed", "no_eligible_checkpoint", "stale_run_dir", "ensemble"]
    run_id: str
    generation: int
    round: int
    detail: str = ""
    exit_code: int | None = None
    config_sha256: str = ""
    inputs_sha256: str = ""
    checkpoints: tuple[Checkpoint, ...] = ()
    members: tuple[Member, ...] = ()
    gpu_hours: float = 0.0


class EvalEvent(_Event):
    """One checkpoint was scored on one role's items, or could not be."""

    kind: Literal["eval"] = "eval"
    status: Literal["scored", "failed"] = "scored"
    generation: int
    round: int
    run_id: str
    checkpoint: str
    role: Role = "test"
    detail: str = ""
    row: Counts = Field(default_factory=dict)
    decided: Counts | None = None
    rates: dict[str, float] = Field(default_factory=dict)
    macro_f1: float | None = None
    s_f1: float | None = None
    gate_auc: float | None = None
    gate_curve: tuple[tuple[float, ...], ...] | None = None
    reject_band: tuple[float, float] | None = None
    optimism: tuple[float, ...] | None = None
    checkpoint_sha256: str = ""
    report_sha256: str = ""
    scores_sha256: str = ""
    gpu_hours: float = 0.0

    @property
    def subject(self) -> str:
        """The checkpoint's name within the campaign: run id and checkpoint."""
        return f"{self.run_id}/{self.checkpoint}"


class ChampionEvent(_Event):
    """The champion changed; `eval_seq` is the evaluation that made it one."""

    kind: Literal["champion"] = "champion"
    generation: int
    subject: str
    eval_seq: int
    counts: tuple[int, ...]
    previous: str | None = None


class ParetoSetEvent(_Event):
    """The front changed: who entered, who left (in order of arrival) and how many are on it now."""

    kind: Literal["pareto_set"] = "pareto_set"
    generation: int
    eval_seq: int
    entered: str
    left: tuple[str, ...] = ()
    size: int


class CheckLine(BaseModel):
    """The reserve test of one objective, numbers and all; see reserve.HoldUpLine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: str
    test_count: int
    test_total: int
    reserve_count: int
    reserve_total: int
    optimism: float
    z: float | None
    p: float
    power: float
    false_alarm: float
    false_alarm_selected: float


class ReserveCheckEvent(_Event):
    """A reserve check began or ended.

    `evaluations` is the number of comparable test rows of the generation at the trigger. `not_run` is a check
    whose evaluation failed; `ends` is the reason for which the generation ends, "" if it goes on.
    """

    kind: Literal["reserve_check"] = "reserve_check"
    status: Literal["started", "passed", "luck", "stale", "not_run"]
    generation: int
    subject: str
    champion_seq: int
    evaluations: int
    rule: str = "z"
    alpha: float | None = None
    lines: tuple[CheckLine, ...] = ()
    ends: str = ""
    detail: str = ""


class TeacherEvent(_Event):
    """A step towards a generation's teacher. Members are frozen at `started`; `attempt` counts from 1.

    `group` is set for `margins`, and for a `failed` that ended a margins job.
    """

    kind: Literal["teacher"] = "teacher"
    status: Literal["started", "margins", "finished", "failed"]
    generation: int
    attempt: int
    members: tuple[Member, ...] = ()
    group: str = ""
    path: str = ""
    sha256: str = ""
    detail: str = ""
    gpu_hours: float = 0.0


class PackageEvent(_Event):
    """A champion went to the package command, came back, made room for a newer one, or could not start."""

    kind: Literal["package"] = "package"
    status: Literal["launched", "finished", "dropped", "launch_failed"]
    generation: int
    subject: str
    exit_code: int | None = None
    detail: str = ""
    gpu_hours: float = 0.0


class DispatchEvent(_Event):
    """A job was handed out, or somebody said what may be handed out.

    `launched` carries the job as it was handed out, so that a restart asks for the very same work, and in `setting`
    the number of the submission whose tree and environment it runs in. `retry` names in `target` what is tried
    again: "split", "teacher" or "package".
    """

    kind: Literal["dispatch"] = "dispatch"
    action: Literal["launched", "stop", "resume", "cancel", "advance", "retry", "candidates_rejected"]
    job: Job | None = None
    setting: int = 0
    target: str = ""
    reason: str = ""
    digest: str = ""


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
            event = _ADAPTER.validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(step) for step in problem["loc"])
            raise LedgerError(f"{filename}:{number}: not an event: {place}: {problem['msg']}") from None
        if event.seq != len(events) + first:
            raise LedgerError(f"{filename}:{number}: event number {event.seq} where {len(events) + first} was due")
        events.append(event)
    return events
