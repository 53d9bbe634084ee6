"""A measure done once more, on a copy of its slot: what `outerloop reproduce` does.

Covered: the copy with the same determinants and the same limits, running it here or in an allocation, comparing. Not
covered: recording anything (a reproduction decides nothing), work on several nodes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from outerloop.compute.argv import srun_options
from outerloop.dispatch.submission import lane_of, walltime_minutes
from outerloop.job import layout
from outerloop.job.script import job_script
from outerloop.slots import Result, SlotDirectory, StateRoot
from outerloop.slots.files import read_json

__all__ = ["Comparison", "Copy", "CopyError", "compare", "copied", "run", "shell_argv"]

MARGIN_MINUTES = 5.0
_KEPT = ("PATH", "HOME", "LANG", "USER", "TMPDIR", "TERM")


class CopyError(Exception):
    """The measure cannot be done again; the text says why."""


@dataclass(frozen=True)
class Copy:
    """A slot's copy in a folder of its own, ready to run as attempt 1."""

    directory: SlotDirectory
    script: Path
    order: Mapping[str, Any]
    """The slot's order: lane, CPUs, memory, minutes."""
    python: str

    def logs(self) -> Path:
        return self.directory.logs(1)


@contextmanager
def copied(
    root: StateRoot,
    digest: str,
    attempt: int,
    order: Mapping[str, Any],
    *,
    python: str,
    shared: bool,
    keep: Path | None,
) -> Iterator[Copy]:
    """A copy of attempt `attempt` of a slot, removed afterwards unless `keep` names its folder.

    `shared`: it must be visible on compute nodes, so it lies in the state folder. Raises CopyError, OSError.
    """
    original = SlotDirectory(root.slot(digest), digest)
    spec = original.spec()
    if spec is None:
        raise CopyError(f"{original.path} has no spec.json that can be read; was the slot collected?")
    if int(order.get("nodes", 1)) > 1:
        raise CopyError(f"this measure runs on {order['nodes']} nodes; a reproduction has one")
    limits = read_json(original.attempt(attempt) / layout.ORDER)
    if limits is None:
        raise CopyError(f"attempt {attempt} of {digest[:12]} has no {layout.ORDER} that can be read")
    place = keep or Path(tempfile.mkdtemp(prefix="outerloop-reproduce-", dir=root.path if shared else None))
    try:
        place.mkdir(parents=True, exist_ok=True)
        directory = SlotDirectory(place / "slots" / digest[:2] / digest, digest)
        directory.write_spec(spec["determinants"], spec["work"])
        # Module loads of a lane are for its nodes.
        prologue = str(spec["determinants"].get("prologue") or "") if shared else ""
        script = job_script(python, directory.path, 1, prologue, str(limits.get("cache_seed") or ""))
        path = directory.prepare_attempt(1, {**limits, "attempt": 1}, script)
        yield Copy(directory, path, order, python)
    finally:
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)


def _environment(copy: Copy, *, here: bool) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if here:
        kept["OUTERLOOP_LOCAL_JOB_ID"] = f"reproduce-{os.getpid()}"
    else:
        kept |= {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    return kept


def _line(copy: Copy, command: Sequence[str], *, here: bool, terminal: bool) -> list[str]:
    if here:
        return list(command)
    order = copy.order
    options = srun_options(
        lane_of(order),
        minutes=walltime_minutes(order, MARGIN_MINUTES),
        cpus=int(order.get("cpus", 1)),
        memory_mb=order.get("memory_mb") or None,
        gpus=int(order.get("gpus", 0)),
    )
    return ["srun", "--job-name=outerloop-reproduce", *options, *(["--pty"] if terminal else []), *command]


def run(copy: Copy, *, here: bool) -> Result:
    """Run the copy to its end. Raises CopyError when the wrapper left no result."""
    line = _line(copy, ["bash", str(copy.script)], here=here, terminal=False)
    try:
        done = subprocess.run(
            line, env=_environment(copy, here=here), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise CopyError(f"{line[0]} is not installed here; leave out --allocation to run it on this machine") from None
    result = copy.directory.result(1)
    if result is None:
        said = done.stderr.decode(errors="replace").strip()[-2000:] or f"exit code {done.returncode}"
        raise CopyError(f"no result was left: {said}")
    return result


def shell_argv(copy: Copy, *, here: bool) -> tuple[list[str], dict[str, str]]:
    """The command line and environment of an interactive shell in the measure's surroundings."""
    program = [copy.python, "-I", "-m", "outerloop.job.shell", str(copy.directory.path), "1"]
    return _line(copy, program, here=here, terminal=True), _environment(copy, here=here)


@dataclass(frozen=True)
class Comparison:
    """What was recorded beside what came out now; `same` says whether outcome and value agree."""

    same: bool
    sentence: str
    rows: tuple[tuple[str, str, str], ...]
    """(what, recorded, now)."""


def compare(recorded: Mapping[str, Any] | None, now: Mapping[str, Any], *, deterministic: bool) -> Comparison:
    """Compare two result bodies (`outerloop.job.layout`). `deterministic`: the same work should give the same value."""
    before, after = _ending(recorded), _ending(now)
    old, new = _value(recorded), _value(now)
    rows = [("outcome", before, after)]
    if old is not None or new is not None:
        rows.append(
            (str((now.get("metric") or (recorded or {}).get("metric") or {}).get("name")), _text(old), _text(new))
        )
    for label, key, unit in (("CPU time", "cpu_seconds", "s"), ("max RSS", "max_rss_mb", "MiB")):
        rows.append((label, _amount(recorded, key, unit), _amount(now, key, unit)))
    rows.append(("node", str((recorded or {}).get("host") or "?"), str(now.get("host") or "?")))
    if recorded is None:
        return Comparison(True, "Nothing was recorded to compare it with.", tuple(rows))
    if before != after:
        return Comparison(False, f"It ended otherwise: {after}; recorded is {before}.", tuple(rows))
    if old == new:
        return Comparison(True, "The same value." if new is not None else "It ended in the same way.", tuple(rows))
    if deterministic:
        return Comparison(
            False, "Another value, although the same tree and seed should give the same one.", tuple(rows)
        )
    return Comparison(True, "Another value; without a seed this benchmark may give one.", tuple(rows))


def _ending(body: Mapping[str, Any] | None) -> str:
    if body is None:
        return "nothing"
    return "ok" if body.get("outcome") == "ok" else f"{body.get('reason')} in phase {body.get('phase')}"


def _value(body: Mapping[str, Any] | None) -> Decimal | None:
    metric = (body or {}).get("metric")
    return Decimal(str(metric["text"])) if isinstance(metric, Mapping) and metric.get("text") is not None else None


def _text(value: Decimal | None) -> str:
    return "none" if value is None else str(value)


def _amount(body: Mapping[str, Any] | None, key: str, unit: str) -> str:
    value = (body or {}).get(key)
    return f"{value:.1f} {unit}" if isinstance(value, int | float) else "?"
