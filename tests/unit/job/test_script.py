"""job.sh: pinned by a golden file, run for real with hostile paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outerloop.job import layout
from outerloop.job.script import job_script
from tests.unit.job.rig import Rig

GOLDEN = Path(__file__).parent / "golden_job.sh"


def test_the_script_is_the_golden_one() -> None:
    slot = Path("/lab/o'brien s/slots/ab/" + "ab" * 32)
    text = job_script(
        "/opt/py thon/bin/python3", slot, 2, "module load cuda\nexport NCCL_IB_HCA=mlx5\n", "/lab/seed $x"
    )
    assert text == GOLDEN.read_text()
    assert len(text) < 8192


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


def test_an_unwritable_home_and_working_folder_are_no_obstacle(tmp_path: Path) -> None:
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
