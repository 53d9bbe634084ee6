"""Contamination checks of one submitter are taken under a lock: two entries at once cannot both take the last one.

Covered: the races of `enqueue` by entries that differ and by one entry twice, what a refused one leaves, the inbox, one
that is stopped with the lock. Not covered: the command (e2e).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from outerloop.controller import submit
from outerloop.controller.entry_request import EntryRequest
from outerloop.controller.request import Execution
from outerloop.controller.submit import ChecksHeld, Refusal, checks_problem, enqueue, import_inbox, leave_in_inbox
from outerloop.record.models import Run
from outerloop.record.store import Record
from outerloop.slots import StateRoot


def record_of(database: str) -> Record:
    return Record(database, owner="svc", slot_root="/state")


def asked(name: str, seed: int = 1) -> EntryRequest:
    return EntryRequest(
        id=f"run-{name}",
        question=f"question-{name}",
        challenge="sums",
        definition="d",
        subject=f"{name}.jsonl",
        data_sha256=name,
        data_path=f"/data/{name}",
        rows={"sft": 1},
        submitter="ada",
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        train_seeds=(seed,),
        stages=("sft",),
        config="",
        tables={},
        model="m",
        versions={},
        suites=(),
        alpha="0.05",
        min_delta="0",
        contamination_limit="0.05",
        contamination_checks=1,
        python="python",
        minutes=1.0,
        execution=Execution(lane={"name": "cpu"}),
    )


def at_once(works: dict[str, Callable[[], str]]) -> dict[str, str]:
    """What each said, all of them started together."""
    outcomes: dict[str, str] = {}
    together = threading.Barrier(len(works))

    def run(name: str) -> None:
        together.wait(60)
        outcomes[name] = works[name]()

    threads = [threading.Thread(target=run, args=(name,)) for name in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes.keys() == works.keys()
    return outcomes


def submitting(database: str, root: StateRoot, request: EntryRequest) -> Callable[[], str]:
    """As the command: a check was left when it looked. Says "True" or "False" (made the run or not) or the refusal."""
    record = record_of(database)
    assert checks_problem(record, request) is None

    def work() -> str:
        try:
            return str(enqueue(record, root, request))
        except Refusal as error:
            return str(error)
        finally:
            record.close()

    return work


def test_two_at_once_do_not_take_the_last_check_together(database: str, tmp_path: Path) -> None:
    root = StateRoot(tmp_path)
    outcomes = at_once({name: submitting(database, root, asked(name)) for name in ("one", "two", "three")})
    refused = [name for name, told in outcomes.items() if "1 of 1, 0 remain" in told]
    [taken] = [name for name, told in outcomes.items() if told == "True"]
    assert len(refused) == 2
    record = record_of(database)
    with record.reading() as session:
        assert list(session.scalars(select(Run.id))) == [f"run-{taken}"]
    # What was refused left nothing at all: neither a tick nor `db rebuild` makes a run of it.
    assert not list(root.inbox.iterdir()) and [path.name for path in (tmp_path / "runs").iterdir()] == [f"run-{taken}"]
    # Asking what is recorded already takes no check.
    assert enqueue(record, root, asked(taken)) is False and not list(root.inbox.iterdir())
    record.close()


def test_one_entry_twice_at_once_is_one_run_with_one_request(database: str, tmp_path: Path) -> None:
    root = StateRoot(tmp_path)
    requests = {"first": asked("same", 1), "second": asked("same", 2)}  # each process drew its own seeds
    outcomes = at_once({name: submitting(database, root, request) for name, request in requests.items()})
    assert sorted(outcomes.values()) == ["False", "True"]
    record = record_of(database)
    with record.reading() as session:
        [run] = session.scalars(select(Run))
        assert run.request == json.loads(root.request(run.id).read_text())
    assert not list(root.inbox.iterdir())
    record.close()


def test_who_is_refused_leaves_the_request_that_another_one_left_in_the_inbox(database: str, tmp_path: Path) -> None:
    root = StateRoot(tmp_path)
    late = submitting(database, root, asked("late"))
    other = submitting(database, root, asked("other"))
    leave_in_inbox(root, asked("late"))  # its other process, for which the record is out of reach, and which says so
    assert other() == "True" and "0 remain" in late()
    [waiting] = root.inbox.iterdir()
    record = record_of(database)
    imported, [problem] = import_inbox(record, root)
    assert imported == [] and waiting.exists() and "waits until a check is free" in problem
    with record.transaction("tx.operator") as session:
        session.execute(text("update runs set created_at = created_at - interval '8 days'"))
    assert import_inbox(record, root) == (["run-late"], []) and not waiting.exists()
    record.close()


def test_one_that_is_stopped_while_it_counts_holds_up_neither_submits_nor_ticks(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "CHECKS_PATIENCE_SECONDS", 0.2)
    root = StateRoot(tmp_path)
    stopped, record = record_of(database), record_of(database)
    with stopped.transaction("tx.enqueue") as session:
        submit._take_check(session, stopped.realm_id, asked("stopped"))
        with pytest.raises(ChecksHeld, match=r"more than 0\.2 seconds \(is it stopped\?\)"):
            enqueue(record, root, asked("one"))
        leave_in_inbox(root, asked("one"))  # what the command does where the record is not to be had
        leave_in_inbox(root, asked("elsewhere").model_copy(update={"challenge": "products"}))
        imported, [problem] = import_inbox(record, root)
        assert imported == ["run-elsewhere"] and "inbox/run-one.json waits for the next tick" in problem
    assert import_inbox(record, root) == (["run-one"], [])
    with record.reading() as session:
        assert session.scalar(select(func.count()).select_from(Run)) == 2
    for each in (stopped, record):
        each.close()
