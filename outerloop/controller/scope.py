"""The scope check: what a candidate may change, decided before a single job is submitted. Pure.

Covered: paths outside `allowed`, the contract itself, links and gitlinks. Not covered: reading the diff (git.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outerloop.climb import Failure, Verdict, scope_verdict
from outerloop.contract import CONTRACT_FILE, Scope
from outerloop.controller.git import Change
from outerloop.slots.files import storable

__all__ = ["ScopeProblem", "scope_problems", "verdict_on_scope"]

_LINK, _GITLINK = "120000", "160000"


@dataclass(frozen=True)
class ScopeProblem:
    """One path of the diff that the contract does not allow."""

    path: str
    code: str
    detail: str


def scope_problems(changes: Sequence[Change], scope: Scope) -> list[ScopeProblem]:
    """Every reason why these changes may not be measured, in the order of their paths; empty when they may."""
    problems = []
    for change in sorted(changes, key=lambda c: c.path):
        verb = {"A": "added", "D": "deleted"}.get(change.status[:1], "changed")
        if change.path == CONTRACT_FILE:
            problems.append(ScopeProblem(change.path, "CONTRACT", f"{verb}; a candidate may never change the contract"))
        elif not scope.permits(change.path):
            problems.append(ScopeProblem(change.path, "OUTSIDE", f"{verb} outside scope.allowed"))
        elif change.new_mode == _LINK:
            problems.append(ScopeProblem(change.path, "LINK", f"{verb} as a symbolic link"))
        elif change.new_mode == _GITLINK:
            problems.append(ScopeProblem(change.path, "SUBMODULE", f"{verb} as a submodule"))
    return problems


def verdict_on_scope(benchmark: str, changes: Sequence[Change], scope: Scope) -> Verdict | None:
    """The verdict on a diff that leaves its scope; None for one that stays inside."""
    problems = scope_problems(changes, scope)
    if not problems:
        return None
    # As the ledger has it: git's paths are bytes, and the verdict must be the same when it is recomputed.
    failures = [Failure(role=storable(problem.path), code=problem.code, detail=problem.detail) for problem in problems]
    return scope_verdict(benchmark, failures)
