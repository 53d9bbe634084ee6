"""Whether the names, digests and times of an event can be those of a ledger: what types alone do not say.

Covered: run ids, checkpoint names, SHA-256 digests, times, of ledgers that come from elsewhere. Not covered: types and
ranges of numbers (events.py), what events add up to (ledger.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from outerloop.champion.decide import run_id
from outerloop.champion.events import Event, RoundEvent

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"[0-9a-f]{64}")
# A job may read a split of which nobody told a digest; an ensemble is its members.
NO_DIGEST = frozenset({"", "-", "members"})
# Free words of a training, "equal for trainings that share their inputs".
FREE = frozenset({"inputs_sha256"})
FIRST_YEAR, LAST_YEAR = 1970, 2199
MOST_SHOWN = 60


def malformed(event: Event) -> str:
    """What about an event's names, digests or time can't be; "" when all of it can."""
    if event.time is not None and (problem := _time(event.time)):
        return problem
    if isinstance(event, RoundEvent):
        for member in event.members:
            due = run_id(event.generation, event.round, member.candidate.name)
            if member.run_id != due:
                return f"run_id is {_shown(member.run_id)}, this candidate's is {due}"
    return next(_problems(event.model_dump(exclude_defaults=True)), "")


def _time(told: str) -> str:
    try:
        year = datetime.fromisoformat(told).year
    except ValueError:
        return f"time is {_shown(told)}, which is none"
    return "" if FIRST_YEAR <= year <= LAST_YEAR else f"time is {_shown(told)}, in the year {year}"


def _problems(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            # What a candidate overrides is the user's own, whatever it is called.
            if name not in {"overrides", "fields"}:
                yield from _problems(inner, "sha256" if key == "reads" else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _problems(inner, key)
    elif isinstance(value, str):
        if key == "run_id" and value and not RUN_ID.fullmatch(value):
            yield f"run_id is {_shown(value)}, which is no name of a run"
        elif key in {"checkpoint", "name"} and (value.startswith("/") or {"", ".", ".."} & set(value.split("/"))):
            yield f"{key} is {_shown(value)}, which is no path inside a run's folder"
        elif key.endswith("sha256") and key not in FREE and value not in NO_DIGEST and not DIGEST.fullmatch(value):
            yield f"{key} is {_shown(value)}, which is no SHA-256"


def _shown(text: str) -> str:
    return repr(text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…")
