"""Four entries to a post-training challenge, trained and judged on the CPU; on Slurm where sinfo answers.

Run it with `make demo-posttrain`. A tiny Llama made on the spot learns sums in words, with SFT and then GRPO. The good
entry becomes champion over the untrained model; unrelated data and the good data with shuffled answers are no
improvement over it; data that contain the suite are refused before anything is trained. Every stage is a job, wake jobs
decide what is next. One training seed, so chance in training is not averaged out.

Everything but the making of the data happens through the `outerloop` command, as a person would type it.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from demo import TOP, Outerloop, fresh, sinfo_answers, wrapped, write_config

from outerloop.posttrain.sums import rows

CHALLENGE = "tiny-sums"
PATIENCE_SECONDS = 1800.0
LOOK_SECONDS = 1.0
TICK_AFTER_SECONDS = 30.0
"""Wake jobs do everything here. Should they be lost, a tick does the rest, as cron would on a real site."""
CURVES = {"sft": "loss", "grpo": "reward"}
"""Stage -> what of its metrics is drawn."""
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60


def entries() -> dict[str, list[dict[str, Any]]]:
    """Name -> training rows."""
    good: list[dict[str, Any]] = [dict(row) for row in rows("training")]
    answers = [row["answer"] for row in good]
    turned = answers[997:] + answers[:997]
    words = sorted({word for row in good for word in row["prompt"].split()})
    unrelated = [(f"{a} or {b}", f"{b} or {a}") for a in words for b in words]
    held = [{**row, "completion": row["answer"]} for row in rows("heldout")]
    return {
        "good": good,
        "unrelated": [{"prompt": a, "completion": b, "answer": b} for a, b in unrelated],
        "shuffled": [{**row, "completion": answer, "answer": answer} for row, answer in zip(good, turned, strict=True)],
        "contaminated": [*good, *held],
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dir", type=Path, default=TOP / ".demo-posttrain", help="where everything goes")
    options.add_argument("--backend", choices=["auto", "slurm", "local"], default="auto")
    arguments = options.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in step with what the programs print that it starts
    if importlib.util.find_spec("trl") is None:
        print("this needs trl and what it brings: pip install '.[posttrain]'", file=sys.stderr)
        return 2
    folder: Path = arguments.dir.absolute()
    backend = "slurm" if arguments.backend == "auto" and sinfo_answers() else arguments.backend
    backend = "local" if backend == "auto" else backend
    outerloop = Outerloop(folder)
    fresh(folder, outerloop)
    write_config(folder, backend)
    begun = time.monotonic()
    print(f"backend {backend}; everything lies in {folder}\n")
    print("1. Four training sets for a fixed model, method, suite and rule")
    data = {}
    for name, training in entries().items():
        data[name] = folder / f"{name}.jsonl"
        data[name].write_text("".join(json.dumps(row) + "\n" for row in training), encoding="utf-8")
        print(f"  {name:<13} {len(training)} rows")
    print("\n2. The good one is submitted; the command returns at once. Jobs train, wake jobs decide what is next.")
    runs = {"good": submit(outerloop, "good", data["good"])}
    ended = wait(outerloop, runs, begun)
    print("\n3. The others meet the champion.")
    later = {name: submit(outerloop, name, data[name]) for name in data if name not in runs}
    ended = wait(outerloop, later, begun) and ended
    runs |= later
    print("\n4. The verdicts")
    for name, run in runs.items():
        print(wrapped(f"{name}: {outerloop.json('show', run)['sentence']}"))
    print()
    print(outerloop.run("challenge", "board", CHALLENGE).stdout, end="")
    print("\n5. The curves, one file of metrics a stage")
    for name, run in runs.items():
        draw(outerloop, folder, name, run)
    print(f"\n{time.monotonic() - begun:.0f} s. To look further:\n")
    print(f"  export OUTERLOOP_CONFIG={folder / 'config.toml'} PATH={Path(sys.executable).parent}:$PATH")
    for command in (f"explain {runs['good']}", f"show {runs['good']}", f"verify {runs['good']}", "status"):
        print(f"  outerloop {command}")
    print("  outerloop db stop        # when you are done; `make clean` removes it all")
    return 0 if ended else 1


def submit(outerloop: Outerloop, name: str, path: Path) -> str:
    print(f"  $ outerloop submit entry {CHALLENGE} --train {path.name}")
    answer = outerloop.json("submit", "entry", CHALLENGE, "--train", str(path), "--name", name)
    if answer.get("state") == "inbox":
        raise SystemExit(f"the record cannot be reached: {answer.get('why')}")
    return str(answer["run"])


def wait(outerloop: Outerloop, runs: dict[str, str], begun: float) -> bool:
    """Until all have ended; tells every change."""
    started = changed = ticked = time.monotonic()
    last = ""
    while time.monotonic() - started < PATIENCE_SECONDS:
        shown = {name: outerloop.json("show", run) for name, run in runs.items()}
        line = ", ".join(f"{name}: {stands(item)}" for name, item in shown.items())
        now = time.monotonic()
        if line != last:
            print(wrapped(f"{now - begun:4.0f} s  {line}"))
            last, changed = line, now
        states = {item["state"] for item in shown.values()}
        if states <= {"ended", "blocked"}:
            return states == {"ended"}
        if now - max(changed, ticked) > TICK_AFTER_SECONDS:
            outerloop.run("tick", check=False)
            ticked = now
        time.sleep(LOOK_SECONDS)
    print(f"  not ended after {PATIENCE_SECONDS:.0f} s")
    return False


def stands(shown: dict[str, Any]) -> str:
    """A run in a few words: its verdict, or which of its steps are under way."""
    if shown["state"] in {"ended", "blocked"}:
        return str(shown["verdict"] or shown["state_reason"])
    live = [step["role"] for step in shown["measures_detail"] if step["state"] == "open"]
    return " and ".join(live) or str(shown["state"])


def draw(outerloop: Outerloop, folder: Path, name: str, run: str) -> None:
    """Copy the metrics of each training stage to `curves/`, and draw one of them in a line."""
    place = folder / "curves"
    place.mkdir(exist_ok=True)
    for step in outerloop.json("show", run)["measures_detail"]:
        stage = step["role"].partition("-")[0]
        if stage not in CURVES or step["side"] != "candidate":
            continue
        slot = folder / "state" / "slots" / step["slot"][:2] / step["slot"]
        found = sorted(slot.glob("attempts/*/r*/out/metrics.jsonl"))
        if not found:
            continue
        target = place / f"{name}-{stage}.jsonl"
        shutil.copyfile(found[-1], target)
        values = [json.loads(line).get(CURVES[stage]) for line in target.read_text(encoding="utf-8").splitlines()]
        numbers = [float(value) for value in values if value is not None]
        print(f"  {target.relative_to(folder)!s:<28} {CURVES[stage]:<6} {bars(numbers)}")
        print(f"  {'':<28} from {numbers[0]:.3g} to {numbers[-1]:.3g} in {len(numbers)} steps")


def bars(numbers: list[float]) -> str:
    """The numbers as blocks between their smallest and largest, every so many-th of them."""
    taken = numbers[:: max(1, -(-len(numbers) // (_COLUMNS // 2)))]
    low, high = min(taken), max(taken)
    span = (high - low) or 1.0
    return "".join(_BARS[round((number - low) / span * (len(_BARS) - 1))] for number in taken)


if __name__ == "__main__":
    sys.exit(main())
