"""Evaluating a model on suites: every trial of every task, scored, its rows sealed, its aggregates public.

Covered: retries of what infrastructure ended, the sealed rows and their hash, refusal when too many trials were lost.
Not covered: generation (engine.py, agents.py), the comparison of two models (decision.py).

Sealed rows hold completions, which may quote prompts. They lie in a folder that only the evaluator's account can
enter, named by the digest of everything that the evaluation depends on; what leaves it is the aggregates and a hash.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from outerloop.posttrain.engine import Engine, Failed, Request, TimedOut
from outerloop.posttrain.outcomes import Outcome, aggregates
from outerloop.posttrain.scorers import ScorerError
from outerloop.posttrain.seeds import trial_seed
from outerloop.posttrain.sources import Task
from outerloop.posttrain.store import publish_text

__all__ = ["SealError", "evaluate_suite", "evaluation_digest", "read_sealed", "sealed_folder"]

_ROWS = "rows.jsonl"


class SealError(Exception):
    """Sealed rows are missing, changed, or would lie where others can read them."""


def evaluation_digest(suite: Mapping[str, Any], tasks: Sequence[Task], model: str, settings: Mapping[str, Any]) -> str:
    """What an evaluation depends on, as a SHA-256: the suite's content, the model's weights, trials and sampling.

    Both sides of a comparison get different digests (their weights differ) and so different trial seeds.
    """
    digest = hashlib.sha256()
    for part in (dict(suite), dict(settings), model):
        digest.update(json.dumps(part, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\0")
    for task in tasks:
        digest.update(json.dumps([task.id, task.prompt, task.answer], ensure_ascii=False).encode() + b"\0")
    return digest.hexdigest()


def sealed_folder(root: Path, digest: str) -> Path:
    """The evaluation's folder below the root, which only its owner can enter. Raises SealError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(root.stat().st_mode) & 0o077:
        raise SealError(f"{root} can be entered by others; chmod 700 {root}")
    folder = root / digest
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def evaluate_suite(
    name: str,
    tasks: Sequence[Task],
    engine: Engine,
    score: Callable[[str, str], float],
    *,
    digest: str,
    evaluator: str,
    trials: int,
    retries: int,
    max_infra_error_fraction: float,
    sealed: Path,
) -> dict[str, Any]:
    """Run the trials, seal the rows below `sealed`, and return what may be shown.

    `digest` names this evaluation of this model; `evaluator` everything but the model, which both sides of a comparison
    must have in common.

    Raises RefusedEvaluationError when infrastructure ended too many, SealError.
    """
    folder = sealed_folder(sealed, digest)
    asked = [(task, trial) for task in tasks for trial in range(trials)]
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    outcomes: dict[tuple[str, int], Outcome] = {}
    pending = asked
    for attempt in range(1, retries + 2):
        requests = [
            Request([{"role": "user", "content": task.prompt}], trial_seed(digest, task.id, trial))
            for task, trial in pending
        ]
        lost = []
        for (task, trial), request, text in zip(pending, requests, engine.generate(requests), strict=True):
            key = (task.id, trial)
            value, why = _scored(text, task, score)
            status = "infrastructure" if value is None else "timeout" if isinstance(text, TimedOut) else "scored"
            outcomes[key] = Outcome(task.id, trial, status, value, attempt)  # type: ignore[arg-type]
            rows[key] = {
                "task": task.id,
                "trial": trial,
                "seed": request.seed,
                "status": status,
                "score": None if value is None else str(value),
                "attempts": attempt,
                "why": why,
                "completion": text if isinstance(text, str) else None,
            }
            if value is None:
                lost.append((task, trial))
        pending = lost
        if not pending:
            break
    ordered = [rows[task.id, trial] for task, trial in asked]
    sha256 = publish_text(
        folder / _ROWS, (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in ordered), mode=0o600
    )
    figures = aggregates(
        list(outcomes.values()),
        [task.id for task in tasks],
        trials,
        max_infra_error_fraction=max_infra_error_fraction,
    )
    return {
        "schema": 1,
        "suite": name,
        "evaluator": evaluator,
        "evaluation": digest,
        "sealed_sha256": sha256,
        **figures.as_dict(),
    }


def _scored(
    text: str | Failed | TimedOut, task: Task, score: Callable[[str, str], float]
) -> tuple[Decimal | None, str]:
    """The score, or None and the kind of trouble."""
    if isinstance(text, Failed):
        return None, text.why
    if isinstance(text, TimedOut):
        return Decimal(0), "the agent took too long"
    try:
        return Decimal(repr(score(text, task.answer))), ""
    except ScorerError as error:
        return None, str(error)


def read_sealed(root: Path, record: Mapping[str, Any]) -> list[Outcome]:
    """The outcomes behind an evaluation's record. Raises SealError when the rows are not those of the record."""
    path = root / record["evaluation"] / _ROWS
    named = f"the sealed rows of evaluation {record['evaluation'][:12]}"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SealError(
            f"the sealed rows of evaluation {record['evaluation'][:12]} can't be read: {error.strerror}"
        ) from None
    if hashlib.sha256(raw).hexdigest() != record["sealed_sha256"]:
        raise SealError(f"{named} are not those that were scored")
    found = []
    for line in raw.decode().splitlines():
        row = json.loads(line)
        value = None if row["score"] is None else Decimal(row["score"])
        found.append(Outcome(row["task"], row["trial"], row["status"], value, row["attempts"]))
    return found
