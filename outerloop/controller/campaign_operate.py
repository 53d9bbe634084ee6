"""What an operator says to a campaign: advance, stop, resume, retry, cancel.

Covered: each as an event of the ledger, checked against its state, and a campaign that goes on now. Not covered: what
follows from it (outerloop.champion, campaigns.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sqlalchemy import func, update

from outerloop.champion import CampaignState, DispatchEvent, held_round, rounds_exhausted
from outerloop.controller.campaign_ledger import CampaignLedger, insert_events, read_books
from outerloop.controller.campaign_views import campaign_config, campaign_named
from outerloop.controller.deployment import Deployment
from outerloop.controller.ledger import Behind
from outerloop.controller.operate import TRIES, HasRecord, OperatorError, find_run, retry
from outerloop.record.models import Run

__all__ = [
    "RETRIED",
    "advance_generation",
    "cancel_campaign",
    "find_campaign",
    "look_now",
    "resume",
    "retry_step",
    "stop",
]

RETRIED = ("split", "teacher", "package", "round")
"""What `campaign retry` tries again by an event; jobs that used up their attempts are given new ones besides."""

Check = Callable[[CampaignState], str]
"""Why the word makes no sense in this state; "" when it does."""


def find_campaign(deployment: HasRecord, name: str) -> Run:
    """The campaign with this id, beginning of an id, or name. Raises LookupError, OperatorError for another kind."""
    run = campaign_named(deployment.record, name)
    if run is None:
        run = find_run(deployment, name)
    if run.kind != "campaign":
        raise OperatorError(f"run {run.id} is a {run.kind}, not a campaign")
    return run


def say(deployment: Deployment, run: Run, event: DispatchEvent, check: Check) -> None:
    """Append an operator's word and let the campaign be looked at now. Raises OperatorError with the reason."""
    context = deployment.context
    ledger = CampaignLedger(context.root, run.id)
    for _ in range(TRIES):
        with context.record.reading() as session:
            state = session.get_one(Run, run.id).state
        if state == "ended":
            raise OperatorError(f"campaign {run.benchmark} has ended (run {run.id})")
        books, tail = read_books(context.record, ledger)
        problem = check(books.state)
        if problem:
            raise OperatorError(f"campaign {run.benchmark}: {problem}")
        try:
            written = ledger.append(books.state.seq + 1, event)
        except Behind:
            continue
        with context.record.transaction("tx.operator") as session:
            insert_events(session, run.id, [*tail, written])
            session.execute(
                update(Run)
                .where(Run.id == run.id, Run.state.in_(["blocked", "queued"]))
                .values(state="queued", state_reason="", state_detail="", due_at=func.now())
            )
            session.execute(update(Run).where(Run.id == run.id, Run.state == "waiting").values(due_at=func.now()))
        return
    raise OperatorError(f"campaign {run.benchmark} is changing too fast; try again")


def advance_generation(deployment: Deployment, run: Run, reason: str) -> None:
    """Ask for a new generation. Raises OperatorError where there is none to leave, or no round for the next."""
    config, problem = campaign_config(deployment.record, run.id)
    if config is None:
        raise OperatorError(problem)

    def check(state: CampaignState) -> str:
        if state.generation is None:
            return "there is no generation to advance from yet"
        if state.cancelled:
            return "it was cancelled"
        if state.advance_reason is not None:
            return f"a new generation was asked for already ({state.advance_reason})"
        if rounds_exhausted(state, config):
            return (
                "no round is left for a new generation; raise max_rounds or gpu_hours in its campaign.toml and"
                " `submit campaign` it again first"
            )
        return ""

    say(deployment, run, DispatchEvent(action="advance", reason=reason), check)


def stop(deployment: Deployment, run: Run, reason: str) -> None:
    """Hand out nothing more; live jobs come to their end."""
    say(deployment, run, DispatchEvent(action="stop", reason=reason), lambda s: "it is stopped" if s.stopped else "")


def look_now(deployment: Deployment, run: Run) -> None:
    """Let the campaign be looked at now, also when it is blocked: what blocked it is found again if it is there."""
    with deployment.record.transaction("tx.operator") as session:
        session.execute(
            update(Run)
            .where(Run.id == run.id, Run.state == "blocked")
            .values(state="queued", state_reason="", state_detail="")
        )
        session.execute(update(Run).where(Run.id == run.id, Run.state != "ended").values(due_at=func.now()))


def resume(deployment: Deployment, run: Run) -> bool:
    """Go on after a stop; False where it was not stopped, and is only looked at now."""
    try:
        say(deployment, run, DispatchEvent(action="resume"), lambda s: "" if s.stopped else NOT_STOPPED)
    except OperatorError as error:
        if not str(error).endswith(NOT_STOPPED):
            raise
        look_now(deployment, run)
        return False
    return True


NOT_STOPPED = "it is not stopped"


def cancel_campaign(deployment: Deployment, run: Run, reason: str) -> None:
    """End it: its jobs are cancelled, and their ends are written down as failures."""
    say(
        deployment,
        run,
        DispatchEvent(action="cancel", reason=reason),
        lambda state: "it was cancelled already" if state.cancelled else "",
    )


def retry_step(deployment: Deployment, run: Run, target: str | None) -> list[str]:
    """Try again what failed: the steps that wait for it (all of them, or `target` alone), and jobs that used up their
    attempts. Returns what was tried again. Raises OperatorError when there is nothing."""
    done = []
    for step in RETRIED if target is None else (target,):
        try:
            say(deployment, run, DispatchEvent(action="retry", target=step), partial(_unfailed, step))
        except OperatorError:
            if target is not None:
                raise
            continue
        done.append(step)
    if target is None:
        try:
            reopened = retry(deployment, run.id)
        except OperatorError:
            reopened = None
        if reopened is not None:
            done += [f"slot {digest[:12]}" for digest in reopened.slots]
            if not reopened.slots and reopened.runs:
                done.append("the blocked campaign")
    if not done:
        raise OperatorError(f"campaign {run.benchmark}: nothing failed that waits for a retry")
    look_now(deployment, run)
    return done


def _unfailed(step: str, state: CampaignState) -> str:
    generation = state.generation
    failed = {
        "split": generation is not None and generation.split_failed,
        "teacher": generation is not None and generation.teacher.status == "failed",
        "package": state.packaging.launch_failures > 0,
        "round": held_round(state) is not None,
    }
    return "" if failed[step] else f"no {step} failed"
