"""The public view of the fragments: what a page or a researcher may know of each, active ones first.

Covered: the fields of each kind. Not covered: anything sealed; fragments hold names of tasks, never their content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outerloop.compose.errors import UnknownIdError
from outerloop.compose.fragments import SHIPPED, domain_counts, fragment, ids, main_table, task_ids

__all__ = ["DEFAULT_INFRA_ERROR_FRACTION", "DEFAULT_TRIALS", "registry"]

DEFAULT_TRIALS = 1
DEFAULT_INFRA_ERROR_FRACTION = 0.1

_TRAINERS = ("grpo", "dpo", "sft")
"""The table that says how long and how fast a method trains: that of its last training stage."""


def registry(kind: str, *, configs: Path = SHIPPED) -> list[dict[str, Any]]:
    """Every fragment of a kind; `meta.status == "active"` first, then by id.

    Raises UnknownIdError for an unknown kind, ComposeError for a fragment that can't be read.
    """
    known = ids(kind, configs=configs)
    view = _VIEWS.get(kind)
    if view is None:
        raise UnknownIdError([f"{kind} has no public view"])
    entries = [view(fragment_id, fragment(kind, fragment_id, configs=configs), configs) for fragment_id in known]
    return sorted(entries, key=lambda entry: (entry.get("status") != "active", entry["id"]))


def _model(fragment_id: str, tables: Mapping[str, Any], configs: Path) -> dict[str, Any]:
    model = main_table("models", fragment_id, tables, configs)
    meta = tables.get("meta", {})
    return {"id": fragment_id, "repo_id": model.get("id"), "revision": model.get("revision"), **meta}


def _suite(fragment_id: str, tables: Mapping[str, Any], configs: Path) -> dict[str, Any]:
    suite = main_table("suites", fragment_id, tables, configs)
    meta = tables.get("meta", {})
    return {
        "id": fragment_id,
        "repo_id": suite.get("repo_id"),
        "revision": suite.get("revision"),
        "task_count": len(task_ids(fragment_id, configs=configs)),
        **meta,
        "default": bool(meta.get("default", False)),
        "domains": domain_counts(fragment_id, configs=configs),
        "suite_name": suite.get("name"),
    }


def _method(fragment_id: str, tables: Mapping[str, Any], _configs: Path) -> dict[str, Any]:
    trainer: Mapping[str, Any] = next((tables[name] for name in _TRAINERS if isinstance(tables.get(name), dict)), {})
    grpo = tables.get("grpo", {})
    group, batch = grpo.get("num_generations"), grpo.get("generation_batch_size")
    evaluation, harness = tables.get("evaluation"), tables.get("harness")
    return {
        "id": fragment_id,
        "steps": trainer.get("max_steps"),
        "group_size": group,
        "tasks_per_step": batch // group if group and batch else None,
        "learning_rate": trainer.get("learning_rate"),
        "trials": None if evaluation is None else evaluation.get("trials", DEFAULT_TRIALS),
        "agent_timeout_sec": None if harness is None else harness.get("agent_timeout_sec"),
        "infra_error_fraction": None
        if harness is None
        else harness.get("max_infra_error_fraction", DEFAULT_INFRA_ERROR_FRACTION),
        **tables.get("meta", {}),
    }


def _challenge(fragment_id: str, tables: Mapping[str, Any], configs: Path) -> dict[str, Any]:
    challenge = main_table("challenges", fragment_id, tables, configs)
    return {
        "id": fragment_id,
        "model": challenge.get("model"),
        "method": challenge.get("method"),
        "suites": challenge.get("suites"),
        "reserve": challenge.get("reserve"),
        "flavor": tables.get("compute", {}).get("layout", {}).get("flavor"),
        **tables.get("meta", {}),
    }


_VIEWS: dict[str, Callable[[str, Mapping[str, Any], Path], dict[str, Any]]] = {
    "models": _model,
    "suites": _suite,
    "methods": _method,
    "challenges": _challenge,
}
