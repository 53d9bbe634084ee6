"""Attacks the claim that times, names and ids survive a round trip, whatever they hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outerloop.compute.jobids import expand_ids, fold_tasks, is_job_id
from outerloop.compute.names import check_name, clean_label, job_name
from outerloop.compute.protocol import JobState
from outerloop.compute.reasons import classify_refusal, pending_reason
from outerloop.compute.states import SPELLINGS, parse_state
from outerloop.compute.walltime import format_minutes, format_walltime, parse_walltime

# A century is longer than any job, and past 100 days the day count has three digits.
SECONDS = st.integers(min_value=0, max_value=100 * 366 * 86400)


@given(st.none() | SECONDS)
def test_row_26_what_is_printed_is_read_back(seconds: int | None) -> None:
    assert parse_walltime(format_walltime(seconds)) == seconds


@given(days=st.integers(0, 999), hours=st.integers(0, 23), minutes=st.integers(0, 59), seconds=st.integers(0, 59))
def test_row_26_all_six_spellings_agree(days: int, hours: int, minutes: int, seconds: int) -> None:
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_walltime(f"{days}-{hours}:{minutes}:{seconds}") == whole
    assert parse_walltime(f"{days}-{hours}:{minutes:02d}") == whole - seconds
    assert parse_walltime(f"{days}-{hours}") == whole - seconds - 60 * minutes
    assert parse_walltime(f"{days * 24 + hours}:{minutes:02d}:{seconds:02d}") == whole
    assert parse_walltime(f"{(days * 24 + hours) * 60 + minutes}:{seconds:02d}") == whole
    assert parse_walltime(str((days * 24 + hours) * 60 + minutes)) == whole - seconds


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_limit_is_never_shorter_than_asked_nor_a_second_longer(minutes: float) -> None:
    seconds = parse_walltime(format_minutes(minutes))
    assert seconds is not None and minutes * 60 <= seconds < minutes * 60 + 1 + 1e-6


@given(st.text())
def test_a_time_is_read_or_refused_but_never_wrong_in_kind(text: str) -> None:
    try:
        seconds = parse_walltime(text)
    except ValueError:
        return
    assert seconds is None or seconds >= 0


@given(label=st.text(), key=st.from_regex(r"[0-9a-f]{16,64}", fullmatch=True), number=st.integers(0, 10**6))
def test_every_label_makes_a_valid_name_that_ends_in_its_key(label: str, key: str, number: int) -> None:
    name = job_name("d1", label, key, number)
    assert check_name(name) == name and name.startswith("ol-d1-") and name.endswith(f"-{key[:16]}-{number}")
    assert check_name("ol-" + clean_label(label, 40))


@given(st.sets(st.tuples(st.integers(1, 3), st.none() | st.integers(0, 12)), max_size=30))
def test_ids_that_are_folded_expand_to_themselves_in_one_word_per_array(ids: set[tuple[int, int | None]]) -> None:
    spelled = {str(job) if task is None else f"{job}_{task}" for job, task in ids}
    folded = fold_tasks(spelled)
    expanded = [one for word in folded for one in expand_ids(word)]
    assert set(expanded) == spelled and len(expanded) == len(spelled)
    arrays = {job for job, task in ids if task is not None}
    assert len(folded) == len(arrays) + sum(task is None for _job, task in ids)


@given(st.text())
def test_any_text_is_a_state_and_an_unknown_one_is_active(text: str) -> None:
    seen = parse_state(text)
    if text.strip().upper() not in SPELLINGS and "cancelled" not in text.lower() and "+" not in text:
        assert seen.state is JobState.UNKNOWN or text.lower().startswith("ca by ")


@given(st.integers(0, 10**7), st.lists(st.integers(0, 4000), min_size=1, max_size=20, unique=True))
def test_a_task_list_expands_to_its_tasks(job: int, tasks: list[int]) -> None:
    ids = expand_ids(f"{job}_[{','.join(map(str, tasks))}%3]")
    assert ids == tuple(f"{job}_{task}" for task in tasks) and all(map(is_job_id, ids))


@given(st.integers(1, 255), st.text())
def test_any_refusal_and_any_reason_can_be_read(rc: int, text: str) -> None:
    refused = classify_refusal(rc, text)
    assert refused is None or refused.reason
    assert pending_reason(text).sentence
