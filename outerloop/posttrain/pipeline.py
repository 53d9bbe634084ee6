"""One composed configuration, run in one place: data, then each training stage, then the suites.

Covered: the order, what is done already, the files of a run, refusals before anything is trained. Not covered: stages
as slots of a cluster, which call the same functions one at a time.

    DIR/inputs.json            what this folder is for; another configuration, seed or data set is refused
    DIR/data/train.jsonl       the clean table
    DIR/STAGE/                 metrics.jsonl, run.json, ranks/, checkpoints/, adapter/, model/, done.json
    DIR/evaluate/SUITE.json    aggregates of the trained model, and the hash of its sealed rows
    DIR/baseline/SUITE.json    the same of the untrained model, when it was asked for
    DIR/result.json            all of it in one record
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from outerloop.posttrain.code import code_scorer
from outerloop.posttrain.config import Config, Suite, parse_config
from outerloop.posttrain.contamination import contamination
from outerloop.posttrain.data import Table, read_table
from outerloop.posttrain.engine import Engine
from outerloop.posttrain.engines import determinants, evaluation_engine, rollout_server, why_unable
from outerloop.posttrain.evaluate import evaluate_suite, evaluation_digest
from outerloop.posttrain.scorers import scorer
from outerloop.posttrain.serve import visible_gpus
from outerloop.posttrain.sources import SourceError, Task, model_folder, suite_tasks, train_file
from outerloop.posttrain.store import digest_of_folder, publish, publish_text, read_record

__all__ = [
    "ContaminatedError",
    "Place",
    "evaluate_one",
    "evaluator_of",
    "make_engine",
    "require_able",
    "reward_functions",
    "run_pipeline",
    "train_stage",
]


LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
"""What the extra `posttrain` installs."""


class ContaminatedError(Exception):
    """The training data contain more of a suite than the challenge allows. How much more is not told.

    The fraction would tell a submitter, row by row, what stands in a sealed suite.
    """


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes."""

    out: Path
    sealed: Path
    """Root of the sealed rows; only its owner may enter it."""
    hub: Path | None = None
    """Folder of pinned downloads."""


def run_pipeline(
    path: Path,
    place: Place,
    *,
    seed: int = 0,
    stages: tuple[str, ...] | None = None,
    baseline: bool = False,
    contamination_limit: Fraction | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run what is not done yet and return the record of the whole.

    `stages` limits it to some of data, sft, dpo, grpo and evaluate. Raises ConfigError, DataError, SourceError,
    ContaminatedError, StageError, RefusedEvaluationError, SealError, ServerError, and Stopped after a signal.
    """
    config = parse_config(path)
    wanted = ("data", *config.stages, "evaluate") if stages is None else stages
    require_able(config)
    beside = path.absolute().parent
    suites: dict[str, list[Task]] = {}
    if "evaluate" in wanted or baseline or contamination_limit is not None:
        # a training job need not be able to read what is sealed
        suites = {suite.label: suite_tasks(suite, beside=beside, hub=place.hub) for suite in config.suites}
    source = train_file(config, beside=beside, hub=place.hub)
    table = read_table(source, config.stages, source=config.train_dataset.path)
    _inputs(config, table, seed, place.out)
    if contamination_limit is not None:
        _clean(suites, table, contamination_limit)
    data = place.out / "data"
    data.mkdir(exist_ok=True)
    if not (data / "train.jsonl").is_file():
        publish_text(data / "train.jsonl", (f"{line}\n" for line in table.lines()))
    counts = {stage: len(table.of(stage)) for stage in config.stages}
    say("data: " + ", ".join(f"{count} rows for {stage}" for stage, count in counts.items()))

    base = model_folder(config, work=place.out / "base", hub=place.hub)
    record: dict[str, Any] = {"schema": 1, "seed": seed, "data_sha256": table.digest, "rows": counts, "stages": {}}
    model = base
    for stage in config.stages:
        if stage in wanted:
            model = _stage(stage, config, table, model, place.out, seed, record, say)
        elif (place.out / stage / "model").is_dir():
            model = place.out / stage / "model"
    if baseline:
        record["baseline"] = _evaluated(config, suites, base, place, "baseline", say)
    if "evaluate" in wanted:
        if model == base:
            raise SourceError(f"nothing in {place.out} was trained yet")
        record["evaluate"] = _evaluated(config, suites, model, place, "evaluate", say)
    publish(place.out / "result.json", record)
    return record


def require_able(config: Config) -> None:
    """Refuse what would fail only after hours of training."""
    why = why_unable(config)
    if why:
        raise SourceError(why)
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise SourceError(f"{', '.join(missing)} missing here: pip install 'outerloop-slurm[posttrain]'")


def _inputs(config: Config, table: Table, seed: int, out: Path) -> None:
    """Claim the folder for these inputs, or make sure that they are the same."""
    # suites are no part of it: a reserve is scored in the folder of an entry that won without it
    # and where a server runs may change from one attempt to the next; how many train together may not
    owned_by_others = {"output", "tracking", "eval_dataset", "eval_suites", "evaluation", "harness", "train_dataset"}
    fixed = config.model_dump(mode="json", exclude={*owned_by_others, "serving"})
    several = [config.processes] if config.processes > 1 else []
    text = json.dumps([fixed, table.digest, seed, *several], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    out.mkdir(parents=True, exist_ok=True)
    known = read_record(out / "inputs.json")
    if known is None:
        publish(out / "inputs.json", {"schema": 1, "digest": digest, "seed": seed, "data_sha256": table.digest})
    elif known.get("digest") != digest:
        raise SourceError(f"{out} belongs to another configuration, training set or seed; give another --out")


def _clean(suites: dict[str, list[Task]], table: Table, limit: Fraction) -> None:
    above = []
    for name, tasks in suites.items():
        found = contamination({task.id: (task.prompt, task.answer) for task in tasks}, table.texts())
        if found.fraction > limit:
            above.append(name)
    if above:
        raise ContaminatedError(
            f"the training data contain more of {', '.join(above)} than the challenge allows; nothing was trained"
        )


def _stage(
    stage: str,
    config: Config,
    table: Table,
    model: Path,
    out: Path,
    seed: int,
    record: dict[str, Any],
    say: Callable[[str], None],
) -> Path:
    from outerloop.posttrain.training import DONE

    done = (out / stage / DONE).is_file()
    found = train_stage(stage, config, table, model, out / stage, seed=seed)
    record["stages"][stage] = found
    figures = ", ".join(f"{name} {value:.4g}" for name, value in found["last"].items())
    say(f"{stage}: {'was done' if done else 'done'}, {found['steps']} steps, {figures}")
    return out / stage / "model"


def train_stage(
    stage: str, config: Config, table: Table, model: Path, out: Path, *, seed: int, reports: Path | None = None
) -> dict[str, Any]:
    """One training stage into `out`, from where it stands; its record.

    Raises StageError, Stopped, ScorerError, ServerError, RanksError.
    """
    if config.processes > 1:
        from outerloop.posttrain.ranks import train_together

        with _seeing(config.serving.trainer_gpus):
            return train_together(stage, config, table.of(stage), model, out, seed=seed, reports=reports)
    from outerloop.posttrain.training import train

    rewards, server = [], None
    if stage == "grpo" and config.grpo is not None:
        rewards = reward_functions(config)
        server = rollout_server(config, model, out / "server.log")
    with _seeing(config.serving.trainer_gpus):
        return train(
            stage, config, table.of(stage), model, out, seed=seed, rewards=rewards, reports=reports, server=server
        )


def reward_functions(config: Config) -> list[tuple[str, Callable[[str, str], float]]]:
    """The scorers whose sum is GRPO's reward, with their names. Raises ScorerError."""
    return [(name, _scorer(name)) for name in (config.grpo.rewards if config.grpo else ())]


@contextlib.contextmanager
def _seeing(indices: str) -> Iterator[None]:
    """Let this process see the layout's GPUs alone; torch looks when it first uses one."""
    name = "CUDA_VISIBLE_DEVICES"
    before, chosen = os.environ.get(name), visible_gpus(indices, os.environ)
    if chosen is not None:
        os.environ[name] = chosen
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif chosen is not None:
            del os.environ[name]


def _scorer(name: str) -> Callable[[str, str], float]:
    return scorer(name, code=code_scorer())


def _evaluated(
    config: Config,
    suites: dict[str, list[Task]],
    model: Path,
    place: Place,
    kind: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    weights = digest_of_folder(model)
    folder = place.out / kind
    folder.mkdir(exist_ok=True)
    engine: Engine | None = None
    found: dict[str, Any] = {}
    try:
        for suite in config.suites:
            tasks = suites[suite.label]
            digest = evaluation_digest(_identity(suite), tasks, weights, _settings(config))
            target = folder / f"{suite.label}.json"
            known = read_record(target)
            if known is None or known.get("evaluation") != digest:
                engine = engine or make_engine(config, model, place.sealed)
                known = evaluate_one(config, suite, tasks, model, engine, place.sealed, weights=weights)
                publish(target, known)
            found[suite.label] = known
            say(f"{kind}: {suite.label} {known['mean']:.4f} over {known['scored_tasks']} tasks")
    finally:
        if engine is not None:
            engine.close()
    return found


def evaluate_one(
    config: Config,
    suite: Suite,
    tasks: list[Task],
    model: Path,
    engine: Engine,
    sealed: Path,
    *,
    weights: str = "",
) -> dict[str, Any]:
    """One model on one suite: the aggregates. `weights` is the digest of the model's folder, where it is known.

    Raises RefusedEvaluationError, SealError, ScorerError.
    """
    return evaluate_suite(
        suite.label,
        tasks,
        engine,
        _scorer(suite.scorer),
        digest=evaluation_digest(_identity(suite), tasks, weights or digest_of_folder(model), _settings(config)),
        evaluator=evaluator_of(config, suite, tasks),
        trials=config.evaluation.trials,
        retries=config.harness.retries,
        max_infra_error_fraction=config.harness.max_infra_error_fraction,
        sealed=sealed,
    )


def evaluator_of(config: Config, suite: Suite, tasks: list[Task]) -> str:
    """Digest of everything but the model: what the two sides of a comparison must have in common."""
    return evaluation_digest(_identity(suite), tasks, "", _settings(config))


def _settings(config: Config) -> dict[str, Any]:
    return {
        "trials": config.evaluation.trials,
        "temperature": config.evaluation.temperature,
        "top_p": config.evaluation.top_p,
        "max_new_tokens": config.runtime.max_completion_length,
        "batch_size": config.evaluation.batch_size,
        "engine": config.evaluation.engine,
        **determinants(config),
    }


def _identity(suite: Suite) -> dict[str, Any]:
    """What of a suite decides its scores besides its tasks' content: not where its list happens to lie."""
    return suite.model_dump(mode="json", exclude={"task_list", "name"})


def make_engine(config: Config, model: Path, sealed: Path) -> Engine:
    """What generates for an evaluation of this model; `close` it. A server's log lies below `sealed`: it may quote."""
    return evaluation_engine(config, model, sealed)
