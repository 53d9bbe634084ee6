"""Where models and suites come from: made on the spot, a folder of the site, or the pinned hub folder.

Covered: turning `builtin:`, `file:` and hub ids into a local folder or rows; the tasks of a suite in the order of its
list. Not covered: downloading. Nothing here reaches a network: the hub folder was filled before (at submission).

The hub folder holds `<organisation>--<name>/<revision>/…` for models and data sets alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outerloop.json_text import JsonError, parse_json
from outerloop.posttrain import builtin, sums
from outerloop.posttrain.config import Config, Suite

__all__ = ["SourceError", "Task", "model_folder", "suite_tasks", "train_file"]


class SourceError(ValueError):
    """A model or suite is not there, or not what the configuration says. The text quotes no prompt and no answer."""


@dataclass(frozen=True)
class Task:
    """One held-out task. Prompt and answer are sealed: they go into no log, record or message."""

    id: str
    prompt: str
    answer: str

    def __repr__(self) -> str:  # a traceback or a log line must not show what is sealed
        return f"Task({self.id!r})"


def _pinned(repo_id: str, revision: str, hub: Path | None, what: str) -> Path:
    if hub is None:
        raise SourceError(f"{what} {repo_id} comes from the hub; give the folder of pinned downloads with --hub")
    folder = hub / repo_id.replace("/", "--") / revision
    if not folder.is_dir():
        raise SourceError(
            f"{what} {repo_id}@{revision} is not in {hub} yet; submitting fetches it, and so does `python -m"
            " outerloop.posttrain.fetch`"
        )
    return folder


def model_folder(config: Config, *, work: Path, hub: Path | None) -> Path:
    """The folder of the model to begin with; a built-in one is made below `work` if it is not there yet."""
    scheme, _, name = config.model.id.partition(":")
    if scheme == "builtin":
        if name not in builtin.MODELS:
            raise SourceError(f"there is no built-in model {name}; there is {', '.join(builtin.MODELS)}")
        folder = work / name
        if not folder.is_dir():
            builtin.make_tiny_llama(folder)
        return folder
    folder = Path(name) if scheme == "file" else _pinned(config.model.id, config.model.revision, hub, "model")
    if not (folder / "config.json").is_file():
        raise SourceError(f"{folder} holds no model: there is no config.json")
    if not any(folder.glob("*.safetensors")):
        raise SourceError(f"{folder} holds no safetensors; other weights can run code and are not loaded")
    return folder


def train_file(config: Config, *, beside: Path, hub: Path | None) -> Path:
    """The submitted rows. A relative path is relative to the configuration's folder."""
    data = config.train_dataset
    if data.repo_id is None:
        path = beside / data.path
    else:
        if data.revision is None:
            raise SourceError(f"train_dataset.revision is missing: {data.repo_id} must be pinned")
        path = _pinned(data.repo_id, data.revision, hub, "data set") / data.path
    if not path.is_file():
        raise SourceError(f"train_dataset: there is no file {path}")
    return path


def _rows(suite: Suite, hub: Path | None) -> Iterator[dict[str, Any]]:
    scheme, _, name = suite.repo_id.partition(":")
    if scheme == "builtin":
        if name not in builtin.SUITES:
            raise SourceError(f"there is no built-in suite {name}; there is {', '.join(builtin.SUITES)}")
        yield from sums.rows(suite.path.removesuffix(".jsonl"))
        return
    folder = Path(name) if scheme == "file" else _pinned(suite.repo_id, suite.revision, hub, "suite")
    path = folder / suite.path
    if not path.is_file():
        raise SourceError(f"suite {suite.label}: there is no file {path}")
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(path).to_pylist()
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                try:
                    row = parse_json(line)
                except JsonError as error:
                    raise SourceError(f"suite {suite.label}: {path}:{number}: {error.sentence}") from None
                if not isinstance(row, dict):
                    raise SourceError(f"suite {suite.label}: {path}:{number}: must be a JSON object")
                yield row


def _task(suite: Suite, name: str, row: dict[str, Any]) -> Task:
    for field in (suite.prompt_field, suite.answer_field):
        if not isinstance(row.get(field), str):
            raise SourceError(f"suite {suite.label}: task {name}: {field} is no text")
    answer = row[suite.answer_field]
    if suite.answer_pattern is not None:
        found = re.search(suite.answer_pattern, answer)
        if found is None:
            raise SourceError(f"suite {suite.label}: task {name}: answer_pattern does not match the answer")
        answer = found[1]
    prompt = row[suite.prompt_field]
    return Task(name, prompt if suite.instruction is None else f"{prompt}\n\n{suite.instruction}", answer)


def suite_tasks(suite: Suite, *, beside: Path, hub: Path | None) -> list[Task]:
    """The listed tasks in the order of the list. Raises SourceError naming the tasks that the data lack."""
    path = beside / suite.task_list
    if not path.is_file():
        raise SourceError(f"suite {suite.label}: there is no task list {path}")
    lines = path.read_text(encoding="utf-8").replace("\r\n", "\n").split("\n")
    listed = [task for line in lines if (task := re.sub(r"(?:^|\s)#.*$", "", line).strip())]
    rows: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(_rows(suite, hub)):
        name = str(row[suite.id_field]) if suite.id_field in row else str(number)
        if name in rows:
            raise SourceError(f"suite {suite.label}: two rows are named {name}")
        rows[name] = row
    missing = [name for name in listed if name not in rows]
    if missing:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise SourceError(f"suite {suite.label}: no row for the listed tasks {shown}")
    return [_task(suite, name, rows[name]) for name in listed]
