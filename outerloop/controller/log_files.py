"""The logs of an attempt: which files there are, and the end of one, however large it is.

Covered: finding and reading. Not covered: following (cli.logs), writing logs (outerloop.job.streams).
"""

from __future__ import annotations

import re
from pathlib import Path

from outerloop.controller.shown import MeasureView, RunView
from outerloop.printable import harmless
from outerloop.slots import SlotDirectory

__all__ = ["STREAMS", "TAIL_BYTES", "default_measure", "log_files", "tail"]

TAIL_BYTES = 256 << 10
"""No more is read of a log's end, however long its lines are."""
_TRAINING = re.compile(r"(sft|dpo|grpo)-\d+")
"""Roles of an entry's own trainings (entry_work.py)."""
STREAMS = ("stdout.log", "stderr.log", "score.stdout.log", "score.stderr.log", "slurm.log")


def default_measure(view: RunView) -> MeasureView | None:
    """The first that failed or used up its attempts, else the candidate, else the first; None when there are none.

    An entry's candidate is its training that runs, else its newest step that runs, else its first training.
    """
    measures = view.current or view.measures
    for measure in measures:
        if measure.state in {"failed", "exhausted"}:
            return measure
    ran = [measure for measure in measures if measure.attempts]
    if view.row.kind == "entry":
        own = [measure for measure in ran if measure.side == "candidate"]
        trained = [measure for measure in own if _TRAINING.fullmatch(measure.role)]
        going_on = [measure for measure in (*trained, *reversed(own)) if measure.state == "open"]
        return next(iter(going_on or trained or own or ran or measures), None)
    for measure in ran or measures:
        if measure.side == "candidate" and measure.kind != "environment":
            return measure
    return next(iter(ran or measures), None)


def log_files(folder: SlotDirectory, n: int, wanted: tuple[str, ...] = STREAMS) -> dict[str, Path]:
    """The logs of an attempt's newest restart that exist, by name; slurm.log is the first restart's."""
    found: dict[str, Path] = {}
    for restart in _restarts(folder, n):
        for name in wanted:
            path = folder.logs(n, restart) / name
            if path.is_file():
                found[name] = path
    return {name: found[name] for name in wanted if name in found}


def _restarts(folder: SlotDirectory, n: int) -> list[int]:
    try:
        names = [entry.name for entry in folder.attempt(n).iterdir()]
    except OSError:
        return []
    return sorted(int(name[1:]) for name in names if name[:1] == "r" and name[1:].isdecimal())


def tail(path: Path, lines: int) -> tuple[str, bool]:
    """The last `lines` lines (0: all) of a log, at most TAIL_BYTES unless all, made harmless; and whether something
    was left out."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        start = 0 if lines == 0 else max(0, size - TAIL_BYTES)
        stream.seek(start)
        data = stream.read(size - start)
    whole = data.decode("utf-8", "replace").splitlines(keepends=True)
    if start and len(whole) > 1:
        whole = whole[1:]  # its beginning is missing
    kept = whole if lines == 0 else whole[-lines:]
    return harmless("".join(kept)), bool(start) or len(kept) < len(whole)
