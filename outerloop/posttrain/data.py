"""The submitted training set: JSONL rows, checked one by one, as a clean table with a digest.

Covered: which fields a row needs for which stage, every malformed row named by file, line and field in one message.
Not covered: whether the rows are any good, their length in tokens, and overlap with a suite (contamination.py).

A row serves every stage whose fields it has:

| stage | fields |
|---|---|
| sft | `prompt` and `completion`, or `messages` whose last one is the assistant's |
| dpo | `prompt`, `chosen`, `rejected` |
| grpo | `prompt`, `answer` |

`prompt`, `completion`, `chosen` and `rejected` are text, or lists of `{"role", "content"}`. Other fields are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outerloop.problems import nearest

__all__ = ["FIELDS", "MOST_LISTED", "ROLES", "DataError", "Table", "read_table"]

FIELDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "sft": (("prompt", "completion"), ("messages",)),
    "dpo": (("prompt", "chosen", "rejected"),),
    "grpo": (("prompt", "answer"),),
}
"""Stage -> the sets of fields, each of which makes a row serve it."""

ROLES = ("system", "user", "assistant", "tool")
MOST_LISTED = 100
"""Problems that one message lists; the rest is counted."""
LONGEST_ROW = 4 * 1024 * 1024
"""Bytes of one row. Longer ones exceed any context and are a sign of a file that is no JSONL."""

_ANSWERS = ("completion", "chosen", "rejected")
Message = dict[str, str]


class DataError(ValueError):
    """Training data that can't be used. `problems` has a line for each: file, line, field, what is wrong."""

    def __init__(self, problems: Sequence[str], more: int = 0) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([*problems, *([f"… and {more} more"] if more else [])]))


@dataclass(frozen=True)
class Table:
    """Clean rows, each with `prompt` as messages and what else it has; `digest` is of the content, not the spelling."""

    rows: tuple[dict[str, Any], ...]
    digest: str

    def of(self, stage: str) -> list[dict[str, Any]]:
        """The rows that serve a stage, with that stage's fields only."""
        names = ("prompt", "completion") if stage == "sft" else FIELDS[stage][0]
        return [{name: row[name] for name in names} for row in self.rows if all(name in row for name in names)]

    def texts(self) -> Iterator[str]:
        """Every text of every row: what a contamination check reads."""
        for row in self.rows:
            for value in row.values():
                if isinstance(value, str):
                    yield value
                else:
                    yield from (message["content"] for message in value)

    def lines(self) -> Iterator[str]:
        """The table as JSONL, one spelling for one content."""
        return map(_canonical, self.rows)


class _Problems:
    def __init__(self, source: str) -> None:
        self.source = source
        self.listed: list[str] = []
        self.more = 0

    def add(self, line: int, field: str, message: str) -> None:
        place = f"{self.source}:{line}: " if line else f"{self.source}: "
        text = f"{place}{field}: {message}" if field else f"{place}{message}"
        if len(self.listed) < MOST_LISTED:
            # rows are untrusted: their field names must not steer the terminal
            self.listed.append("".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text))
        else:
            self.more += 1


def read_table(path: Path, stages: Sequence[str], *, source: str = "") -> Table:
    """The clean table of a JSONL file for these stages; blank lines are skipped.

    Raises DataError with a line per problem (nothing is returned then, however many rows were good), OSError.
    """
    problems = _Problems(source or str(path))
    rows: list[dict[str, Any]] = []
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(LONGEST_ROW + 1), b""), start=1):
            if len(raw) > LONGEST_ROW:
                problems.add(number, "", f"a row of more than {LONGEST_ROW // 1024 // 1024} MiB; the rest was not read")
                break
            if not raw.strip():
                continue
            row = _parsed(raw, number, problems)
            clean = None if row is None else _clean(row, stages, number, problems)
            if clean is not None and not problems.listed:
                rows.append(clean)
                digest.update(_canonical(clean).encode() + b"\n")
    if not problems.listed:
        for stage in stages:
            if not rows or not Table(tuple(rows), "").of(stage):
                problems.add(0, "", f"no row has {_either(stage)}, which {stage} needs")
    if problems.listed:
        raise DataError(problems.listed, problems.more)
    return Table(tuple(rows), digest.hexdigest())


def _canonical(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _either(stage: str) -> str:
    return ", or ".join(" and ".join(names) for names in FIELDS[stage])


class _RepeatedError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedError(next(name for name in names if names.count(name) > 1))
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parsed(raw: bytes, number: int, problems: _Problems) -> dict[str, Any] | None:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        problems.add(number, "", f"not UTF-8 text ({error.reason} at byte {error.start} of the line)")
        return None
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except _RepeatedError as error:
        problems.add(number, str(error), "given twice")
        return None
    except json.JSONDecodeError as error:
        problems.add(number, "", f"not JSON: {error.msg} at character {error.pos + 1}")
        return None
    except (ValueError, RecursionError) as error:
        problems.add(number, "", f"not JSON: {error}")
        return None
    if not isinstance(found, dict):
        problems.add(number, "", "must be a JSON object, one per line")
        return None
    return found


def _clean(row: dict[str, Any], stages: Sequence[str], number: int, problems: _Problems) -> dict[str, Any] | None:
    """The row with messages for texts; None after a problem."""
    before = len(problems.listed) + problems.more
    wanted = [names for stage in stages for names in FIELDS[stage]]
    fields = dict.fromkeys(name for names in wanted for name in names)
    clean: dict[str, Any] = {}
    for name in fields:
        if name not in row:
            continue
        value = row[name]
        if name == "answer":
            clean[name] = _text(name, value, number, problems)
        elif name == "messages":
            messages = _messages(name, value, number, problems)
            if messages and messages[-1]["role"] != "assistant":
                problems.add(number, f"messages[{len(messages) - 1}].role", "the last message must be the assistant's")
            elif messages and len(messages) < 2:
                problems.add(number, name, "needs a message before the assistant's")
            elif messages and "prompt" not in row:
                clean["prompt"], clean["completion"] = messages[:-1], messages[-1:]
            elif messages:
                problems.add(number, name, "a row has either prompt or messages")
        elif isinstance(value, str):
            text = _text(name, value, number, problems)
            clean[name] = [{"role": "assistant" if name in _ANSWERS else "user", "content": text}]
        else:
            clean[name] = _messages(name, value, number, problems)
            _roles(name, clean[name], number, problems)
    if len(problems.listed) + problems.more > before:
        return None
    if not any(all(name in row for name in names) for names in wanted):
        _missing(row, stages, wanted, number, problems)
        return None
    return clean


def _missing(
    row: dict[str, Any], stages: Sequence[str], wanted: list[tuple[str, ...]], number: int, problems: _Problems
) -> None:
    """What the row lacks of the set of fields that it has most of."""
    closest = max(wanted, key=lambda names: sum(name in row for name in names) / len(names))
    absent = [name for name in closest if name not in row]
    near = nearest(absent[0], [other for other in row if other not in closest])
    hint = f'; is "{near}" meant?' if near else f"; a row has {', or '.join(map(_either, stages))}"
    problems.add(number, ", ".join(absent), f"{'is' if len(absent) == 1 else 'are'} missing{hint}")


def _text(name: str, value: Any, number: int, problems: _Problems) -> str:
    if not isinstance(value, str):
        problems.add(number, name, f"must be text, not {_kind(value)}")
    elif not value.strip():
        problems.add(number, name, "is empty")
    elif "\0" in value:
        problems.add(number, name, "holds a null character")
    elif any("\ud800" <= letter <= "\udfff" for letter in value):
        problems.add(number, name, "holds half of a surrogate pair, which is no character")
    else:
        return value
    return ""


def _messages(name: str, value: Any, number: int, problems: _Problems) -> list[Message]:
    if not isinstance(value, list) or not value:
        said = "an empty list" if value == [] else _kind(value)
        wanted = "a list of messages" if name == "messages" else "text or a list of messages"
        problems.add(number, name, f"must be {wanted}, not {said}")
        return []
    found: list[Message] = []
    for index, message in enumerate(value):
        place = f"{name}[{index}]"
        if not isinstance(message, dict):
            problems.add(number, place, f'must be {{"role", "content"}}, not {_kind(message)}')
            continue
        absent = [key for key in ("role", "content") if key not in message]
        extra = [key for key in message if key not in ("role", "content")]
        for key in absent:
            problems.add(number, f"{place}.{key}", "is missing")
        for key in extra:
            problems.add(number, f"{place}.{key}", "unknown; a message has role and content")
        if absent or extra:
            continue
        if message["role"] not in ROLES:
            problems.add(number, f"{place}.role", f"must be one of {', '.join(ROLES)}")
            continue
        content = _text(f"{place}.content", message["content"], number, problems)
        found.append({"role": message["role"], "content": content})
    # what follows looks at the order of messages, which says nothing when some could not be read
    return found if len(found) == len(value) else []


def _roles(name: str, messages: list[Message], number: int, problems: _Problems) -> None:
    last = len(messages) - 1
    for index, message in enumerate(messages):
        place = f"{name}[{index}].role"
        if message["role"] == "system" and (index or name in _ANSWERS):
            problems.add(number, place, "only the first message of a prompt may be the system's")
    if name in _ANSWERS and messages and any(message["role"] != "assistant" for message in messages):
        problems.add(number, name, 'holds messages of "assistant" only')
    if name == "prompt" and messages and messages[last]["role"] == "assistant":
        problems.add(number, f"{name}[{last}].role", "a prompt does not end with the assistant's message")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names[type(value)]
