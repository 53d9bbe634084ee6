"""A service with accounts of its own: what submitters may ask, see and touch, and what they may not.

Attacked with the submitters' own Unix accounts: reading and writing what is the service's, asking in another's name,
bases of one's own, budgets, runs of others, and files in the spool that are no submissions.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from outerloop.cli.errors import ExitCode
from tests.service.accounts import Account, needs_root, nightly
from tests.service.world import ServiceWorld

pytestmark = needs_root

TOUCH = """
import os, sys
for path in sys.argv[1:]:
    for what, attempt in {
        "list": lambda: os.listdir(path),
        "read": lambda: open(path, "rb").read(),
        "write": lambda: open(path, "ab").close(),
        "add to": lambda: open(path + "/mine", "x").close(),
        "remove": lambda: os.unlink(path),
    }.items():
        try:
            attempt()
            print(what, path)
        except OSError:
            pass
"""


def may(account: Account, *paths: Path) -> list[str]:
    """What this account was able to do with these paths."""
    return [line for line in account.python(TOUCH, *map(str, paths)).stdout.splitlines() if line]


def test_submitters_ask_and_the_service_answers_each_of_them_alone(service: ServiceWorld) -> None:
    """One world serves several attacks: processes of other accounts are what costs time here."""
    world = service
    world.begin()
    ada = world.clone(world.ada, {"better": {"src/cost": "8\n"}})
    nonce = world.ask(world.ada, ada, "better")
    spool_keeps_its_secrets(world, nonce)
    world.until(lambda: len(list((world.state / "runs").glob("*"))) == 1, "ada's submission to be taken")
    [run] = [path.name for path in (world.state / "runs").iterdir()]
    nobody_touches_what_is_the_services(world, run)
    another_account_learns_and_changes_nothing(world, run)
    world.until(lambda: world.answered(run).get("state") == "ended", "ada's verdict")
    told = json.loads(world.ada.outerloop("show", run, "--json").stdout)
    assert (told["verdict"], told["submitter"], told["sealed"]) == ("accepted", world.ada.unix, False)
    explained = world.ada.outerloop("explain", run).stdout
    assert "fell by 2" in explained
    assert '{"cost": 8}' in world.ada.outerloop("logs", run, "candidate").stdout
    screens = [world.ada.outerloop("status").stdout, explained]
    assert all(len(line) <= 80 for screen in screens for line in screen.splitlines()), screens
    assert run in screens[0] and "accepted" in screens[0]


@nightly
def test_what_is_refused_is_refused_with_its_reason(service: ServiceWorld) -> None:
    world = service
    world.begin()
    ada = world.clone(world.ada, {"better": {"src/cost": "8\n"}, "own-base": {"bench.sh": "echo 1\n"}})
    bob = world.clone(world.bob, {"worse": {"src/cost": "12\n"}, "outside": {"bench.sh": "echo 2\n"}})
    world.ask(world.bob, bob, "outside")
    world.ask(world.ada, ada, "better")
    world.until(lambda: all(r["state"] == "ended" for r in world.seen(world.bob)["runs"]), "bob's verdict")
    [his] = world.seen(world.bob)["runs"]
    assert (his["verdict"], his["reason"]) == ("failed", "scope")
    refusals_have_reasons(world, ada, bob)
    world.until(lambda: all(r["state"] == "ended" for r in world.seen(world.ada)["runs"]), "ada's verdict")
    asking_again_finds_the_verdict(world, ada)
    findings = json.loads(world.svc.outerloop("doctor", "--no-job", "--json", codes=(0, 2)).stdout)["findings"]
    of_service = [f for f in findings if f["name"] in {"spool", "service", "submitters", "targets", "sealing"}]
    assert {f["name"] for f in of_service if f["level"] == "OK"} >= {"spool", "targets", "sealing"}, of_service


@nightly
def test_who_waits_reads_the_verdict_in_the_exit_code(service: ServiceWorld) -> None:
    world = service
    world.begin()
    clone = world.clone(world.bob, {"outside": {"bench.sh": "echo 2\n"}})
    waiting = subprocess.Popen(
        world.bob.command(
            ["python", "-m", "outerloop.cli", "submit", "climb", "speed", "--candidate", "outside", "--wait"]
        ),
        cwd=clone,
        env=world.bob.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    world.until(lambda: waiting.poll() is not None, "the end of --wait")
    out, _err = waiting.communicate(timeout=60)
    assert waiting.returncode == ExitCode.REFUSED and "bench.sh" in out, out


def spool_keeps_its_secrets(world: ServiceWorld, nonce: str) -> None:
    left = world.spool / "incoming" / f"{nonce}.submission"
    assert left.stat().st_uid == world.ada.uid
    for account in (world.bob,):
        assert may(account, world.spool / "incoming", world.spool / "replies", left) == [
            f"add to {world.spool / 'incoming'}"
        ], "others may leave a file of their own, and nothing else"
        (world.spool / "incoming" / "mine").unlink()


def nobody_touches_what_is_the_services(world: ServiceWorld, run: str) -> None:
    slots = next((world.state / "slots").glob("*/*"))
    paths = [
        world.state,
        world.state / "slots",
        slots / "spec.json",
        world.state / "runs" / run / "request.json",
        world.state / "runs" / run / "events" / "000000.json",
        world.state / "mirrors",
        world.svc.home / ".config/outerloop/config.toml",
    ]
    assert all(os.path.lexists(path) for path in paths if "events" not in str(path)), "there is something to touch"
    for account in (world.ada, world.bob):
        assert may(account, *paths) == []
    contract = world.target / ".outerloop.toml"
    assert may(world.ada, contract) == [f"read {contract}"]
    refused = [("tick",), ("verify", run), ("db", "url"), ("archive", run), ("pause", run), ("reproduce", run)]
    refused.append(("submit", "climb", "speed", "--candidates", "better"))
    for words in refused:
        done = world.ada.outerloop(*words, codes=None)
        assert done.returncode == ExitCode.REFUSED, (words, done.stdout, done.stderr)
        assert f"a service of the account {world.svc.unix}" in done.stderr.replace("\n", " ")


FORGE = """
import sys
from pathlib import Path
from outerloop.controller.service.client import reply_secret
from outerloop.controller.service.spool import Spool, Submission
asked = Submission(kind="cancel", nonce="%032x" % 7, reply=reply_secret(), run=sys.argv[2])
Spool(Path(sys.argv[1])).leave(asked, None)
"""


def another_account_learns_and_changes_nothing(world: ServiceWorld, run: str) -> None:
    for words in (("show", run), ("cancel", run)):
        assert world.bob.outerloop(*words, codes=None).returncode == ExitCode.NOT_FOUND
    # Past his command line: a well-formed submission that cancels ada's run.
    world.bob.python(FORGE, str(world.spool), run)
    world.tick()
    assert any(f"there is no run {run};" in why for why in world.refusals(world.bob)), world.refusals(world.bob)
    assert world.answered(run)["verdict"] != "cancelled"


def refusals_have_reasons(world: ServiceWorld, ada: Path, bob: Path) -> None:
    world.ask(world.ada, ada, "better", "--base", "own-base")
    stranger = world.clone(world.eve, {"mine": {"src/cost": "1\n"}})
    world.ask(world.eve, stranger, "mine")
    # Bob has one open run at most: the second of these is too much, whichever it is.
    world.ask(world.bob, bob, "worse")
    world.bob.git("checkout", "-q", "-B", "third", "worse", cwd=bob)
    world.bob.git("commit", "-q", "--allow-empty", "-m", "third", cwd=bob)
    (bob / "src/cost").write_text("13\n")
    world.ask(world.bob, bob, "worktree")
    rubbish(world)
    notes = " ".join(world.tick()["notes"])
    assert "neither the champion nor in the history of main" in " ".join(world.refusals(world.ada))
    assert "not among service.submitters" in " ".join(world.refusals(world.eve))
    assert f"open runs of {world.bob.unix}: 1 of 1" in " ".join(world.refusals(world.bob)), world.refusals(world.bob)
    assert "its first line is no request" in notes and "is no plain file" in notes, notes
    assert not list((world.spool / "incoming").glob("*.submission"))


def rubbish(world: ServiceWorld) -> None:
    """What somebody may leave besides: no JSON, a fifo, a link to another's file, a second name."""
    incoming = world.spool / "incoming"
    world.bob.python(
        "import os, sys\n"
        "here = sys.argv[1]\n"
        "open(here + '/a.submission', 'w').write('not json')\n"
        "os.chmod(here + '/a.submission', 0o644)\n"
        "os.mkfifo(here + '/b.submission'); os.chmod(here + '/b.submission', 0o644)\n"
        "os.symlink('/etc/passwd', here + '/c.submission')\n",
        str(incoming),
    )


def asking_again_finds_the_verdict(world: ServiceWorld, ada: Path) -> None:
    [run] = [body["run"] for body in world.seen(world.ada)["runs"]]
    world.ask(world.ada, ada, "better", "--base", "main")
    world.tick()
    assert [body["run"] for body in world.seen(world.ada)["runs"]] == [run], "the same question is the same run"


@nightly
def test_the_service_killed_between_run_and_answer_makes_one_run(service: ServiceWorld) -> None:
    world = service
    world.begin()
    clone = world.clone(world.ada, {"better": {"src/cost": "8\n"}})
    world.ask(world.ada, clone, "better")
    for fault in (
        "after:reply.watch:kill",
        "after:tx.enqueue:kill",
        "after:reply.write:kill",
        "before:spool.remove:kill",
    ):
        done = world.svc.run("python", "-m", "outerloop.cli", "tick", codes=None, OUTERLOOP_FAULT=fault)
        assert done.returncode == -9 or done.returncode == 137, (fault, done.returncode, done.stderr)
    world.tick()
    assert len(world.seen(world.ada)["runs"]) == 1
    assert not list((world.spool / "incoming").glob("*.submission"))
    assert len(list((world.state / "runs").iterdir())) == 1


@nightly
@pytest.mark.parametrize("words", [("status",), ("submit", "climb", "speed")])
def test_before_the_service_ran_a_submitter_is_told_so(service: ServiceWorld, words: tuple[str, ...]) -> None:
    clone = service.clone(service.ada, {"better": {"src/cost": "8\n"}})
    done = service.ada.outerloop(*words, cwd=clone, codes=None)
    if words == ("status",):
        assert done.returncode == 0 and "none yet" in done.stdout
    else:
        assert done.returncode == ExitCode.NOT_FOUND and "has not run its tick" in done.stderr
