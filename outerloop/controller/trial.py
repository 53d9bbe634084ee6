"""`contract try`: run a benchmark a few times through the real wrapper, here, and suggest its numbers.

Covered: HEAD's tree (or the working tree's) in slots of a throw-away state folder, one run after another, on this
machine. Not covered: the cluster (a climb does that), verdicts.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from outerloop.climb import FIRST_FRESH_REPLICATE, MeasureRequest
from outerloop.contract import CONTRACT_FILE, MAX_BYTES, Benchmark, Contract, parse_contract
from outerloop.controller.git import GitError, Mirror, Repository
from outerloop.controller.request import ClimbRequest, Execution, fresh_seed
from outerloop.controller.work import Work, environment_work, measure_work
from outerloop.job.script import job_script
from outerloop.slots import Pin, Result, SlotDirectory, StateRoot

__all__ = ["Trial", "TrialError", "Turn", "try_benchmark"]

SUGGESTED_MINUTES_FACTOR = 3.0
"""A node may be three times slower than this machine before a time-out is charged to a candidate."""


class TrialError(Exception):
    """The benchmark did not give a value; the text says in which phase, why, and what it printed last."""


@dataclass(frozen=True)
class Turn:
    """One run of the command."""

    seed: int
    value: Decimal
    seconds: float
    max_rss_mb: float
    cpu_seconds: float


@dataclass(frozen=True)
class Trial:
    """What the runs showed and what follows for the contract."""

    benchmark: str
    metric: str
    commit: str
    turns: tuple[Turn, ...]
    spread: Decimal
    suggested_minutes: int
    suggested_memory_gb: int
    suggested_floor: Decimal
    sentence: str


def try_benchmark(
    repository: Path,
    name: str,
    *,
    python: str,
    isolation: str = "none",
    runs: int = 2,
    progress: Callable[[str], None] = lambda _line: None,
) -> Trial:
    """Run benchmark `name` of the working tree `runs` times. Raises TrialError, ContractError, GitError."""
    repo = Repository.open(repository)
    commit = repo.seal_worktree()
    with tempfile.TemporaryDirectory(prefix="outerloop-try-") as scratch:
        root = StateRoot(Path(scratch) / "state")
        mirror = Mirror(root.mirror(repo.identity))
        mirror.pin(repo, {f"commits/{commit}": commit})
        tree = mirror.tree(commit)
        text = mirror.blob(tree, CONTRACT_FILE, limit=MAX_BYTES)
        if text is None:
            raise GitError(f"{repo.top} has no {CONTRACT_FILE}; write one with `outerloop contract init`")
        contract = parse_contract(text, CONTRACT_FILE)
        benchmark = contract.benchmark(name)
        request = _request(repo, contract, benchmark, commit, tree, isolation)
        environment = _environment(root, mirror, contract, request, benchmark, tree, python, progress)
        turns = []
        for turn in range(runs):
            seed = fresh_seed() if benchmark.seed_env else 0
            work = measure_work(
                request,
                contract,
                MeasureRequest(f"try-{turn}", name, "base", turn, seed, FIRST_FRESH_REPLICATE + turn),
                base_tree=tree,
                mirror=str(mirror.path),
                environment=environment,
                environment_slot=str(root.slot(environment.digest)) if environment else "",
            )
            progress(f"run {turn + 1} of {runs}" + (f", {benchmark.seed_env}={seed}" if seed else ""))
            result = _run(root, work, python)
            value = result.value
            if value is None:
                raise TrialError(f"{name}: the run ended without a usable {benchmark.metric}")
            turns.append(
                Turn(
                    seed,
                    value,
                    result.phase_seconds("command") or 0.0,
                    float(result.body.get("max_rss_mb") or 0.0),
                    float(result.body.get("cpu_seconds") or 0.0),
                )
            )
    return _summary(benchmark, commit, tuple(turns))


def _request(
    repo: Repository, contract: Contract, benchmark: Benchmark, commit: str, tree: str, isolation: str
) -> ClimbRequest:
    execution = Execution(lane={"name": "here"}, isolation=isolation)
    return ClimbRequest(
        id="try",
        question="",
        target=repo.identity,
        benchmark=benchmark.name,
        definition=benchmark.definition_hash(),
        base_commit=commit,
        base_tree=tree,
        base_revision="HEAD",
        candidate_commit=commit,
        candidate_tree=tree,
        candidate_revision="HEAD",
        submitter="",
        repository=str(repo.top),
        created_at="",
        execution={item.name: execution for item in contract.benchmarks},
    )


def _environment(
    root: StateRoot,
    mirror: Mirror,
    contract: Contract,
    request: ClimbRequest,
    benchmark: Benchmark,
    tree: str,
    python: str,
    progress: Callable[[str], None],
) -> Work | None:
    if contract.environment is None:
        return None
    files_tree, missing = mirror.subset_tree(tree, contract.environment.files)
    if missing:
        raise TrialError(f"[environment] names files that are not there: {', '.join(missing)}")
    work = environment_work(request, contract, benchmark.name, files_tree=files_tree, mirror=str(mirror.path))
    progress("building the environment")
    _run(root, work, python)
    return work


def _run(root: StateRoot, work: Work, python: str) -> Result:
    directory = SlotDirectory(root.slot(work.digest), work.digest)
    directory.write_spec(work.determinants.canonical(), work.facts)
    script = directory.prepare_attempt(1, _order(work), job_script(python, directory.path, 1, "", ""))
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "USER", "TMPDIR") if key in os.environ}
    environment["OUTERLOOP_LOCAL_JOB_ID"] = f"try-{os.getpid()}"
    done = subprocess.run(
        ["bash", str(script)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    result = directory.result(1)
    if result is None:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise TrialError(f"the wrapper ended with {done.returncode} and left no result: {said}")
    if not result.ok:
        tail = str(result.body.get("stderr_tail") or "").strip()
        raise TrialError(
            f"{work.label}: {result.reason} in phase {result.phase}: {result.detail}" + (f"\n{tail}" if tail else "")
        )
    directory.pin(Pin(1, result.restart))
    return result


def _order(work: Work) -> Mapping[str, Any]:
    return {
        "schema": 1,
        "digest": work.digest,
        "attempt": 1,
        "minutes": float(work.order["minutes"]),
        "margin_seconds": 60,
        "isolation": work.order["isolation"],
        "image_path": "",
        "cache_seed": "",
    }


def _summary(benchmark: Benchmark, commit: str, turns: tuple[Turn, ...]) -> Trial:
    values = [turn.value for turn in turns]
    spread = max(values) - min(values)
    slowest = max(turn.seconds for turn in turns)
    memory = max(turn.max_rss_mb for turn in turns)
    if spread == 0 and not benchmark.seed_env:
        sentence = "the same value each time: `deterministic = true` measures each tree once"
    elif spread == 0:
        sentence = "the same value with different seeds: is the seed used?"
    elif benchmark.seed_env:
        sentence = (
            f"values differ by seed; pairs share a seed, so a floor of {_rounded(spread)} is cautious"
            " (`outerloop noise` measures it properly)"
        )
    else:
        sentence = "values differ without a seed: declare seed_env, or let every climb measure both sides afresh"
    return Trial(
        benchmark=benchmark.name,
        metric=benchmark.metric,
        commit=commit,
        turns=turns,
        spread=spread,
        suggested_minutes=max(1, math.ceil(slowest * SUGGESTED_MINUTES_FACTOR / 60)),
        suggested_memory_gb=max(1, math.ceil(memory * 1.5 / 1024)),
        suggested_floor=_rounded(spread),
        sentence=sentence,
    )


def _rounded(value: Decimal) -> Decimal:
    """Two significant digits, upwards: a suggestion need not pretend to more."""
    if value == 0:
        return Decimal(0)
    step = Decimal(1).scaleb(value.adjusted() - 1)
    return (value / step).to_integral_value(rounding="ROUND_CEILING") * step
