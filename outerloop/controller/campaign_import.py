"""A campaign that begins with the ledger of another one: what `submit campaign --ledger` does before the first pass.

Covered: checking an exported ledger, publishing its events whole and in order. Not covered: what the events speak of:
checkpoints lie in the slots of the state folder in which they were trained, so work that needs one fails elsewhere.
"""

from __future__ import annotations

from outerloop.champion import DispatchEvent, Event, LedgerError, events_from_jsonl, events_to_jsonl
from outerloop.controller.campaign_candidates import soft_target_path
from outerloop.controller.campaign_ledger import Books, CampaignLedger
from outerloop.controller.campaign_places import Places
from outerloop.controller.campaign_request import SETTING_EVENT, CampaignRequest
from outerloop.controller.campaign_views import replay_text
from outerloop.controller.deployment import account
from outerloop.controller.ledger import Ledger
from outerloop.controller.submit import Refusal
from outerloop.slots import StateRoot
from outerloop.slots.files import publish

__all__ = ["checked_ledger", "import_ledger", "left_behind"]

MOST_PROBLEMS = 20
"""Problems of a ledger that are listed; one changed event makes many of those after it wrong."""


def checked_ledger(text: str, filename: str) -> list[Event]:
    """The events of an exported ledger that another campaign can begin with.

    Raises LedgerError for a text that is none or that does not hold, with every reason, and Refusal while its jobs
    have not ended.
    """
    events = events_from_jsonl(text, filename)
    if not events:
        raise LedgerError(f"{filename} holds no event")
    problems = [f"{filename}: {problem}" for problem in replay_text(text, filename).problems]
    if problems:
        more = len(problems) - MOST_PROBLEMS
        raise LedgerError("\n".join(problems[:MOST_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])))
    live = sorted(Books.of(events).state.live)
    if live:
        raise Refusal(
            f"{filename}: {len(live)} of its jobs have not ended ({', '.join(live[:3])}); `outerloop campaign stop` it,"
            " wait for them, and export it again"
        )
    return events


def left_behind(root: StateRoot, request: CampaignRequest, events: list[Event]) -> list[str]:
    """Sentences about files that the ledger speaks of and that the new campaign's folder lacks."""
    state = Books.of(events).state
    generation = state.generation
    places = Places(root, request.id, [request.setting])
    if generation is None:
        return []
    told = []
    if generation.split_sha256 and not places.split_link(generation.number).exists():
        told.append(f"the split of generation {generation.number} is not here: it is built again, from its seed")
    gone = [
        run.run_id
        for run in state.runs.values()
        if run.generation == generation.number
        and run.selected is not None
        and not places.run_folder(run.run_id).exists()
    ]
    if gone:
        told.append(
            f"the checkpoints of {len(gone)} trainings are not here: teachers, ensembles, reserve checks and packages"
            f" that need one fail and say so; copy runs/ and configs/ of the old campaign to {places.folder}"
        )
    teacher = generation.teacher
    if teacher.status == "finished" and not soft_target_path(places.folder, teacher.path).exists():
        told.append(f"the teacher file {teacher.path} is not here: students fail until it is in {places.folder}")
    return told


def import_ledger(root: StateRoot, request: CampaignRequest, events: list[Event]) -> None:
    """Publish the events as the new campaign's own, before it is durable itself: killed in the middle, it was never
    submitted, and the same call goes on. Raises Refusal when another ledger stands there."""
    there = CampaignLedger(root, request.id).read()
    if there != events[: len(there)]:
        raise Refusal(f"{root.campaign_events(request.id)} holds another ledger; give the campaign another name")
    for event in events[len(there) :]:
        publish(root.campaign_event(request.id, event.seq), events_to_jsonl([event]), name="campaign.event")
    if CampaignLedger(root, request.id).read() != events:
        raise Refusal(f"somebody else writes to {root.campaign_events(request.id)}")
    # Jobs were handed out under settings that are counted; here all of them are the one that is submitted now.
    latest = max((event.setting for event in events if isinstance(event, DispatchEvent)), default=0)
    ledger = Ledger(root, request.id)
    for number in range(len(ledger.read()) + 1, latest + 1):
        body = {"round": number, "by": account(), "setting": request.setting.model_dump(mode="json")}
        ledger.append(number - 1, SETTING_EVENT, body)
