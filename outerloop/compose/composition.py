"""Model x method x suites + a training set -> the configuration of one pipeline run.

Covered: which tables come from where. Not covered: whether the pipeline accepts the values (posttrain/config.py), and
where the model is served (serving.py).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outerloop.compose.errors import ComposeError, UnknownIdError
from outerloop.compose.fragments import SHIPPED, fragment, fragment_path, main_table, text_keys, unknown

__all__ = ["MODEL_KEYS", "OUTPUT_ROOT", "OWNED", "SUITE_KEYS", "compose", "pipeline_tables"]

OWNED = ("model", "train_dataset", "eval_dataset", "eval_suites", "output")
"""Tables that only the composer writes; what a method says there is dropped."""

OUTPUT_ROOT = "../../runs"
MODEL_KEYS = ("id", "revision")
SUITE_KEYS = ("name", "repo_id", "revision", "path", "task_list")


def pipeline_tables(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method's tables that the pipeline sees, as a copy of their own."""
    return {name: copy.deepcopy(table) for name, table in method.items() if name != "meta" and name not in OWNED}


def compose(
    model_id: str,
    method_id: str,
    suite_ids: Sequence[str],
    train: Mapping[str, Any] | str | Path,
    *,
    project: str,
    task_list_root: str = "../../task-lists/",
    configs: Path = SHIPPED,
) -> dict[str, Any]:
    """The pipeline's configuration.

    `train` is the table `[train_dataset]`, or the path of a file. `task_list_root` goes before each suite's
    `task_list`; like `output.root` it is relative to the configuration's own folder.

    Raises UnknownIdError (a KeyError) if any id names no fragment, ComposeError (a ValueError) if they do not fit
    together; either names everything that is wrong.
    """
    if isinstance(suite_ids, str):
        raise ComposeError([f'suites must be a list of ids, not the text "{suite_ids}"'])
    asked = [("models", model_id), ("methods", method_id), *(("suites", suite_id) for suite_id in suite_ids)]
    missing = [text for text in (unknown(kind, name, configs=configs) for kind, name in dict.fromkeys(asked)) if text]
    problems: list[str] = []
    there = {item for item in asked if unknown(*item, configs=configs) is None}
    read: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, name in sorted(there):
        try:
            read[kind, name] = fragment(kind, name, configs=configs)
            if kind == "models":
                _main(kind, name, read[kind, name], MODEL_KEYS, configs)
            elif kind == "suites":
                _main(kind, name, read[kind, name], SUITE_KEYS, configs)
        except ComposeError as error:
            problems += error.problems
    problems += _misfits(method_id, suite_ids, read, configs)
    if missing:
        raise UnknownIdError([*missing, *problems])
    if problems:
        raise ComposeError(problems)

    suites = [copy.deepcopy(read["suites", name]["suite"]) for name in suite_ids]
    for suite in suites:
        suite["task_list"] = f"{task_list_root}{suite['task_list']}"
    config = pipeline_tables(read["methods", method_id])
    config["model"] = copy.deepcopy(read["models", model_id]["model"])
    config["train_dataset"] = copy.deepcopy(dict(train)) if isinstance(train, Mapping) else {"path": str(train)}
    if len(suites) == 1:
        del suites[0]["name"]
        config["eval_dataset"] = suites[0]
    else:
        config["eval_suites"] = suites
    config.setdefault("tracking", {})["project"] = project
    config["output"] = {"root": OUTPUT_ROOT}
    return config


def _main(kind: str, name: str, tables: Mapping[str, Any], keys: tuple[str, ...], configs: Path) -> dict[str, str]:
    table = main_table(kind, name, tables, configs)
    return text_keys(table, keys, f"{fragment_path(kind, name, configs)}: [{kind.removesuffix('s')}]")


def _misfits(
    method_id: str, suite_ids: Sequence[str], read: Mapping[tuple[str, str], Mapping[str, Any]], configs: Path
) -> list[str]:
    """Why these fragments can't stand together, as far as those that could be read tell."""
    problems = []
    if not suite_ids:
        problems.append("no suites: name at least one")
    method = read.get(("methods", method_id))
    if method is not None:
        tables = pipeline_tables(method)
        where = fragment_path("methods", method_id, configs)
        if not tables:
            problems.append(f"{where}: the method has no tables for the pipeline")
        problems += [f"{where}: {name} must be a table" for name, table in tables.items() if not _is_table(table)]
        if len(suite_ids) > 1 and method.get("meta", {}).get("multi_suite") is not True:
            problems.append(
                f'the method "{method_id}" takes one suite, not {len(suite_ids)} ({", ".join(suite_ids)});'
                " several need a method with meta.multi_suite = true"
            )
    names: list[tuple[str, str]] = []
    for suite_id in suite_ids:
        table = read.get(("suites", suite_id), {}).get("suite")
        if isinstance(table, dict) and isinstance(table.get("name"), str):
            names.append((table["name"], suite_id))
    for name, count in Counter(name for name, _ in names).items():
        if count > 1:
            holders = ", ".join(suite_id for other, suite_id in names if other == name)
            problems.append(f'{count} suites with the name "{name}": {holders}')
    return problems


def _is_table(table: Any) -> bool:
    return isinstance(table, dict) or (isinstance(table, list) and all(isinstance(row, dict) for row in table))
