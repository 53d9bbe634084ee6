"""What a training reports: metrics.jsonl, ranks/rank-N.json, run.json. Standard library only; never raises.

metrics.jsonl, one object a line, appended by the main rank
    the script's own keys, and `_time` (seconds since 1970), `_non_finite` ({key path: "nan" | "inf" | "-inf"}) if any.
    A process that is killed repeats the steps since its checkpoint: the last line of a step counts.

ranks/rank-N.json, replaced at most once a second by each rank
    {"schema": 1, "rank", "world_size", "local_rank", "host", "pid", "device", "state", "step", "time",
     "peak_memory_mb": {"device", "reserved", "rss"}}
    state: "running" | "finished" | "stopped" (exit 75) | "failed". There is no heartbeat thread: a rank that hangs
    stops beating.

run.json, replaced by the main rank together with its heartbeat
    {"schema": 1, "kind": "training", "state", "started", "updated" (UTC ISO 8601), "host", "pid", "world_size",
     "backend", "device", "device_name", "torch", "python", "start_step", "step", "restored_step" (or null),
     "restore_seconds",
     "step_seconds": {"count", "median", "p90", "max"} without saves and without the first step (or null),
     "tokens_per_second", "samples_per_second": all ranks, over the same steps (or null when not known),
     "peak_memory_mb": {"device", "reserved", "rss"}: the largest of any rank's last heartbeat, MB = 10^6 bytes,
     "checkpoint": {"count", "failed", "last_step", "seconds_median", "seconds_max", "bytes"}}
    device is torch's peak of allocated GPU memory, reserved its caching allocator's; both null on CPU.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import resource
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outerloop.torch import world
from outerloop.torch.store import utc_now, written_atomically

SCHEMA = 1
HEARTBEAT_SECONDS = 1.0
# Enough for a stable median, small enough to be forgotten about.
_REMEMBERED_STEPS = 2000
_MAX_DEPTH = 8
_MAX_TEXT = 2000
_MAX_ITEMS = 1000
_log = logging.getLogger("outerloop.torch")


def jsonable(value: Any, flags: dict[str, str], path: str = "", depth: int = 0) -> Any:
    """`value` as something that strict JSON can hold; numbers that are not finite become None and are flagged."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        flags[path] = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return None
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        return {str(k): jsonable(v, flags, f"{path}.{k}" if path else str(k), depth + 1) for k, v in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v, flags, f"{path}[{i}]", depth + 1) for i, v in enumerate(list(value)[:_MAX_ITEMS])]
    # A tensor or an array, without importing its library. One element is a number; large ones are only described.
    count = getattr(value, "numel", None) or getattr(value, "size", None)
    count = count() if callable(count) else count
    if hasattr(value, "tolist") and (count is None or count <= _MAX_ITEMS):
        plain = value.item() if count == 1 else value.tolist()
        if isinstance(plain, bool | int | float | str | list):
            return jsonable(plain, flags, path, depth + 1)
    return str(value)[:_MAX_TEXT]


class Reporter:
    """Writes the three files into one output folder; with none it measures and writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.started = utc_now()
        self.state = "running"
        self.step: int | None = None
        self.start_step = 0
        self.restored_step: int | None = None
        self.restore_seconds: float | None = None
        self.device = "cpu"
        self.device_name = platform.processor() or platform.machine()
        self.backend: str | None = None
        self.torch_version: str | None = None
        self.device_memory: Callable[[], tuple[float, float] | None] = lambda: None
        """(peak allocated, peak reserved) in MB, or None without a GPU."""
        self._step_seconds: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._save_seconds: list[float] = []
        self._save_bytes = 0
        self._last_save: int | None = None
        self._failed_saves = 0
        self._mark: float | None = None
        self._batch_tokens: int | None = None
        self._batch_samples: int | None = None
        self._told_tokens: int | None = None
        self._counted_seconds = 0.0
        self._counted_tokens: int | None = None
        self._counted_samples: int | None = None
        self._last_beat = -math.inf
        self._complained = False
        self._line_open_checked = False
        self._lock = threading.Lock()

    # measuring

    def saw_batch(self, samples: int | None, tokens: int | None) -> None:
        """Count one batch of this rank."""
        if samples is not None:
            self._batch_samples = (self._batch_samples or 0) + samples
        if tokens is not None:
            self._batch_tokens = (self._batch_tokens or 0) + tokens

    def step_ended(self, step: int) -> None:
        """Time the steps since the last call. Call before saving, and `resume_clock` after."""
        now = time.monotonic()
        steps = 1 if self.step is None or step <= self.step else step - self.step
        if self._mark is not None:
            self._step_seconds.append((now - self._mark) / steps)
            self._counted_seconds += now - self._mark
            tokens = self._told_tokens if self._told_tokens is not None else self._batch_tokens
            if tokens is not None:
                self._counted_tokens = (self._counted_tokens or 0) + tokens
            if self._batch_samples is not None:
                self._counted_samples = (self._counted_samples or 0) + self._batch_samples
        self._batch_tokens = self._batch_samples = self._told_tokens = None
        self.step = step

    def resume_clock(self) -> None:
        """The next step begins now."""
        self._mark = time.monotonic()

    def saved(self, step: int, seconds: float, size: int) -> None:
        """A checkpoint of `size` bytes was written."""
        self._save_seconds.append(seconds)
        self._save_bytes = size
        self._last_save = step

    def save_failed(self) -> None:
        """A checkpoint could not be written."""
        self._failed_saves += 1

    @property
    def stop_seconds(self) -> float | None:
        """Longest step plus longest save: what a stop may need. None until both are known."""
        if not self._step_seconds or not self._save_seconds:
            return None
        return max(self._step_seconds) + max(self._save_seconds)

    # writing

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append one line on the main rank, beat on every rank."""
        try:
            tokens = metrics.get("tokens")
            if isinstance(tokens, int) and not isinstance(tokens, bool):
                self._told_tokens = (self._told_tokens or 0) + tokens
            if self.folder is not None and world.rank() == 0:
                self._append(metrics)
        except Exception as error:
            self._complain("metrics", error)
        self.beat()

    def _append(self, metrics: Mapping[str, Any]) -> None:
        flags: dict[str, str] = {}
        line = jsonable(dict(metrics), flags)
        line["_time"] = round(time.time(), 3)
        if flags:
            line["_non_finite"] = flags
        text = json.dumps(line, allow_nan=False) + "\n"
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "metrics.jsonl"
        with self._lock, path.open("ab+") as stream:
            if not self._line_open_checked:
                # A killed process may have left half a line; the next one must not be glued to it.
                size = stream.seek(0, os.SEEK_END)
                if size:
                    stream.seek(size - 1)
                    if stream.read(1) != b"\n":
                        text = "\n" + text
                self._line_open_checked = True
            stream.write(text.encode())

    def beat(self, *, now: bool = False) -> None:
        """Write this rank's heartbeat, and run.json on the main rank, if a second has passed or `now`."""
        if self.folder is None:
            return
        instant = time.monotonic()
        if not now and instant - self._last_beat < HEARTBEAT_SECONDS:
            return
        self._last_beat = instant
        try:
            ranks = self.folder / "ranks"
            ranks.mkdir(parents=True, exist_ok=True)
            beat = self._heartbeat()
            written_atomically(ranks / f"rank-{world.rank()}.json", beat, sync=False)
            if world.rank() == 0:
                written_atomically(self.folder / "run.json", self._run(beat, ranks), sync=False)
        except Exception as error:
            self._complain("heartbeat", error)

    def _heartbeat(self) -> dict[str, Any]:
        memory = self.device_memory()
        # ru_maxrss is in KiB on Linux (getrusage(2)) and in bytes on macOS
        unit = 1 if sys.platform == "darwin" else 1024
        return {
            "schema": SCHEMA,
            "rank": world.rank(),
            "world_size": world.world_size(),
            "local_rank": world.local_rank(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "device": self.device,
            "state": self.state,
            "step": self.step,
            "time": round(time.time(), 3),
            "peak_memory_mb": {
                "device": None if memory is None else round(memory[0], 3),
                "reserved": None if memory is None else round(memory[1], 3),
                "rss": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 3),
            },
        }

    def _run(self, beat: dict[str, Any], ranks: Path) -> dict[str, Any]:
        steps = sorted(self._step_seconds)
        return {
            "schema": SCHEMA,
            "kind": "training",
            "state": self.state,
            "started": self.started,
            "updated": utc_now(),
            "host": beat["host"],
            "pid": beat["pid"],
            "world_size": world.world_size(),
            "backend": self.backend,
            "device": self.device,
            "device_name": self.device_name,
            "torch": self.torch_version,
            "python": platform.python_version(),
            "start_step": self.start_step,
            "step": self.step,
            "restored_step": self.restored_step,
            "restore_seconds": self.restore_seconds,
            "step_seconds": {
                "count": len(steps),
                "median": statistics.median(steps),
                "p90": steps[math.ceil(0.9 * len(steps)) - 1],
                "max": steps[-1],
            }
            if steps
            else None,
            "tokens_per_second": self._per_second(self._counted_tokens),
            "samples_per_second": self._per_second(self._counted_samples),
            "peak_memory_mb": self._largest_memory(beat["peak_memory_mb"], ranks),
            "checkpoint": {
                "count": len(self._save_seconds),
                "failed": self._failed_saves,
                "last_step": self._last_save,
                "seconds_median": statistics.median(self._save_seconds) if self._save_seconds else None,
                "seconds_max": max(self._save_seconds, default=None),
                "bytes": self._save_bytes if self._save_seconds else None,
            },
        }

    def _per_second(self, counted: int | None) -> float | None:
        if counted is None or self._counted_seconds <= 0:
            return None
        return counted * world.world_size() / self._counted_seconds

    def _largest_memory(self, own: dict[str, float | None], ranks: Path) -> dict[str, float | None]:
        largest = dict(own)
        for number in range(1, world.world_size()):
            try:
                other = json.loads((ranks / f"rank-{number}.json").read_bytes())["peak_memory_mb"]
                for key, value in other.items():
                    if isinstance(value, int | float) and (largest.get(key) is None or value > (largest[key] or 0)):
                        largest[key] = value
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
        return largest

    def _complain(self, what: str, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s could not be written to %s: %s", what, self.folder, error)


_reporter: Reporter | None = None


def reporter() -> Reporter:
    """The reporter of OUTERLOOP_OUTPUT_DIR: one for as long as the variable stays the same."""
    global _reporter
    text = os.environ.get("OUTERLOOP_OUTPUT_DIR")
    folder = Path(text) if text else None
    if _reporter is None or _reporter.folder != folder:
        _reporter = Reporter(folder)
    return _reporter
