"""The rig for campaigns: a target whose commands are one small program, told by its configs how to behave.

Covered: campaign.toml and the candidates file, running to the end, the ledger for comparisons. What a training "learns"
are error counts that its config states, so that every test knows the champion beforehand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from outerloop.champion import EvalEvent, Event, events_from_jsonl, events_to_jsonl
from outerloop.controller.campaign_ledger import CampaignLedger
from tests.controller_rig.trainings import TrainingWorld
from tests.controller_rig.world import World

TASK = r"""
import hashlib, json, os, random, sys

MARKS = {marks!r}


def mark(*words):
    with open(MARKS, "a") as file:
        file.write(" ".join(words) + "\n")


def write(path, value):
    with open(path + ".tmp", "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    os.rename(path + ".tmp", path)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def report(checkpoint, role):
    with open(checkpoint) as file:
        model = json.load(file)
    fails, passes = model["reserve"] if role == "reserve" and model["reserve"] else model["errors"]
    counts = dict(fail_count=100, fail_to_pass_count=fails, pass_count=200, pass_correct_count=200 - passes)
    decided = dict(fail_count=90, fail_to_pass_count=fails, pass_count=190, pass_correct_count=190 - passes)
    told = dict(counts, macro_f1=0.5, s_f1=0.5, checkpoint_sha256=digest(checkpoint), gate_auc=0.5)
    told["decided"] = dict(decided, rejected_total=20)
    told.update(model["report"])
    return told


def margins_of(checkpoint, role):
    # One row per item where the config asks for them: which items a checkpoint gets wrong is drawn from its digest.
    with open(checkpoint) as file:
        model = json.load(file)
    if not model["margins"]:
        return '{{"margin": 0.5, "target": 1}}\n'
    draw = random.Random(digest(checkpoint) + role)
    rows = []
    told = report(checkpoint, role)
    for target, count, errors in ((0, 100, told["fail_to_pass_count"]), (1, 200, 200 - told["pass_correct_count"])):
        wrong = set(draw.sample(range(count), errors))
        rows += [dict(margin=1.0 if (item in wrong) != bool(target) else -1.0, target=target) for item in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows[model["margins"] - 1:])


def main(what, *rest):
    if what == "split":
        output, seed, *totals = rest
        os.mkdir(output)
        if totals:
            write(output + "/totals.json", dict(fail_count=int(totals[0]), pass_count=int(totals[1])))
        write(output + "/items.json", dict(seed=int(seed)))
        mark("split", seed)
    elif what == "train":
        with open(rest[0]) as file:
            config = json.load(file)
        output, run_id = rest[1:]
        assert os.path.exists(config["split"] + "/items.json") and os.listdir(output) == []
        soft = config.get("gate_soft_targets")
        mark("train", run_id, *([open(soft).read().strip()] if soft else []))
        for number, errors in enumerate(config["errors"], start=1):
            name = output + "/model-%04d" % number
            model = dict(run=run_id, errors=errors, reserve=config.get("reserve"), report=config.get("report", dict()))
            model.update(margins=config.get("margins", 0), number=number)
            write(name, model)
            write(output + "/validation-epoch-%04d.json" % number, dict(gate_auc=0.9, fail_to_pass_count=errors[0]))
            write(output + "/validation-epoch-%04d.scores.jsonl" % number, '{{"margin": 1.0, "target": 1}}\n')
        names = ["model-%04d" % (n + 1) for n in range(len(config["errors"]))] + config.get("listed", [])
        if config.get("pipe"):
            os.mkfifo(output + "/" + config["pipe"])
        write(output + "/selection.json", dict(checkpoint=names[-1], false_negatives=0, inputs_sha256="same"))
        write(output + "/pareto.json", dict(checkpoints=[dict(checkpoint=name) for name in names]))
        for name, text in config.get("files", dict()).items():
            write(output + "/" + name, text)
        sys.exit(config.get("exit", 0))
    elif what == "evaluate":
        with open(rest[0]) as file:
            jobs = json.load(file)
        for job in jobs:
            told = report(job["checkpoint"], rest[1])
            assert digest(job["config"]) == job["config_sha256"]
            run = json.load(open(job["checkpoint"]))["run"]
            mark("evaluate", rest[1], run, job["checkpoint"][-4:])
            write(job["scores_output"], margins_of(job["checkpoint"], rest[1]))
            if told.get("bytes") == "latin":
                told["note"] = "caf\u00e9"
                with open(job["output"], "wb") as file:
                    file.write(json.dumps(told, ensure_ascii=False).encode("latin-1"))
            elif told.get("bytes") == "link":
                write(job["output"] + ".elsewhere", told)
                os.rename(job["output"] + ".elsewhere", MARKS + ".report")
                os.symlink(MARKS + ".report", job["output"])
            elif told.get("bytes") == "pipe":
                os.mkfifo(job["output"])
            else:
                write(job["output"], told.get("text") or told)
    elif what == "ensemble":
        manifest, role, output, scores = rest
        members = json.load(open(manifest))["members"]
        told = [report(member["checkpoint"], role) for member in members]
        best = min(told, key=lambda item: item["fail_to_pass_count"])
        mark("ensemble", role, str(len(members)))
        write(scores, '{{"margin": 0.5, "target": 1}}\n')
        write(output, dict(best, checkpoint_sha256=""))
    elif what == "teacher":
        margins, output = rest
        rows = json.load(open(margins))
        assert all(open(row["scores"]).read() for row in rows)
        mark("teacher", str(len(rows)))
        write(output, "soft from %d" % len(rows))
    elif what == "package":
        output, campaign, told = rest[:3]
        mark("package", digest(told)[:8])
        write(output + "/packaged.txt", "ok")


main(*sys.argv[1:])
"""

COMMANDS = {
    "split": "split {output} {seed}",
    "train": "train {config} {output} {run_id}",
    "evaluate": "evaluate {jobs} {role}",
    "ensemble": "ensemble {manifest} {role} {output} {scores_output}",
    "teacher": "teacher {margins} {output}",
    "package": "package {output} {campaign} {report}",
}


class CampaignFiles(World):
    """The files of a campaign in a world's target. `marks` has one line for everything that a command really did."""

    @property
    def toml(self) -> Path:
        return self.repo / "campaign.toml"

    @property
    def list(self) -> Path:
        return self.repo / "candidates.toml"

    def add_task(self) -> None:
        """Commit the program that all commands are."""
        (self.repo / "task.py").write_text(TASK.format(marks=str(self.marks)))
        self.git("add", "task.py")
        self.git("commit", "-qm", "the task")

    def step(self, name: str) -> str:
        """The command line of a step."""
        return f"{sys.executable} task.py {COMMANDS[name]}"

    def campaign(self, steps: tuple[str, ...] = ("split", "train", "evaluate"), **keys: Any) -> None:
        """Write campaign.toml with these steps' commands and keys."""
        keys = {"name": "loop", "candidates": "candidates.toml", "max_rounds": 1, "parallel": 1, **keys}
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        lines += ["[commands]", *(f"{name} = {json.dumps(self.step(name))}" for name in steps)]
        self.toml.write_text("\n".join(lines) + "\n")

    def after(self, step: str, script: str) -> None:
        """Let a step's command be followed by a shell script, when it ended well."""
        whole = f"{self.step(step)} && {script.replace('{', '{{').replace('}', '}}')}"
        self.toml.write_text(self.toml.read_text().replace(json.dumps(self.step(step)), json.dumps(whole)))

    def candidates(self, **told: Any) -> None:
        """Write the candidates file: name -> what its config says besides the base, or error counts by epoch."""
        lines = []
        for name, overrides in told.items():
            keys = overrides if isinstance(overrides, dict) else {"errors": overrides}
            base = self.repo / "base.yaml"
            if not base.exists():
                base.write_text("errors: [[50, 50]]\nlearning_rate: 0.001\n")
            lines += ["[[candidates]]", f'name = "{name}"', 'base = "base.yaml"', f"overrides = {_inline(keys)}"]
        self.list.write_text("\n".join(lines) + "\n")


class CampaignWorld(CampaignFiles, TrainingWorld):
    """A world whose runs are campaigns, on a cluster of files."""

    def __init__(self, folder: Path, database: str) -> None:
        TrainingWorld.__init__(self, folder, database)
        self.add_task()

    def submit_campaign(self, *options: str, code: int = 0) -> str:
        """Submit; the run's id."""
        told = self.cli("submit", "campaign", str(self.toml), "--json", *options, code=code)
        return str(json.loads(told[told.index("{") :])["run"]) if code == 0 else told

    def ledger(self, run_id: str) -> list[Event]:
        """The events on disk."""
        return CampaignLedger(self.state, run_id).read()

    def told(self, run_id: str) -> str:
        """The ledger without times: what a disturbed campaign must share with an undisturbed one."""
        return events_to_jsonl(self.ledger(run_id), times=False)

    def rounds(self, run_id: str) -> list[Event]:
        return [event for event in self.ledger(run_id) if event.kind == "round"]

    def exported(self, run_id: str) -> list[Event]:
        return events_from_jsonl(self.cli("campaign", "events", run_id, "--jsonl"))

    def evaluations(self, run_id: str) -> dict[str, EvalEvent]:
        """Test evaluations by subject."""
        return {e.subject: e for e in self.ledger(run_id) if isinstance(e, EvalEvent) and e.role == "test"}

    def status(self, run_id: str) -> dict[str, Any]:
        return dict(json.loads(self.cli("campaign", "status", run_id, "--json")))

    def did(self, *words: str) -> int:
        """How often the commands did something whose mark begins with these words."""
        lines = self.marks.read_text().splitlines() if self.marks.exists() else []
        return sum(line.split()[: len(words)] == list(words) for line in lines)


def _inline(value: Any) -> str:
    """A value as inline TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_inline(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(inner) for inner in value) + "]"
    return json.dumps(value)
