"""An answer of squeue that is recognised at once says what the same answer says when it is read line by line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outerloop.compute import rows
from outerloop.compute.jobids import expand_ids
from outerloop.compute.protocol import NO_REASON, Listing, NoAnswer
from outerloop.compute.rows import squeue_listing

TIMES = st.sampled_from(["2026-01-02T03:04:05", "N/A", "NONE", "Unknown", ""])
BAD_TIMES = st.sampled_from(["2026-13-02T03:04:05", "2026-01-02", "12"])
IDS = st.sampled_from(["7", "123_4", "123_[0-2,7%4]", "123_[5]", "9+1"])
BAD_IDS = st.sampled_from(["", "x", "12_", "1_[9-2]", "1_[", "3_4_5"])
STATES = st.sampled_from(["RUNNING", "PENDING", "COMPLETING", "NOVELTY"])
REASONS = st.sampled_from(["None", "Resources", "Nodes required (down, reserved)", ""])
NAMES = st.sampled_from(["ol-x-1", "a|b", "two\nlines", "row|", "z\nrow|1|RUNNING|||||None|n", ""])


def line(*fields: str) -> str:
    return "row|" + "|".join(fields) + "\n"


good = st.builds(line, IDS, STATES, TIMES, TIMES, TIMES, st.just("n1"), REASONS, NAMES)
bad = st.builds(line, IDS | BAD_IDS, STATES, TIMES | BAD_TIMES, TIMES, TIMES, st.just("n1"), REASONS, NAMES)
answers = st.lists(good | bad | st.sampled_from(["slurm: something\n", "row|1|RUNNING\n"]), max_size=6).map("".join)


def read_line_by_line(text: str) -> Listing | NoAnswer:
    rows._last = rows._Last()
    whole, rows._all_of_it = rows._all_of_it, lambda _text: None  # type: ignore[assignment]
    try:
        return squeue_listing(text)
    finally:
        rows._all_of_it = whole


@given(answers)
def test_both_ways_of_reading_agree(text: str) -> None:
    at_once = squeue_listing(text)
    by_line = read_line_by_line(text)
    if not isinstance(by_line, Listing):
        assert at_once == by_line
        return
    assert isinstance(at_once, Listing)
    assert at_once.bad_rows == by_line.bad_rows
    assert dict(at_once.by_id()) == dict(by_line.by_id())
    if at_once.bad_rows == 0:
        shown = {seen.split("|")[0]: (seen.split("|")[1], reason) for seen, reason in at_once.sights()}
        for job_id, row in by_line.by_id().items():
            state, reason = shown[job_id]
            assert reason in (row.reason or NO_REASON, row.reason)
            assert state in (row.raw_state, row.state.name)


def test_fifty_thousand_lines_are_told_without_reading_one() -> None:
    text = "".join(line(str(n), "RUNNING", "N/A", "N/A", "N/A", "n1", "None", "x") for n in range(50_000))
    listing = squeue_listing(text)
    assert isinstance(listing, Listing)
    assert len(set(listing.sights())) == 50_000
    assert "_lines" not in vars(listing)
    assert listing.by_id()["49999"].node == "n1"


def test_tasks_that_squeue_folds_are_told_one_by_one() -> None:
    listing = squeue_listing(line("5_[0-199%7]", "PENDING", "N/A", "N/A", "N/A", "", "Resources", "x"))
    assert isinstance(listing, Listing)
    assert {(f"{task}|PENDING|", "Resources") for task in expand_ids("5_[0-199]")} <= set(listing.sights())
    assert len(listing.by_id()) == 200


def told(number: int, state: str = "RUNNING", reason: str = "None") -> str:
    return line(str(number), state, "N/A", "N/A", "N/A", "n1", reason, "x")


def test_an_answer_that_hardly_changed_is_read_by_what_changed() -> None:
    before = [told(number) for number in range(2_000)]
    first = squeue_listing("".join(before))
    after = [told(7, "PENDING", "Priority"), *before[:7], *before[8:900], *before[901:], told(5_000)]
    second = squeue_listing("".join(after))
    assert isinstance(first, Listing)
    assert isinstance(second, Listing)
    changes = second.changes(first.mark)
    assert changes is not None
    assert set(changes[0]) == {("7|RUNNING|", "None"), ("900|RUNNING|", "None")}
    assert set(changes[1]) == {("7|PENDING|", "Priority"), ("5000|RUNNING|", "None")}
    assert sorted(second.sights()) == sorted({*first.sights(), *changes[1]} - {*changes[0]})
    assert second.changes(second.mark) is None
    assert second.by_id()["7"].reason == "Priority"
    assert "900" not in second.by_id()
    assert second.by_id()["5000"].node == "n1"
    assert len(second.by_id()) == len(second.jobs) == 2_000


@given(st.lists(answers, min_size=2, max_size=4))
def test_what_answers_say_does_not_depend_on_the_answers_before(texts: list[str]) -> None:
    rows._last = rows._Last()
    in_turn = [squeue_listing(text) for text in texts]
    for text, listing in zip(texts, in_turn, strict=True):
        alone = read_line_by_line(text)
        if not isinstance(alone, Listing):
            assert listing == alone
            continue
        assert isinstance(listing, Listing)
        assert (dict(listing.by_id()), listing.bad_rows) == (dict(alone.by_id()), alone.bad_rows)
