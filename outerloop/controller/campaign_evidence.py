"""A campaign read from disk alone, and whether the record, the ledger and the slots tell the same.

Covered: launches with their work, replaying the ledger, reports against their recorded digests. `verify` compares,
`db rebuild` makes the record of it. Not covered: writing anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outerloop.controller.campaign_ledger import Books, CampaignLedger
from outerloop.controller.campaign_places import Lost, Places
from outerloop.controller.campaign_request import CampaignRequest, settings_in_force
from outerloop.controller.campaign_slots import slot_of
from outerloop.controller.campaign_views import replay
from outerloop.controller.campaigns import LIVE_ROUND, archive_round, campaign_verdict, planned_launch
from outerloop.controller.ledger import LedgerEvent
from outerloop.controller.plan import Planned
from outerloop.record.store import Record
from outerloop.slots import StateRoot

__all__ = ["campaign_differences", "campaign_on_disk"]


def campaign_on_disk(
    root: StateRoot, request: CampaignRequest, events: Sequence[LedgerEvent]
) -> tuple[Books, dict[int, list[Planned]]]:
    """The books of a campaign's ledger on disk, and by round every launch whose slot has a spec. Raises TornEvent."""
    books = Books.of(CampaignLedger(root, request.id).read())
    settings = settings_in_force(request, events)
    places = Places(root, request.id, settings)
    mirror = str(root.mirror(request.target))
    planned: dict[int, list[Planned]] = {}
    for key, launches in books.launches.items():
        for launch in launches:
            spec = slot_of(root, settings, launch).spec()
            if spec is None:
                continue  # its intent was written down, and it was never asked for
            live = key in books.state.live and launch is launches[-1]
            number = LIVE_ROUND if live else archive_round(launch)
            item = planned_launch(places, mirror, launch, facts=spec.get("work") or {})
            planned.setdefault(number, []).append(item)
    return books, planned


def campaign_differences(
    root: StateRoot,
    record: Record | None,
    request: CampaignRequest,
    books: Books,
    events: Sequence[LedgerEvent],
    told: Mapping[str, object] | None,
) -> list[str]:
    """What does not fit together: record (if given) and disk, decisions and rows, reports and digests, ledger and
    verdict."""
    differences = list(replay(record, root, request.id).problems)
    if told is not None and campaign_verdict(books) != told:
        differences.append(f"the ledger says: {campaign_verdict(books)['sentence']}")
    places = Places(root, request.id, settings_in_force(request, events))
    for event in books.state.evaluations:
        if event.status != "scored":
            continue
        try:
            places.evaluated(books, event)
        except Lost as lost:
            differences.append(f"event {event.seq}: {lost}")
    return differences
