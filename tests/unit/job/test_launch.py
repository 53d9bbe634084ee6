"""Launches: tokens, files, ports, and the lines that start work on several nodes."""

from __future__ import annotations

import json
import socket

from outerloop.job import launch
from outerloop.strategies import spec
from tests.unit.job.rig import Rig


def test_the_tokens_are_those_of_the_strategies() -> None:
    assert {launch.FILES_TOKEN, launch.RDZV_ID_TOKEN, launch.RDZV_ENDPOINT_TOKEN} == set(spec.TOKENS)


def test_a_launch_gets_its_files_its_tokens_and_its_variables(rig: Rig) -> None:
    program = """
import json, os, sys
files = sys.argv[1]
print(json.dumps({"m": 1, "text": open(files + "/conf/a.json").read(), "env": os.environ["MEET"],
                  "id": sys.argv[2], "out": os.environ["OUTERLOOP_OUTPUT_DIR"] == files, "cwd": os.getcwd()}))
open(files + "/made.txt", "w").write("made")
"""
    plan = {
        "schema_version": 1,
        "argv": ["python3", "run it.py", launch.FILES_TOKEN, launch.RDZV_ID_TOKEN],
        "env": {"MEET": f"tcp://{launch.RDZV_ENDPOINT_TOKEN}"},
        "files": {"conf/a.json": '{"x": "@OUTERLOOP_FILES@ ü"}\n'},
        "world_size": 1,
        "gpus_per_process": 0,
        "rendezvous": None,
        "workdir_hint": "tree",
        "notes": [],
    }
    for isolation in ("none", "bwrap"):
        slot = rig.slot(
            "",
            {"run it.py": program},
            determinants={"launch": plan, "outputs": ["made.txt"]},
            order={"isolation": isolation},
        )
        assert slot.run(env={"PATH": "/usr/bin:/bin"}) == 0, (slot.said, slot.result())
        told = json.loads(slot.stdout())
        assert told["text"] == '{"x": "@OUTERLOOP_FILES@ ü"}\n', "a launch's files are written byte for byte"
        assert told["id"] == f"{slot.digest[:16]}-1"
        host, _, port = told["env"].removeprefix("tcp://").rpartition(":")
        assert host == socket.gethostname() and 1024 <= int(port) < 65536
        assert told["out"] is True
        assert (slot.attempt() / "r0" / "out" / "made.txt").read_text() == "made"
        assert [entry["path"] for entry in slot.result()["artifacts"]] == ["made.txt"]


TAKEN = """
import os, socket, sys
port = int(os.environ["MEET"].rpartition(":")[2])
seen = open(sys.argv[1] + "/ports", "a+")
seen.seek(0)
before = seen.read().split()
seen.write(f"{port}\\n")
seen.close()
if len(before) < 2:
    first, second = socket.socket(), socket.socket()
    first.bind(("", port)); first.listen()
    second.bind(("", port))
print("m", len(before))
"""


def test_a_taken_port_is_another_port_not_another_attempt(rig: Rig) -> None:
    plan = {
        "argv": ["python3", "run.py", launch.FILES_TOKEN],
        "env": {"MEET": launch.RDZV_ENDPOINT_TOKEN},
        "files": {},
    }
    slot = rig.slot("", {"run.py": TAKEN}, determinants={"launch": plan})
    assert slot.run() == 0, slot.result()
    assert slot.result()["metric"]["text"] == "2"
    assert len(set((slot.attempt() / "r0" / "out" / "ports").read_text().split())) == 3
    broken = rig.slot("", {"run.py": TAKEN.replace("< 2", "< 9")}, determinants={"launch": plan})
    assert broken.run() == 1
    assert broken.result()["reason"] == "EXIT_1"
    assert len((broken.attempt() / "r0" / "out" / "ports").read_text().split()) == launch.PORT_TRIES


def test_the_srun_line_states_tasks_cpus_and_gpus() -> None:
    line = launch.srun_argv("/usr/bin/srun", 2, 6, ("--gres=gpu:a100:4",), ["python", "x"])
    assert line == [
        "/usr/bin/srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=6", "--gres=gpu:a100:4",
        "--kill-on-bad-exit=1", "python", "x",
    ]  # fmt: skip


def test_a_launch_that_names_a_path_outside_or_a_refused_variable_is_refused(rig: Rig) -> None:
    for plan, named in (
        ({"argv": ["x"], "files": {"../evil": "x"}}, "../evil"),
        ({"argv": ["x"], "env": {"PYTHONPATH": "x"}}, "PYTHONPATH"),
        ({"argv": []}, "argv is empty"),
    ):
        slot = rig.slot("", determinants={"launch": plan})
        assert slot.run() == 96
        assert slot.result()["reason"] == "SPEC"
        assert named in slot.result()["detail"]
