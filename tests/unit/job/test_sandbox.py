"""What a candidate can see and do inside bubblewrap, and that a refused sandbox never becomes none."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outerloop.job import layout, sandbox
from tests.unit.job.rig import Rig, Slot, until

BWRAP = shutil.which("bwrap")


def _refused() -> str:
    if BWRAP is None:
        return "bwrap is not installed (package bubblewrap)"
    line = [BWRAP, "--unshare-all", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(line, capture_output=True, check=False)
    return "" if done.returncode == 0 else f"the kernel refuses sandboxes here: {done.stderr.decode().strip()}"


pytestmark = pytest.mark.skipif(bool(_refused()), reason=_refused() or "bwrap works")

LOOK = """
import json, os, socket, sys
asked = json.loads(sys.argv[1])
seen = {"paths": [p for p in asked["paths"] if os.path.lexists(p)], "env": dict(os.environ), "root": os.listdir("/")}
def attempt(name, action):
    try:
        action()
        seen[name] = "done"
    except OSError as error:
        seen[name] = type(error).__name__
attempt("connect", lambda: socket.create_connection(("127.0.0.1", asked["port"]), 2).close())
attempt("write tree", lambda: open("bench.py", "a").close())
attempt("create in tree", lambda: open("new", "w").close())
attempt("write root", lambda: os.mkdir("/new"))
attempt("write usr", lambda: open("/usr/new", "w").close())
attempt("write tmp", lambda: open("/tmp/new", "w").close())
attempt("write home", lambda: open(os.path.expanduser("~/new"), "w").close())
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + asked["abstract"]))
for pid in asked["pids"]:
    attempt(f"kill {pid}", lambda: os.kill(pid, 0))
seen["processes"] = sorted(int(n) for n in os.listdir("/proc") if n.isdigit())
seen["interfaces"] = [name for _, name in socket.if_nameindex()]
seen["host"] = socket.gethostname()
seen["caps"] = [l.split()[1] for l in open("/proc/self/status") if l.startswith(("CapEff", "CapBnd"))]
seen["readme"] = open("README").read()
print(json.dumps({"m": 1, "seen": seen}))
"""


@pytest.fixture
def listener() -> Any:
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as local:
        server.bind(("127.0.0.1", 0))
        server.listen()
        name = f"outerloop-test-{os.urandom(6).hex()}"
        local.bind("\0" + name)
        local.listen()
        yield server.getsockname()[1], name


def look(rig: Rig, listener: tuple[int, str], **options: Any) -> tuple[Slot, dict[str, Any]]:
    secret = rig.root / "secret"
    secret.write_text("x")
    paths = [str(p) for p in (rig.state, rig.mirror, secret, rig.root, rig.scratch, Path(__file__))]
    paths += [
        "/run",
        "/run/munge/munge.socket.2",
        "/var/run",
        "/etc/munge",
        "/etc/shadow",
        "/etc/slurm",
        "/home",
        "/root",
    ]
    asked = {"paths": paths, "port": listener[0], "abstract": listener[1], "pids": [os.getpid(), os.getppid()]}
    command = f"exec /usr/bin/python3 bench.py '{json.dumps(asked)}'"
    order = {"isolation": "bwrap", **options.pop("order", {})}
    slot = rig.slot(command, {"bench.py": LOOK}, order=order, **options)
    assert slot.run() == 0, (slot.said, slot.result(), (slot.attempt() / "r0/stderr.log").read_text())
    seen = json.loads(slot.stdout())["seen"]
    return slot, seen


def test_only_tree_scratch_and_system_are_visible(rig: Rig, listener: tuple[int, str]) -> None:
    slot, seen = look(rig, listener)
    assert seen["paths"] == []
    system = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "opt", "proc", "sbin", "sys", "usr"}
    assert set(seen["root"]) <= {*system, "outerloop", "tmp"}
    assert seen["readme"] == "target\n"
    assert slot.result()["isolation"] == "bwrap"
    assert not [name for name in seen["env"] if name.startswith(("SLURM_", "OUTERLOOP_"))]
    assert str(rig.root) not in json.dumps(seen["env"])


def test_tree_and_system_cannot_be_written_scratch_can(rig: Rig, listener: tuple[int, str]) -> None:
    _, seen = look(rig, listener)
    for name in ("write tree", "create in tree", "write root", "write usr"):
        assert seen[name] in ("OSError", "PermissionError"), name
    assert seen["write tmp"] == seen["write home"] == "done"
    assert not list(rig.scratch.iterdir())


def test_processes_network_and_names_are_its_own(rig: Rig, listener: tuple[int, str]) -> None:
    _, seen = look(rig, listener)
    assert seen["connect"] != "done"
    assert seen["abstract"] != "done"
    assert seen["interfaces"] == ["lo"]
    assert seen["host"] == "outerloop"
    assert max(seen["processes"]) < 100 and len(seen["processes"]) <= 4
    assert all(value == "ProcessLookupError" for name, value in seen.items() if name.startswith("kill "))
    assert {int(mask, 16) for mask in seen["caps"]} == {0}


def test_the_network_is_there_when_the_work_asks_for_it(rig: Rig, listener: tuple[int, str]) -> None:
    _, seen = look(rig, listener, work={"network": True})
    assert seen["connect"] == "done"
    assert seen["paths"] == []


def test_outputs_and_inputs_have_their_places(rig: Rig) -> None:
    data, single = rig.root / "data", rig.root / "single.txt"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "a.tsp").write_text("berlin")
    single.write_text("one")
    absolute = rig.root / "shared" / "set.txt"
    absolute.parent.mkdir()
    absolute.write_text("absolute\n")
    command = (
        "cat data/tsplib/deep/a.tsp lists/single.txt > out/copy.txt && echo root > result.txt && "
        "! echo x >> lists/single.txt && ! echo x > data/tsplib/new && [ ! -e hidden.txt ] && "
        f"! echo x >> {absolute} && cat {absolute} && echo m 1"
    )
    inputs = [
        {"path": "data/tsplib", "source": str(data), "digest": "x", "hidden": False},
        {"path": "lists/single.txt", "source": str(single), "digest": "x", "hidden": False},
        {"path": str(absolute), "source": str(absolute), "digest": "x", "hidden": False},
        {"path": "hidden.txt", "source": str(single), "digest": "x", "hidden": True},
    ]
    slot = rig.slot(
        command,
        determinants={"outputs": ["out/copy.txt", "result.txt"]},
        work={"input_files": inputs},
        order={"isolation": "bwrap"},
    )
    assert slot.run() == 0, (slot.said, slot.result())
    out = slot.attempt() / "r0" / "out"
    assert (out / "out" / "copy.txt").read_text() == "berlinone"
    assert (out / "result.txt").read_text() == "root\n"
    assert slot.stdout() == b"absolute\nm 1\n"
    assert single.read_text() == "one" and not (data / "new").exists()


def test_resumable_work_reaches_its_checkpoints_and_nothing_else_of_the_slot(rig: Rig) -> None:
    command = (
        'echo 1 > "$OUTERLOOP_CKPT_DIR/c"; echo 2 > "$OUTERLOOP_OUTPUT_DIR/o"; ls / "$OUTERLOOP_CKPT_DIR/.."; echo m 1'
    )
    slot = rig.slot(command, work={"resumable": True}, order={"isolation": "bwrap"})
    assert slot.run() == 0
    assert (slot.path / "state" / "c").read_text() == "1\n"
    assert (slot.attempt() / "r0" / "out" / "o").read_text() == "2\n"
    assert slot.digest.encode() not in slot.stdout()
    assert b"spec.json" not in slot.stdout()


def test_signals_reach_the_command_in_its_sandbox(rig: Rig) -> None:
    command = "trap 'echo got TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    slot = rig.slot(command, order={"isolation": "bwrap"})
    job = slot.start()
    log = slot.attempt() / "r0" / layout.STDOUT
    until(lambda: log.exists() and b"ready" in log.read_bytes(), "the command runs")
    job.terminate()
    job.communicate(timeout=60)
    assert b"got TERM" in slot.stdout()
    assert slot.result()["reason"] == "CANCELLED"


@pytest.mark.parametrize(
    ("command", "reason"), [("exit 3", "EXIT_3"), ("kill -9 $$", "SIGNAL_9"), ("exit 1", "EXIT_1")]
)
def test_failures_inside_are_the_commands_own(rig: Rig, command: str, reason: str) -> None:
    slot = rig.slot(f"echo 'bwrap: refused' >&2; {command}", order={"isolation": "bwrap"})
    assert slot.run() == 1
    assert slot.result()["reason"] == reason


def test_a_timeout_ends_everything_inside(rig: Rig) -> None:
    command = "(trap '' TERM; setsid sleep 600 & setsid sleep 601 &) ; trap '' TERM; while :; do sleep 1; done"
    slot = rig.slot(command, order={"isolation": "bwrap", "minutes": 0.5 / 60})
    assert slot.run() == 1
    assert slot.result()["reason"] == "TIMEOUT"
    assert not list(rig.scratch.iterdir())


def test_a_kernel_that_refuses_fails_in_setup_and_never_falls_back(rig: Rig) -> None:
    """A real refusal: in a user namespace that may have no further ones, without privilege."""
    slot = rig.slot('touch "$WITNESS"; echo m 1', determinants={"env": {"WITNESS": str(rig.root / "ran")}},
                    order={"isolation": "bwrap"})  # fmt: skip
    assert BWRAP is not None
    line = [
        BWRAP,
        "--unshare-user",
        "--uid",
        "1000",
        "--disable-userns",
        "--dev-bind",
        "/",
        "/",
        "--cap-drop",
        "ALL",
        "--",
    ]
    done = subprocess.run(
        [*line, sys.executable, "-I", "-m", "outerloop.job", str(slot.path), "1"],
        env=slot.environment(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == layout.EXIT_SANDBOX, done.stderr
    result = slot.result()
    assert (result["reason"], result["phase"], result["metric"]) == ("SANDBOX", "setup", None)
    assert "bwrap" in result["detail"]
    assert not (rig.root / "ran").exists()


def test_a_node_without_bwrap_fails_in_setup(rig: Rig) -> None:
    tools = rig.root / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git", path="/usr/bin") or "/usr/bin/git")
    slot = rig.slot("echo m 1", order={"isolation": "bwrap"})
    assert slot.run(env={"PATH": str(tools)}) == layout.EXIT_SANDBOX
    assert slot.result()["reason"] == "SANDBOX"
    assert "no bwrap" in slot.result()["detail"]


def test_the_record_is_masked_where_a_bind_would_show_it(tmp_path: Path) -> None:
    room = sandbox.Room(hidden=["/opt/state", "/srv/mirrors"], cwd="/outerloop/tree")
    argv = sandbox.bwrap_argv("/usr/bin/bwrap", room, ["true"], 9)
    if Path("/opt").is_dir():
        assert argv[argv.index("--tmpfs") + 1] == "/opt/state"
        assert argv.index("--tmpfs") > argv.index("/opt")
    assert "/srv/mirrors" not in argv
    prefix = tmp_path / "venv"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\n")
    plain = tmp_path / "plain" / "bin"
    plain.mkdir(parents=True)
    path = f"{prefix}/bin:{plain}:relative:/usr/bin"
    assert sandbox.shown_prefixes(path, "", []) == [str(prefix), str(plain)]
    assert sandbox.shown_prefixes(path, "", [str(prefix / "state")]) == [str(plain)]
    assert sandbox.shown_prefixes(path, "", [str(tmp_path)]) == []


def test_the_apptainer_line_shows_the_same_room() -> None:
    """The argument list only: no apptainer was at hand to run it."""
    room = sandbox.Room(
        readable=[("/s/tree", "/outerloop/tree")], writable=[("/s/home", "/outerloop/home"), ("/s/tmp", "/tmp")],
        over=[("/d", "/outerloop/tree/d")], home="/s/home", cwd="/outerloop/tree",
    )  # fmt: skip
    argv = sandbox.apptainer_argv("/usr/bin/apptainer", room, "/i.sif", ["/bin/sh", "-c", "x"], "/s/mark")
    assert argv[: argv.index("--pwd")] == [
        "/usr/bin/apptainer", "--silent", "exec", "--containall", "--cleanenv", "--no-privs", "--writable-tmpfs",
        "--net", "--network", "none", "--home", "/s/home:/outerloop/home", "--bind", "/s/tree:/outerloop/tree:ro",
        "--bind", "/s/tmp:/tmp:rw", "--bind", "/s/mark:/outerloop/mark:rw", "--bind", "/d:/outerloop/tree/d:ro",
    ]  # fmt: skip
    assert argv[-3:] == ["/bin/sh", "-c", "x"]
    with pytest.raises(sandbox.SandboxError, match="colon"):
        sandbox.apptainer_argv("a", sandbox.Room(readable=[("/a:b", "/x")]), "/i.sif", ["x"], "/m")
    env = sandbox.apptainer_environment({"A": "1", "HOME": "/h", "PATH": "/p", "VIRTUAL_ENV": "/e"}, {"PATH": "/q"})
    assert env == {"PATH": "/q", "HOME": "/nonexistent", "APPTAINERENV_A": "1", "APPTAINERENV_VIRTUAL_ENV": "/e",
                   "APPTAINERENV_PREPEND_PATH": "/e/bin"}  # fmt: skip
