"""Everything that is wrong with a folder of fragments: each one alone, and every open challenge as a whole.

Covered: shape, revisions, task lists, domains, combinations, serving. The pipeline's own opinion of a method comes in
as a function, so that this room need not know the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from outerloop.compose.challenge import challenge
from outerloop.compose.composition import MODEL_KEYS, SUITE_KEYS, compose, pipeline_tables
from outerloop.compose.errors import ComposeError, UnknownIdError
from outerloop.compose.fragments import (
    KINDS,
    MAIN_TABLES,
    SHIPPED,
    fragment,
    fragment_path,
    ids,
    main_table,
    task_domains,
    task_ids,
    text_keys,
)
from outerloop.compose.serving import FLAVORS, Flavor, needs_serving, serving
from outerloop.problems import suggestion

__all__ = ["LOCAL_SCHEMES", "absent_sources", "check"]

LOCAL_SCHEMES = ("builtin:", "file:")
"""Sources that no hub has: made by outerloop itself, or a folder of this site."""

_REVISION = re.compile(r"[0-9a-f]{40}")
_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")


def check(
    *,
    configs: Path = SHIPPED,
    flavors: Mapping[str, Flavor] = FLAVORS,
    pipeline: Callable[[Mapping[str, Any]], Iterable[str]] = lambda config: (),
) -> list[str]:
    """A sentence for each problem, in the order of kinds and ids; none means that every open challenge can run.

    `pipeline` says what is wrong with a composed configuration.
    """
    problems: list[str] = []
    for kind in KINDS:
        for fragment_id in ids(kind, configs=configs):
            if not _ID.fullmatch(fragment_id):
                problems.append(f"{fragment_path(kind, fragment_id, configs)}: an id is lower case: a-z 0-9 . _ -")
            try:
                if kind == "challenges":
                    problems += _challenge(fragment_id, configs, flavors, pipeline)
                else:
                    problems += _alone(kind, fragment_id, configs)
            except (ComposeError, UnknownIdError) as error:
                problems += error.problems
    return list(dict.fromkeys(problems))


def absent_sources(*, configs: Path = SHIPPED) -> list[str]:
    """A sentence for each `file:` model or suite that is not on this machine.

    No problem of the fragments: they may be checked elsewhere than where they are used, and a folder that only the
    evaluator may enter is taken to hold what it should.
    """
    found = []
    for kind in MAIN_TABLES:
        for fragment_id in ids(kind, configs=configs):
            try:
                table = main_table(kind, fragment_id, fragment(kind, fragment_id, configs=configs), configs)
            except (ComposeError, UnknownIdError):
                continue
            scheme, _, folder = str(table.get("id" if kind == "models" else "repo_id", "")).partition(":")
            if scheme != "file":
                continue
            file = str(table.get("path", "")) if kind == "suites" else ""
            place = Path(folder) / file
            try:
                place.stat()
            except (FileNotFoundError, NotADirectoryError):
                where = fragment_path(kind, fragment_id, configs)
                found.append(f"{where}: {place} is not on this machine; an entry needs it when it is submitted")
            except (OSError, ValueError):
                continue
    return found


def _alone(kind: str, fragment_id: str, configs: Path) -> list[str]:
    tables = fragment(kind, fragment_id, configs=configs)
    path = fragment_path(kind, fragment_id, configs)
    problems = []
    meta = tables.get("meta", {})
    if not isinstance(meta, dict):
        return [f"{path}: meta must be a table"]
    if kind == "methods":
        wrong = [name for name, table in pipeline_tables(tables).items() if not isinstance(table, dict)]
        problems += [f"{path}: {name} must be a table" for name in wrong]
        if not pipeline_tables(tables):
            problems.append(f"{path}: the method has no tables for the pipeline")
        return problems
    main = MAIN_TABLES[kind]
    valid = (main, "meta")
    problems += [f"{path}: unknown table {name}; {suggestion(name, valid)}" for name in tables if name not in valid]
    keys = MODEL_KEYS if kind == "models" else SUITE_KEYS
    named = text_keys(main_table(kind, fragment_id, tables, configs), keys, f"{path}: [{main}]")
    source = named["id" if kind == "models" else "repo_id"]
    if ":" in source and not source.startswith(LOCAL_SCHEMES):
        problems.append(
            f"{path}: {main}: {source} begins with neither {' nor '.join(LOCAL_SCHEMES)}, and no hub id has :"
        )
    elif not source.startswith(LOCAL_SCHEMES) and not _REVISION.fullmatch(named["revision"]):
        problems.append(
            f'{path}: {main}.revision = "{named["revision"]}" must be the 40 hex digits of a commit;'
            " a branch or a tag moves"
        )
    if kind == "suites":
        task_ids(fragment_id, configs=configs)
        task_domains(fragment_id, configs=configs)
    return problems


def _challenge(
    challenge_id: str,
    configs: Path,
    flavors: Mapping[str, Flavor],
    pipeline: Callable[[Mapping[str, Any]], Iterable[str]],
) -> list[str]:
    found = challenge(challenge_id, configs=configs)
    if not found.open:
        return []
    where = str(fragment_path("challenges", challenge_id, configs))
    asked = found.challenge
    problems = [f"{where}: {asked.not_apart}"] if asked.not_apart else []
    config: dict[str, Any] = {}
    for suites in (asked.suites, asked.reserve):
        if not suites:
            continue
        try:
            composed = compose(
                asked.model, asked.method, suites, {"path": "train.jsonl"}, project=challenge_id, configs=configs
            )
        except (ComposeError, UnknownIdError) as error:
            problems += (f"{where}: {problem}" for problem in error.problems)
            continue
        config = config or composed
        problems += (f"{where}: {problem}" for problem in pipeline(composed))
    if config and (needs_serving(config) or found.layout):
        try:
            serving(asked.model, asked.method, found.layout, configs=configs, flavors=flavors)
        except (ComposeError, UnknownIdError) as error:
            problems += (f"{where}: {problem}" for problem in error.problems)
    return problems
