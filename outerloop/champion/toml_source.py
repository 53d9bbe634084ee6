"""TOML text to a pydantic model, with every error at once, each with file, line, key and the nearest valid key.

Covers finding the line of a key path in the TOML that people write: tables, arrays of tables, dotted and quoted
keys, inline tables (their own line). Not covered: reading files.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from outerloop.toml_lines import MAX_DEPTH, scan

M = TypeVar("M", bound=BaseModel)
Path = tuple[str | int, ...]

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"^\s*(\[\[?)\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"^\s*({_DOTTED})\s*=\s*(.*)$")
_STRING_OR_COMMENT = re.compile(r'''""".*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*''', re.DOTALL)
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


class ConfigError(ValueError):
    """A configuration text can't be used. `problems` lists every reason, each with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def _split_key(dotted: str) -> list[str]:
    keys = re.findall(_KEY, dotted)
    return [key[1:-1] if key[0] in "\"'" else key for key in keys]


def _blank_values(text: str) -> str:
    """The text with comments and string contents blanked, so that a line's first `=` is an assignment."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if "\n" not in found and found[0] != "#":
            return found
        return re.sub(r"[^\n]", " ", found)

    return _STRING_OR_COMMENT.sub(blank, text)


class TomlSource:
    """A TOML text with its file name, and the line on which each key stands."""

    def __init__(self, text: str, filename: str) -> None:
        self.text = text
        self.filename = filename

    def load(self) -> dict[str, Any]:
        """The parsed document. Raises ConfigError with the line of the first syntax error."""
        deep = scan(self.text.replace("\r\n", "\n")).too_deep
        if deep is not None:
            raise ConfigError([f"{self.filename}:{deep}: nested more than {MAX_DEPTH} deep"])
        try:
            return tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            at = _AT_LINE.search(str(error))
            line = int(at.group(1)) if at else self.text.count("\n") + 1
            sentence = _AT_LINE.sub("", str(error)).strip()
            raise ConfigError([f"{self.filename}:{line}: not valid TOML: {sentence}"]) from None
        except ValueError:
            raise ConfigError([f"{self.filename}: can't be read as TOML: a number has too many digits"]) from None

    def lines(self) -> dict[Path, int]:
        """Key path (array indices as integers) to its 1-based line."""
        found: dict[Path, int] = {}
        prefix: Path = ()
        depth = 0
        arrays: dict[Path, int] = {}
        for number, line in enumerate(_blank_values(self.text).splitlines(), start=1):
            if depth == 0:
                header = _HEADER.match(line)
                if header:
                    path = self._resolved(_split_key(header.group(2)), arrays, header.group(1) == "[[")
                    prefix = path
                    for end in range(1, len(path) + 1):
                        found.setdefault(path[:end], number)
                    continue
                assignment = _ASSIGNMENT.match(line)
                if assignment:
                    path = (*prefix, *_split_key(assignment.group(1)))
                    for end in range(len(prefix) + 1, len(path) + 1):
                        found.setdefault(path[:end], number)
            bare = _STRING_OR_COMMENT.sub("", line)
            depth = max(0, depth + bare.count("[") + bare.count("{") - bare.count("]") - bare.count("}"))
        return found

    @staticmethod
    def _resolved(keys: list[str], arrays: dict[Path, int], opens: bool) -> Path:
        """A header's key path with the index of each array of tables that it goes through."""
        path: Path = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            last = position == len(keys) - 1
            if last and opens:
                arrays[path] = arrays.get(path, -1) + 1
            if path in arrays:
                path = (*path, arrays[path])
        return path


def nearest(word: str, valid: Sequence[str]) -> str:
    """A phrase that names the nearest valid word, or all of them if none is near."""
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"valid here: {', '.join(sorted(valid))}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model whose fields stand at a path below `model`, if its annotations say so plainly."""
    current: type[BaseModel] | None = model
    for step in path:
        if current is None:
            return None
        if isinstance(step, int):
            continue
        info = current.model_fields.get(step)
        current = _inner_model(info.annotation) if info is not None else None
    return current


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        inner = _inner_model(part)
        if inner is not None:
            return inner
    return None


def parse_model(model: type[M], source: TomlSource) -> M:
    """The document as `model`. Raises ConfigError with every problem, sorted by line."""
    document = source.load()
    try:
        return model.model_validate(document)
    except ValidationError as error:
        lines = source.lines()
        problems = []
        for item in error.errors():
            path = tuple(step for step in item["loc"] if isinstance(step, int) or not step.startswith("function-"))
            line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)
            problems.append((line, f"{source.filename}:{line}: {_sentence(model, path, item)}"))
        raise ConfigError([sentence for _, sentence in sorted(problems, key=lambda pair: pair[0])]) from None


def _sentence(model: type[BaseModel], path: Path, item: Any) -> str:
    where = _dotted(path)
    kind = item["type"]
    if kind == "extra_forbidden":
        owner = _model_at(model, path[:-1])
        hint = f"; {nearest(str(path[-1]), list(owner.model_fields))}" if owner is not None else ""
        return f"{where}: unknown key{hint}"
    if kind == "missing":
        return f"{where}: required key is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    shown = repr(item["input"])
    # A whole table as the input of an error says nothing that the line does not.
    given = f" (found {shown})" if kind != "value_error" and len(shown) <= 80 else ""
    return f"{where}: {message}{given}" if where else message


def _dotted(path: Path) -> str:
    text = ""
    for step in path:
        text += f"[{step + 1}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text
