"""What a training left on disk, read for a page: metrics, ranks, checkpoints. Torn, huge and odd files do no harm.

Covered: `out/` of an attempt's starts and the `state/` folder of a slot, or such a folder by itself. Not covered: the
shapes themselves (outerloop.torch.facts, outerloop.torch.store write them), figures for planning (training_facts).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outerloop.job import layout
from outerloop.slots import SlotDirectory
from outerloop.slots.files import read_json
from outerloop.torch import store
from outerloop.viewer.confined import readable

__all__ = ["Checkpoint", "Rank", "Series", "Training", "read_outputs", "read_slot"]

METRICS = "metrics.jsonl"
RANKS = "ranks"
REPORT = "run.json"
METRICS_BYTES = 8 << 20
"""No more of a metrics file is read than its end of this size: half a million steps of a loss."""
MOST_POINTS = 1500
"""Points of one curve that a page is given: more than it has pixels."""
MOST_SERIES = 24
MOST_RANKS = 1024
MOST_STARTS = 64
MOST_CHECKPOINTS = 32
_RANK = re.compile(r"rank-\d{1,7}\.json")
HASHED_UNASKED_BYTES = 64 << 20
"""Checkpoints up to this size are hashed for every page (once for each size and time of change), larger ones never:
what a page may cost ends here. `outerloop.torch` hashes every part before it restores one."""
SILENT_SECONDS = 60.0
"""A rank that says it runs and has not beaten for so long is called silent; it beats at most once a second."""


@dataclass(frozen=True)
class Series:
    """One metric over the steps. A missing value is one that was not finite."""

    name: str
    steps: tuple[float, ...]
    values: tuple[float | None, ...]
    not_finite: int = 0
    total: int = 0
    """Points before thinning."""

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


@dataclass(frozen=True)
class Rank:
    """One process of a training."""

    rank: int
    host: str
    local_rank: int | None
    pid: int | None
    device: str
    state: str
    step: float | None
    age_seconds: float | None
    memory_mb: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def silent(self) -> bool:
        return self.state == "running" and (self.age_seconds is None or self.age_seconds > SILENT_SECONDS)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder. `verdict`: whole (hashed), sizes fit (too large to hash here), torn, or unreadable."""

    name: str
    step: int | None
    bytes: int
    parts: int
    world_size: int | None
    format: str
    saved_at: str
    verdict: str
    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Training:
    """Everything that was found. `report` is the newest run.json as it stands, {} without one."""

    report: Mapping[str, Any] = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    ranks: tuple[Rank, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    requeue: Mapping[str, Any] | None = None
    starts: int = 0
    skipped_lines: int = 0
    """Lines of metrics.jsonl that are no JSON object: torn by a kill, or a stranger's."""
    cut: bool = False
    """Whether the beginning of a large metrics file was left out."""

    @property
    def empty(self) -> bool:
        return not (self.report or self.series or self.ranks or self.checkpoints)


def read_slot(directory: SlotDirectory, now: datetime | None = None) -> Training:
    """The training of one slot, over all attempts and restarts; beats are as old as they are at `now`, by default this
    machine's. Raises nothing for what is torn or missing."""
    outputs = []
    for n in directory.attempt_numbers():
        for restart in _restarts(directory.attempt(n)):
            outputs.append(directory.logs(n, restart) / layout.OUT)
    return read_outputs(outputs[-MOST_STARTS:], directory.path / layout.STATE, directory.path, now)


def _restarts(attempt: Path) -> list[int]:
    try:
        names = [entry.name for entry in attempt.iterdir()]
    except OSError:
        return []
    return sorted(int(name[1:]) for name in names if name[:1] == "r" and name[1:].isdecimal() and len(name) < 8)


def read_outputs(outputs: Iterable[Path], state: Path, root: Path, now: datetime | None = None) -> Training:
    """The training whose starts wrote into these folders, in order, and saved into `state`; nothing outside `root` is
    read."""
    rows: list[dict[str, Any]] = []
    report: Mapping[str, Any] = {}
    ranks: tuple[Rank, ...] = ()
    skipped, starts, cut = 0, 0, False
    for folder in outputs:
        found, torn, was_cut = _metrics(folder / METRICS, root)
        skipped, cut = skipped + torn, cut or was_cut
        rows += found
        body = _report(folder / REPORT, root)
        beats = _ranks(folder / RANKS, root, (now or datetime.now(UTC)).timestamp())
        report, ranks = body or report, beats or ranks
        starts += bool(found or body or beats)
    return Training(
        report=report,
        series=_series(rows),
        ranks=ranks,
        checkpoints=_checkpoints(state, root),
        requeue=_object(state / store.REQUEUE, root),
        starts=starts,
        skipped_lines=skipped,
        cut=cut,
    )


def _object(path: Path, root: Path) -> dict[str, Any] | None:
    return read_json(path) if readable(path, root) else None


def _report(path: Path, root: Path) -> Mapping[str, Any]:
    body = _object(path, root)
    return body if body is not None and body.get("kind") == "training" and body.get("schema") == 1 else {}


def _number(value: Any) -> float | None:
    """A finite number as float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _metrics(path: Path, root: Path) -> tuple[list[dict[str, Any]], int, bool]:
    """(objects, lines that are none, whether the beginning was left out)."""
    if not readable(path, root):
        return [], 0, False
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            start = max(0, size - METRICS_BYTES)
            stream.seek(start)
            data = stream.read(size - start)
    except OSError:
        return [], 0, False
    lines = data.split(b"\n")
    if start:
        lines = lines[1:]
    rows, torn = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            torn += 1
    return rows, torn, bool(start)


def _series(rows: list[dict[str, Any]]) -> tuple[Series, ...]:
    """The numeric keys over `step`, or over the line's number where a line has none. The last line of a step counts."""
    curves: dict[str, dict[float, float | None]] = {}
    for line, row in enumerate(rows):
        step = _number(row.get("step"))
        at = float(line) if step is None else step
        flagged = row.get("_non_finite")
        flags = flagged if isinstance(flagged, dict) else {}
        for key, value in row.items():
            if key == "step" or key.startswith("_"):
                continue
            number = _number(value)
            bad = key in flags or (isinstance(value, float) and not math.isfinite(value))
            if number is None and not bad:
                continue
            if key not in curves and len(curves) >= MOST_SERIES:
                continue
            curves.setdefault(key, {})[at] = number
    return tuple(_thinned(name, curve) for name, curve in curves.items())


def _thinned(name: str, curve: dict[float, float | None]) -> Series:
    points = sorted(curve.items())
    kept = points
    if len(points) > MOST_POINTS:
        last = len(points) - 1
        kept = [points[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
    return Series(
        name=name,
        steps=tuple(step for step, _ in kept),
        values=tuple(value for _, value in kept),
        not_finite=sum(value is None for _, value in points),
        total=len(points),
    )


def _ranks(folder: Path, root: Path, now: float) -> tuple[Rank, ...]:
    try:
        names = [entry.name for entry in folder.iterdir() if _RANK.fullmatch(entry.name)]
    except OSError:
        return ()
    found = []
    for name in names[:MOST_RANKS]:
        body = _object(folder / name, root)
        if body is None:
            continue
        number = _number(body.get("rank"))
        if number is None:
            continue
        beat = _number(body.get("time"))
        memory = body.get("peak_memory_mb")
        local, pid = _number(body.get("local_rank")), _number(body.get("pid"))
        found.append(
            Rank(
                rank=int(number),
                host=str(body.get("host") or "?")[:200],
                local_rank=None if local is None else int(local),
                pid=None if pid is None else int(pid),
                device=str(body.get("device") or "")[:40],
                state=str(body.get("state") or "")[:40],
                step=_number(body.get("step")),
                age_seconds=None if beat is None else max(0.0, now - beat),
                memory_mb={
                    key: _number(memory.get(key)) if isinstance(memory, dict) else None
                    for key in ("device", "reserved", "rss")
                },
            )
        )
    return tuple(sorted(found, key=lambda rank: rank.rank))


_hashed: dict[tuple[str, int, int], store.Part] = {}
"""(path, size, time of change in ns) -> what the file hashed to. Bounded in `_part`."""
_MOST_HASHED = 4096


def _part(path: Path) -> store.Part:
    """Size and hash of a file, read again only when its size or time of change is another. Raises OSError."""
    seen = path.stat()
    key = (str(path), seen.st_size, seen.st_mtime_ns)
    known = _hashed.get(key)
    if known is None:
        known = store.hashed(path)
        if len(_hashed) >= _MOST_HASHED:
            _hashed.clear()
        _hashed[key] = known
    return known


def _checkpoints(state: Path, root: Path) -> tuple[Checkpoint, ...]:
    return tuple(_checkpoint(folder, root) for folder in store.published(state)[:MOST_CHECKPOINTS])


def _checkpoint(folder: Path, root: Path) -> Checkpoint:
    manifest = store.read_manifest(folder) if readable(folder / store.MANIFEST, root) else None
    if manifest is None:
        return Checkpoint(folder.name, None, 0, 0, None, "", "", "unreadable")
    saved = str((read_json(folder / store.MANIFEST) or {}).get("saved_at") or "")[:40]
    hashing = manifest.bytes <= HASHED_UNASKED_BYTES
    broken = []
    for name, part in manifest.parts.items():
        try:
            fits = readable(folder / name, root) and (
                _part(folder / name) == part if hashing else (folder / name).stat().st_size == part.bytes
            )
        except OSError:
            fits = False
        if not fits:
            broken.append(name)
    return Checkpoint(
        name=folder.name,
        step=manifest.step,
        bytes=manifest.bytes,
        parts=len(manifest.parts),
        world_size=manifest.world_size,
        format=manifest.format,
        saved_at=saved,
        verdict="torn" if broken else "whole" if hashing else "sizes fit",
        broken=tuple(broken),
    )
