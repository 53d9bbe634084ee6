"""The metric of a command: the last line of its output that carries it, found while the output streams by.

Covered: which line counts, which values are refused and by which name, text of numbers kept as printed.
Not covered: whether a value is good. No I/O.

A line counts when it is a JSON object with the metric's key, or exactly `name value`. The last one that counts
decides, also when its value is unusable: an earlier, better-looking line never stands in for it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LINE_CAP = 64 * 1024
"""Longer lines are no metric lines. Bounds memory and the work for one line."""

TEXT_CAP = 400
"""Longest text of a number: any float prints in fewer characters (DBL_MAX has 309 digits)."""

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?(\d+))?", re.ASCII)
_ODD = re.compile(r"[+-]?(?:nan|inf|infinity)|true|false|none|null|\".*\"|'.*'", re.ASCII | re.IGNORECASE)
"""Second words of a `name value` line that were meant as the value although they are no number."""


class Unusable(ValueError):
    """The metric line's value cannot be a metric; the message names what it is."""


class _Number(str):
    """The text of a JSON number, unconverted: no digits lost, no huge integer ever built."""


class _Constant(str):
    """NaN, Infinity or -Infinity, which Python's JSON accepts and the standard does not."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was printed, repeated keys included."""


@dataclass(frozen=True)
class Measured:
    """Texts of the metric and of the guards that were asked for, as printed."""

    text: str
    guards: dict[str, str]


def usable_text(name: str, value: object) -> str:
    """The number's text. Raises Unusable, naming what the value is instead of a finite number."""
    if isinstance(value, _Constant):
        raise Unusable(f"{name} is {value}, not a finite number")
    if isinstance(value, _Number):
        return _finite(name, str(value))
    if isinstance(value, bool):
        raise Unusable(f"{name} is a boolean ({str(value).lower()}), not a number")
    if isinstance(value, str):
        raise Unusable(f"{name} is a string ({_short(value)}), not a number")
    if value is None:
        raise Unusable(f"{name} is null, not a number")
    raise Unusable(f"{name} is an {'object' if isinstance(value, _Pairs) else 'array'}, not a number")


def _short(text: str) -> str:
    return json.dumps(text if len(text) <= 60 else text[:57] + "...")


def _finite(name: str, text: str) -> str:
    if len(text) > TEXT_CAP:
        kind = "an integer" if text.lstrip("+-").isdecimal() else "a number"
        raise Unusable(f"{name} is {kind} of {len(text)} characters, which overflows a float or has no use")
    value = float(text)
    if math.isinf(value):
        kind = "an integer" if text.lstrip("+-").isdecimal() else "a number"
        raise Unusable(f"{name} is {kind} that overflows a float ({_short(text)})")
    found = _NUMBER.fullmatch(text)
    mantissa = text.lower().partition("e")[0]
    if value == 0.0 and any(digit in mantissa for digit in "123456789"):
        raise Unusable(f"{name} underflows a float ({_short(text)})")
    if found and found[1] and len(found[1].lstrip("0")) > 4:
        raise Unusable(f"{name} has an exponent that no float has ({_short(text)})")
    return text


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    return _Pairs(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Constant)


def _object_of(line: str) -> _Pairs | None:
    if not (line.startswith("{") and line.endswith("}")):
        return None
    try:
        value = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, _Pairs) else None


def _single(pairs: _Pairs, name: str) -> object:
    values = [value for key, value in pairs if key == name]
    if len(values) > 1:
        raise Unusable(f"{name} appears {len(values)} times in one line")
    return values[0]


def parse_line(line: str, metric: str, guards: Sequence[str] = ()) -> Measured | None:
    """The values of one output line; None when it is no metric line. Raises Unusable."""
    line = line.strip()
    pairs = _object_of(line)
    if pairs is not None:
        keys = {key for key, _ in pairs}
        if metric not in keys:
            return None
        text = usable_text(metric, _single(pairs, metric))
        missing = [name for name in guards if name not in keys]
        if missing:
            raise Unusable(f"the line with {metric} lacks the guard {', '.join(missing)}")
        return Measured(text, {name: usable_text(name, _single(pairs, name)) for name in guards})
    if not line.startswith(metric):
        return None
    words = line[len(metric) :].split()
    if len(words) != 1 or not line[len(metric)].isspace():
        return None
    word = words[0]
    if not _NUMBER.fullmatch(word):
        if _ODD.fullmatch(word):
            raise Unusable(f"{metric} is {word[:60]}, not a finite number")
        return None
    text = _finite(metric, word)
    if guards:
        raise Unusable(f"{metric} was printed as `name value`, which cannot carry the guard {', '.join(guards)}")
    return Measured(text, {})


def _counts(line: bytes, metric: str, guards: Sequence[str]) -> bool:
    try:
        return parse_line(line.decode("utf-8", "replace"), metric, guards) is not None
    except Unusable:
        return True


@dataclass
class MetricScanner:
    """Feed it the output in pieces of any size; it holds on to the last metric line only."""

    metric: str
    guards: Sequence[str] = ()
    line: bytes | None = None
    """The last metric line so far."""
    _rest: bytes = b""
    _skipping: bool = False
    _needles: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Almost all output is no metric: only lines that hold the name, as UTF-8 or as json.dumps escapes it, are
        # looked at. A name spelled with needless escapes is not found.
        spellings = {self.metric, json.dumps(self.metric)[1:-1], json.dumps(self.metric, ensure_ascii=False)[1:-1]}
        self._needles = tuple(sorted(text.encode("utf-8", "surrogatepass") for text in spellings if text))

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        if not self._needles:
            return
        if self._skipping:
            start = data.find(b"\n")
            if start < 0:
                return
            self._skipping = False
            data = data[start + 1 :]
        data = self._rest + data
        cut = data.rfind(b"\n")
        self._rest = data[cut + 1 :]
        if len(self._rest) > LINE_CAP:
            self._rest, self._skipping = b"", True
        if cut >= 0:
            self._search(data, cut)

    def finish(self) -> None:
        """The output has ended: a last line without a newline counts too."""
        if self._rest and not self._skipping:
            self._search(self._rest, len(self._rest))
        self._rest = b""

    def _search(self, data: bytes, end: int) -> None:
        while end > 0:
            at = max(data.rfind(needle, 0, end) for needle in self._needles)
            if at < 0:
                return
            start = data.rfind(b"\n", 0, at) + 1
            stop = data.find(b"\n", at, end)
            line = data[start : stop if stop >= 0 else end]
            if len(line) <= LINE_CAP and _counts(line, self.metric, self.guards):
                self.line = bytes(line)
                return
            end = start - 1

    def measured(self) -> Measured:
        """What the last metric line says. Raises Unusable, also when there was none."""
        self.finish()
        if self.line is None:
            raise Unusable(
                f"no line of the output is a JSON object with {self.metric!r} or exactly `{self.metric} value`"
            )
        measured = parse_line(self.line.decode("utf-8", "replace"), self.metric, self.guards)
        assert measured is not None
        return measured
