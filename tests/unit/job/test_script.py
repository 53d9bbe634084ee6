"""job.sh: pinned by a golden file, run for real with hostile paths."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outerloop.job import layout
from outerloop.job.script import array_script, job_script
from tests.unit.job.rig import Rig

GOLDEN = Path(__file__).parent / "golden_job.sh"
GOLDEN_ARRAY = Path(__file__).parent / "golden_array.sh"


def test_the_script_is_the_golden_one() -> None:
    slot = Path("/lab/o'brien s/slots/ab/" + "ab" * 32)
    text = job_script(
        "/opt/py thon/bin/python3", slot, 2, "module load cuda\nexport NCCL_IB_HCA=mlx5\n", "/lab/seed $x"
    )
    assert text == GOLDEN.read_text()
    assert len(text) < 8192


def test_the_script_of_an_array_is_the_golden_one() -> None:
    task_map = Path("/lab/o'brien s/arrays/ol-x-array-0123456789abcdef-0/map.json")
    text = array_script(
        "/opt/py thon/bin/python3", task_map, "module load cuda\nexport NCCL_IB_HCA=mlx5\n", "/lab/seed $x"
    )
    assert text == GOLDEN_ARRAY.read_text()


def _task(
    rig: Rig, slots: list[tuple[Path, int]], task: str, env: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run one task of an array over these attempts, as Slurm would."""
    folder = rig.root / "arrays"
    folder.mkdir(exist_ok=True)
    order = {"schema": 1, "minutes": 1.0, "margin_seconds": 10, "isolation": "none"}
    tasks = [
        {"slot": str(slot), "attempt": n, "order": {**order, "digest": slot.name, "attempt": n}} for slot, n in slots
    ]
    (folder / "map.json").write_text(json.dumps({"schema": 1, "array": "ol-x-array-0-0", "tasks": tasks}))
    (folder / "job.sh").write_text(array_script(sys.executable, folder / "map.json", "", ""))
    ids = {"SLURM_JOB_ID": "99", "SLURM_ARRAY_JOB_ID": "41", "SLURM_ARRAY_TASK_ID": task}
    return subprocess.run(["bash", str(folder / "job.sh")], env={**env, **ids}, capture_output=True, check=False)


def test_each_task_of_an_array_executes_its_own_attempt_under_its_own_id(rig: Rig) -> None:
    slots = [rig.slot(f"echo m {number}") for number in (0, 1)]
    mapped = [(slot.path, 1) for slot in slots]
    # The disk lost what was not flushed: the map has it all.
    shutil.rmtree(slots[1].attempt())
    for task in ("1", "0"):
        done = _task(rig, mapped, task, slots[0].environment())
        assert done.returncode == 0, done.stderr
    for number, slot in enumerate(slots):
        result = slot.result()
        assert (result["metric"]["text"], result["job_id"]) == (str(number), f"41_{number}")
    again = _task(rig, mapped, "1", slots[0].environment())
    assert again.returncode == layout.EXIT_NOT_CLAIMANT
    assert not list(rig.scratch.iterdir())


@pytest.mark.parametrize("task", ["2", "", "-1", "x"])
def test_a_task_that_the_map_does_not_know_touches_nothing(rig: Rig, task: str) -> None:
    slot = rig.slot("echo m 1")
    before = sorted(slot.path.rglob("*"))
    done = _task(rig, [(slot.path, 1)], task, slot.environment())
    assert done.returncode == layout.EXIT_SPEC
    assert b"Traceback" not in done.stderr and b"outerloop: " in done.stderr
    assert sorted(slot.path.rglob("*")) == before
    assert not list(rig.scratch.iterdir())


@pytest.mark.parametrize(
    "name", ["plain", "with blank", "o'brien", 'quo"te', "new\nline", "$(touch x)`id`", "-dash", "ü;&|"]
)
def test_hostile_folders_are_quoted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    rig = Rig(tmp_path / name)
    seed = rig.root / "seed folder"
    seed.mkdir()
    (seed / "warm").write_text("warm")
    slot = rig.slot('cat "$XDG_CACHE_HOME/warm"; echo; echo m 1')
    script = slot.attempt() / layout.SCRIPT
    script.write_text(job_script(sys.executable, slot.path, 1, "export OMP_NUM_THREADS=3", str(seed)))
    done = subprocess.run(["bash", str(script)], env=slot.environment(), capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, (done.stderr, slot.result())
    assert slot.stdout() == b"warm\nm 1\n"
    assert not list(rig.scratch.iterdir()), "the scratch folder that job.sh made was adopted and removed"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    again = subprocess.run(["bash", str(script)], env=slot.environment({"SLURM_JOB_ID": "5"}), capture_output=True)
    assert again.returncode == layout.EXIT_NOT_CLAIMANT
    assert not list(rig.scratch.iterdir()), "a loser removes the scratch folder it did not use"


def test_the_prologue_sees_caches_in_scratch_and_what_it_exports_arrives(rig: Rig) -> None:
    slot = rig.slot('echo "$OMP_NUM_THREADS"; echo m 1')
    script = slot.attempt() / layout.SCRIPT
    prologue = f"env > {rig.root}/seen\nexport OMP_NUM_THREADS=7 SECRET_TOKEN=x"
    script.write_text(job_script(sys.executable, slot.path, 1, prologue, ""))
    done = subprocess.run(["bash", str(script)], env=slot.environment(), capture_output=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    seen = dict(line.split("=", 1) for line in (rig.root / "seen").read_text().splitlines() if "=" in line)
    for variable in ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "MPLCONFIGDIR"):
        assert seen[variable].startswith(str(rig.scratch)), variable
    assert slot.stdout() == b"7\nm 1\n"


def test_row_30_an_unwritable_home_and_working_folder_are_no_obstacle(tmp_path: Path) -> None:
    """As an account without privileges, so that permissions mean something."""
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None:
        pytest.skip("needs root and setpriv (util-linux) to become another account")
    # The package is copied to where another account can read it, and run by the system's interpreter.
    library = tmp_path / "lib"
    shutil.copytree(
        Path(layout.__file__).parent, library / "outerloop" / "job", ignore=shutil.ignore_patterns("__pycache__")
    )
    (library / "outerloop" / "__init__.py").write_text("")
    start = (
        f"import runpy, sys; sys.path.insert(0, {str(library)!r}); "
        "runpy.run_module('outerloop.job', run_name='__main__')"
    )
    for parent in tmp_path.parents:
        if parent not in (Path("/"), Path("/tmp")):
            parent.chmod(parent.stat().st_mode | 0o055)
    (tmp_path / "open").mkdir()
    rig = Rig(tmp_path / "open")
    line = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-I", "-c", start]
    command = '[ "$(id -u)" != 0 ] && touch "$HOME/x" && echo m 1'
    for isolation in ["none"] + ["bwrap"] * bool(shutil.which("bwrap")):
        slot = rig.slot(command, {"a/b": "x"}, order={"isolation": isolation})
        # The mirror stays root's: git must not be stopped by its owner.
        for path in (tmp_path, rig.root, *rig.root.rglob("*")):
            if "mirrors" not in path.parts:
                os.chown(path, 65534, 65534)
        done = subprocess.run(
            [*line, str(slot.path), "1"], env=slot.environment(), capture_output=True, check=False, cwd="/proc"
        )
        assert done.returncode == 0, (done.stderr.decode(), isolation)
        assert slot.result()["metric"]["text"] == "1"
        assert not list(rig.scratch.iterdir())
