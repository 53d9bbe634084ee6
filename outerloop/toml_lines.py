"""Where each key of a TOML text stands: key path -> line number, plus duplicates and excessive nesting.

Covered: a linear, tolerant scan of keys, table headers, arrays of tables, inline tables and arrays, and
`read_toml`, which parses a text with `tomllib` and turns every way that can fail into located problems.
Not covered: values. Their meaning is `tomllib`'s business; the scan only has to step over them.

The scan also bounds nesting before `tomllib` sees a text, because a hostile one (a table name with thousands of
dots above thousands of keys) would otherwise cost time that is quadratic in its size.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from outerloop.problems import Key, Problem

__all__ = ["MAX_DEPTH", "ParsedToml", "TomlLines", "read_toml", "scan"]

MAX_DEPTH = 16
"""Deepest nesting of keys and brackets that is read. Our files need four levels."""

_MAX_REPAIRS = 20
"""So many broken lines are reported at once; a file with more is not TOML."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\s*$")
_ONE_LINE_STATEMENT = re.compile(r"\s*(?P<key>[A-Za-z0-9_-]+)\s*=")


@dataclass
class TomlLines:
    """Line numbers (from 1) of the keys of one text."""

    lines: dict[Key, int] = field(default_factory=dict)
    duplicates: list[tuple[Key, int, int]] = field(default_factory=list)
    """(key, line of the repetition, line of the first) of every key that is set twice."""
    too_deep: int | None = None
    """Line of the first key or bracket nested deeper than MAX_DEPTH."""
    statements: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Line of a repeated key -> the text positions (start, end) of its whole statement."""

    def line(self, key: Key) -> int:
        """Line of `key`, or of its nearest enclosing table that is in the text, or 0 when nothing of it is."""
        for length in range(len(key), 0, -1):
            found = self.lines.get(key[:length])
            if found is not None:
                return found
        return 0


class _TooDeepError(Exception):
    pass


class _Confused(Exception):
    pass


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.found = TomlLines()
        self.table: Key = ()
        self.array_sizes: dict[Key, int] = {}
        self.headers: dict[Key, int] = {}

    def run(self) -> TomlLines:
        while True:
            self.skip_blank(newlines=True)
            if self.at >= len(self.text):
                return self.found
            start = self.at
            try:
                if self.text.startswith("[", self.at):
                    self.header()
                else:
                    self.statement(self.table, start)
            except _TooDeepError:
                self.found.too_deep = self.line
                return self.found
            except _Confused:
                self.skip_line()

    # characters

    def step(self, count: int = 1) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def skip_blank(self, *, newlines: bool) -> None:
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t\r":
                self.at += 1
            elif letter == "\n" and newlines:
                self.step()
            elif letter == "#" and newlines:
                self.skip_line()
            else:
                return

    # keys

    def dotted_key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self.skip_blank(newlines=False)
            parts.append(self.one_key())
            if len(parts) > MAX_DEPTH:
                raise _TooDeepError
            self.skip_blank(newlines=False)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def one_key(self) -> str:
        letter = self.text[self.at : self.at + 1]
        if letter in ("'", '"') and letter:
            start = self.at
            self.string()
            raw = self.text[start : self.at]
            if letter == "'":
                return raw[1:-1]
            try:
                return str(tomllib.loads(f"key = {raw}")["key"])
            except (tomllib.TOMLDecodeError, ValueError):
                return raw[1:-1]
        match = _BARE_KEY.match(self.text, self.at)
        if match is None:
            raise _Confused
        self.at = match.end()
        return match.group()

    def resolve(self, key: tuple[str, ...]) -> Key:
        """A header's key with the index of the last element put in after every array of tables."""
        path: Key = ()
        for part in key:
            path = (*path, part)
            size = self.array_sizes.get(path)
            if size is not None:
                path = (*path, size - 1)
        return path

    def remember(self, base: Key, key: Key) -> Key:
        for length in range(len(base) + 1, len(base) + len(key) + 1):
            self.found.lines.setdefault((*base, *key)[:length], self.line)
        return (*base, *key)

    # statements

    def header(self) -> None:
        line = self.line
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        key = self.dotted_key()
        if not self.text.startswith("]]" if is_array else "]", self.at):
            raise _Confused
        self.at += 2 if is_array else 1
        if is_array:
            parent = self.resolve(key[:-1])
            path: Key = (*parent, key[-1])
            self.remember((), path)
            index = self.array_sizes.get(path, 0)
            self.array_sizes[path] = index + 1
            path = (*path, index)
            self.found.lines[path] = line
        else:
            path = self.resolve(key)
            self.remember((), path)
            if path in self.headers:
                self.found.duplicates.append((path, line, self.headers[path]))
            else:
                # the header is a better place to point at than a dotted mention of the table above it
                self.headers[path] = self.found.lines[path] = line
        self.table = path

    def statement(self, base: Key, start: int) -> None:
        line = self.line
        key = self.dotted_key()
        if not self.text.startswith("=", self.at):
            raise _Confused
        path: Key = (*base, *key)
        repeated = path in self.found.lines and path not in self.headers
        first = self.found.lines.get(path, line)
        self.remember(base, key)
        self.at += 1
        self.skip_blank(newlines=False)
        if repeated:
            self.found.duplicates.append((path, line, first))
            # the repetition's inner keys must not be taken for the first one's
            inner, self.found = self.found, TomlLines()
            try:
                self.value(path, len(base) + len(key))
            finally:
                inner.too_deep, self.found = self.found.too_deep, inner
            self.found.statements[line] = (start, self.at)
        else:
            self.value(path, len(base) + len(key))

    def value(self, path: Key, depth: int) -> None:
        if depth > 2 * MAX_DEPTH:
            raise _TooDeepError
        letter = self.text[self.at : self.at + 1]
        if letter == "":
            raise _Confused
        if letter in "'\"":
            self.string()
        elif letter == "[":
            self.array(path, depth)
        elif letter == "{":
            self.inline_table(path, depth)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def array(self, path: Key, depth: int) -> None:
        self.at += 1
        index = 0
        while True:
            self.skip_blank(newlines=True)
            if self.at >= len(self.text):
                raise _Confused
            letter = self.text[self.at]
            if letter == "]":
                self.at += 1
                return
            if letter == ",":
                self.at += 1
                index += 1
                continue
            before = self.at
            self.found.lines.setdefault((*path, index), self.line)
            self.value((*path, index), depth + 1)
            if self.at == before:
                raise _Confused

    def inline_table(self, path: Key, depth: int) -> None:
        self.at += 1
        while True:
            self.skip_blank(newlines=True)
            if self.at >= len(self.text):
                raise _Confused
            letter = self.text[self.at]
            if letter == "}":
                self.at += 1
                return
            if letter == ",":
                self.at += 1
                continue
            if depth + 1 > 2 * MAX_DEPTH:
                raise _TooDeepError
            self.statement(path, self.at)

    def string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            end = self.at + 3
            while True:
                end = self.text.find(quote * 3, end)
                if end < 0:
                    raise _Confused
                if quote == '"' and self.escaped(end):
                    end += 1
                    continue
                break
            end += 3
            # up to two more quotes may belong to the text, just before the closing three
            while self.text.startswith(quote, end):
                end += 1
            self.step(end - self.at)
            return
        end = self.at + 1
        while end < len(self.text):
            letter = self.text[end]
            if letter == "\n":
                raise _Confused
            if letter == "\\" and quote == '"':
                end += 2
                continue
            if letter == quote:
                self.at = end + 1
                return
            end += 1
        raise _Confused

    def escaped(self, position: int) -> bool:
        count = 0
        while position - count - 1 >= 0 and self.text[position - count - 1] == "\\":
            count += 1
        return count % 2 == 1


def scan(text: str) -> TomlLines:
    """Locate every key of `text` in one pass. Never raises: what it can't follow it steps over, line by line."""
    return _Scanner(text).run()


@dataclass(frozen=True)
class ParsedToml:
    """What could be read of a text, and everything that was wrong with the rest."""

    data: dict[str, Any]
    lines: TomlLines
    problems: list[Problem]
    broken: frozenset[str]
    """Last parts of keys whose statement was unreadable, so that nobody reports them as missing too."""
    complete: bool
    """False when reading stopped at a problem: `data` then says nothing about what is missing."""


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:  # an exponent beyond what the decimal module can hold
        raise ValueError(f"the number {text[:40]} is out of range") from error


def _blank(text: str, start: int, end: int) -> str:
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def read_toml(text: str) -> ParsedToml:
    """Parse `text`; floats become `Decimal`, exactly as written.

    A repeated key and a statement of one line that is not TOML are reported and left out, so that the rest can
    be checked in the same go. Never raises.
    """
    # tomllib accepts both line ends and counts lines after this very replacement
    text = text.replace("\r\n", "\n")
    lines = scan(text)
    if lines.too_deep is not None:
        problem = Problem(lines.too_deep, (), f"nested more than {MAX_DEPTH} deep")
        return ParsedToml({}, lines, [problem], frozenset(), complete=False)
    problems: list[Problem] = []
    broken: set[str] = set()
    for key, line, first in lines.duplicates:
        problems.append(Problem(line, key, f"given twice (first on line {first}); remove one"))
        span = lines.statements.get(line)
        if span is not None:
            text = _blank(text, *span)
    for _ in range(_MAX_REPAIRS):
        try:
            data = tomllib.loads(text, parse_float=_decimal)
        except tomllib.TOMLDecodeError as error:
            message = str(error)
            at = _AT.search(message)
            line = int(at.group(1)) if at is not None and at.group(1) else 0
            message = _AT.sub("", message)
            if any(line == repeated for _, repeated, _ in lines.duplicates):
                break  # a repeated table header, reported above
            statement = _ONE_LINE_STATEMENT.match(_nth_line(text, line)) if line else None
            if not line:
                message = f"{message} at the end of the file: a quote or bracket is not closed"
                line = text.count("\n") + 1
            elif statement is not None and message == "Invalid value":
                message = 'not a TOML value; text needs quotes: key = "text"'
            elif message == "Invalid initial character for a key part":
                message += "; an inline table { … } must stand on one line"
            problems.append(Problem(line, (statement.group("key"),) if statement else (), message))
            if statement is None:
                break
            broken.add(statement.group("key"))
            start = _start_of_line(text, line)
            text = _blank(text, start, start + len(_nth_line(text, line)))
        except (ValueError, RecursionError) as error:
            told = "a whole number has too many digits" if "int_max_str_digits" in str(error) else error
            problems.append(Problem(0, (), f"can't be read as TOML: {told}"))
            break
        else:
            return ParsedToml(data, lines, problems, frozenset(broken), complete=True)
    else:
        problems.append(Problem(0, (), f"more than {_MAX_REPAIRS} lines are not TOML; the rest was not read"))
    return ParsedToml({}, lines, problems, frozenset(broken), complete=False)


def _start_of_line(text: str, line: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start


def _nth_line(text: str, line: int) -> str:
    start = _start_of_line(text, line)
    end = text.find("\n", start)
    return text[start:] if end < 0 else text[start:end]
