"""Trainings and campaigns for schedules: their requests, and what their commands leave on the simulated nodes.

Covered: a training of one resumable process, one of several tasks of which a task may fail by its own program, and a
campaign of one round whose trainings "learn" the error counts that their configs state. Not covered: teachers,
ensembles, reserve checks, packages (tests/e2e/test_campaign_kills.py has them).
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outerloop.controller.campaign_request import CampaignRequest
from outerloop.controller.submit_campaign import prepare_campaign
from outerloop.controller.submit_training import prepare_training, resumes, shape_of
from outerloop.controller.training_request import TrainingRequest
from outerloop.job import layout, reports
from outerloop.settings import Settings
from outerloop.slots import StateRoot
from outerloop.strategies import StrategyPlan, compile_plan

__all__ = ["CAMPAIGNS", "TRAININGS", "exit_code", "run_launch", "save_checkpoint", "the_requests"]

_TASK = ("train", "{code}", "{n}")
TRAININGS: dict[str, tuple[StrategyPlan, tuple[str, str]]] = {
    "one-process": (StrategyPlan(family="local_process", command=("train", "0")), ("finished", "")),
    "three-tasks": (
        StrategyPlan(family="lease_tasks", command=_TASK, tasks=tuple({"code": 0, "n": n} for n in range(3))),
        ("finished", ""),
    ),
    "a-bad-task": (
        StrategyPlan(family="lease_tasks", command=_TASK, tasks=({"code": 0, "n": 7}, {"code": 3, "n": 8})),
        ("failed", "EXIT_3"),
    ),
}
"""Plan of each training, and its verdict without faults. A task's first argument is its exit code."""

CAMPAIGNS = {"loop": 1, "wide-loop": 2}
"""Jobs that each campaign may have at a time. One at a time, its ledger depends on nothing but its commands."""

_CAMPAIGN = """\
name = "{name}"
candidates = "candidates.toml"
max_rounds = 1
base_seed = {parallel}00
parallel = {parallel}
compare = "decided"
[commands]
split = "split {{output}} {{seed}}"
train = "train {{config}} {{output}} {{run_id}}"
evaluate = "evaluate {{jobs}} {{role}}"
"""
_CANDIDATES = """\
[[candidates]]
name = "a"
base = "base.yaml"
overrides = { errors = [[20, 20], [15, 25]] }
[[candidates]]
name = "b"
base = "base.yaml"
overrides = { errors = [[10, 12]] }
"""


def the_requests(
    settings: Settings, root: StateRoot, repo: Path, revision: str
) -> dict[str, TrainingRequest | CampaignRequest]:
    """What `submit training` and `submit campaign` would ask, by name."""
    found: dict[str, TrainingRequest | CampaignRequest] = {}
    for name, (plan, _verdict) in TRAININGS.items():
        found[name] = prepare_training(
            settings,
            root,
            repository=repo,
            candidate=revision,
            launches=[spec.model_dump(mode="json") for spec in compile_plan(plan)],
            family=plan.family,
            shape=shape_of(plan),
            name=name,
            minutes=30,
            resumable=resumes(plan, None),
        ).request
    folder = repo.parent / "campaigns"
    folder.mkdir()
    (folder / "base.yaml").write_text("errors: [[50, 50]]\n")
    (folder / "candidates.toml").write_text(_CANDIDATES)
    for name, parallel in CAMPAIGNS.items():
        path = folder / f"{name}.toml"
        path.write_text(_CAMPAIGN.format(name=name, parallel=parallel))
        found[name] = prepare_campaign(settings, root, path=path, repository=repo, candidate=revision).request
    return found


def exit_code(launch: Mapping[str, Any]) -> int:
    """How a launch's own program ends."""
    argv = launch["argv"]
    return int(argv[argv.index("train") + 1]) if "train" in argv else 0


def save_checkpoint(slot: Path, step: int) -> None:
    """A whole checkpoint of resumable work, as `outerloop.torch` publishes them."""
    folder = slot / layout.STATE / f"step-{step:010d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text("{}")


def run_launch(slot: Path, attempt: int, restart: int, work: Mapping[str, Any]) -> None:
    """Do what a launch's command does: a training of the researcher's own leaves nothing, a campaign's does."""
    launch = work["launch"]
    if launch["argv"][:2] != ["/bin/sh", "-c"]:
        return
    output, state = (
        slot / layout.ATTEMPTS / str(attempt) / layout.restart_folder(restart) / layout.OUT,
        slot / layout.STATE,
    )
    output.mkdir(parents=True, exist_ok=True)
    state.mkdir(exist_ok=True)
    for name, text in launch["files"].items():
        (output / name).write_text(text)
    asked = work.get("reports")
    if asked is not None and not reports.prepare(asked, str(state), str(output), str(state)):
        return
    line = launch["argv"][2].splitlines()[-1]
    for variable, place in (("OUTERLOOP_OUTPUT_DIR", output), ("OUTERLOOP_CKPT_DIR", state)):
        line = line.replace(f'"${variable}"', shlex.quote(str(place)))
    what, *rest = shlex.split(line)
    {"split": _split, "train": _train, "evaluate": _evaluate}[what](*rest)


def _write(path: str | Path, value: Any) -> None:
    Path(f"{path}.tmp").write_text(value if isinstance(value, str) else json.dumps(value))
    Path(f"{path}.tmp").replace(path)


def _split(output: str, seed: str) -> None:
    Path(output).mkdir(exist_ok=True)
    _write(f"{output}/items.json", {"seed": int(seed)})


def _train(config: str, output: str, run_id: str) -> None:
    told = json.loads(Path(config).read_text())
    assert Path(told["split"], "items.json").exists(), "a training without its split"
    Path(output).mkdir(exist_ok=True)
    names = []
    for number, errors in enumerate(told["errors"], start=1):
        names.append(f"model-{number:04d}")
        _write(f"{output}/{names[-1]}", {"run": run_id, "errors": errors})
        _write(f"{output}/validation-epoch-{number:04d}.json", {"gate_auc": 0.9, "fail_to_pass_count": errors[0]})
        _write(f"{output}/validation-epoch-{number:04d}.scores.jsonl", '{"margin": 1.0, "target": 1}\n')
    _write(f"{output}/selection.json", {"checkpoint": names[-1], "false_negatives": 0, "inputs_sha256": "same"})
    _write(f"{output}/pareto.json", {"checkpoints": [{"checkpoint": name} for name in names]})


def _evaluate(jobs: str, role: str) -> None:
    for job in json.loads(Path(jobs).read_text()):
        content = Path(job["checkpoint"]).read_bytes()
        fails, passes = json.loads(content)["errors"]
        assert hashlib.sha256(Path(job["config"]).read_bytes()).hexdigest() == job["config_sha256"]
        found = {"fail_to_pass_count": fails, "fail_count": 100, "pass_count": 200, "pass_correct_count": 200 - passes}
        decided = {
            **found,
            "fail_count": 90,
            "pass_count": 190,
            "pass_correct_count": 190 - passes,
            "rejected_total": 20,
        }
        report = {**found, "macro_f1": 0.5, "s_f1": 0.5, "gate_auc": 0.5, "decided": decided}
        report["checkpoint_sha256"] = hashlib.sha256(content).hexdigest()
        _write(job["scores_output"], f'{{"margin": 0.5, "target": 1, "role": "{role}"}}\n')
        _write(job["output"], report)
