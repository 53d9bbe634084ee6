"""What has to be written to the ledger next, as far as the ledger itself decides it.

Covers champion and front records, reserve verdicts, generations, dropped packages,
teachers, ensembles and rounds. Not covered: jobs (plan.py), and outcomes of jobs (outcomes.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from outerloop.champion.candidates import (
    BrokenCandidates,
    Candidate,
    CandidateList,
    expand_generation,
)
from outerloop.champion.config import CampaignConfig
from outerloop.champion.events import (
    CheckLine,
    Checkpoint,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    PackageEvent,
    ReserveCheckEvent,
    RoundEvent,
    RoundMember,
    RunEvent,
    TeacherEvent,
)
from outerloop.champion.ledger import teacher_ensemble_id
from outerloop.champion.reserve import CheckError, hold_up
from outerloop.champion.rows import RowError
from outerloop.champion.state import CampaignState, GenerationState, RunState, compared_row, reserve_result
from outerloop.champion.work import Member

# An ensemble of fewer members averages nothing.
ENSEMBLE_MIN = 2
ENSEMBLE_CHECKPOINT = "ensemble"

Candidates = CandidateList | BrokenCandidates | None


def run_id(generation: int, round_number: int, name: str) -> str:
    """Run id of a training: champ-g###-r####-NAME."""
    return f"champ-g{generation:03d}-r{round_number:04d}-{name}"


def round_ensemble_id(generation: int, round_number: int) -> str:
    """Run id of the ensemble of all selected checkpoints up to a round."""
    return f"ens-g{generation:03d}-r{round_number:04d}-all"


def due_event(state: CampaignState, config: CampaignConfig, candidates: Candidates) -> Event | None:
    """The next event that follows from the ledger, not yet numbered; None when only jobs can go on.

    While the campaign is stopped or cancelled, what follows from results is still recorded, but nothing is
    opened or begun.
    """
    if state.unrecorded:
        return state.unrecorded[0]
    generation = state.generation
    if generation is not None:
        event = _check_verdict(state, config, generation)
        if event is not None:
            return event
    if state.packaging.overtaken and config.commands.package is not None:
        dropped = state.packaging.overtaken[0]
        return PackageEvent(
            status="dropped",
            generation=dropped.generation,
            subject=dropped.subject,
            detail="a newer champion, or the end of its generation, came first",
        )
    if isinstance(candidates, BrokenCandidates) and candidates.digest != state.candidates_rejected:
        return DispatchEvent(action="candidates_rejected", digest=candidates.digest, reason=candidates.reason)
    if state.stopped or state.cancelled:
        return None
    if generation is None:
        # A campaign doesn't start on a candidates file that can't be read.
        return _opening(config, None, 1, "initial") if isinstance(candidates, CandidateList) else None
    ended = generation.ends or state.advance_reason
    if not ended and generation.rules != config.rules:
        ended = "rules_changed"
    # A generation without a round would only take the champion away. One that was luck is none, so that goes.
    if ended and (ended == "reserve_failed" or not rounds_exhausted(state, config)):
        return _opening(config, generation, generation.number + 1, ended)
    return (
        _check_start(config, generation)
        or _teacher_start(state, config, generation)
        or _ensemble(state, config, generation)
        or _round(state, config, generation, candidates)
    )


def _opening(config: CampaignConfig, old: GenerationState | None, number: int, reason: str) -> GenerationEvent:
    return GenerationEvent(
        generation=number,
        reason=reason,
        seed=config.base_seed + number,
        rules=config.rules,
        previous_champion=old.champion.subject if old is not None and old.champion is not None else None,
        previous_front=tuple(item.subject for item in old.front.items()) if old is not None else (),
    )


# --- reserve check ------------------------------------------------------------------------------------------------


def _check_start(config: CampaignConfig, generation: GenerationState) -> ReserveCheckEvent | None:
    champion = generation.champion
    worn = generation.evaluations - generation.consumed >= config.saturation_evals
    # What has ended its generation has worn out the reserve set.
    if champion is None or generation.check is not None or not worn or generation.ends:
        return None
    return ReserveCheckEvent(
        status="started",
        generation=generation.number,
        subject=champion.subject,
        champion_seq=champion.seq,
        evaluations=generation.evaluations,
        rule=config.reserve_rule,
        alpha=config.alpha,
    )


def _check_verdict(
    state: CampaignState, config: CampaignConfig, generation: GenerationState
) -> ReserveCheckEvent | None:
    check, champion = generation.check, generation.champion
    if check is None or champion is None:
        return None
    reserve = reserve_result(state, check)
    update: dict[str, object]
    if champion.seq != check.champion_seq:
        # Its evaluation may still be on the way; the verdict waits for it, so that one check runs at a time.
        if reserve is None and f"eval:reserve:{check.subject}" in state.awaited:
            return None
        update = {"status": "stale", "detail": f"the champion is {champion.subject} by now"}
    elif reserve is None:
        return None
    else:
        update = _judged(config, generation, check, champion, reserve)
    return check.model_copy(update={"seq": 0, "time": None, **update})


def _judged(
    config: CampaignConfig,
    generation: GenerationState,
    check: ReserveCheckEvent,
    champion: EvalEvent,
    reserve: EvalEvent,
) -> dict[str, object]:
    rules = generation.rules
    test_row, reserve_row = compared_row(champion, rules), compared_row(reserve, rules)
    if test_row is None or reserve_row is None:
        why = reserve.detail or f"the reserve report has no {rules.compare} counts"
        return {"status": "not_run", "detail": why}
    try:
        verdict = hold_up(
            test_row,
            reserve_row,
            check.alpha if check.alpha is not None else config.alpha,
            objectives=rules.objectives,
            rule="z" if check.rule == "z" else "fisher" if check.rule == "fisher" else "optimism",
            optimism=reserve.optimism if check.rule == "optimism" else None,
            selected_from=check.evaluations,
        )
    except (RowError, CheckError) as error:
        return {"status": "not_run", "detail": str(error)}
    ends = ""
    if not verdict.holds:
        ends = "reserve_failed"
    elif generation.checks_passed + 1 >= config.max_reserve_checks:
        ends = "max_reserve_checks"
    return {
        "status": "passed" if verdict.holds else "luck",
        "lines": tuple(CheckLine(**asdict(line)) for line in verdict.lines),
        "ends": ends,
    }


# --- teacher and ensembles ----------------------------------------------------------------------------------------


def _member(run: RunState, checkpoint: Checkpoint) -> Member:
    return Member(
        run_id=run.run_id,
        checkpoint=checkpoint.name,
        checkpoint_sha256=checkpoint.sha256,
        config_sha256=run.config_sha256,
    )


def _selected_runs(
    state: CampaignState, generation: GenerationState, up_to_round: int
) -> list[tuple[RunState, Checkpoint]]:
    """The trained runs of rounds up to one, with their selected checkpoints, in order of round and run id."""
    runs = (
        state.runs[ident] for number, ids in generation.rounds.items() if number <= up_to_round for ident in sorted(ids)
    )
    return [(run, run.selected) for run in runs if run.status == "trained" and run.selected is not None]


def _teacher_start(state: CampaignState, config: CampaignConfig, generation: GenerationState) -> TeacherEvent | None:
    after = config.teacher_after_round
    if not after or generation.teacher.status != "none" or len(generation.rounds) < after:
        return None
    ordinary = [
        run
        for number in range(1, after + 1)
        for ident in generation.rounds[number]
        if not (run := state.runs[ident]).student
    ]
    if any(run.status == "open" for run in ordinary):
        return None
    members = tuple(
        _member(run, selected) for run, selected in _selected_runs(state, generation, after) if not run.student
    )
    return TeacherEvent(
        status="started" if members else "failed",
        generation=generation.number,
        attempt=generation.teacher.attempt + 1,
        members=members,
        detail="" if members else f"no ordinary run of rounds up to {after} was trained",
    )


def _ensemble_run(ident: str, generation: int, round_number: int, members: tuple[Member, ...]) -> RunEvent:
    return RunEvent(
        status="ensemble",
        run_id=ident,
        generation=generation,
        round=round_number,
        # An ensemble has no file of its own; what it is stands in its members' digests.
        checkpoints=(Checkpoint(name=ENSEMBLE_CHECKPOINT, sha256="members", selected=False),),
        members=members,
    )


def _rank(pair: tuple[RunState, Checkpoint]) -> tuple[bool, float, bool, int, str]:
    """Best first by validation alone: gate AUC, members without one last; then fail->pass; then run id."""
    run, checkpoint = pair
    auc, errors = checkpoint.gate_auc, checkpoint.validation_fail_to_pass
    return auc is None, -(auc or 0.0), errors is None, errors or 0, run.run_id


def _ensemble(state: CampaignState, config: CampaignConfig, generation: GenerationState) -> RunEvent | None:
    if config.commands.ensemble is None:
        return None
    teacher, number = generation.teacher, generation.number
    ident = teacher_ensemble_id(number)
    if teacher.status == "finished" and len(teacher.members) >= ENSEMBLE_MIN and ident not in state.runs:
        return _ensemble_run(ident, number, config.teacher_after_round, teacher.members)
    # The round before the newest is the last that can be finished, unless no further round may open.
    last = len(generation.rounds)
    if not rounds_exhausted(state, config):
        last -= 1
    if generation.pending:
        last = min(last, min(generation.pending) - 1)
    for round_number in range(max(config.ensemble_from_round, generation.ensembled_round + 1), last + 1):
        pairs = sorted(_selected_runs(state, generation, round_number), key=_rank)[: config.ensemble_max]
        if len(pairs) >= ENSEMBLE_MIN:
            members = tuple(_member(run, checkpoint) for run, checkpoint in pairs)
            return _ensemble_run(round_ensemble_id(number, round_number), number, round_number, members)
    return None


# --- rounds -------------------------------------------------------------------------------------------------------


def rounds_exhausted(state: CampaignState, config: CampaignConfig) -> bool:
    """Whether max_rounds or the GPU-hours let no further round open."""
    if config.max_rounds is not None and state.rounds_opened >= config.max_rounds:
        return True
    training = config.commands.train.resources.gpu_hours
    return training > 0 and gpu_hours_left(state, config) < training


def gpu_hours_left(state: CampaignState, config: CampaignConfig) -> float:
    """Budget minus what was used and what live jobs may still use; infinite without a budget."""
    if config.gpu_hours is None:
        return float("inf")
    return config.gpu_hours - state.gpu_hours_used - sum(state.gpu_hours_reserved.values())


def soft_targets_digest(candidate: Candidate, generation: GenerationState, present: Mapping[str, str]) -> str | None:
    """Digest of the file a student learns from; "" for an ordinary candidate, None when it isn't there yet."""
    path = candidate.soft_targets(generation.number)
    if path is None:
        return ""
    teacher = generation.teacher
    if teacher.status == "finished" and teacher.path == path:
        return teacher.sha256
    return present.get(path)


def _round(
    state: CampaignState, config: CampaignConfig, generation: GenerationState, candidates: Candidates
) -> RoundEvent | None:
    if not generation.split_sha256 or generation.split_lost or generation.unlaunched or rounds_exhausted(state, config):
        return None
    if isinstance(candidates, CandidateList):
        listed, digest = candidates.candidates, candidates.digest
        bases, present = candidates.base_sha256, candidates.present
    else:
        listed, digest = state.candidates, state.candidates_sha256
        bases = candidates.base_sha256 if candidates is not None else {}
        present = candidates.present if candidates is not None else {}
    number = len(generation.rounds) + 1
    missing = candidates.missing if candidates is not None else frozenset()
    members = []
    for candidate in listed:
        soft = soft_targets_digest(candidate, generation, present)
        if not candidate.active or soft is None or candidate.base in missing:
            continue
        expanded = expand_generation(dict(candidate.overrides), generation.number)
        members.append(
            RoundMember(
                run_id=run_id(generation.number, number, candidate.name),
                candidate=candidate.model_copy(update={"overrides": expanded}),
                seed=config.train_seed_base + number,
                base_sha256=bases.get(candidate.base, ""),
                student=bool(candidate.soft_targets(generation.number)),
                soft_targets_sha256=soft,
            )
        )
    if not members or (held_round(state) and not _differs(state, generation, members)):
        return None
    return RoundEvent(
        generation=generation.number,
        round=number,
        members=tuple(members),
        candidates=listed,
        candidates_sha256=digest,
    )


def held_round(state: CampaignState) -> int | None:
    """The newest round if none of its trainings could even be handed out; the next one would burn like it.

    It opens all the same when its members are others (an edited candidates file or base), or after a retry.
    """
    generation = state.generation
    if generation is None or not generation.rounds:
        return None
    newest = len(generation.rounds)
    runs = [state.runs[ident] for ident in generation.rounds[newest]]
    burnt = all(run.status == "train_failed" and not run.launched for run in runs)
    return newest if burnt and generation.retried_round != newest else None


def _differs(state: CampaignState, generation: GenerationState, members: list[RoundMember]) -> bool:
    """Whether the members would be others than the newest round's, in more than their round."""

    def asked(member: RoundMember) -> tuple[Candidate, str, str]:
        return member.candidate, member.base_sha256, member.soft_targets_sha256

    last = [state.runs[ident].member for ident in generation.rounds[len(generation.rounds)]]
    return [asked(member) for member in members] != [asked(member) for member in last if member is not None]
