"""Kinds of values in a contract: names, numbers, paths, variables, each with the sentence that refuses a wrong one.

Covered: one value at a time. Not covered: keys and what they have to do with each other (contract.py).
"""

from __future__ import annotations

import posixpath
import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictStr

__all__ = [
    "CONTRACT_FILE",
    "Amount",
    "Command",
    "Digest",
    "Direction",
    "Gibibytes",
    "InputPath",
    "LaneName",
    "Line",
    "Minutes",
    "Name",
    "Names",
    "OptionalCommand",
    "OptionalLine",
    "OptionalVariable",
    "Positive",
    "TreePaths",
    "Variable",
    "VariableText",
    "as_tuple",
]

CONTRACT_FILE = ".outerloop.toml"

_MAX_MINUTES = 60 * 24 * 60
_MAX_GIB = 2**20
_MAX_TEXT = 8192


def as_tuple(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError('must be a list: ["…"]')
    return tuple(value)


def _number(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("must be a number, without quotes")
    if isinstance(value, int) and value.bit_length() > 128:
        raise ValueError("is out of range")
    number = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        raise ValueError("must be a finite number")
    # decimal arithmetic on 1e999999 would cost gigabytes
    if (number and not -40 <= number.adjusted() <= 40) or len(number.as_tuple().digits) > 60:
        raise ValueError("is out of range")
    return number


def _line_of_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if text != text.strip():
        raise ValueError("must not begin or end with a blank")
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def _optional_line(text: str) -> str:
    return _line_of_text(text) if text else text


def _command(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if "\0" in text:
        raise ValueError("contains a null byte")
    return text


def _optional_command(text: str) -> str:
    return _command(text) if text else text


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_RESERVED_NAMES = frozenset({"hetjob", "batch", "extern"})


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError("must be 1 to 40 of [A-Za-z0-9._-] and begin with a letter or digit (it becomes a job name)")
    if text.lower() in _RESERVED_NAMES:
        raise ValueError("is a word that Slurm uses for its own steps; choose another name")
    return text


_LANE = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def _lane(text: str) -> str:
    if text and _LANE.fullmatch(text) is None:
        raise ValueError("must be a lane's name: a letter, then [a-z0-9_-]")
    return text


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OWNED_VARIABLES = frozenset({"HOME", "PATH"})
_OWNED_PREFIXES = ("LD_", "GIT_", "PYTHON", "SLURM_", "OUTERLOOP_")


def _variable(name: str) -> str:
    if _VARIABLE.fullmatch(name) is None:
        raise ValueError("must be the name of an environment variable: [A-Za-z_][A-Za-z0-9_]*")
    owned = next((prefix for prefix in _OWNED_PREFIXES if name.upper().startswith(prefix)), None)
    if name.upper() in _OWNED_VARIABLES or owned is not None:
        raise ValueError(
            f"{owned + '*' if owned else name.upper()} is set by the job itself and may not be declared;"
            " set it in the command"
        )
    return name


def _optional_variable(name: str) -> str:
    return _variable(name) if name else name


def _value_of_variable(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError('must be text: write it in quotes, "…"')
    if "\0" in value:
        raise ValueError("contains a null byte")
    return value


def _tree_path(text: str) -> str:
    """A path inside the tree, normalised; a trailing slash (a folder) stays."""
    if not text or not text.isprintable():
        raise ValueError("must be a path of printable characters")
    if text.startswith(("/", "~")):
        raise ValueError("must be relative to the top of the repository")
    if "*" in text or "?" in text:
        raise ValueError('patterns are not supported; a folder is written with a slash at its end: "src/"')
    parts = text.split("/")
    if ".." in parts:
        raise ValueError("must not contain ..")
    if any(part.lower() == ".git" for part in parts):
        raise ValueError("must not name git's own folder")
    normal = posixpath.normpath(text)
    if normal == ".":
        raise ValueError("is the whole repository, the benchmark itself included; name the folders that may change")
    if normal == CONTRACT_FILE:
        raise ValueError("is the contract, which a candidate may never change")
    return normal + "/" if text.endswith(("/", "/.")) else normal


def _input_path(text: str) -> str:
    if text.startswith("/"):
        if not text.isprintable() or ".." in text.split("/"):
            raise ValueError("must be a path of printable characters without ..")
        return posixpath.normpath(text)
    return _tree_path(text)


_DIGEST = re.compile(r"content|sha256:[0-9a-f]{64}")


def _digest(text: str) -> str:
    if _DIGEST.fullmatch(text) is None:
        raise ValueError('must be "content" (hashed when a climb is submitted) or "sha256:" and 64 hex digits')
    return text


def _positive(number: Decimal) -> Decimal:
    if number <= 0:
        raise ValueError("must be greater than 0")
    return number


def _not_negative(number: Decimal) -> Decimal:
    if number < 0:
        raise ValueError("must not be negative")
    return number


def _minutes(number: Decimal) -> Decimal:
    if number > _MAX_MINUTES:
        raise ValueError(f"must be at most {_MAX_MINUTES} (60 days)")
    return _positive(number)


def _gibibytes(number: Decimal) -> Decimal:
    if number > _MAX_GIB:
        raise ValueError(f"must be at most {_MAX_GIB} (1 PiB)")
    return _positive(number)


Amount = Annotated[Decimal, BeforeValidator(_number), AfterValidator(_not_negative)]
"""A number that is zero or more, exactly as written."""
Positive = Annotated[Decimal, BeforeValidator(_number), AfterValidator(_positive)]
Minutes = Annotated[Decimal, BeforeValidator(_number), AfterValidator(_minutes)]
Gibibytes = Annotated[Decimal, BeforeValidator(_number), AfterValidator(_gibibytes)]
Name = Annotated[StrictStr, AfterValidator(_name)]
Line = Annotated[StrictStr, Field(max_length=256), AfterValidator(_line_of_text)]
OptionalLine = Annotated[StrictStr, Field(max_length=256), AfterValidator(_optional_line)]
Command = Annotated[StrictStr, Field(max_length=_MAX_TEXT), AfterValidator(_command)]
OptionalCommand = Annotated[StrictStr, Field(max_length=_MAX_TEXT), AfterValidator(_optional_command)]
Variable = Annotated[StrictStr, AfterValidator(_variable)]
TreePath = Annotated[StrictStr, Field(max_length=1024), AfterValidator(_tree_path)]
TreePaths = Annotated[tuple[TreePath, ...], BeforeValidator(as_tuple)]
OptionalVariable = Annotated[StrictStr, AfterValidator(_optional_variable)]
VariableText = Annotated[str, BeforeValidator(_value_of_variable)]
InputPath = Annotated[StrictStr, Field(max_length=1024), AfterValidator(_input_path)]
Digest = Annotated[StrictStr, AfterValidator(_digest)]
LaneName = Annotated[StrictStr, AfterValidator(_lane)]
Names = Annotated[tuple[StrictStr, ...], BeforeValidator(as_tuple)]
Direction = Literal["min", "max"]
