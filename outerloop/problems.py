"""A problem in a file that a person wrote: which line, which key, what is wrong, and the nearest right thing.

Covered: the `Problem` record, its rendering, suggestions, and the translation of pydantic's errors. Shared by the
settings and the contract. Not covered: finding the line (toml_lines.py).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

__all__ = ["Key", "Problem", "dotted", "nearest", "render", "suggestion", "translate"]

Key = tuple[str | int, ...]
"""Path of a key: names of tables and keys, and indices (from 0) into arrays."""

_MAX_LISTED = 40
_MAX_SHOWN = 80
_MAX_NAME = 200
_MAX_MESSAGE = 1200


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `line` counts from 1; 0 means that it stands nowhere in the file."""

    line: int
    key: Key
    message: str

    @property
    def name(self) -> str:
        """The key as a person would write it, such as `benchmarks[0].metric`."""
        return dotted(self.key)

    def text(self, source: str) -> str:
        """One line: `source:line: key: message`."""
        place = f"{source}:{self.line}" if self.line else source
        message = _cut(self.message, _MAX_MESSAGE)
        text = f"{place}: {_cut(self.name, _MAX_NAME)}: {message}" if self.key else f"{place}: {message}"
        # names in an untrusted file must not steer the terminal that shows them
        return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def dotted(key: Key) -> str:
    """`("a", 0, "b")` -> `a[0].b`."""
    written = ""
    for part in key:
        if isinstance(part, int):
            written += f"[{part}]"
        else:
            written += f".{part}" if written else part
    return written


def render(source: str, problems: Sequence[Problem]) -> str:
    """All problems, a line each, in the order of the file."""
    ordered = sorted(problems, key=lambda problem: (problem.line == 0, problem.line))
    return "\n".join(problem.text(source) for problem in ordered)


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` was probably meant to be, or None."""
    folded = {known.lower(): known for known in valid}
    found = difflib.get_close_matches(name.lower()[:_MAX_SHOWN], list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def suggestion(name: str, valid: Iterable[str]) -> str:
    """`did you mean "x"?`, or the list of what is valid."""
    known = list(valid)
    close = nearest(name, known)
    if close is not None:
        return f'did you mean "{close}"?'
    if not known:
        return "nothing may stand here"
    listed = ", ".join(known[:_MAX_LISTED])
    return f"valid here: {listed}" + (", …" if len(known) > _MAX_LISTED else "")


def shown(value: Any) -> str:
    """A value for an error message: short, on one line."""
    text = repr(str(value)) if not isinstance(value, (int, str)) else repr(value)
    return _cut(text, _MAX_SHOWN)


def _model_at(kind: Any, key: Key) -> type[BaseModel] | None:
    """The model that describes the table at `key` under the annotation `kind`, or None."""
    from typing import Annotated, Union, get_args, get_origin

    from pydantic import BaseModel

    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not key:
            return kind
        field = kind.model_fields.get(str(key[0]))
        return None if field is None else _model_at(field.annotation, key[1:])
    origin = get_origin(kind)
    if origin in (Union, UnionType, Annotated):
        found = (_model_at(part, key) for part in get_args(kind))
    elif key and origin in (tuple, list, dict):
        found = (_model_at(part, key[1:]) for part in get_args(kind))
    else:
        return None
    return next((model for model in found if model is not None), None)


_PREFIXES = ("Value error, ", "Assertion failed, ")

_PLAIN: dict[str, str] = {
    "bool_type": "must be true or false, without quotes",
    "int_type": "must be a whole number, without quotes",
    "string_type": "must be text in quotes",
    "tuple_type": 'must be a list: ["…"]',
    "list_type": 'must be a list: ["…"]',
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "missing": "is missing",
}


def translate(
    error: ErrorDetails, model: type[BaseModel], *, secret: Callable[[Key], bool] = lambda key: False
) -> tuple[Key, str]:
    """One of pydantic's errors -> (key, sentence). Values of keys for which `secret` is true are not shown."""
    key: Key = tuple(error["loc"])
    kind = error["type"]
    if kind != "extra_forbidden" and key and key[-1] == "[key]":
        key = key[:-1]  # pydantic's mark for "the name itself is wrong"
    if kind == "extra_forbidden":
        here = _model_at(model, key[:-1])
        valid = list(here.model_fields) if here is not None else []
        return key, f"unknown key; {suggestion(str(key[-1]), valid)}"
    message = error["msg"]
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    message = _PLAIN.get(kind, message)
    given = error.get("input")
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
        close = nearest(str(given), choices) if isinstance(given, str) and not secret(key) else None
        message = "must be one of " + ", ".join(f'"{choice}"' for choice in choices)
        if close is not None:
            message += f'; did you mean "{close}"?'
    if message.startswith("Input should"):
        message = "should" + message.removeprefix("Input should")
    if kind != "missing" and isinstance(given, (str, int, float)) and not secret(key):
        message += f" (it is {shown(given)})"
    return key, message
