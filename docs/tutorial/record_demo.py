"""Record what `outerloop view --demo` shows: real climbs, a real campaign and real trainings, then their state folder.

Run it as `python docs/tutorial/record_demo.py` (about a quarter of an hour on two cores; needs `.[examples]`). It does
what a person would type, waits for the verdicts, and packs everything that `outerloop db rebuild` and the pages read.
No number is changed. Paths of this machine stand in what jobs recorded, so it works in a folder of a plain name.

Left out: checkouts, weights and data sets. The record is rebuilt without them.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import demo
import demo_campaign
from demo import TOP, Outerloop, fresh, write_config

OUTPUT = TOP / "outerloop" / "viewer" / "recorded" / "demo.tar.xz"
DDP = {"family": "ddp", "command": ["python", "train.py", "--epochs", "10"], "nodes": 1, "processes_per_node": 2}
SWEEP = """\
[workload]
kind = "independent_tasks"
tasks = 3
task_minutes = 0.5

[resources]
cores_per_host = 8
"""
RATES = (0.005, 0.05, 0.5)
PATIENCE_SECONDS = 600.0
MOST_BYTES = 256 << 10
"""Of a log, a spec, a result."""
REPORTS = {"run.json", "metrics.jsonl", "ranks"}
"""What a training leaves for people to look at. What else a job's command wrote are weights and scores."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dir", type=Path, default=Path("/tmp/outerloop-demo"), help="where everything goes")
    options.add_argument("--output", type=Path, default=OUTPUT)
    options.add_argument("--pack", action="store_true", help="only pack what an earlier call left in --dir")
    arguments = options.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    folder: Path = arguments.dir
    outerloop = Outerloop(folder)
    if not arguments.pack:
        record(folder, outerloop)
    outerloop.run("db", "stop", check=False)
    pack(folder / "state", arguments.output)
    return 0


def record(folder: Path, outerloop: Outerloop) -> None:
    fresh(folder, outerloop)
    write_config(folder, "local", prologue=f"export PATH='{Path(sys.executable).parent}':$PATH")
    outerloop.target = folder / "tsp"
    subprocess.run([sys.executable, str(demo.HERE / "target" / "build.py"), str(outerloop.target)], check=True)
    runs = {name: demo.submit(outerloop, name) for name in demo.CANDIDATES}
    demo.wait(outerloop, runs)
    outerloop.target = folder / "training"
    shutil.copytree(demo.HERE / "training", outerloop.target)
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "A training over scanned digits"]):
        subprocess.run([*demo_campaign.GIT, *words], cwd=outerloop.target, check=True)
    path = folder / "ddp.json"
    path.write_text(json.dumps(DDP))
    run = outerloop.json("submit", "training", str(path), "--name", "ddp")["run"]
    print(f"ddp: {wait(outerloop, run)}")
    sweep(folder, outerloop)
    outerloop.target = folder / "campaign"
    demo_campaign.build(outerloop.target, None)
    outerloop.run("submit", "campaign", "digits.toml")
    if not demo_campaign.wait(outerloop):
        raise SystemExit("the campaign has not ended")


def sweep(folder: Path, outerloop: Outerloop) -> None:
    """A task array that a plan report launched, so that there is an estimate beside what was measured."""
    request, report, tasks = folder / "sweep.toml", folder / "sweep.json", folder / "tasks.jsonl"
    request.write_text(SWEEP)
    report.write_text(outerloop.run("plan", str(request), "--json").stdout)
    tasks.write_text("".join(f'{{"lr": {rate}}}\n' for rate in RATES))
    command = ["--", "python", "train.py", "--lr", "{lr}", "--epochs", "6"]
    options = ["--tasks", str(tasks), "--name", "sweep", "--json"]
    run = json.loads(outerloop.run("submit", "training", str(report), *options, *command).stdout)["run"]
    print(f"sweep: {wait(outerloop, run)}")


def wait(outerloop: Outerloop, run: str) -> str:
    """The run's verdict."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        told = outerloop.json("show", run)
        told = told.get("run", told)
        if told["state"] == "ended":
            return str(told["sentence"])
        outerloop.run("tick", check=False)
        time.sleep(1)
    raise SystemExit(f"{run} has not ended after {PATIENCE_SECONDS:.0f} s")


def pack(state: Path, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    kept = sorted(path for path in state.rglob("*") if path.is_file() and not path.is_symlink() and wanted(path, state))
    with tarfile.open(output, "w:xz") as archive:
        for path in kept:
            entry = archive.gettarinfo(path, str(path.relative_to(state)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
    print(f"{output}: {len(kept)} files, {output.stat().st_size} bytes")


def wanted(path: Path, state: Path) -> bool:
    """Requests, ledgers, champions, specs, results, logs, reports; of weights only small checkpoints of trainings."""
    parts = path.relative_to(state).parts
    match parts:
        case ("runs", _run, "request.json") | ("runs", _run, "events", _) | ("runs", _run, "campaign", "events", _, _):
            return True
        case ("arrays", *_) | ("champions", _, _):
            return True
        case ("mirrors", *inner):
            return "hooks" not in inner  # the contract at each base, which an argument quotes
        case ("slots", _two, _digest, "state", _step, _part):
            return (path.parent / "manifest.json").is_file()
        case ("slots", _two, _digest, "attempts", _n, start, "out", *rest) if start.startswith("r"):
            return rest[0] in REPORTS
        case ("slots", _two, _digest, "state", *_):
            return False
        case ("slots", *_):
            return path.stat().st_size <= MOST_BYTES
    return False


if __name__ == "__main__":
    sys.exit(main())
