"""The ledger's JSON Lines form: pinned, since ledgers outlive the version that wrote them."""

from __future__ import annotations

import json

import pytest

from outerloop.champion import (
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    Job,
    LedgerError,
    Rules,
    events_from_jsonl,
    events_to_jsonl,
)

OLD = (
    '{"seq":1,"time":"2026-01-01T00:00:00Z","kind":"generation","generation":1,"reason":"initial","seed":1,'
    '"rules":{"compare":"result","objectives":[{"name":"e","count":"e","total":"n"}]}}\n'
    '{"seq":2,"kind":"eval","generation":1,"round":1,"run_id":"r","checkpoint":"m-0001","row":{"e":1,"n":2}}\n'
)


def test_a_ledger_written_once_reads_the_same_for_ever() -> None:
    generation, row = events_from_jsonl(OLD)
    assert isinstance(generation, GenerationEvent) and isinstance(row, EvalEvent)
    assert (generation.status, generation.time) == ("opened", "2026-01-01T00:00:00Z")
    assert (row.status, row.role, row.decided, row.subject) == ("scored", "test", None, "r/m-0001")


def test_rules_and_jobs_are_written_in_full_whatever_their_defaults() -> None:
    job = Job(key="k", kind="split", generation=1, command="c", awaits=("split:1",), live=True)
    events: list[Event] = [
        GenerationEvent(seq=1, generation=1, rules=Rules()),
        DispatchEvent(seq=2, action="launched", job=job),
    ]
    first, second = (json.loads(line) for line in events_to_jsonl(events).splitlines())
    assert first["rules"]["compare"] == "result"
    assert [o["count"] for o in first["rules"]["objectives"]] == ["fail_to_pass_count", "pass_to_fail_count"]
    assert second["job"]["resources"] == {"minutes": 60.0, "cpus": 1, "memory_gb": 4.0, "gpus": 0}
    # Live is what the ledger says of a job, not what the job says of itself.
    assert "live" not in second["job"]


def test_the_clock_can_be_left_out_to_compare_ledgers() -> None:
    early, late = (
        EvalEvent(seq=1, time=t, generation=1, round=1, run_id="r", checkpoint="c", gpu_hours=g)
        for t, g in (("2026-01-01", 1.0), ("2026-01-02", 2.0))
    )
    assert events_to_jsonl([early]) != events_to_jsonl([late])
    assert events_to_jsonl([early], times=False) == events_to_jsonl([late], times=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "not an event"),
        ('{"kind":"evil","seq":1}', "evil"),
        ('{"kind":"eval","seq":1}', "eval.generation: Field required"),
        ('{"kind":"eval","seq":1,"generation":1,"round":1,"run_id":"r","checkpoint":"c","champion":true}', "champion"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_place(line: str, said: str) -> None:
    with pytest.raises(LedgerError, match=r"^l\.jsonl:2: ") as caught:
        events_from_jsonl("\n" + line + "\n", "l.jsonl")
    assert said in str(caught.value)
