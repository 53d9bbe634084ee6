"""Which commits a person means who names many candidates at once.

Covered: revisions, patterns of branch and tag names, ranges; each tree once. Not covered: checking and submitting them
(submit.py).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fnmatch import fnmatchcase

from outerloop.controller.git import GitError, Repository

__all__ = ["MOST_CANDIDATES", "Named", "name_candidates"]

MOST_CANDIDATES = 1000
"""More in one call is taken for a mistake (a range that begins at the wrong place)."""

_PATTERN = frozenset("*?[")


@dataclass(frozen=True)
class Named:
    """One candidate, and the other names that lead to the same tree."""

    revision: str
    commit: str
    also: tuple[str, ...] = ()


def name_candidates(repo: Repository, text: str) -> list[Named]:
    """The candidates that `text` names, in its order, each tree once.

    `text`: items with commas or blanks between them; an item is a revision, a pattern of reference names, a range
    a..b, or `worktree`. Raises GitError with every item that names nothing.
    """
    problems: list[str] = []
    found: list[tuple[str, str]] = []
    for item in text.replace(",", " ").split():
        try:
            found += _one(repo, item)
        except GitError as error:
            problems.append(str(error))
    if not found and not problems:
        problems.append("--candidates names nothing")
    if len(found) > MOST_CANDIDATES:
        problems.append(f"--candidates names more than {MOST_CANDIDATES} commits")
    if problems:
        raise GitError("\n".join(problems))
    by_tree: dict[str, Named] = {}
    for revision, commit in found:
        tree = repo.tree(commit)
        first = by_tree.get(tree)
        if first is None:
            by_tree[tree] = Named(revision, commit)
        elif revision not in (first.revision, *first.also):
            by_tree[tree] = Named(first.revision, first.commit, (*first.also, revision))
    return list(by_tree.values())


def _one(repo: Repository, item: str) -> list[tuple[str, str]]:
    if item == "worktree":
        return [(item, repo.seal_worktree())]
    if ".." in item:
        commits = repo.between(item, limit=MOST_CANDIDATES)
        if not commits:
            raise GitError(f"{item} is an empty range in {repo.top}")
        return [(commit[:12], commit) for commit in commits]
    if not _PATTERN & set(item):
        return [(item, repo.commit(item))]
    there = repo.references()
    names = [name for name in there if fnmatchcase(name, item)]
    if not names:
        near = difflib.get_close_matches(item.rstrip("*?"), there, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise GitError(f"no branch or tag of {repo.top} is like {item}{hint}")
    return [(name, repo.commit(name)) for name in names]
