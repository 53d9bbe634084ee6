"""Named scorers: how right is a completion, given the task's answer, from 0 to 1. Rewards are the same functions.

Covered: `exact`, `numeric`, `boxed`, entry points `module:function` of the method, and the name `code`, whose sandbox
is code.py. Not covered: partial credit by another model.

An entry point is a function of (completion, answer) that returns a number from 0 to 1. It comes from the method, never
from a submission: whoever writes it runs in the evaluator.
"""

from __future__ import annotations

import importlib
import math
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

from outerloop.problems import suggestion

__all__ = ["SCORERS", "ScorerError", "boxed", "exact", "numeric", "scorer", "why_no_scorer"]

Scorer = Callable[[str, str], float]

_NUMBER = re.compile(r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?(?:[eE][-+]?\d{1,3})?|[-+−]?\.\d+")
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SPACES = re.compile(r"\s+")


class ScorerError(Exception):
    """A score could not be computed: the evaluator's trouble, not a wrong answer. The text quotes no task."""


def _plain(text: str) -> str:
    return _SPACES.sub(" ", unicodedata.normalize("NFKC", text)).strip()


def exact(completion: str, answer: str) -> float:
    """1 when the texts are equal after NFKC and with runs of white space as one blank."""
    return float(_plain(completion) == _plain(answer))


def _last_number(text: str) -> Fraction | None:
    found = _NUMBER.findall(unicodedata.normalize("NFKC", text))
    return _fraction(found[-1]) if found else None


def _fraction(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", "").replace("−", "-").replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        return None


def numeric(completion: str, answer: str) -> float:
    """1 when the last number of the completion equals the answer's, exactly: 1,000 is 1000.0, 1/2 is 0.5.

    Raises ScorerError when the answer has no number.
    """
    expected = _last_number(answer)
    if expected is None:
        raise ScorerError("the task's answer has no number in it")
    return float(_last_number(completion) == expected)


def _last_box(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for at in range(begin - 1, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[begin:at]
    return None


_SAME = (
    (r"\\[dt]frac", r"\\frac"),
    (r"\\left|\\right|\\!|\\,|\\;|\\ |\$", ""),
    (r"\\text\{([^{}]*)\}", r"\1"),
    (r"\s+", ""),
)


def boxed(completion: str, answer: str) -> float:
    """1 when what the last `\\boxed{…}` of the completion holds is the answer, spelling of LaTeX aside.

    Only spelling: \\dfrac and \\frac are the same, 0.5 and \\frac{1}{2} are not.
    """
    found = _last_box(completion)
    if found is None:
        return 0.0
    theirs, ours = found, _last_box(answer) or answer
    for pattern, replacement in _SAME:
        theirs, ours = re.sub(pattern, replacement, theirs), re.sub(pattern, replacement, ours)
    return float(theirs == ours)


SCORERS: dict[str, Scorer | str] = {"exact": exact, "numeric": numeric, "boxed": boxed, "code": "code"}
"""By name. `code` needs a sandbox, which the caller gives it (code.py)."""


def why_no_scorer(name: str) -> str | None:
    """Why this name can't be a scorer, or None. Entry points are only looked at when they are used."""
    if name in SCORERS or _ENTRY_POINT.fullmatch(name):
        return None
    return f'there is no scorer "{name}"; {suggestion(name, SCORERS)}, or module:function'


def scorer(name: str, *, code: Scorer | None = None) -> Scorer:
    """The function for a name; `code` is what stands for that name. Raises ScorerError."""
    why = why_no_scorer(name)
    if why:
        raise ScorerError(why)
    known = SCORERS.get(name)
    if known == "code":
        if code is None:
            raise ScorerError("code is only run inside a sandbox")
        return _checked(name, code)
    if known is not None and not isinstance(known, str):
        return known
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ScorerError(f"{name}: {error}") from None
    if not callable(found):
        raise ScorerError(f"{name} is not a function")
    return _checked(name, found)


def _checked(name: str, function: Callable[[str, str], object]) -> Scorer:
    """The function with its result checked. Of what it raises only the kind is told: the text may quote a task."""

    def score(completion: str, answer: str) -> float:
        try:
            value = function(completion, answer)
        except ScorerError:
            raise
        except Exception as error:
            raise ScorerError(f"{name} raised {type(error).__name__}") from None
        if isinstance(value, bool):
            return float(value)
        if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
            raise ScorerError(f"{name} returned something else than a number from 0 to 1")
        return float(value)

    return score
