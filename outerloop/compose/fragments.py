"""Reading fragments: which ids there are, one fragment's tables, a suite's tasks and their domains.

Covered: `<configs>/<kind>/<id>.toml`, `<configs>/task-lists/`. Not covered: what the tables mean to the pipeline
(posttrain/), or whether fragments fit together (composition.py, serving.py).
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outerloop.compose.errors import ComposeError, UnknownIdError
from outerloop.json_text import JsonError, parse_json
from outerloop.problems import suggestion
from outerloop.toml_lines import MAX_DEPTH, scan

__all__ = [
    "KINDS",
    "SHIPPED",
    "TASK_LISTS",
    "domain_counts",
    "fragment",
    "fragment_path",
    "ids",
    "main_table",
    "task_domains",
    "task_ids",
    "text_keys",
    "unknown",
]

KINDS = ("models", "suites", "methods", "challenges")
TASK_LISTS = "task-lists"

MAIN_TABLES = {"models": "model", "suites": "suite", "challenges": "challenge"}
"""The table that a fragment of each kind must have; a method has any others."""

_ID = re.compile(r"[^/\\\0]+")
_COMMENT = re.compile(r"(?:^|\s)#.*$")


def _shipped() -> Path:
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "configs", package / "_shipped" / "configs"):
        if (folder / "methods").is_dir():
            return folder
    return package / "_shipped" / "configs"


SHIPPED = _shipped()
"""The fragments that come with outerloop: the repository's, else those in the wheel."""


def _folder(kind: str, configs: Path) -> Path:
    if kind not in KINDS:
        raise UnknownIdError([f'there is no kind "{kind}" of fragment; {suggestion(kind, KINDS)}'])
    return configs / kind


def ids(kind: str, *, configs: Path = SHIPPED) -> list[str]:
    """The ids of all fragments of a kind, sorted. A folder that is not there has none."""
    folder = _folder(kind, configs)
    return sorted(path.stem for path in folder.glob("*.toml") if not path.name.startswith("."))


def unknown(kind: str, fragment_id: str, *, configs: Path = SHIPPED) -> str | None:
    """The sentence about an id that names no fragment; None for one that does."""
    if (
        _ID.fullmatch(fragment_id)
        and not fragment_id.startswith(".")
        and fragment_path(kind, fragment_id, configs).is_file()
    ):
        return None
    known = ids(kind, configs=configs)
    hint = suggestion(fragment_id, known) if known else f"{_folder(kind, configs)} has none"
    return f'there is no {kind.removesuffix("s")} "{fragment_id}"; {hint}'


def fragment_path(kind: str, fragment_id: str, configs: Path = SHIPPED) -> Path:
    """Where a fragment of this id would stand."""
    return _folder(kind, configs) / f"{fragment_id}.toml"


def fragment(kind: str, fragment_id: str, *, configs: Path = SHIPPED) -> dict[str, Any]:
    """All tables of one fragment, `meta` included.

    Raises UnknownIdError (a KeyError) for an id without a file, ComposeError (a ValueError) for a file that is not
    TOML.
    """
    sentence = unknown(kind, fragment_id, configs=configs)
    if sentence is not None:
        raise UnknownIdError([sentence])
    path = fragment_path(kind, fragment_id, configs)
    try:
        text = path.read_text(encoding="utf-8")
        deep = scan(text).too_deep
        if deep is not None:
            raise ComposeError([f"{path}:{deep}: nested more than {MAX_DEPTH} deep"])
        return tomllib.loads(text)
    except ComposeError:
        raise
    except ValueError as error:
        raise ComposeError([f"{path}: not a TOML text: {error}"]) from None


def main_table(kind: str, fragment_id: str, tables: Mapping[str, Any], configs: Path) -> dict[str, Any]:
    """The fragment's own table, such as `[model]`. Raises ComposeError if it is missing."""
    name = MAIN_TABLES[kind]
    table = tables.get(name)
    if not isinstance(table, dict):
        raise ComposeError([f"{fragment_path(kind, fragment_id, configs)}: there is no table [{name}]"])
    return table


def text_keys(table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> dict[str, str]:
    """These keys of a table, which must be non-empty text. Raises ComposeError naming all that are not."""
    wrong = [key for key in keys if not isinstance(table.get(key), str) or not table[key]]
    if wrong:
        missing = [key for key in wrong if key not in table]
        problems = [f"{where}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
        problems += [f"{where}: {key} must be text (it is {table[key]!r})" for key in wrong if key in table]
        raise ComposeError(problems)
    return {key: table[key] for key in keys}


def _suite_file(suite_id: str, name: str, what: str, configs: Path) -> Path:
    """A file in the folder of task lists. A suite's fragment may not reach outside of it."""
    path = configs / TASK_LISTS / name
    where = fragment_path("suites", suite_id, configs)
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ComposeError([f"{where}: {what} = {name!r} must be a file in {TASK_LISTS}/"])
    if not path.is_file():
        raise ComposeError([f"{where}: {what}: there is no file {path}"])
    return path


def task_ids(suite_id: str, *, configs: Path = SHIPPED) -> list[str]:
    """The suite's tasks in the order of its list.

    Raises UnknownIdError, or ComposeError for a list that is missing, empty, or names a task twice.
    """
    tables = fragment("suites", suite_id, configs=configs)
    where = f"{fragment_path('suites', suite_id, configs)}: [suite]"
    name = text_keys(main_table("suites", suite_id, tables, configs), ("task_list",), where)["task_list"]
    path = _suite_file(suite_id, name, "suite.task_list", configs)
    # only line ends end a line: an id may hold what str.splitlines() also takes for one
    lines = path.read_text(encoding="utf-8").replace("\r\n", "\n").split("\n")
    tasks = [task for line in lines if (task := _COMMENT.sub("", line).strip())]
    if not tasks:
        raise ComposeError([f"{path}: no tasks"])
    repeated = [task for task, count in Counter(tasks).items() if count > 1]
    if repeated:
        raise ComposeError([f"{path}: listed more than once: {', '.join(repeated)}"])
    return tasks


def task_domains(suite_id: str, *, configs: Path = SHIPPED) -> dict[str, str]:
    """Task to domain, in the order of the list; empty for a suite without domains.

    Entries for tasks that are not in the list are ignored. Raises UnknownIdError, or ComposeError naming every task
    without a domain.
    """
    tables = fragment("suites", suite_id, configs=configs)
    meta = tables.get("meta", {})
    if "domains" not in meta:
        return {}
    where = f"{fragment_path('suites', suite_id, configs)}: [meta]"
    path = _suite_file(suite_id, text_keys(meta, ("domains",), where)["domains"], "meta.domains", configs)
    try:
        found = parse_json(path.read_bytes())
    except JsonError as error:
        raise ComposeError([error.text(path)]) from None
    if not isinstance(found, dict):
        raise ComposeError([f"{path}: must be one object, task to domain"])
    tasks = task_ids(suite_id, configs=configs)
    without = [task for task in tasks if not isinstance(found.get(task), str) or not found[task]]
    if without:
        raise ComposeError([f"{path}: no domain for {', '.join(without)}"])
    return {task: found[task] for task in tasks}


def domain_counts(suite_id: str, *, configs: Path = SHIPPED) -> list[dict[str, Any]]:
    """`{name, task_count}` of each domain, most tasks first, ties by name."""
    counts = Counter(task_domains(suite_id, configs=configs).values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"name": name, "task_count": count} for name, count in ordered]
