"""Every public failure report that this project undertook to survive has a test that bears its number.

Attacked: a report whose test is renamed away or was never written. Not covered: whether a test attacks its report's
whole kind, which only reading can tell.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPORTS = frozenset(
    {
        *(1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 14),  # submitting
        *(15, 16, 17, 19, 20, 21, 22, 25, 26, 28, 29, 30, 31),  # names, resources, environment
        *(32, 33, 34, 35, 36, 39, 40, 41, 42),  # dependencies and wakes
        *(43, 45, 46, 50, 51, 52, 56, 57, 61, 62),  # reading job state
        *(64, 65, 66, 67, 70, 72, 73),  # preemption, requeue, bad nodes, signals
        *(74, 75, 80),  # results
        *(81, 82, 83),  # controller, record, decisions
    }
)
"""Numbers of the collected reports; those missing were found to be no concern of a dispatcher."""


def names_by_row(folder: Path) -> dict[int, list[str]]:
    """Row -> the tests below the folder that have it in their name (`test_row_06_row_07_…` has two)."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            for row in re.findall(r"(?<=_)row_(\d+)(?=_)", name):
                found[int(row)].append(name)
    return found


def test_every_report_has_a_test_with_its_number() -> None:
    found = names_by_row(TESTS)
    assert sorted(REPORTS - found.keys()) == []
    assert {row: names for row, names in found.items() if row not in REPORTS} == {}, "a number that no report has"


def test_a_missing_report_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "def test_row_06_row_07_ids(): ...\ndef row_08_no_test(): ...\ndef test_arrow_9_neither(): ...\n"
    )
    assert names_by_row(tmp_path) == {6: ["test_row_06_row_07_ids"], 7: ["test_row_06_row_07_ids"]}
