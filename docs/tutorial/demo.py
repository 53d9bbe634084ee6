"""The main job from beginning to end: a target, five candidates, five verdicts. Nothing is faked.

Run it with `make demo`. It builds the tutorial's repository (a travelling-salesman solver measured on three TSPLIB
instances), submits its five candidate branches as climbs, and leaves: the jobs run, the runs are parked without a
process, and wake jobs decide. Then it shows the verdicts.

Standard library only; everything else happens through the `outerloop` command, as a person would type it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
CANDIDATES = {
    "improve": "2-opt on top of nearest neighbour",
    "nothing": "a comment and a new name",
    "break-sibling": "a shorter search in shared code",
    "crash": "raises",
    "out-of-scope": "edits the benchmark itself",
}
PATIENCE_SECONDS = 240.0
TICK_AFTER_SECONDS = 60.0
"""Wake jobs do everything here. Should they be lost, a tick does the rest, as cron would on a real site."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dir", type=Path, default=TOP / ".demo", help="where everything goes (default: .demo)")
    options.add_argument("--backend", choices=["auto", "slurm", "local"], default="auto")
    arguments = options.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in step with what the programs print that it starts
    folder: Path = arguments.dir.absolute()
    backend = "slurm" if arguments.backend == "auto" and sinfo_answers() else arguments.backend
    backend = "local" if backend == "auto" else backend
    outerloop = Outerloop(folder)
    fresh(folder, outerloop)
    write_config(folder, backend)
    print(f"backend {backend}; everything lies in {folder}\n")
    print("1. The target: a git repository with a contract, built from docs/tutorial/target/")
    subprocess.run([sys.executable, str(HERE / "target" / "build.py"), str(folder / "target")], check=True)
    print("\n2. Five candidates are submitted; every command returns at once.")
    runs = {name: submit(outerloop, name) for name in CANDIDATES}
    print("\n3. No process of ours runs now. Jobs measure, wake jobs decide.")
    wait(outerloop, runs)
    print("\n4. The verdicts")
    verdicts = {name: outerloop.json("show", run) for name, run in runs.items()}
    for name, what in CANDIDATES.items():
        shown = verdicts[name]
        run = shown.get("run", shown)
        print(f"\n{name} ({what}), run {runs[name]}")
        print(wrapped(run.get("sentence") or f"{run.get('state')}: {run.get('state_detail')}"))
    print("\n5. To look further:\n")
    print(f"  export OUTERLOOP_CONFIG={folder / 'config.toml'} PATH={Path(sys.executable).parent}:$PATH")
    for command in ("status", f"explain {runs['break-sibling']}", f"logs {runs['crash']}", "champions"):
        print(f"  outerloop {command}")
    print("  outerloop db stop        # when you are done; `make clean` removes it all")
    return 0 if all((v.get("run", v)).get("state") == "ended" for v in verdicts.values()) else 1


class Outerloop:
    """The command, with the demo's configuration and nothing else of ours."""

    def __init__(self, folder: Path) -> None:
        self.program = Path(sys.executable).parent / "outerloop"
        self.env = {**os.environ, "OUTERLOOP_CONFIG": str(folder / "config.toml"), "NO_COLOR": "1"}
        self.target = folder / "target"

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        folder = self.target if self.target.is_dir() else TOP
        done = subprocess.run(
            [str(self.program), *arguments], cwd=folder, env=self.env, capture_output=True, text=True, check=False
        )
        if check and done.returncode not in {0, 3}:
            raise SystemExit(
                f"outerloop {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}{done.stdout}"
            )
        return done

    def json(self, *arguments: str) -> dict:  # type: ignore[type-arg]
        return dict(json.loads(self.run(*arguments, "--json").stdout))


def sinfo_answers() -> bool:
    """Whether there is a Slurm to use: sinfo is installed and its controller answers."""
    program = shutil.which("sinfo")
    if program is None:
        return False
    try:
        return subprocess.run([program, "-h"], capture_output=True, timeout=15, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def fresh(folder: Path, outerloop: Outerloop) -> None:
    if (folder / "config.toml").is_file():
        outerloop.run("db", "stop", check=False)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def write_config(folder: Path, backend: str, prologue: str = "") -> None:
    """The demo's settings. `prologue`: shell lines before every job."""
    lines = [f'state = "{folder / "state"}"', f'backend = "{backend}"', 'deployment = "demo"']
    if backend == "slurm":
        sbatch = shutil.which("sbatch")
        lines += ["[slurm]", f'bin_dir = "{Path(sbatch).parent if sbatch else "/usr/bin"}"']
        if os.environ.get("SLURM_CONF"):
            lines.append(f'conf = "{os.environ["SLURM_CONF"]}"')
    lines += ["[lanes.default]"]
    if prologue:
        lines.append(f'prologue = "{prologue}"')
    # A real site keeps the default patience, which is made for lagging file systems; one machine needs little.
    lines += ["[dispatch]", "grace_seconds = 5", "backoff_seconds = 2", "gone_grace_seconds = 10"]
    (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def submit(outerloop: Outerloop, name: str) -> str:
    # --base main: after the first acceptance the default base would be the new champion.
    print(f"  $ outerloop submit climb tsp --base main --candidate {name}")
    answer = outerloop.json("submit", "climb", "tsp", "--base", "main", "--candidate", name)
    if answer.get("state") == "inbox":
        raise SystemExit(f"the record cannot be reached: {answer.get('why')}")
    return str(answer["run"])


def wait(outerloop: Outerloop, runs: dict[str, str]) -> None:
    started = time.monotonic()
    last = ""
    ticked = started
    while time.monotonic() - started < PATIENCE_SECONDS:
        # One command for all runs: on a small machine each takes a second from the jobs. What is not open has ended.
        still = {run["id"]: run["state"] for group in outerloop.json("status")["groups"] for run in group["runs"]}
        states = {name: str(still.get(run, "ended")) for name, run in runs.items()}
        line = ", ".join(f"{name} {state}" for name, state in states.items())
        if line != last:
            print(f"  {time.monotonic() - started:5.1f} s  {line}")
            last = line
        if all(state in {"ended", "blocked"} for state in states.values()):
            return
        if time.monotonic() - ticked > TICK_AFTER_SECONDS:
            outerloop.run("tick", check=False)
            ticked = time.monotonic()
        time.sleep(2)


def wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, width=78, initial_indent="  ", subsequent_indent="  ")


if __name__ == "__main__":
    sys.exit(main())
