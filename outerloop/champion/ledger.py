"""From events to state: one event at a time, at a cost that does not grow with the ledger.

Covers `fold` and `apply`. The ledger is order-checked: a gap or a repeat in the numbering raises LedgerError.
Beyond that it is total: an event that can't be true (an unknown run, a second result, a champion that the rows do
not make one) is set down in `state.anomalies` and otherwise ignored, so a bad line can never crown a champion.
Not covered: what has to be recorded next (decide.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from outerloop.champion.events import (
    ChampionEvent,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    LedgerError,
    PackageEvent,
    ParetoSetEvent,
    ReserveCheckEvent,
    RoundEvent,
    RunEvent,
    TeacherEvent,
    outcome_of,
)
from outerloop.champion.front import vector_dominates
from outerloop.champion.recheck import contradiction, unsound_start
from outerloop.champion.rows import RowError, integer_at
from outerloop.champion.state import (
    CampaignState,
    GenerationState,
    LiveJob,
    RunState,
    TeacherState,
    comparison,
)
from outerloop.champion.words import event_sentence
from outerloop.champion.work import Job

RATE_ROUNDING = 1e-9
"""Rates are written in full: what differs by more was written by somebody else."""


class _Impossible(Exception):
    """An event that can't be true in this state; becomes an anomaly."""


def fold(events: Iterable[Event], state: CampaignState | None = None) -> CampaignState:
    """The state after `events`, counted on from `state` (changed in place) or from nothing.

    fold(rest, fold(prefix)) equals fold(prefix + rest). Raises LedgerError at the first event whose number is
    not the next one.
    """
    state = CampaignState() if state is None else state
    for event in events:
        apply(state, event)
    return state


def apply(state: CampaignState, event: Event) -> None:
    """Change `state` by the next event. Costs O(front), whatever came before. Raises LedgerError on a wrong number."""
    if event.seq != state.seq + 1:
        raise LedgerError(f"event number {event.seq} ({event.kind}) where {state.seq + 1} was due")
    state.seq = event.seq
    try:
        match event:
            case EvalEvent():
                _eval(state, event)
            case DispatchEvent():
                _dispatch(state, event)
            case ChampionEvent() | ParetoSetEvent():
                _decision(state, event)
            case RunEvent():
                _run(state, event)
            case RoundEvent():
                _round(state, event)
            case GenerationEvent():
                _generation(state, event)
            case ReserveCheckEvent():
                _reserve_check(state, event)
            case TeacherEvent():
                _teacher(state, event)
            case PackageEvent():
                _package(state, event)
    except _Impossible as error:
        state.anomalies.append(f"event {event.seq} ({event.kind}): {error}")
        return
    _end_job(state, event)


def _end_job(state: CampaignState, event: Event) -> None:
    state.gpu_hours_used += getattr(event, "gpu_hours", 0.0)
    outcome = outcome_of(event)
    key = state.awaited.pop(outcome, None) if outcome is not None else None
    if key is None or outcome is None:
        return
    live = state.live[key]
    live.missing.discard(outcome)
    if not live.missing:
        del state.live[key]
        state.gpu_hours_reserved.pop(key, None)


def _current(state: CampaignState, number: int) -> GenerationState:
    if state.generation is None or state.generation.number != number:
        raise _Impossible(f"generation {number} is not the current one")
    return state.generation


def _generation(state: CampaignState, event: GenerationEvent) -> None:
    if event.status == "opened":
        number = 1 if state.generation is None else state.generation.number + 1
        if event.generation != number or event.rules is None:
            raise _Impossible(f"generation {number} was due, with its rules")
        old = state.generation
        if old is not None and state.packaging.waiting is not None:
            state.packaging.overtaken.append(state.packaging.waiting)
            state.packaging.waiting = None
        state.generation = GenerationState(number, event, event.rules)
        state.advance_reason = None
        state.packaging.launch_failures = 0
        state.generations.append(event)
        return
    if state.generation is not None and event.generation < state.generation.number:
        return  # a split that ended after its generation did
    generation = _current(state, event.generation)
    if event.status == "split_lost":
        if not generation.split_sha256 or generation.split_lost:
            raise _Impossible("there is no split that could have been lost")
        generation.split_lost = True
        return
    if generation.split_sha256 and not generation.split_lost:
        raise _Impossible("the split is built already")
    if event.totals is not None and len(event.totals) != len(generation.rules.objectives):
        raise _Impossible(f"{len(event.totals)} denominators for {len(generation.rules.objectives)} objectives")
    generation.split_failed = event.status == "split_failed"
    if event.status == "split_ready" and generation.split_lost:
        if event.split_sha256 != generation.split_sha256:
            raise _Impossible(f"the split was {generation.split_sha256}, and was built again as {event.split_sha256}")
        generation.split_lost = False
    elif event.status == "split_ready":
        generation.split_sha256 = event.split_sha256 or "-"
        generation.totals = event.totals


def _round(state: CampaignState, event: RoundEvent) -> None:
    generation = _current(state, event.generation)
    due = len(generation.rounds) + 1
    ids = tuple(member.run_id for member in event.members)
    if event.round != due:
        raise _Impossible(f"round {due} was due")
    if not ids or len(set(ids)) != len(ids) or any(run_id in state.runs for run_id in ids):
        raise _Impossible("a round needs members, and its run ids must be new")
    generation.rounds[event.round] = ids
    for member in event.members:
        state.runs[member.run_id] = RunState(member.run_id, event.generation, event.round, member=member)
        generation.unlaunched[member.run_id] = None
    generation.pending[event.round] += len(ids)
    state.rounds_opened += 1
    state.candidates, state.candidates_sha256 = event.candidates, event.candidates_sha256


def _less_pending(generation: GenerationState, round_number: int, by: int = 1) -> None:
    generation.pending[round_number] -= by
    if generation.pending[round_number] <= 0:
        del generation.pending[round_number]


def _run(state: CampaignState, event: RunEvent) -> None:
    current = state.generation
    run = state.runs.get(event.run_id)
    names = [checkpoint.name for checkpoint in event.checkpoints]
    if len(set(names)) != len(names):
        raise _Impossible("a checkpoint is listed twice")
    if event.status == "ensemble":
        generation = _current(state, event.generation)
        if run is not None or not event.checkpoints:
            raise _Impossible(f"ensemble {event.run_id} exists already or has no checkpoint")
        run = state.runs[event.run_id] = RunState(event.run_id, event.generation, event.round)
        generation.pending[event.round] += 1
        if event.run_id != teacher_ensemble_id(event.generation):
            generation.ensembled_round = max(generation.ensembled_round, event.round)
    if run is None or run.status != "open" or event.generation != run.generation:
        raise _Impossible(f"run {event.run_id} is unknown in generation {event.generation} or has ended already")
    run.status = event.status
    run.config_sha256, run.inputs_sha256 = event.config_sha256, event.inputs_sha256
    run.members = event.members
    run.checkpoints = {checkpoint.name: checkpoint for checkpoint in event.checkpoints}
    if current is not None and run.generation == current.number:
        current.unlaunched.pop(run.run_id, None)
        # A listed checkpoint without a file is never scored; the run's own event says which these are.
        there = {checkpoint.name for checkpoint in event.checkpoints if checkpoint.sha256}
        if there:
            current.unscored[run.run_id] = there
            current.pending[run.round] += len(there)
        _less_pending(current, run.round)


def _eval(state: CampaignState, event: EvalEvent) -> None:
    run = state.runs.get(event.run_id)
    if run is None or event.checkpoint not in run.checkpoints or event.generation != run.generation:
        raise _Impossible(f"{event.subject} is no checkpoint of generation {event.generation}")
    identity = (event.role, event.run_id, event.checkpoint)
    again = event.role == "reserve" and event.checkpoint in run.reserve  # a failed reserve evaluation may be repeated
    if identity in state.scored and not (again and run.reserve[event.checkpoint].status == "failed"):
        raise _Impossible(f"{event.subject} has a {event.role} result already")
    if event.status == "scored" and (problem := _unlike_its_row(state, run, event)):
        raise _Impossible(f"{event.subject}: {problem}")
    current = state.generation
    inside = current is not None and event.generation == current.number
    ranks = None
    if inside and current is not None and event.role == "test":
        try:
            ranks = comparison(event, current.rules)
        except RowError as error:
            raise _Impossible(f"{event.subject}: {error}") from None
        if ranks is not None and current.totals is not None and ranks[2] != current.totals:
            raise _Impossible(f"{event.subject}: denominators {ranks[2]} on a test set with {current.totals}")
    state.scored.add(identity)
    state.evaluations.append(event)
    if event.role == "validation":
        run.validation[event.checkpoint] = event
    elif event.role == "reserve":
        run.reserve[event.checkpoint] = event
    elif event.role == "test" and inside and current is not None:
        open_names = current.unscored.get(event.run_id, set())
        if event.checkpoint in open_names:
            open_names.discard(event.checkpoint)
            if not open_names:
                del current.unscored[event.run_id]
            _less_pending(current, run.round)
        if ranks is not None:
            _compete(state, current, event, *ranks)


def _unlike_its_row(state: CampaignState, run: RunState, event: EvalEvent) -> str:
    """What a result says of itself that is not so: its rates, or which checkpoint was scored."""
    digest = run.checkpoints[event.checkpoint].sha256
    if run.status != "ensemble" and event.checkpoint_sha256 not in {"", digest}:
        return f"checkpoint_sha256 is {event.checkpoint_sha256!r}, the run's checkpoint is {digest!r}"
    rules = state.generations[event.generation - 1].rules
    for objective in rules.objectives if rules is not None and event.rates else ():
        try:
            count, total = integer_at(event.row, objective.count), integer_at(event.row, objective.total)
        except RowError as error:
            return str(error)
        if count > total or not total:
            return f"{objective.count} is {count} of {total} items"
        rate = event.rates.get(objective.name)
        if rate is None or abs(rate - count / total) > RATE_ROUNDING:
            return f"the rate {objective.name} is {rate}, {count} of {total} items are {count / total:g}"
    return ""


def _compete(
    state: CampaignState,
    generation: GenerationState,
    event: EvalEvent,
    counts: tuple[int, ...],
    order: tuple[int, ...],
    totals: tuple[int, ...],
) -> None:
    generation.totals = totals
    generation.evaluations += 1
    entered, left = generation.front.insert(counts, event.seq, event)
    if not entered:
        return
    state.unrecorded.append(
        ParetoSetEvent(
            generation=generation.number,
            eval_seq=event.seq,
            entered=event.subject,
            left=tuple(other.subject for other in left),
            size=generation.front.size,
        )
    )
    champion = generation.champion
    if champion is not None:
        ranks = comparison(champion, generation.rules)
        assert ranks is not None  # it competed
        better = vector_dominates(counts, ranks[0]) if generation.rules.compare == "result" else order < ranks[1]
        if not better:
            return
    generation.champion = event
    state.unrecorded.append(
        ChampionEvent(
            generation=generation.number,
            subject=event.subject,
            eval_seq=event.seq,
            counts=counts,
            previous=champion.subject if champion is not None else None,
        )
    )
    packaging = state.packaging
    if packaging.waiting is not None:
        packaging.overtaken.append(packaging.waiting)
    packaging.waiting = event
    packaging.launch_failures = 0


def _decision(state: CampaignState, event: ChampionEvent | ParetoSetEvent) -> None:
    due = state.unrecorded[0] if state.unrecorded else None
    if due is None or due != event.model_copy(update={"seq": 0, "time": None}):
        told = "nothing is due" if due is None else f"due is: {event_sentence(due)} (of event {due.eval_seq})"
        raise _Impossible(f"{event_sentence(event)}: it does not follow from the rows before it; {told}")
    state.unrecorded.pop(0)
    if isinstance(event, ChampionEvent):
        state.champions.append(event)


def _reserve_check(state: CampaignState, event: ReserveCheckEvent) -> None:
    generation = _current(state, event.generation)
    if event.status == "started":
        champion = generation.champion
        if generation.check is not None or champion is None or champion.seq != event.champion_seq:
            raise _Impossible("one check at a time, and of the champion")
        if problem := unsound_start(generation, champion, event):
            raise _Impossible(problem)
        generation.check = event
    else:
        check = generation.check
        if check is None or check.champion_seq != event.champion_seq:
            raise _Impossible("no such check is open")
        if problem := contradiction(state, generation, check, event):
            raise _Impossible(problem)
        generation.check = None
        if event.status != "stale":
            generation.consumed = check.evaluations
        if event.status == "passed":
            generation.checks_passed += 1
        generation.ends = event.ends
    state.reserve_checks.append(event)


def _teacher(state: CampaignState, event: TeacherEvent) -> None:
    if state.generation is not None and event.generation < state.generation.number:
        return  # a job of an old generation that came to its end
    generation = _current(state, event.generation)
    teacher = generation.teacher
    if event.status == "started" or (event.status == "failed" and teacher.status == "none"):
        if teacher.status != "none" or event.attempt != teacher.attempt + 1:
            raise _Impossible("a teacher is under way already")
        generation.teacher = TeacherState(event.attempt, event.status, event.members)
        return
    if event.attempt != teacher.attempt or teacher.status not in ("started", "failed"):
        raise _Impossible(f"attempt {event.attempt} is not under way")
    if event.status == "margins":
        teacher.margins[event.group] = event.sha256
    elif event.status == "failed":
        teacher.status = "failed"
    else:
        if teacher.status == "failed":
            raise _Impossible("this attempt has failed already")
        teacher.status, teacher.path, teacher.sha256 = "finished", event.path, event.sha256


def _package(state: CampaignState, event: PackageEvent) -> None:
    packaging = state.packaging
    if event.status == "dropped":
        first = packaging.overtaken[0] if packaging.overtaken else None
        if first is None or first.subject != event.subject:
            raise _Impossible(f"{event.subject} is not to be dropped")
        packaging.overtaken.pop(0)
        return
    running = packaging.running
    if running is None or running.subject != event.subject:
        raise _Impossible(f"{event.subject} is not being packaged")
    if event.status == "launched":
        if packaging.announced:
            raise _Impossible(f"{event.subject} was launched already")
        packaging.announced = True
        return
    if event.status == "launch_failed":
        packaging.launch_failures += 1
        # It waits again, unless a newer champion does or its generation is over.
        over = state.generation is None or running.generation != state.generation.number
        if packaging.waiting is not None or over:
            packaging.overtaken.append(running)
        else:
            packaging.waiting = running
    packaging.running, packaging.announced = None, False


def _dispatch(state: CampaignState, event: DispatchEvent) -> None:
    match event.action:
        case "launched":
            _launched(state, event)
        case "stop":
            state.stopped = True
        case "resume":
            state.stopped = False
        case "cancel":
            state.cancelled = True
        case "advance":
            if state.generation is None:
                raise _Impossible("there is no generation to advance from")
            if state.advance_reason is None:
                state.advance_reason = event.reason or "operator"
        case "candidates_rejected":
            state.candidates_rejected = event.digest
        case "retry":
            _retry(state, event)


def _launched(state: CampaignState, event: DispatchEvent) -> None:
    job = event.job
    if job is None or job.key in state.live:
        raise _Impossible("the job is missing or handed out already")
    if any(outcome in state.awaited for outcome in job.awaits):
        raise _Impossible(f"{job.key} awaits what another live job will bring")
    if problem := _another_seed(state, job):
        raise _Impossible(f"{job.key}: {problem}")
    if job.kind == "package":
        packaging = state.packaging
        waiting = packaging.waiting
        if packaging.running is not None or waiting is None or job.awaits != (f"package:{waiting.subject}",):
            raise _Impossible(f"{job.key} is not the next to be packaged")
        packaging.running, packaging.waiting = packaging.waiting, None
    if job.kind == "train" and state.generation is not None:
        state.generation.unlaunched.pop(job.run_id, None)
    if job.kind == "train" and job.run_id in state.runs:
        state.runs[job.run_id].launched = True
    state.live[job.key] = LiveJob(job, set(job.awaits))
    state.awaited.update(dict.fromkeys(job.awaits, job.key))
    if job.resources.gpu_hours:
        state.gpu_hours_reserved[job.key] = job.resources.gpu_hours


def _another_seed(state: CampaignState, job: Job) -> str:
    """How a split or a training differs from what its generation or its round fixed; "" when it does not."""
    due: dict[str, object] = {}
    run = state.runs.get(job.run_id)
    opened = next((event for event in reversed(state.generations) if event.generation == job.generation), None)
    if job.kind == "split" and opened is not None:
        due = {"seed": opened.seed}
    elif job.kind == "train" and run is not None and run.member is not None:
        candidate = run.member.candidate
        due = {"seed": run.member.seed, "base": candidate.base, "overrides": dict(candidate.overrides)}
    for name, value in due.items():
        if name in job.fields and job.fields[name] != value:
            return f"its {name} is {job.fields[name]}, it was fixed as {value}"
    return ""


def _retry(state: CampaignState, event: DispatchEvent) -> None:
    generation = state.generation
    if event.target == "package":
        state.packaging.launch_failures = 0
    elif generation is not None and event.target == "teacher" and generation.teacher.status == "failed":
        generation.teacher = TeacherState(attempt=generation.teacher.attempt)
    elif generation is not None and event.target == "split" and generation.split_failed:
        generation.split_failed = False
    elif generation is not None and event.target == "round" and generation.rounds:
        generation.retried_round = len(generation.rounds)
    else:
        raise _Impossible(f"nothing to retry: {event.target or 'no target'}")


def teacher_ensemble_id(generation: int) -> str:
    """Run id of the ensemble of a teacher's members."""
    return f"ens-g{generation:03d}-teacher"
