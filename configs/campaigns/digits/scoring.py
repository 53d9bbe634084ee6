"""From margins to what the campaign reads: rows of scores, reject bands, gate curves and reports.

A margin above 0 lets an item pass. The reject band is a stretch of margins in which the gate does not decide. It is
fixed on the validation items alone, so the test set has no say in it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

# The band holds this share of the validation items, those with margins nearest to 0.
REJECTED_SHARE = 0.15
CURVE_POINTS = 41


def write_whole(path: Path, text: str) -> None:
    """Write by rename: whoever sees the file sees all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def write_scores(path: Path, numbers: np.ndarray, margins: np.ndarray, targets: np.ndarray) -> None:
    """One row per item: its number, its margin, and 1 where it should pass."""
    rows = (
        {"item": int(number), "margin": float(margin), "target": int(target)}
        for number, margin, target in zip(numbers, margins, targets, strict=True)
    )
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_scores(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(item numbers, margins, targets) of a scores file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return (
        np.array([row["item"] for row in rows]),
        np.array([row["margin"] for row in rows]),
        np.array([row["target"] for row in rows]),
    )


def gate_auc(margins: np.ndarray, targets: np.ndarray) -> float:
    """The chance that a random passing item has a higher margin than a random failing one; a tie is half a win."""
    passing, failing = margins[targets == 1], margins[targets == 0]
    above = (passing[:, None] > failing[None, :]).sum() + 0.5 * (passing[:, None] == failing[None, :]).sum()
    return float(above / (passing.size * failing.size))


def gate_curve(margins: np.ndarray, targets: np.ndarray) -> list[list[float]]:
    """[share of failing items that pass, share of passing items that are stopped], for rising thresholds."""
    thresholds = np.quantile(margins, np.linspace(0.0, 1.0, CURVE_POINTS))
    passing, failing = margins[targets == 1], margins[targets == 0]
    return [[float((failing > at).mean()), float((passing <= at).mean())] for at in thresholds]


def error_counts(margins: np.ndarray, targets: np.ndarray) -> dict[str, int]:
    """The items of both classes, how many failing ones pass, and how many passing ones pass."""
    return {
        "fail_count": int((targets == 0).sum()),
        "fail_to_pass_count": int(((targets == 0) & (margins > 0)).sum()),
        "pass_count": int((targets == 1).sum()),
        "pass_correct_count": int(((targets == 1) & (margins > 0)).sum()),
    }


def reject_band(margins: np.ndarray) -> tuple[float, float]:
    """The band that validation margins give."""
    half = float(np.quantile(np.abs(margins), REJECTED_SHARE))
    return -half, half


def report(
    margins: np.ndarray, targets: np.ndarray, *, digest: str, band: tuple[float, float] | None
) -> dict[str, Any]:
    """The report of one checkpoint or ensemble, with the counts outside the band if there is one."""
    counts = error_counts(margins, targets)
    stopped_wrongly = counts["pass_count"] - counts["pass_correct_count"]
    stopped_rightly = counts["fail_count"] - counts["fail_to_pass_count"]
    f1_pass = _f1(counts["pass_correct_count"], counts["fail_to_pass_count"], stopped_wrongly)
    f1_fail = _f1(stopped_rightly, stopped_wrongly, counts["fail_to_pass_count"])
    found: dict[str, Any] = {
        **counts,
        "macro_f1": (f1_pass + f1_fail) / 2,
        "s_f1": f1_pass,
        "checkpoint_sha256": digest,
        "gate_auc": gate_auc(margins, targets),
        "gate_curve": gate_curve(margins, targets),
    }
    if band is not None:
        decided = (margins < band[0]) | (margins > band[1])
        found["reject_band"] = list(band)
        found["decided"] = {
            **error_counts(margins[decided], targets[decided]),
            "rejected_total": int((~decided).sum()),
        }
    return found


def _f1(right: int, too_many: int, missed: int) -> float:
    return 2 * right / (2 * right + too_many + missed) if right else 0.0


def band_of(scores: str) -> tuple[float, float] | None:
    """The band of a file of validation scores; None without one."""
    return reject_band(read_scores(Path(scores))[1]) if scores else None


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
