"""A record that real runs filled: the controller, the job wrapper, git and Postgres are the real ones.

Covered: verdicts of each kind, a champion, a training with curves, ranks and checkpoints, a planned sweep, a planned
fine-tune whose torchrun is a stand-in that reports what GPUs would (there are none here), a campaign of two generations
(its first champion was luck) with teacher, ensemble and packages, runs that wait. The cluster is the rig's, made of
files, so that a test says when jobs run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.controller_rig.campaigns import CampaignWorld
from tests.controller_rig.trainings import GPU_REPORT, TrainingWorld, reporting

TRAINING = """\
import torch
import outerloop.torch as olt

torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = olt.prepare(model, optimizer, loader)
step = olt.start_step()
for epoch in range(5):
    for inputs, wanted in loader:
        loss = ((model(inputs) - wanted) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        olt.checkpoint(model, optimizer, step=step, every=10)
        odd = float("nan") if step == 20 else float(loss.detach())
        olt.log_metrics({"loss": odd, "lr": 0.05 / (1 + step), "step": step})
        step += 1
print("trained", step, "steps")
"""


def fill(world: CampaignWorld) -> dict[str, str]:
    """Run everything; the runs' ids by what became of them."""
    (world.repo / "train.py").write_text(TRAINING)
    world.git("add", "-A")
    world.git("commit", "-q", "-m", "a training")
    for name, cost in (("better", "8"), ("same", "10")):
        world.branch(name, cost=cost, note=name)
    world.branch("bigger", cost="8", size="200")
    world.branch("crash", cost="8", extra="echo boom >&2; exit 3\n")
    world.branch("best", cost="5")
    world.branch("later", cost="4", note="still to come")
    world.branch("live", cost="3")  # for whoever submits it; a branch made later would hold the campaign's files
    runs = {name: world.submit(name) for name in ("better", "same", "bigger", "crash")}
    world.ticks_until_rest()
    runs["best"] = world.submit("best", base=None)
    plan = world.plan("fit", family="local_process", command=[sys.executable, "train.py"])
    runs["training"] = world.train(plan)
    plans(world, runs)
    campaign(world)
    runs["campaign"] = world.submit_campaign()
    world.ticks_until_rest(60)
    runs["waiting"] = world.submit("later")
    return runs


SWEEP = """\
[workload]
kind = "independent_tasks"
tasks = 3
task_minutes = 0.1

[resources]
cores_per_host = 8
"""


def plans(world: CampaignWorld, runs: dict[str, str]) -> None:
    """Trainings that plan reports launched."""
    request = world.folder / "sweep.toml"
    request.write_text(SWEEP)
    tasks = world.folder / "tasks.jsonl"
    tasks.write_text("".join(f'{{"lr": {lr}}}\n' for lr in (0.01, 0.1, 1)))
    sweep = world.plan("sweep")
    Path(sweep).write_text(world.cli("plan", str(request), "--json"))
    runs["sweep"] = world.train(sweep, "--tasks", str(tasks), "--name", "sweep", command=("echo", "{lr}"))
    reporting(world, GPU_REPORT)
    tune = world.plan("tune")
    asked = ("--model", "llama-3.1-8b", "--gpus", "8xH100", "--lora", "--tokens", "1e8", "--mode", "fastest")
    Path(tune).write_text(world.cli("plan", *asked, "--json"))
    runs["tune"] = world.train(tune, "--name", "tune", command=("python", "train.py"))


CURVE = [[0.0, 0.9], [0.1, 0.4], [0.5, 0.1], [1.0, 0.0]]


def campaign(world: CampaignWorld) -> None:
    """Write a campaign whose first champion is luck: the reserve says so, and a second generation begins."""
    world.campaign(
        ("split", "train", "evaluate", "ensemble", "teacher", "package"),
        name="gates",
        max_rounds=3,
        parallel=2,
        teacher_after_round=1,
        teacher_file="teachers/g{generation}.txt",
        ensemble_from_round=2,
        saturation_evals=4,
    )
    world.candidates(
        lucky={"errors": [[20, 20], [4, 6]], "reserve": [60, 60], "report": {"gate_curve": CURVE}},
        plain={"errors": [[30, 5]], "reserve": [32, 6], "report": {"gate_curve": CURVE}},
    )


def verdicts(world: TrainingWorld, runs: dict[str, str]) -> dict[str, str]:
    """What became of each, so that a test of pages notices when there is nothing to show."""
    return {name: str(world.run(run).verdict or world.run(run).state) for name, run in runs.items()}


def describe(folder: Path) -> str:
    """The newest report of a training below a folder, for messages."""
    found = sorted(folder.glob("**/out/run.json"))
    return json.dumps(json.loads(found[-1].read_bytes()), indent=1) if found else "no run.json"
