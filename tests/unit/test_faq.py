"""Messages that the manual explains and the code no longer says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
QUOTED = re.findall(r"^### `(.+)`$", (TOP / "docs" / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
FEWEST_LETTERS = 12
"""A message with fewer letters of its own would be found anywhere."""


@cache
def said() -> tuple[str, ...]:
    """Every text of the package, with … where a value goes in; texts that only stand beside one another are joined."""
    found = set()
    for file in sorted((TOP / "outerloop").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.add("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return tuple(found)


def is_said(message: str) -> bool:
    """Whether one text of the code has all of the message's words in order, values and all that … leaves out aside."""
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in message.split("…")), re.DOTALL)
    return any(pattern.search(text) for text in said())


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_that_the_manual_explains_is_said_by_the_code(message: str) -> None:
    assert len(re.sub(r"[\W…]", "", message)) >= FEWEST_LETTERS, message
    assert is_said(message), message


def test_a_message_that_nobody_says_would_be_found_missing() -> None:
    assert len(QUOTED) > 20 and len(set(QUOTED)) == len(QUOTED)
    assert not is_said("the database is at revision …, which nobody ever heard of")
    assert not is_said("commit … has a …; write one with …"), "words are compared, not letters alone"
