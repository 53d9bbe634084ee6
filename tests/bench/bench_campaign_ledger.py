"""What a large campaign's ledger costs in the record and on disk: `python -m tests.bench campaign_ledger`.

Prints the wall time of one append (file, transaction, fold) at 500 and at 50,000 evaluations, with their ratio, and of
reading and folding the whole ledger at the beginning of a pass. Needs a Postgres, which it starts. Asserts nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from sqlalchemy import text

from outerloop.champion import EvalEvent, Event, events_to_jsonl
from outerloop.controller.campaign_ledger import Books, CampaignLedger, insert_events, read_books
from outerloop.record import embedded, migrate
from outerloop.record.store import Record
from outerloop.slots import StateRoot
from tests.bench.bench_champion_fold import ledger

SIZES = (500, 50_000)
APPENDS = 200
RUN = "s-0000000000"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ol-bench-", dir="/tmp") as folder:
        place = Path(folder)
        url = embedded.ensure_running(place / "db")
        try:
            migrate.upgrade(url)
            record = Record(url, owner="bench", slot_root=str(place))
            medians = {size: _append(record, StateRoot(place / str(size)), size) for size in SIZES}
            small, large = (medians[size] for size in SIZES)
            print(f"append at {SIZES[0]:>6} evaluations: {small * 1e3:6.2f} ms")
            print(f"append at {SIZES[1]:>6} evaluations: {large * 1e3:6.2f} ms, ratio {large / small:.2f}")
            record.close()
        finally:
            embedded.stop(place / "db")


def _append(record: Record, root: StateRoot, evaluations: int) -> float:
    """Median seconds of an append after so many evaluations."""
    events = ledger(evaluations + APPENDS)
    evals = [place for place, event in enumerate(events) if isinstance(event, EvalEvent)]
    cut = evals[evaluations]
    with record.transaction("tx.release") as session:
        session.execute(text("delete from runs"))
        session.execute(
            text(
                "insert into runs (id, realm_id, kind, question, target, benchmark, definition, base_commit, base_tree,"
                " candidate_commit, candidate_tree, submitter, request) values (:id, :realm, 'campaign', 'q', 't', 'b',"
                " 'd', '', '', '', '', 'bench', '{}')"
            ),
            {"id": RUN, "realm": record.realm_id},
        )
        insert_events(session, RUN, events[:cut])
    disk = CampaignLedger(root, RUN)
    # What a pass lists is the folder of the next number: only that one has to be there.
    first = (cut + 1) // 1000 * 1000
    for event in events[max(0, first - 1) : cut]:
        path = root.campaign_event(RUN, event.seq)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(events_to_jsonl([event]))
    start, began = time.perf_counter(), time.process_time()
    books, tail = read_books(record, disk)
    seconds, cpu = time.perf_counter() - start, time.process_time() - began
    assert not tail and books.state.seq == cut
    print(f"reading and folding {evaluations:>6} evaluations ({cut} events): {seconds:.2f} s, of it {cpu:.2f} s CPU")
    return statistics.median(_one(record, disk, books, event) for event in events[cut : cut + APPENDS])


def _one(record: Record, disk: CampaignLedger, books: Books, event: Event) -> float:
    start = time.perf_counter()
    written = disk.append(books.state.seq + 1, event)
    with record.transaction("tx.campaign") as session:
        insert_events(session, RUN, [written])
    books.take(written)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
