"""A campaign from beginning to end: models are trained round after round, and the first champion was luck.

Run it with `make demo-campaign`. It copies configs/campaigns/digits into a repository of its own, submits the
campaign, and leaves: jobs train, score, teach and package, and wake jobs decide what is next. Then it shows what
happened and draws it. Nothing is faked: models and counts are real. That a champion is luck in the first
generation was looked for, by choosing noise and split size: see the page on campaigns.

Standard library only; everything else happens through the `outerloop` command, as a person would type it.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from demo import TOP, Outerloop, fresh, sinfo_answers, write_config

NEEDED = {"torch": "torch", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}
PATIENCE_SECONDS = 1800.0
LOOK_SECONDS = 5.0
TICK_AFTER_SECONDS = 30.0
"""Wake jobs do everything here. Should they be lost, a tick does the rest, as cron would on a real site."""
GIT = ["git", "-c", "user.name=demo", "-c", "user.email=demo@example.org"]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dir", type=Path, default=TOP / ".demo-campaign", help="where everything goes")
    options.add_argument("--backend", choices=["auto", "slurm", "local"], default="auto")
    options.add_argument("--rounds", type=int, help="fewer rounds than digits.toml says")
    options.add_argument("--only", metavar="NAME,NAME", help="fewer candidates than candidates.toml lists")
    arguments = options.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in step with what the programs print that it starts
    missing = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(f"this needs {', '.join(missing)}: pip install '.[examples,plot]'", file=sys.stderr)
        return 2
    folder: Path = arguments.dir.absolute()
    backend = "slurm" if arguments.backend == "auto" and sinfo_answers() else arguments.backend
    backend = "local" if backend == "auto" else backend
    outerloop = Outerloop(folder)
    fresh(folder, outerloop)
    # The commands are `python ...`: of the environment that has torch and scikit-learn.
    write_config(folder, backend, prologue=f"export PATH='{Path(sys.executable).parent}':$PATH")
    print(f"backend {backend}; everything lies in {folder}\n")
    print("1. The repository: configs/campaigns/digits.toml and its six commands")
    build(folder / "target", arguments.rounds, arguments.only.split(",") if arguments.only else None)
    print("\n2. The campaign is submitted; the command returns at once.")
    print("  $ outerloop submit campaign digits.toml")
    outerloop.run("submit", "campaign", "digits.toml")
    print("\n3. No process of ours runs now. Jobs train and score, wake jobs decide what is next.")
    ended = wait(outerloop)
    print("\n4. What happened")
    events = [json.loads(line) for line in outerloop.run("campaign", "events", "digits", "--jsonl").stdout.splitlines()]
    for event in events:
        for line in told(event):
            print(f"  {line}")
    print("\n5. The packaged champion checks some claims")
    check_claims(outerloop, events)
    picture = folder / "digits.png"
    print("\n6. The picture")
    for place in (picture, picture.with_suffix(".svg")):
        print("  " + outerloop.run("campaign", "plot", "digits", "--output", str(place)).stdout.strip())
    print("\n7. To look further:\n")
    print(f"  export OUTERLOOP_CONFIG={folder / 'config.toml'} PATH={Path(sys.executable).parent}:$PATH")
    for command in (
        "campaign status digits",
        "campaign front digits",
        "campaign events digits --all",
        "campaign events digits --replay",
    ):
        print(f"  outerloop {command}")
    print("  outerloop db stop        # when you are done; `make clean` removes it all")
    return 0 if ended else 1


def build(target: Path, rounds: int | None, only: list[str] | None = None) -> None:
    """The repository of the campaign. Raises SystemExit for a name in `only` that is no candidate's."""
    target.mkdir()
    source = TOP / "configs" / "campaigns"
    shutil.copytree(source / "digits", target / "digits", ignore=shutil.ignore_patterns("__pycache__"))
    text = (source / "digits.toml").read_text(encoding="utf-8")
    if rounds is not None:
        lines = [f"max_rounds = {rounds}" if line.startswith("max_rounds") else line for line in text.splitlines()]
        text = "\n".join(lines) + "\n"
    (target / "digits.toml").write_text(text, encoding="utf-8")
    if only is not None:
        listed = target / "digits" / "candidates.toml"
        head, *tables = listed.read_text(encoding="utf-8").split("[[candidates]]\n")
        named = {tomllib.loads(table)["name"]: table for table in tables}
        if unknown := [name for name in only if name not in named]:
            raise SystemExit(f"--only: no candidate {', '.join(unknown)}; there are {', '.join(named)}")
        kept = [named[name] for name in named if name in only]
        listed.write_text("[[candidates]]\n".join([head, *kept]), encoding="utf-8")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "A campaign over small gates"]):
        subprocess.run([*GIT, *words], cwd=target, check=True)


def wait(outerloop: Outerloop) -> bool:
    """Until the campaign has ended; tells every change."""
    started = changed = ticked = time.monotonic()
    last = ""
    while time.monotonic() - started < PATIENCE_SECONDS:
        told = outerloop.json("campaign", "status", "digits")
        champion = (told["champion"] or {}).get("subject", "none")
        line = (
            f"generation {told['generation'] or '-'}, round {told['rounds']}: "
            f"{told['evaluations']} evaluations, champion {champion}"
        )
        now = time.monotonic()
        if line != last:
            print(f"  {now - started:5.0f} s  {line}")
            last, changed = line, now
        if told["state"] in {"ended", "blocked"}:
            print(f"  {now - started:5.0f} s  {told['state']}: {told['sentence'] or told['state_detail']}")
            return bool(told["state"] == "ended")
        if now - max(changed, ticked) > TICK_AFTER_SECONDS:
            outerloop.run("tick", check=False)
            ticked = now
        time.sleep(LOOK_SECONDS)
    print(f"  it has not ended after {PATIENCE_SECONDS:.0f} s")
    return False


def told(event: dict) -> list[str]:  # type: ignore[type-arg]
    """The lines for an event that is worth one."""
    match event:
        case {"kind": "generation", "status": "opened"}:
            return [f"generation {event['generation']} begins: {event['reason'].replace('_', ' ')}"]
        case {"kind": "champion"}:
            return [f"champion: {event['subject']}, errors {event['counts']}"]
        case {"kind": "teacher", "status": "finished"}:
            return [f"the teacher of generation {event['generation']} is there; a student may learn"]
        case {"kind": "reserve_check", "status": "passed" | "luck" | "stale" | "not_run"}:
            words = {"passed": "holds up", "luck": "was luck", "stale": "has changed meanwhile", "not_run": "?"}
            lines = [f"reserve check after {event['evaluations']} evaluations: the champion {words[event['status']]}"]
            lines += [
                f"    {line['objective']}: test {line['test_count']} of {line['test_total']}, "
                f"reserve {line['reserve_count']} of {line['reserve_total']}, p = {line['p']:.3f}"
                for line in event.get("lines", [])
            ]
            return lines
        case {"kind": "package", "status": "finished"}:
            return [f"packaged: {event['subject']} (exit code {event.get('exit_code')})"]
    return []


def check_claims(outerloop: Outerloop, events: list[dict]) -> None:  # type: ignore[type-arg]
    done = [event for event in events if event["kind"] == "package" and event["status"] == "finished"]
    if not done:
        print("  none was packaged")
        return
    folder = Path(outerloop.json("campaign", "status", "digits")["folder"])
    package = folder / "packages" / done[-1]["subject"].replace("/", "-")
    items = folder / "splits" / f"g{done[-1]['generation']:03d}" / "items.npz"
    print(f"  $ python {package / 'check.py'} ITEMS 17 18 19 20")
    said = subprocess.run(
        [sys.executable, str(package / "check.py"), str(items), "17", "18", "19", "20"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for line in (said.stdout or said.stderr).splitlines():
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
