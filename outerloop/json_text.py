"""JSON that a person or a stranger's program wrote: read strictly, with a sentence and a line for what is wrong.

Covered: one document, and a document a line (JSON Lines). Refused are: text that is not UTF-8, keys that stand twice,
NaN and infinities (also a number too large for a float), nesting deeper than anything of ours, NUL characters and
unpaired surrogates, which neither a database nor a file's text holds. Not covered: what the values mean; files that
outerloop itself wrote (slots.files.parse_json, which takes a torn one for an absent one).
"""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["MAX_DEPTH", "JsonError", "parse_json", "parse_json_lines"]

MAX_DEPTH = 64
"""Deepest nesting that is read. Our files need ten levels."""
_SURROGATES = range(0xD800, 0xE000)
_MOST_SHOWN = 40


class JsonError(ValueError):
    """A text that can't be read. `line` counts from 1; 0 means that the place isn't known."""

    def __init__(self, sentence: str, line: int = 0) -> None:
        self.sentence = sentence
        self.line = line
        super().__init__(f"line {line}: {sentence}" if line else sentence)

    def text(self, source: object) -> str:
        """`source:line: sentence`."""
        return f"{source}:{self.line}: {self.sentence}" if self.line else f"{source}: {self.sentence}"


def parse_json(raw: bytes | str) -> Any:
    """The document. Raises JsonError."""
    return _parsed(_text(raw), 1)


def parse_json_lines(raw: bytes | str) -> list[tuple[int, Any]]:
    """(line, document) of each line that is not blank. Raises JsonError for the first that can't be read."""
    # Only a line feed ends a line: a text may hold what str.splitlines() also takes for an end.
    lines = _text(raw).split("\n")
    return [(number, _parsed(line, number)) for number, line in enumerate(lines, start=1) if line.strip()]


def _text(raw: bytes | str) -> str:
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = raw.count(b"\n", 0, error.start) + 1, error.start - raw.rfind(b"\n", 0, error.start)
        raise JsonError(f"not UTF-8 text ({error.reason}, byte {column} of the line)", line) from None


def _parsed(text: str, first_line: int) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error.msg} (column {error.colno})", first_line + error.lineno - 1) from None
    except RecursionError:
        raise JsonError(f"nested more than {MAX_DEPTH} deep", first_line) from None
    except JsonError as error:
        raise JsonError(error.sentence, _known_line(text, first_line)) from None
    except ValueError:  # Python converts no integer of more than 4300 digits
        raise JsonError("a whole number has too many digits", _known_line(text, first_line)) from None
    problem = _problem(value)
    if problem:
        raise JsonError(problem, _known_line(text, first_line))
    return value


def _known_line(text: str, first_line: int) -> int:
    """The line of a document of one line. Where in a longer one a key stands, json does not tell."""
    return first_line if "\n" not in text.strip() else 0


def _no_constant(name: str) -> Any:
    raise JsonError(f"{name} is no number that JSON knows")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonError(f"the number {_cut(text)} is out of range")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _value in pairs:
            if key in seen:
                raise JsonError(f"the key {_cut(ascii(key))} stands twice; remove one")
            seen.add(key)
    return found


def _problem(value: Any) -> str:
    """What is wrong with a value that json took, or "". Without recursion: how deep it goes is the question."""
    level = [value]
    for _depth in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if wrong := _unusable(item):
                    return wrong
            elif isinstance(item, dict):
                below += [*item, *item.values()]
            elif isinstance(item, list):
                below += item
        if not below:
            return ""
        level = below
    return f"nested more than {MAX_DEPTH} deep"


def _unusable(text: str) -> str:
    if "\0" in text:
        return f"the text {_cut(ascii(text))} has a NUL character"
    if not text.isascii() and any(ord(letter) in _SURROGATES for letter in text):
        return f"the text {_cut(ascii(text))} has half of a surrogate pair"
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"
