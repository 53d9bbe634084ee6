"""Attacks on logs: escapes, gigabytes, half characters, cut logs, restarts, roles that do not exist, jobs that end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from outerloop.cli.logs import Follower
from outerloop.controller.log_files import TAIL_BYTES, tail
from outerloop.job.streams import CappedLog
from outerloop.record.models import Attempt
from tests.e2e.cli.conftest import Outerloop
from tests.rows import World


def _folder(world: World, slot_number: int, attempt: int = 1, restart: int = 0) -> Path:
    path = world.root.slot(f"{slot_number:02x}" * 32) / "attempts" / str(attempt) / f"r{restart}"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def ran(world: World) -> World:
    """A run whose base is done (slot 1) and whose candidate failed in its second attempt (slot 2)."""
    world.run("c-ran0000001", state="waiting", state_reason="JOBS")
    world.value("c-ran0000001", "baseline", "7910")
    failed = {"state": "failed", "reason": "EXIT_3", "detail": "exit code 3", "failure_class": "candidate"}
    slot = world.measure("c-ran0000001", "candidate", slot=failed)
    world.attempt(slot, 1, outcome="infrastructure", reason="NODE_FAIL")
    world.attempt(slot, 2, outcome="failed", reason="EXIT_3", node="n2")
    (_folder(world, 1) / "stdout.log").write_text("base speaks\n")
    (_folder(world, 2, 1) / "stdout.log").write_text("first try\n")
    (_folder(world, 2, 2) / "stdout.log").write_bytes(b"tour \xff\x1b[2J\n50 %\r100 %\nno newline at the end")
    (_folder(world, 2, 2) / "stderr.log").write_text("Traceback\nValueError\n")
    return world


def test_what_failed_is_shown_first_with_nothing_that_a_terminal_obeys(ran: World, outerloop: Outerloop) -> None:
    printed = outerloop("logs", "c-ran").output
    assert printed == (
        "==> candidate, attempt 2, job 9003 on n2: stdout.log <==\n"
        "tour \ufffd\\x1b[2J\n50 %\n100 %\nno newline at the end\n"
        "\n==> candidate, attempt 2, job 9003 on n2: stderr.log <==\n"
        "Traceback\nValueError\n"
    )


def test_one_stream_alone_has_no_heading(ran: World, outerloop: Outerloop) -> None:
    assert outerloop("logs", "c-ran", "--stderr").output == "Traceback\nValueError\n"
    assert outerloop("logs", "c-ran", "base", "--stdout").output == "base speaks\n"
    assert outerloop("logs", "c-ran", "cand", "--attempt", "1", "--stdout").output == "first try\n"
    assert outerloop("logs", "c-ran", "--stderr", "-n", "1").stdout == "ValueError\n"


def test_the_newest_restart_counts(ran: World, outerloop: Outerloop) -> None:
    (_folder(ran, 2, 2, restart=10) / "stdout.log").write_text("tenth\n")
    (_folder(ran, 2, 2, restart=9) / "stdout.log").write_text("ninth\n")
    assert outerloop("logs", "c-ran", "--stdout").output == "tenth\n"


def test_json_has_the_same_and_where_it_is(ran: World, outerloop: Outerloop) -> None:
    told = json.loads(outerloop("logs", "c-ran", "--json").output)
    assert (told["role"], told["attempt"], told["outcome"]) == ("candidate", 2, "failed")
    assert told["streams"]["stderr.log"]["text"] == "Traceback\nValueError\n"
    assert Path(told["streams"]["stderr.log"]["path"]).read_text() == "Traceback\nValueError\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["logs", "c-ran", "sibling"], 7, "sibling is no role of this run: baseline, candidate"),
        (["logs", "c-ran", "candidate", "--attempt", "7"], 7, "has no attempt 7; it has 1, 2"),
        (["logs", "c-ran", "--stdout", "--stderr"], 2, "choose one"),
        (["logs", "c-ran", "-f", "--json"], 2, "use one of them"),
        (["logs", "nothing"], 7, "there is no run nothing"),
    ],
)
def test_a_mistake_is_answered_with_what_there_is(
    ran: World, outerloop: Outerloop, arguments: list[str], code: int, says: str
) -> None:
    assert says in outerloop(*arguments, code=code).output


def test_a_run_without_jobs_and_a_collected_slot_say_so(ran: World, outerloop: Outerloop) -> None:
    ran.run("c-new0000001")
    assert "nothing was submitted so far" in outerloop("logs", "c-new", code=7).output
    slot = ran.measure("c-new0000001", "candidate", slot={"state": "collected"})
    ran.attempt(slot, outcome="done")
    assert "was collected" in outerloop("logs", "c-new", code=7).output


def test_a_huge_log_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with path.open("wb") as stream:
        stream.truncate(8 << 30)  # a hole: 8 GiB that nobody can hold in memory
        stream.seek(0, 2)
        stream.write(b"\nlast but one\nlast\n")
    began = time.monotonic()
    text, cut = tail(path, 2)
    assert (text, cut) == ("last but one\nlast\n", True)
    assert time.monotonic() - began < 5
    line = tmp_path / "one-line.log"
    line.write_bytes(b"x" * (TAIL_BYTES * 2))
    text, cut = tail(line, 5)
    assert (len(text), cut) == (TAIL_BYTES, True)
    assert tail(line, 0) == ("x" * TAIL_BYTES * 2, False)


def test_a_follower_joins_characters_that_come_in_halves(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    follower = Follower(path)
    assert follower.news() == ""
    euro = "€".encode()
    path.write_bytes(b"a" + euro[:1])
    assert follower.news() == "a"
    with path.open("ab") as stream:
        stream.write(euro[1:] + b"\n")
    assert follower.news() == "€\n"
    assert follower.news() == ""


def test_a_follower_notices_that_a_log_was_cut(tmp_path: Path) -> None:
    """The job keeps head and tail: what was read already is overwritten."""
    path = tmp_path / "stdout.log"
    log = CappedLog(str(path), 4000)
    follower = Follower(path)
    log.feed(b"".join(b"%06d\n" % number for number in range(500)))
    assert follower.news().startswith("000000\n")
    log.feed(b"".join(b"%06d\n" % number for number in range(500, 9000)))
    log.close()
    assert follower.news() == ""
    assert follower.rewritten


@pytest.fixture
def at_each_pause(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the follower do the next of these steps instead of sleeping; it must not pause more often."""

    def arrange(*steps: Callable[[], object]) -> None:
        left = list(steps)
        clock = SimpleNamespace(monotonic=lambda: 100.0 * (len(steps) - len(left)), sleep=lambda _s: left.pop(0)())
        monkeypatch.setattr("outerloop.cli.logs.time", clock)

    return arrange


def test_following_ends_when_the_attempt_is_settled(
    ran: World, outerloop: Outerloop, at_each_pause: Callable[..., None]
) -> None:
    ran.run("c-live000001", state="waiting", state_reason="JOBS")
    slot = ran.measure("c-live000001", "candidate")
    ran.attempt(slot, slurm_state="running")
    path = _folder(ran, 3) / "stdout.log"
    path.write_text("begun\n")

    def grow() -> None:
        with path.open("a") as stream:
            stream.write("more\n")

    def settle() -> None:
        with ran.session() as session:
            session.execute(update(Attempt).where(Attempt.slot_id == slot).values(state="settled", outcome="done"))

    at_each_pause(grow, settle)
    assert outerloop("logs", "c-live", "--stdout", "-f").output == "begun\nmore\n"


def test_following_ends_with_the_jobs_result_even_if_nobody_settles_it(
    ran: World, outerloop: Outerloop, at_each_pause: Callable[..., None]
) -> None:
    ran.run("c-live000001", state="waiting", state_reason="JOBS")
    slot = ran.measure("c-live000001", "candidate")
    ran.attempt(slot, slurm_state="running")
    digest = "03" * 32
    folder = _folder(ran, 3)
    (folder / "stderr.log").write_text("begun\n")
    identity = {"schema": 1, "digest": digest, "attempt": 1, "job_id": "9004", "restart": 0}
    (folder.parent / "claim.json").write_text(json.dumps(identity))

    def end() -> None:
        with (folder / "stderr.log").open("a") as stream:
            stream.write("over\n")
        result = {**identity, "outcome": "failed", "reason": "EXIT_1", "detail": "exit code 1"}
        temporary = folder.parent / ".result"
        temporary.write_text(json.dumps(result))
        temporary.rename(folder.parent / "result.json")

    at_each_pause(lambda: None, end)
    printed = outerloop("logs", "c-live", "-f")
    assert printed.stdout == "==> candidate, attempt 1, job 9004: stderr.log <==\nbegun\nover\n"
    assert "candidate, attempt 1, failed: EXIT_1 exit code 1" in printed.stderr
