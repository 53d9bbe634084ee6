"""Filling `{name}` fields of a command from declared parameters.

Only a brace pair that holds exactly one declared name is a field, so JSON, Jinja, shell `${VAR}` and f-strings
survive. There is no attribute access, no index, no format specification and no second pass over a filled value.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping

from outerloop.strategies.plan import Scalar

_FIELD = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def rendered(value: Scalar) -> str:
    """The text of a parameter: strings as they are, booleans as true and false, floats in their shortest exact form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def filled(text: str, parameters: Mapping[str, Scalar]) -> str:
    """`text` with each `{name}` of a declared parameter replaced, once."""
    return _FIELD.sub(lambda m: rendered(parameters[m[1]]) if m[1] in parameters else m[0], text)


def template_reasons(texts: Iterable[str], parameters: Mapping[str, Scalar]) -> list[str]:
    """Every reason why the parameters and the fields do not fit each other.

    A parameter that no field uses is refused: nearly always the field is misspelt, and every task of a sweep
    would then run the same command.
    """
    fields = sorted({name for text in texts for name in _FIELD.findall(text)})
    reasons = []
    for name in sorted(parameters):
        value = parameters[name]
        if not _NAME.fullmatch(name):
            reasons.append(f"parameter {name!r} is not a plain name")
        elif name not in fields:
            near = difflib.get_close_matches(name, [f for f in fields if f not in parameters], n=1)
            hint = f"; did you mean it where {{{near[0]}}} stands?" if near else f"; write {{{name}}} where it belongs"
            reasons.append(f"parameter {name!r} is used nowhere in the command{hint}")
        if isinstance(value, float) and not math.isfinite(value):
            reasons.append(f"parameter {name!r} is {value}, which is not a finite number")
        if isinstance(value, str) and "\0" in value:
            reasons.append(f"parameter {name!r} holds a NUL character")
    return reasons


def unfilled_fields(texts: Iterable[str], parameters: Mapping[str, Scalar]) -> list[str]:
    """Names in braces that are no declared parameter and so stay as they are."""
    return sorted({name for text in texts for name in _FIELD.findall(text)} - set(parameters))
