"""`python -m outerloop.posttrain.stage WORK …`: one piece of an entry's work, as a slot of the controller runs it.

    contamination  does the data contain more of the suites than the challenge allows: above or below, no more
    train          one training stage with one seed; the checkpoints and the model lie in --state
    evaluate       one model on one suite; the rows are sealed, evaluation.json in the working folder is the aggregates

Covered: these three, with the metric on the last line of stdout and the record of what was done as a file that the
slot keeps. Not covered: which work there is and what comes of it (controller/entries.py), a whole configuration in one
place (`python -m outerloop.posttrain`).

Exit codes: 0 done; 2 something can't be used: a configuration, a row, a model, a suite; 3 refused: too many trials were
lost; 69 infrastructure: the vLLM server did not start, or died, a file is not the one that was submitted, the disk is
full; 75 stopped at a checkpoint, with a mark that asks for another attempt. What is raised where sealed tasks are at
hand is told by kind and place alone: its words may quote a task.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outerloop.posttrain.config import Config
    from outerloop.posttrain.data import Table
    from outerloop.posttrain.engine import Engine, Failed, Request, TimedOut
    from outerloop.torch.facts import Reporter

__all__ = ["DONE_FILE", "EVALUATION_FILE", "main"]

DONE_FILE = "done.json"
"""What a training leaves in its working folder: the stage's record."""
EVALUATION_FILE = "evaluation.json"
"""What an evaluation leaves there: aggregates, and the hash of the sealed rows."""
REQUEUE_MARK = "requeue.json"
"""As `outerloop.job.execution` looks for it; a test compares the two."""
_PROBE_BYTES = 1 << 20
TOLD_EVERY = 50
"""An evaluation tells how far it is about so many times."""


class WrongInputError(ValueError):
    """An input is not the one that was frozen when the entry was submitted."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m outerloop.posttrain.stage", description="One piece of an entry.")
    works = parser.add_subparsers(dest="work", required=True)
    check = works.add_parser("contamination")
    check.add_argument("config", type=Path, nargs="+", metavar="CONFIG.toml", help="a configuration for each suite")
    check.add_argument("--limit", type=Fraction, required=True)
    train = works.add_parser("train")
    train.add_argument("config", type=Path, metavar="CONFIG.toml")
    train.add_argument("--stage", choices=("sft", "dpo", "grpo"), required=True)
    train.add_argument("--seed", type=int, required=True)
    train.add_argument("--state", type=Path, required=True, help="folder that survives an interrupted attempt")
    evaluate = works.add_parser("evaluate")
    evaluate.add_argument("config", type=Path, metavar="CONFIG.toml")
    evaluate.add_argument("--sealed", type=Path, required=True, help="root of the sealed rows, mode 700")
    evaluate.add_argument("--evaluator", default="", help="digest that the suite and the sampling must have")
    for part in (check, train):
        part.add_argument("--data", type=Path, required=True)
        part.add_argument("--data-sha256", default="", help="digest that the data's content must have")
    for part in (train, evaluate):
        part.add_argument("--begin", type=Path, help="folder of the training stage before; without: the base model")
        part.add_argument("--model-sha256", default="", help="digest that the base model's folder must have")
        part.add_argument("--reports", type=Path, help="folder of metrics.jsonl and heartbeats")
        part.add_argument("--vllm", type=Path, help="Python of the environment that has vLLM")
    for part in (check, train, evaluate):
        part.add_argument("--hub", type=Path, help="folder of pinned downloads")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Do one piece of work; the exit code."""
    given = _parser().parse_args(argv)
    from outerloop.posttrain.offline import offline

    offline()
    from outerloop.posttrain.engines import VLLM_PYTHON

    if getattr(given, "vllm", None) is not None:
        os.environ[VLLM_PYTHON] = str(given.vllm)
    from outerloop.posttrain.config import ConfigError
    from outerloop.posttrain.data import DataError
    from outerloop.posttrain.evaluate import SealError
    from outerloop.posttrain.outcomes import RefusedEvaluationError
    from outerloop.posttrain.ranks import RanksError
    from outerloop.posttrain.scorers import ScorerError
    from outerloop.posttrain.serve import UNAVAILABLE, ServerError
    from outerloop.posttrain.sources import SourceError
    from outerloop.posttrain.training import STOPPED, StageError, Stopped

    try:
        print(json.dumps(_WORKS[given.work](given)), flush=True)
    except WrongInputError as error:
        # somebody changed a file: nothing about the entry, which is not to be charged for it
        print(f"infrastructure: {error}", file=sys.stderr)
        return UNAVAILABLE
    except (ConfigError, DataError, SourceError, StageError, ScorerError, SealError) as error:
        print(error, file=sys.stderr)
        return 2
    except RefusedEvaluationError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 3
    except ServerError as error:
        print(f"infrastructure: {error}", file=sys.stderr)
        return UNAVAILABLE
    except RanksError as error:
        code = UNAVAILABLE if _no_room(given.state) else error.code
        print(f"{'infrastructure: ' if code == UNAVAILABLE else ''}{error}", file=sys.stderr)
        return code
    except Stopped as error:
        from outerloop.posttrain.store import publish

        try:
            publish(given.state / REQUEUE_MARK, {"schema": 1, "why": str(error)})
        except OSError as trouble:
            print(f"infrastructure: {error}, and {REQUEUE_MARK} can't be written: {trouble.strerror}", file=sys.stderr)
            return UNAVAILABLE
        print(f"stopped: {error}; another attempt goes on", file=sys.stderr)
        return STOPPED
    except Exception as error:
        full = _full(error)
        if full:
            print(f"infrastructure: {full}", file=sys.stderr)
            return UNAVAILABLE
        if isinstance(error, OSError) and error.filename is not None:
            print(f"{error.filename}: {error.strerror}", file=sys.stderr)
            return 2
        if given.work == "train":
            if _no_room(given.state):
                traceback.print_exc()
                print(f"infrastructure: no room is left in {given.state}", file=sys.stderr)
                return UNAVAILABLE
            raise
        print(f"{type(error).__name__} {_place(error)}; its words may quote a task and are not told", file=sys.stderr)
        return 1
    return 0


def _full(error: BaseException | None) -> str:
    """That the disk is full, where that is what was raised or is behind it; else "". Libraries that write weights say
    so in words of their own."""
    known = {code: os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT)}
    while error is not None:
        if isinstance(error, OSError) and error.errno in known:
            return known[error.errno] + (f": {error.filename}" if error.filename else "")
        for words in known.values():
            if words in str(error):
                return words
        error = error.__cause__ or error.__context__
    return ""


def _no_room(folder: Path) -> bool:
    """Whether the disk takes no more: what torch raises while it saves says only that a stream failed."""
    probe = folder / f".room-{os.getpid()}"
    try:
        with probe.open("wb") as stream:
            stream.write(bytes(_PROBE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return False


def _place(error: BaseException) -> str:
    """Where it was raised, and by which of our own lines."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}posttrain{os.sep}" in frame.filename]
    told = (f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*ours[-1:], *frames[-1:]))
    return "at " + ", ".join(dict.fromkeys(told))


def _contamination(given: argparse.Namespace) -> dict[str, Any]:
    from outerloop.posttrain.config import parse_config
    from outerloop.posttrain.contamination import contamination
    from outerloop.posttrain.sources import suite_tasks

    configs = [parse_config(path) for path in given.config]
    table = _table(given, configs[0])
    above = False
    for path, config in zip(given.config, configs, strict=True):
        for suite in config.suites:
            tasks = suite_tasks(suite, beside=path.absolute().parent, hub=given.hub)
            found = contamination({task.id: (task.prompt, task.answer) for task in tasks}, table.texts())
            above = above or found.fraction > given.limit
    return {"above": int(above)}


def _table(given: argparse.Namespace, config: Config) -> Table:
    from outerloop.posttrain.data import DataError, read_table

    try:
        table = read_table(given.data, config.stages, source=given.data.name)
    except (DataError, OSError) as error:
        if not given.data_sha256:
            raise
        # its rows were read when they were submitted
        raise WrongInputError(f"{given.data} is not the training data that was submitted: {error}") from error
    if given.data_sha256 and table.digest != given.data_sha256:
        raise WrongInputError(f"{given.data} is not the training data that was submitted: its content has changed")
    return table


def _begin(given: argparse.Namespace, config: Config, work: Path) -> Path:
    """The model to begin with: that of the stage before, byte for byte as its record says, or the base model."""
    from outerloop.posttrain.sources import SourceError, model_folder
    from outerloop.posttrain.store import digest_of_folder, read_record
    from outerloop.posttrain.training import DONE

    if given.begin is None:
        try:
            base = model_folder(config, work=work, hub=given.hub)
        except SourceError as error:
            raise (WrongInputError(str(error)) if given.model_sha256 else error) from error
        if given.model_sha256 and digest_of_folder(base) != given.model_sha256:
            raise WrongInputError(f"{base} is not the model that was submitted for: its files have changed")
        return base
    folder: Path = given.begin / "model"
    record = read_record(given.begin / DONE)
    if record is None or not folder.is_dir():
        raise WrongInputError(f"{given.begin} holds no finished training")
    if digest_of_folder(folder) != record.get("weights_sha256"):
        raise WrongInputError(f"{folder} is not the model that its training left: its files have changed")
    return folder


def _train(given: argparse.Namespace) -> dict[str, Any]:
    from outerloop.posttrain.config import parse_config
    from outerloop.posttrain.pipeline import train_stage
    from outerloop.posttrain.store import publish

    config = parse_config(given.config)
    table = _table(given, config)
    model = _begin(given, config, given.state / "base")
    # a mark of an earlier attempt would say of this one that it is not done
    (given.state / REQUEUE_MARK).unlink(missing_ok=True)
    record = train_stage(
        given.stage, config, table, model, given.state / given.stage, seed=given.seed, reports=given.reports
    )
    publish(Path(DONE_FILE), record)
    return {"stage": given.stage, "steps": record["steps"], **record["last"]}


def _evaluate(given: argparse.Namespace) -> dict[str, Any]:
    from outerloop.posttrain.aloud import AloudReporter
    from outerloop.posttrain.config import parse_config
    from outerloop.posttrain.outcomes import RefusedEvaluationError
    from outerloop.posttrain.pipeline import evaluate_one, evaluator_of, make_engine
    from outerloop.posttrain.sources import suite_tasks
    from outerloop.posttrain.store import publish

    config = parse_config(given.config)
    [suite] = config.suites
    tasks = suite_tasks(suite, beside=given.config.absolute().parent, hub=given.hub)
    if given.evaluator and evaluator_of(config, suite, tasks) != given.evaluator:
        raise WrongInputError(f"suite {suite.label} is not the one that the entry was submitted to: it has changed")
    model = _begin(given, config, Path("base").absolute())
    reporter = AloudReporter(given.reports)
    reporter.beat(now=True)
    try:
        inner = make_engine(config, model, given.sealed)
        with contextlib.closing(_Telling(inner, reporter, config.evaluation.batch_size)) as engine:
            record = evaluate_one(config, suite, tasks, model, engine, given.sealed)
        if record["mean"] is None:
            raise RefusedEvaluationError("infrastructure ended a trial of every task")
        reporter.state = "finished"
    except BaseException:
        reporter.state = "failed"
        raise
    finally:
        reporter.beat(now=True)
    publish(Path(EVALUATION_FILE), record)
    return {"score": record["mean"], "tasks": record["scored_tasks"], "dropped": record["dropped_tasks"]}


class _Telling:
    """An engine that reports how many requests were answered, and nothing of them."""

    def __init__(self, engine: Engine, reporter: Reporter, batch_size: int) -> None:
        self.engine, self.reporter, self.batch_size = engine, reporter, batch_size
        self.answered = 0

    def close(self) -> None:
        self.engine.close()

    def generate(self, requests: Sequence[Request]) -> list[str | Failed | TimedOut]:
        # whole batches: which requests share one must not depend on how often we tell
        size = self.batch_size * max(1, len(requests) // (self.batch_size * TOLD_EVERY))
        found: list[str | Failed | TimedOut] = []
        for start in range(0, len(requests), size):
            found += self.engine.generate(requests[start : start + size])
            self.answered = len(found)
            self.reporter.log_metrics({"stage": "evaluate", "step": self.answered, "of": len(requests)})
            self.reporter.step_ended(self.answered)
            self.reporter.beat()
        return found


_WORKS = {"contamination": _contamination, "train": _train, "evaluate": _evaluate}


if __name__ == "__main__":
    sys.exit(main())
