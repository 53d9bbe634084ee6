"""A TOML text as a pydantic model, with every problem at its line.

Covered: reading and validating in one go. Not covered: files whose problems need more than one model (contract.py,
settings.py).
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from outerloop.problems import Problem, translate
from outerloop.toml_lines import read_toml

__all__ = ["model_of"]

M = TypeVar("M", bound=BaseModel)


def model_of(model: type[M], raw: bytes) -> tuple[M | None, list[Problem]]:
    """The model, or None with every problem of the file."""
    try:
        parsed = read_toml(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return None, [Problem(raw.count(b"\n", 0, error.start) + 1, (), "is not UTF-8 text")]
    problems = list(parsed.problems)
    if not parsed.complete:
        return None, problems
    try:
        found = model.model_validate(parsed.data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            key, sentence = translate(item, model)
            problems.append(Problem(parsed.lines.line(key), key, sentence))
        return None, problems
    return (None, problems) if problems else (found, [])
