"""Scoring from the base tree when the candidate is dead; outputs, inputs, artifacts and environments."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from typing import Any

import pytest

from outerloop.job import layout
from tests.unit.job.rig import Rig, Slot

HONEST = "import json, sys\nprint(json.dumps({'m': sum(json.load(open(sys.argv[1])))}))\n"
CHEATING = {
    "solve.py": """
import atexit, builtins, json, os
os.makedirs("out", exist_ok=True)
json.dump([3, 4], open("out/tours.json", "w"))
atexit.register(lambda: os.write(1, b'{"m": 0}\\n'))
home = os.path.expanduser("~")
os.makedirs(home + "/.local/lib/python3.11/site-packages", exist_ok=True)
open(home + "/.local/lib/python3.11/site-packages/usercustomize.py", "w").write("print('{\\"m\\": -1}')")
print('{"m": 0}')
if os.fork() == 0:
    import signal, time
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with open("out/next", "w") as file:
            json.dump([0], file)
        os.replace("out/next", "out/tours.json")
        time.sleep(0.001)
""",
    "bench/score.py": "print('{\"m\": 0}')\n",
}
ISOLATIONS = ["none", pytest.param("bwrap", marks=pytest.mark.skipif(not shutil.which("bwrap"), reason="no bwrap"))]


def scored(rig: Rig, candidate: dict[str, str], base: dict[str, str], isolation: str = "none", **more: Any) -> Slot:
    """A slot with a score command over out/tours.json."""
    return rig.slot(
        "exec /usr/bin/python3 solve.py",
        candidate,
        determinants={
            "score": "exec /usr/bin/python3 bench/score.py out/tours.json",
            "score_tree": rig.tree(base),
            "outputs": ["out/tours.json"],
            **more.get("determinants", {}),
        },
        work=more.get("work"),
        order={"isolation": isolation},
    )


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_no_trick_of_the_candidates_process_changes_the_score(rig: Rig, isolation: str) -> None:
    program = CHEATING["solve.py"].replace("[0], file", "[3, 4], file")
    slot = scored(rig, {**CHEATING, "solve.py": program}, {"bench/score.py": HONEST}, isolation)
    assert slot.run() == 0, (slot.said, slot.result())
    result = slot.result()
    assert result["metric"] == {"name": "m", "text": "7"}
    assert b'{"m": 0}' in slot.stdout()
    assert set(result["phases"]) == {"setup", "command", "score", "parse", "artifacts"}
    assert json.loads((slot.attempt() / "r0" / "score.stdout.log").read_text()) == {"m": 7}
    if isolation == "none":
        assert result["killed_processes"] >= 1


def test_every_candidate_process_is_dead_before_the_scorer_starts(rig: Rig) -> None:
    """The scorer looks for anybody who still writes to the output, or lives on with the candidate's line."""
    look = """
import json, os
lines = []
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            lines.append(open(f"/proc/{name}/cmdline", "rb").read())
        except OSError:
            pass
print(json.dumps({"m": sum(b"MARK" in line for line in lines)}))
"""
    marker = f"candidate-{os.urandom(8).hex()}"
    deaf = f"    os.execv('/bin/sh', ['sh', '-c', 'trap \"\" TERM; while :; do sleep 1; done', '{marker}'])\n"
    daemon = CHEATING["solve.py"].replace("    while True:", deaf + "    while True:")
    slot = scored(rig, {"solve.py": daemon}, {"bench/score.py": look.replace("MARK", marker)})
    assert slot.run() == 0, slot.result()
    assert slot.result()["metric"]["text"] == "0"
    assert slot.result()["killed_processes"] >= 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_hidden_inputs_are_there_for_the_scorer_only(rig: Rig, isolation: str) -> None:
    hidden = rig.root / "answers.json"
    hidden.write_text("[40, 2]")
    solve = "import os\nopen('out/tours.json', 'w').write(str([int(os.path.exists('answers.json'))]))"
    score = "import json\nprint('m', sum(json.load(open('answers.json')) + json.load(open('out/tours.json'))))"
    inputs = [{"path": "answers.json", "source": str(hidden), "digest": "", "hidden": True}]
    slot = scored(rig, {"solve.py": solve}, {"bench/score.py": score}, isolation, work={"input_files": inputs})
    assert slot.run() == 0, (slot.said, slot.result())
    assert slot.result()["metric"]["text"] == "42"


def test_a_scorer_that_fails_says_so(rig: Rig) -> None:
    slot = scored(rig, CHEATING, {"bench/score.py": "raise SystemExit('no such tour')"})
    assert slot.run() == 1
    result = slot.result()
    assert (result["reason"], result["phase"]) == ("EXIT_1", "score")
    assert "no such tour" in result["stderr_tail"]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        ("pass", "was not written"),
        ("os.symlink('/etc/passwd', 'out/tours.json')", "is a link"),
        ("os.rmdir('out'); os.symlink('/etc', 'out')", "was not written"),
        ("os.rmdir('out'); os.makedirs('x'); open('x/tours.json', 'w'); os.symlink('x', 'out')", "lies behind one"),
        ("os.mkfifo('out/tours.json')", "neither a file nor a folder"),
        ("os.makedirs('out/tours.json'); os.symlink('/etc/passwd', 'out/tours.json/x')", "leads out"),
        ("os.makedirs('out/tours.json'); os.symlink('.', 'out/tours.json/x')", "no file|leads out"),
        ("open('out/tours.json', 'w').write('x' * 20000)", "exceed 10000 bytes"),
    ],
)
@pytest.mark.parametrize("with_score", [True, False])
def test_outputs_that_lead_out_or_are_too_large_are_refused(rig: Rig, make: str, named: str, with_score: bool) -> None:
    determinants = {} if with_score else {"score": "", "score_tree": ""}
    slot = scored(
        rig, {"solve.py": f"import os\n{make}\nprint('m 1')"}, {"bench/score.py": HONEST},
        determinants=determinants, work={"artifact_cap_bytes": 10000, "output_cap_bytes": 10000},
    )  # fmt: skip
    assert slot.run() == 1
    result = slot.result()
    assert (result["reason"], result["phase"]) == ("ARTIFACT", "artifacts")
    assert re.search(named, result["detail"]), result["detail"]


def test_artifacts_are_copied_with_their_hashes_and_inner_links_become_files(rig: Rig) -> None:
    solve = """
import os
os.makedirs("model/snap"); open("model/blob", "wb").write(b"weights")
os.symlink("../blob", "model/snap/w.bin"); os.chmod("model/blob", 0o400)
print("m 1")
"""
    slot = rig.slot("exec /usr/bin/python3 s.py", {"s.py": solve}, determinants={"outputs": ["model"]})
    assert slot.run() == 0, slot.result()
    digest = hashlib.sha256(b"weights").hexdigest()
    assert slot.result()["artifacts"] == [
        {"path": "model/blob", "bytes": 7, "sha256": digest},
        {"path": "model/snap/w.bin", "bytes": 7, "sha256": digest},
    ]
    kept = slot.attempt() / "r0" / "out" / "model" / "snap" / "w.bin"
    assert stat.S_ISREG(kept.lstat().st_mode)
    assert kept.read_bytes() == b"weights"


def test_inputs_are_laid_into_the_tree_and_accidents_spare_the_original(rig: Rig) -> None:
    data = rig.root / "data"
    data.mkdir()
    (data / "a").write_text("1")
    large = rig.root / "large"
    with large.open("wb") as file:
        file.truncate(80 * 1024 * 1024)
    inputs = [
        {"path": "data/set", "source": str(data), "digest": "", "hidden": False},
        {"path": "large", "source": str(large), "digest": "", "hidden": False},
    ]
    command = "cat data/set/a; chmod u+w data/set/a; echo 2 > data/set/a; test -L large; wc -c < large; echo m 1"
    slot = rig.slot(command, {"data/set/old": "x"}, work={"input_files": inputs})
    assert slot.run() == 0, slot.result()
    assert slot.stdout() == b"183886080\nm 1\n"
    assert (data / "a").read_text() == "1"


def test_an_input_that_is_absent_or_changed_fails_in_setup(rig: Rig) -> None:
    present = rig.root / "in"
    present.write_text("now")
    for source, digest, named in (
        (rig.root / "gone", "", "No such file"),
        (present, "sha256:" + hashlib.sha256(b"then").hexdigest(), "has changed"),
        (present, hashlib.sha256(b"then").hexdigest(), "has changed"),
    ):
        entry = {"path": "in", "source": str(source), "digest": digest, "hidden": False}
        slot = rig.slot("echo m 1", work={"input_files": [entry]})
        assert slot.run() == 1
        assert (slot.result()["reason"], slot.result()["phase"]) == ("INPUT", "setup")
        assert named in slot.result()["detail"]
    good = {"path": "in", "source": str(present), "digest": "sha256:" + hashlib.sha256(b"now").hexdigest()}
    assert rig.slot("echo m 1", work={"input_files": [good]}).run() == 0


# -- environments


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_environment_is_built_once_in_place_and_used_early_on_the_path(rig: Rig, isolation: str) -> None:
    setup = 'mkdir "$OUTERLOOP_ENV/bin" && cp tool "$OUTERLOOP_ENV/bin/tool" && chmod +x "$OUTERLOOP_ENV/bin/tool"'
    facts = {"kind": "environment", "metric": ""}
    build = rig.slot(
        setup,
        {"tool": '#!/bin/sh\necho "m 8"\n'},
        determinants=facts,
        work={"kind": "environment"},
        order={"isolation": isolation},
    )
    assert build.run() == 0, (build.said, build.result())
    assert build.result()["metric"] is None
    assert (build.attempt() / "env" / "bin" / "tool").exists()
    command = 'tool && ! touch "$VIRTUAL_ENV/x" && command -v tool || tool'
    user = rig.slot(command, work={"environment_slot": str(build.path)}, order={"isolation": isolation})
    assert user.run() == 1
    assert (user.result()["reason"], user.result()["phase"]) == ("ENVIRONMENT", "setup")
    (build.path / layout.ACCEPTED).write_text('{"attempt": 1, "restart": 0}')
    user.order(2, {"isolation": isolation})
    assert user.run(2) == 0, (user.said, user.result(2))
    assert user.result(2)["metric"]["text"] == "8"
    if isolation == "bwrap":
        assert str(build.attempt() / "env" / "bin" / "tool").encode() in user.stdout(2)
        assert not (build.attempt() / "env" / "x").exists()


def test_an_environment_that_does_not_build_says_how_it_ended(rig: Rig) -> None:
    build = rig.slot("echo broken >&2; exit 4", determinants={"kind": "environment", "metric": ""})
    assert build.run() == 1
    assert (build.result()["reason"], build.result()["phase"]) == ("EXIT_4", "command")
    assert build.result()["stderr_tail"] == "broken\n"


def test_caches_start_as_a_copy_of_the_seed(rig: Rig) -> None:
    seed = rig.root / "seed"
    (seed / "triton").mkdir(parents=True)
    (seed / "triton" / "kernel").write_text("warm")
    (seed / "out").symlink_to("/etc/passwd")
    (seed / "in").symlink_to("triton/kernel")
    command = 'cd "$XDG_CACHE_HOME"; cat "$TRITON_CACHE_DIR/kernel" in; ls; echo > triton/kernel; echo m 1'
    slot = rig.slot(command, order={"cache_seed": str(seed)})
    assert slot.run() == 0, slot.result()
    assert slot.stdout() == b"warmwarmin\ntriton\nm 1\n"
    assert (seed / "triton" / "kernel").read_text() == "warm"
