"""Attacks on looking as a user does it: no record, an old one, a role without rights, pipes, colours, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text

from tests.e2e.cli.conftest import Outerloop
from tests.rows import World

LOOKING = [["status"], ["show", "c-acce"], ["explain", "c-acce"], ["champions"]]


def _real(world: World, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**world.environment(**more), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-m", "outerloop.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_before_the_first_use_there_is_a_way_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from outerloop.cli import app

    state = tmp_path / "nothing"
    for name in list(os.environ):
        if name.startswith("OUTERLOOP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OUTERLOOP_STATE", str(state))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    status = CliRunner().invoke(app, ["status"])
    assert status.exit_code == 0
    assert "outerloop init" in status.output
    assert json.loads(CliRunner().invoke(app, ["status", "--json"]).output)["problem"]["kind"] == "empty"
    assert CliRunner().invoke(app, ["show", "c-1"]).exit_code == 7
    assert CliRunner().invoke(app, ["champions"]).exit_code == 0
    assert not state.exists(), "looking made something"


def test_an_older_record_is_not_migrated_by_looking(world: World, outerloop: Outerloop) -> None:
    with world.session() as session:
        session.execute(text("update alembic_version set version_num = '0000'"))
    printed = outerloop("status", code=4).output
    assert "revision 0000" in printed
    assert "outerloop db upgrade" in printed
    with world.record.reading() as session:
        assert session.execute(text("select version_num from alembic_version")).scalar_one() == "0000"


def test_an_empty_database_is_no_record(world: World, outerloop: Outerloop) -> None:
    with world.session() as session:
        session.execute(text("drop table alembic_version"))
    assert "outerloop init" in outerloop("status").output
    assert "outerloop init" in outerloop("show", "c-1", code=7).output


def test_a_role_that_may_only_read_suffices_and_one_without_rights_is_told(
    world: World, outerloop: Outerloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.accepted()
    world.record.close()
    owner = make_url(world.url).set(drivername="postgresql").render_as_string(hide_password=False)
    name = f"reader_{make_url(world.url).database}"
    url = make_url(world.url).set(username=name, password="look").render_as_string(hide_password=False)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"create role {name} login password 'look'")  # type: ignore[arg-type]
        monkeypatch.setenv("OUTERLOOP_DATABASE_URL", url)
        try:
            printed = outerloop("status", code=4).output
            assert "SELECT" in printed
            assert "Traceback" not in printed
            connection.execute(f"grant select on all tables in schema public to {name}")  # type: ignore[arg-type]
            for arguments in LOOKING:
                assert outerloop(*arguments).output
        finally:
            connection.execute(f"drop owned by {name}")  # type: ignore[arg-type]
            connection.execute(f"drop role {name}")  # type: ignore[arg-type]


def test_every_view_has_the_same_as_json(world: World, outerloop: Outerloop) -> None:
    verdict = world.accepted()
    world.champion(1, "c-acce000001", "7542.0", "368")
    world.run("c-wait000001", state="waiting", state_reason="JOBS")
    slot = world.measure("c-wait000001", "candidate")
    world.attempt(slot, slurm_state="pending", slurm_reason="Priority")
    world.tick(10)
    status = json.loads(outerloop("status", "--json").output)
    assert [run["id"] for group in status["groups"] for run in group["runs"]] == ["c-wait000001"]
    assert status["queue"][0]["reason"] == "Priority"
    assert status["verdicts"][0]["verdict"] == "accepted"
    show = json.loads(outerloop("show", "c-acce", "--json").output)
    assert [measure["value"] for measure in show["measures_detail"]] == ["7910", "7542.0"]
    assert show["measures_detail"][1]["attempts"][0]["job_id"] == "9002"
    explained = json.loads(outerloop("explain", "c-acce", "--json").output)
    assert explained["verdict"] == verdict.to_json()
    assert explained["plan"]["pair_seeds"] == [4711]
    assert explained["readings"]["candidate"]["value"] == "7542.0"
    assert len(explained["notes"]) == 2
    champions = json.loads(outerloop("champions", "tsp", "--json").output)
    assert [(c["value"], c["newest"]) for c in champions] == [("7542.0", True)]
    waiting = json.loads(outerloop("explain", "c-wait", "--json").output)
    assert (waiting["verdict"], waiting["missing"]) == (None, ["candidate"])


def test_a_beginning_that_fits_several_runs_names_them(world: World, outerloop: Outerloop) -> None:
    world.run("c-aa11")
    world.run("c-aa22")
    assert "c-aa11, c-aa22" in outerloop("show", "c-aa", code=7).output
    assert "run c-aa22" in outerloop("show", "c-aa2").output
    assert "did you mean c-aa11?" in outerloop("explain", "c-aa13", code=7).output
    assert "there is no run %" in outerloop("show", "%", code=7).output


def test_a_verdict_whose_mirror_is_gone_is_still_told(world: World, outerloop: Outerloop) -> None:
    import shutil

    world.accepted()
    shutil.rmtree(world.root.mirrors)
    printed = outerloop("explain", "c-acce").output
    assert "accepted: over 1 pair" in printed
    assert "The rest of the argument is missing" in printed
    assert "9002" in printed


def test_piped_output_has_no_escapes_and_the_error_goes_to_stderr(world: World) -> None:
    world.accepted()
    done = _real(world, "status")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "c-acce000001" in done.stdout
    failed = _real(world, "show", "c-zzz")
    assert (failed.returncode, failed.stdout) == (7, "")
    assert "there is no run c-zzz" in failed.stderr


def test_watch_draws_until_ctrl_c_and_colours_obey_no_color(world: World) -> None:
    world.run("c-queu000001")
    for no_color in ("", "1"):
        screen = _watched(world, no_color)
        assert b"c-queu000001" in screen
        assert (b"\x1b[1;31m" in screen or b"\x1b[32m" in screen) is (not no_color)


def _watched(world: World, no_color: str) -> bytes:
    """What a terminal gets from status --watch until the run is shown, then Ctrl-C; it must end by itself with 0."""
    import fcntl
    import struct
    import termios

    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    environment = {**world.environment(NO_COLOR=no_color, TERM="xterm"), "PATH": os.environ["PATH"]}
    if not no_color:
        del environment["NO_COLOR"]
    # Whoever started the tests in the background had their shell ignore Ctrl-C, and children would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "outerloop.cli", "status", "--watch"],
        env=environment,
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, before)
    os.close(child)
    screen = b""
    deadline = time.monotonic() + 60
    interrupt_at = 0.0
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([main], [], [], 0.05)[0]:
                try:
                    screen += os.read(main, 65536)
                except OSError:  # the other end is closed
                    break
            if b"c-queu000001" in screen and time.monotonic() > interrupt_at:
                # Python drops one that comes while an object is being finalised; a person presses again.
                process.send_signal(signal.SIGINT)
                interrupt_at = time.monotonic() + 5
        assert process.wait(timeout=60) == 0, screen
        # The last words may still lie in the terminal when the process has gone.
        while select.select([main], [], [], 0.2)[0]:
            try:
                more = os.read(main, 65536)
            except OSError:
                break
            if not more:
                break
            screen += more
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(main)
    return screen
