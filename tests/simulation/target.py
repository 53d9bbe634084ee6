"""One target for every schedule: its repository, its mirror and the requests that `submit` would make.

git's objects never change, so what a mirror answers about a commit or a tree, and what a contract says, is remembered
between schedules.
"""

from __future__ import annotations

import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outerloop.controller import plan
from outerloop.controller.campaign_request import CampaignRequest
from outerloop.controller.git import Mirror
from outerloop.controller.request import ClimbRequest
from outerloop.controller.submit import prepare_climb
from outerloop.controller.training_request import TrainingRequest
from outerloop.settings import Settings
from outerloop.slots import StateRoot
from tests.simulation.launches import CAMPAIGNS, TRAININGS, the_requests

CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "sh bench.sh"
metric = "cost"
direction = "min"
seed_env = "BENCH_SEED"
minutes = 3
min_delta = 0.5
suite = ["size"]
{more}

[[benchmarks]]
name = "size"
command = "sh bench.sh"
metric = "bytes"
direction = "min"
deterministic = true
minutes = 3
regression = {{ free = 0.0, max = 0.1 }}

[scope]
allowed = ["src/"]
shared = ["src/shared/"]
"""

FLAVOURS = {
    "": "",
    "pairs": 'rule = { kind = "paired", pairs = 3, alpha = 0.125 }',
    "packed": 'rule = { kind = "paired", pairs = 3, alpha = 0.125 }\npack = 3',
    "side-by-side": "colocate = true",
}
"""Contracts by the branch that has them: one pair, six measures that become ready together, the same three to a job,
and both sides of a pair in one job."""

BASE = {"bench.sh": "exit 0\n", "src/cost": "10\n", "src/shared/bytes": "100\n"}


@dataclass(frozen=True)
class Behaviour:
    """What the benchmark prints on a tree; `exit_code` is the command's."""

    cost: float
    size: int
    exit_code: int = 0


KINDS: dict[str, tuple[dict[str, str], Behaviour]] = {
    "better": ({"src/cost": "8\n"}, Behaviour(8, 100)),
    "worse": ({"src/cost": "12\n"}, Behaviour(12, 100)),
    "failing": ({"src/cost": "7\n", "src/extra": "exit 3\n"}, Behaviour(7, 100, exit_code=3)),
    "bigger": ({"src/cost": "6\n", "src/shared/bytes": "200\n"}, Behaviour(6, 200)),
}
"""One that wins, and three that lose on the metric, by their own failure and on a sibling: their verdicts do not
depend on whether the winner was crowned before them."""
CANDIDATES = {flavour: {f"{kind}-{flavour}".rstrip("-"): kind for kind in KINDS} for flavour in FLAVOURS}
"""Names of the candidates of each flavour, and the kind that each is."""
ASKED: dict[str, tuple[str, ...]] = {
    **{flavour: tuple(names) for flavour, names in CANDIDATES.items()},
    "trainings": tuple(TRAININGS),
    "campaigns": tuple(CAMPAIGNS),
}
"""Everything that a schedule may submit, by flavour."""


VERDICTS = {
    "better": ("accepted", ""),
    "worse": ("rejected", "no-improvement"),
    "failing": ("failed", "candidate-error"),
    "bigger": ("rejected", "suite-regression"),
}
"""What each kind comes to when nothing goes wrong."""
CALM = {
    **{name: VERDICTS[kind] for names in CANDIDATES.values() for name, kind in names.items()},
    **{name: verdict for name, (_plan, verdict) in TRAININGS.items()},
    **dict.fromkeys(CAMPAIGNS, ("finished", "")),
}
"""The same by candidate. A test plays them all without a fault; schedules are compared with this table."""


@dataclass
class Target:
    """The requests by candidate, and how each tree behaves."""

    requests: dict[str, ClimbRequest | TrainingRequest | CampaignRequest]
    behaviours: dict[str, Behaviour]


def make_target(folder: Path, settings: Settings, root: StateRoot, patch: pytest.MonkeyPatch) -> Target:
    """The repository, its mirror in `root`, and what git says about it remembered from now on."""
    repo = folder / "repo"
    repo.mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments: str, data: str = "") -> str:
        done = subprocess.run(["git", *arguments], cwd=repo, env=env, input=data, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    stream = ""
    for flavour, more in FLAVOURS.items():
        base = f"base-{flavour}".rstrip("-")
        stream += _commit(base, {".outerloop.toml": CONTRACT.format(more=more), **BASE}, "")
        for name, kind in CANDIDATES[flavour].items():
            stream += _commit(name, KINDS[kind][0], f"refs/heads/{base}")
    git("init", "-q", "-b", "base")
    git("fast-import", "--quiet", data=stream)
    requests: dict[str, ClimbRequest | TrainingRequest | CampaignRequest] = {}
    behaviours: dict[str, Behaviour] = {}
    for flavour in FLAVOURS:
        base = f"base-{flavour}".rstrip("-")
        behaviours[git("rev-parse", f"{base}^{{tree}}")] = Behaviour(10, 100)
        for name, kind in CANDIDATES[flavour].items():
            prepared = prepare_climb(settings, root, repository=repo, benchmark="speed", base=base, candidate=name)
            requests[name] = prepared.request
            behaviours[git("rev-parse", f"{name}^{{tree}}")] = KINDS[kind][1]
    requests.update(the_requests(settings, root, repo, "base"))
    patch.setattr(plan, "parse_contract", functools.lru_cache(plan.parse_contract))
    for method in ("tree", "blob", "changes", "has"):
        patch.setattr(Mirror, method, _remembered(getattr(Mirror, method)))
    return Target(requests, behaviours)


def _remembered(method: Any) -> Any:
    known: dict[Any, Any] = {}

    @functools.wraps(method)
    def answer(self: Mirror, *arguments: Any, **named: Any) -> Any:
        key = (self.path, arguments, tuple(sorted(named.items())))
        if key not in known:
            known[key] = method(self, *arguments, **named)
        return known[key]

    return answer


def _commit(branch: str, files: dict[str, str], parent: str) -> str:
    """A commit for git fast-import."""
    lines = [f"commit refs/heads/{branch}", "committer t <t@localhost> 1767225600 +0000", "data 1", "x"]
    lines += [f"from {parent}"] if parent else []
    for path, content in files.items():
        lines += [f"M 100644 inline {path}", f"data {len(content)}", content]
    return "\n".join(lines) + "\n\n"
