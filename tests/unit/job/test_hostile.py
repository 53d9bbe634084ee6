"""Hostile and broken candidates against the real program: the right verdict each time, and nothing left alive."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.job.rig import Rig, Slot, until


def ran(rig: Rig, program: str, **options: Any) -> tuple[Slot, dict[str, Any]]:
    """Run a Python candidate; returns the slot and its result."""
    slot = rig.slot("exec /usr/bin/python3 bench.py", {"bench.py": program}, **options)
    code = slot.run()
    result = slot.result()
    assert code == (0 if result["outcome"] == "ok" else 1), slot.said
    assert not list(rig.scratch.iterdir()), "scratch was not removed"
    return slot, result


def failed(result: Mapping[str, Any], reason: str, phase: str, *words: str) -> None:
    assert (result["outcome"], result["reason"], result["phase"]) == ("failed", reason, phase), result
    assert result["metric"] is None
    for word in words:
        assert word in result["detail"]


def alive(marker: str) -> list[int]:
    """Living processes whose command line or environment holds the marker."""
    found = []
    for name in (entry.name for entry in Path("/proc").iterdir()):
        if name.isdigit() and int(name) != os.getpid():
            try:
                text = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marker.encode() in text and state != "Z":
                found.append(int(name))
    return found


@pytest.mark.parametrize(
    ("printed", "named"),
    [("NaN", "NaN"), ("true", "boolean"), ("1" + "0" * 400, "integer"), ("Infinity", "Infinity"), ('"3"', "string")],
)
def test_what_is_no_number_is_no_metric(rig: Rig, printed: str, named: str) -> None:
    _, result = ran(rig, f"print('{{\"m\": 1}}'); print('{{\"m\": {printed}}}')")
    failed(result, "NO_METRIC", "parse", named)
    assert result["exit_code"] == 0


def test_exit_0_without_the_metric(rig: Rig) -> None:
    _, result = ran(rig, "print('all fine')")
    failed(result, "NO_METRIC", "parse", "no line")


def test_endless_brackets(rig: Rig) -> None:
    _, result = ran(rig, "import sys\nfor _ in range(200): sys.stdout.write('{\"m\":' + '[' * 50000)\nprint()")
    failed(result, "NO_METRIC", "parse")


def test_a_gigabyte_of_output(rig: Rig) -> None:
    program = "import os\nb = ((b'x' * 79 + b'\\n') * 13108)[: 1 << 20]\nfor _ in range(1024):\n    os.write(1, b)\n"
    started = time.monotonic()
    slot, result = ran(rig, program + "print('\\n{\"m\": 2.50}')")
    assert time.monotonic() - started < 15
    assert result["metric"] == {"name": "m", "text": "2.50"}
    assert result["stdout"]["bytes"] > 1 << 30
    assert result["stdout"]["cut"]
    kept = slot.stdout()
    assert len(kept) < 70_000
    assert b"bytes cut here" in kept
    assert kept.endswith(b'{"m": 2.50}\n')


def test_a_line_of_megabytes_after_the_metric_is_skipped(rig: Rig) -> None:
    _, result = ran(rig, "print('{\"m\": 1}'); print('{\"m\": 2, \"x\": \"' + 'm' * 5_000_000 + '\"}')")
    assert result["metric"]["text"] == "1"


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(n, signal.SIG_IGN)
        code = "import signal, time\\nsignal.signal(15, signal.SIG_IGN)\\nwhile True: time.sleep(60)"
        os.execv("/usr/bin/python3", ["/usr/bin/python3", "-c", code, "MARK"])
    os._exit(0)
os.wait()
print('{"m": 4}', flush=True)
"""


def test_a_daemon_that_ignores_term_and_holds_stdout(rig: Rig) -> None:
    marker = f"daemon-{os.urandom(8).hex()}"
    started = time.monotonic()
    _, result = ran(rig, DAEMON.replace("MARK", marker))
    assert time.monotonic() - started < 10
    assert result["metric"]["text"] == "4"
    assert result["killed_processes"] == 1
    assert alive(marker) == []


def test_daemons_die_with_a_command_that_ran_out_of_time(rig: Rig) -> None:
    marker = f"daemon-{os.urandom(8).hex()}"
    _, result = ran(rig, DAEMON.replace("MARK", marker) + "import time; time.sleep(600)", order={"minutes": 0.02})
    failed(result, "TIMEOUT", "command", "0.02 minutes")
    assert result["signal"] == 15
    assert 1.2 <= result["phases"]["command"]["seconds"] < 5
    assert alive(marker) == []


def test_a_fork_storm_is_ended(rig: Rig) -> None:
    marker = f"storm-{os.urandom(8).hex()}"
    program = f"""
import os, time
print('{{"m": 4}}', flush=True)
for _ in range(40):
    if os.fork() == 0:
        os.setsid()
        for _ in range(3):
            if os.fork() == 0:
                break
        os.execv("/bin/sh", ["sh", "-c", "trap '' TERM; while :; do sleep 1; done", "{marker}"])
"""
    _, result = ran(rig, program)
    assert result["metric"]["text"] == "4"
    assert result["killed_processes"] >= 40
    assert alive(marker) == []


def test_a_metric_of_an_exit_hook_or_after_a_crash_is_not_believed(rig: Rig) -> None:
    _, result = ran(rig, "import atexit, os\natexit.register(lambda: print('{\"m\": 0}'))\nraise SystemExit(3)")
    failed(result, "EXIT_3", "command", "exited with 3")
    assert result["exit_code"] == 3


def test_the_last_words_of_a_crash_are_kept(rig: Rig) -> None:
    _, result = ran(rig, "import sys\nsys.stderr.write('x' * 100000 + '\\n')\nraise RuntimeError('boom')")
    failed(result, "EXIT_1", "command")
    assert result["stderr_tail"].rstrip().endswith("RuntimeError: boom")
    assert len(result["stderr_tail"]) <= 2000


@pytest.mark.parametrize(("signal", "name"), [(9, "SIGNAL_9"), (11, "SIGNAL_11"), (15, "SIGNAL_15"), (10, "SIGNAL_10")])
def test_a_command_killed_by_a_signal_says_which(rig: Rig, signal: int, name: str) -> None:
    _, result = ran(rig, f"import os\nos.kill(os.getpid(), {signal})")
    failed(result, name, "command")
    assert (result["signal"], result["exit_code"]) == (signal, None)


@pytest.mark.parametrize(("signal", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (6, "SIGABRT")])
def test_a_program_whose_shell_reports_its_signal_is_named_by_it(rig: Rig, signal: int, name: str) -> None:
    """The shell lives on after its program and exits with 128 + n itself."""
    program = f"import os\nos.kill(os.getpid(), {signal})"
    slot = rig.slot("/usr/bin/python3 bench.py; exit $?", {"bench.py": program})
    assert slot.run() == 1
    result = slot.result()
    failed(result, f"SIGNAL_{signal}", "command")
    assert result["exit_code"] == 128 + signal
    assert name in result["detail"] and str(128 + signal) in result["detail"]


def test_a_command_that_kills_its_own_session_harms_nobody_else(rig: Rig) -> None:
    _, result = ran(rig, "import os, signal\nos.killpg(0, signal.SIGKILL)")
    failed(result, "SIGNAL_9", "command")


SECRETS = {
    "SLURM_JOB_NAME": "x", "SLURM_CPU_BIND": "quiet", "SBATCH_ACCOUNT": "a", "SRUN_DEBUG": "1", "PMIX_RANK": "0",
    "OUTERLOOP_DATABASE_URL": "postgresql://u:p@h/d", "DATABASE_URL": "postgresql://u:p@h/d", "PGPASSWORD": "p",
    "GITHUB_TOKEN": "t", "HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "LC_PASSWORD": "s", "NCCL_TOKEN": "s",
    "OMP_URL": "postgresql+psycopg://h/d", "OUTERLOOP_CONFIG": "/c", "OUTERLOOP_FAULT": "before:x:kill",
    "PYTHONPATH": "/evil", "LD_PRELOAD": "", "GIT_DIR": "/x", "BASH_ENV": "/x", "SSH_AUTH_SOCK": "/x",
    "HOME": "/nonexistent", "https_proxy": "http://user:pass@proxy/",
}  # fmt: skip


@pytest.mark.parametrize("network", [False, True])
def test_a_command_that_prints_its_environment_shows_no_secret(rig: Rig, network: bool) -> None:
    program = "import json, os\nprint(json.dumps({'m': 1, 'env': dict(os.environ)}))"
    slot = rig.slot(
        "exec /usr/bin/python3 bench.py",
        {"bench.py": program},
        determinants={"env": {"TSP_SEED": "7", "TOKENIZERS_PARALLELISM": "false"}},
        work={"network": network},
    )
    assert slot.run(env={**SECRETS, "LD_LIBRARY_PATH": "/sw/lib", "OMP_NUM_THREADS": "2"}) == 0
    env = json.loads(slot.stdout())["env"]
    assert not set(env) & (set(SECRETS) - {"HOME"})
    assert not [name for name in env if name.startswith(("SLURM_", "OUTERLOOP_", "SBATCH_", "GIT_", "PYTHON"))]
    assert not [value for value in env.values() if "://" in value]
    assert env["TSP_SEED"] == "7"
    assert env["TOKENIZERS_PARALLELISM"] == "false"
    assert env["LD_LIBRARY_PATH"] == "/sw/lib"
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["HOME"].startswith(str(rig.scratch))
    for name in ("TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "MPLCONFIGDIR"):
        assert env[name].startswith(str(rig.scratch)), name


def test_the_command_has_no_input_and_only_three_descriptors(rig: Rig) -> None:
    extra = os.open("/", os.O_RDONLY)
    os.set_inheritable(extra, True)
    program = (
        "import os, sys\nprint(sys.stdin.read() == '', sorted(map(int, os.listdir('/proc/self/fd')))[:4])\nprint('m 1')"
    )
    slot = rig.slot("exec /usr/bin/python3 bench.py", {"bench.py": program})
    try:
        assert slot.run(close_fds=False) == 0
    finally:
        os.close(extra)
    assert slot.stdout().startswith(b"True [0, 1, 2, 3]\n")


def test_a_stranger_that_holds_the_pipe_cannot_hold_the_job(rig: Rig) -> None:
    """Somebody who is no descendant keeps stdout open: the drain is bounded."""
    slot = rig.slot('echo $$ > "$TMPDIR/pid"; echo \'m 6\'; while [ ! -e "$TMPDIR/go" ]; do sleep 0.05; done')
    wrapper = slot.start()
    pid_file = until(lambda: next(rig.scratch.glob("*/run/tmp/pid"), None), "the command started")
    pid = until(lambda: pid_file.read_text().strip(), "its pid is known")
    holder = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        (pid_file.parent / "go").touch()
        started = time.monotonic()
        wrapper.communicate(timeout=60)
        assert time.monotonic() - started < 10
    finally:
        os.close(holder)
    assert slot.result()["metric"]["text"] == "6"
