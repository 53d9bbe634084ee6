"""The slot directory: specs, attempts, claims, results, the pinned value.

Covered: every read and write of a slot by the dispatcher. Not covered: what the job itself writes while it runs
(outerloop.job), what the evidence means (outerloop.dispatch.evidence).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from outerloop.effects import effect
from outerloop.job import layout
from outerloop.job.pack import MEMBER
from outerloop.slots.files import make_folder, publish, read_json, replace, sync_folder

__all__ = ["Claim", "Pin", "Result", "SlotDirectory"]


@dataclass(frozen=True)
class Claim:
    """Which job executes an attempt. Its job id is the attempt's job id, whatever sbatch said."""

    attempt: int
    job_id: str
    restart: int
    host: str
    started: str
    cpus_seen: int | None


@dataclass(frozen=True)
class Result:
    """A result file that fits its claim."""

    attempt: int
    job_id: str
    restart: int
    body: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        return self.body.get("outcome") == "ok"

    @property
    def reason(self) -> str:
        return str(self.body.get("reason") or "")

    @property
    def phase(self) -> str:
        return str(self.body.get("phase") or "")

    @property
    def detail(self) -> str:
        return str(self.body.get("detail") or "")

    @property
    def host(self) -> str:
        return str(self.body.get("host") or "")

    @property
    def value(self) -> Decimal | None:
        """The metric as it was printed, exact; None when missing or not a finite number."""
        metric = self.body.get("metric")
        return _finite(metric.get("text")) if isinstance(metric, Mapping) else None

    @property
    def guards(self) -> dict[str, Decimal]:
        """The other metrics of the same output line that are finite."""
        raw = self.body.get("guards")
        if not isinstance(raw, Mapping):
            return {}
        return {str(key): value for key, text in raw.items() if (value := _finite(text)) is not None}

    def phase_seconds(self, phase: str) -> float | None:
        phases = self.body.get("phases")
        entry = phases.get(phase) if isinstance(phases, Mapping) else None
        seconds = entry.get("seconds") if isinstance(entry, Mapping) else None
        return float(seconds) if isinstance(seconds, int | float) else None


def _finite(text: object) -> Decimal | None:
    if not isinstance(text, str):
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


@dataclass(frozen=True)
class Pin:
    """Which attempt's result is the slot's value."""

    attempt: int
    restart: int


@dataclass(frozen=True)
class SlotDirectory:
    """One slot on disk."""

    path: Path
    digest: str

    # -- paths

    def attempt(self, n: int) -> Path:
        return self.path / layout.ATTEMPTS / str(n)

    def logs(self, n: int, restart: int = 0) -> Path:
        return self.attempt(n) / layout.restart_folder(restart)

    def slurm_log(self, n: int) -> Path:
        return self.logs(n) / layout.SLURM_LOG

    # -- writes by the dispatcher

    def write_spec(self, determinants: Mapping[str, Any], work: Mapping[str, Any]) -> None:
        """Publish spec.json; an existing one is left (its digest is the folder's name) unless no job could read it."""
        body = {
            "schema": layout.SCHEMA,
            "digest": self.digest,
            "determinants": dict(determinants),
            "work": dict(work),
        }
        if not publish(self.path / layout.SPEC, body, name="slot.spec") and self.spec() is None:
            replace(self.path / layout.SPEC, body, name="slot.spec")

    def prepare_attempt(self, n: int, order: Mapping[str, Any], script: str) -> Path:
        """Write attempt.json and job.sh and the log folder, durable before anything is submitted.

        Returns the script's path. Safe to repeat: the same intent writes the same bytes.
        """
        folder = self.attempt(n)
        make_folder(self.logs(n))
        if self.slurm_log(n).is_symlink():
            # This number was part of an array that the site refused.
            with effect("attempt.prepare"):
                self.slurm_log(n).unlink()
        replace(folder / layout.ORDER, order, name="attempt.prepare")
        path = folder / layout.SCRIPT
        replace(path, script, name="attempt.prepare", mode=0o755)
        return path

    def link_log(self, n: int, log: Path) -> None:
        """Show an array task's log where logs are looked for, unless the task did so itself. Log or not: no matter."""
        link = self.slurm_log(n)
        if link.is_symlink() or link.exists():
            return
        make_folder(link.parent)
        with effect("array.log"), contextlib.suppress(FileExistsError):
            link.symlink_to(log)

    def write_submitted(self, n: int, body: Mapping[str, Any]) -> None:
        replace(self.attempt(n) / layout.SUBMITTED, body, name="attempt.submitted")

    def settle(self, n: int, body: Mapping[str, Any]) -> dict[str, Any]:
        """Publish how attempt `n` ended; returns what stands there, which may be an earlier process's word.

        A word that cannot be read, or says that it is done while its result is lost, is replaced. Only called under
        the slot's row lock.
        """
        path = self.attempt(n) / layout.SETTLED
        stamped = {"schema": layout.SCHEMA, "attempt": n, "at": _now(), **body}
        if publish(path, stamped, name="attempt.settled"):
            return stamped
        held = read_json(path)
        if held is None or (held.get("outcome") == "done" != body.get("outcome") and self.result(n) is None):
            replace(path, stamped, name="attempt.settled")
            return stamped
        return held

    def pin(self, pin: Pin) -> Pin:
        """Make `pin` the slot's value unless one is pinned already; returns the one that counts.

        A pin that cannot be read, or whose result cannot, binds nobody and is replaced: else no attempt could ever
        become the slot's value. Only called under the slot's row lock.
        """
        body = {"attempt": pin.attempt, "restart": pin.restart}
        if publish(self.path / layout.ACCEPTED, body, name="slot.pin"):
            return pin
        holder = self.pinned()
        if holder is not None and self.result(holder.attempt) is not None:
            return holder
        replace(self.path / layout.ACCEPTED, body, name="slot.pin")
        return pin

    def grant_retry(self, number: int, body: Mapping[str, Any]) -> bool:
        """Publish the operator's `number`-th grant of more attempts."""
        return publish(self.path / "retries" / f"{number:03d}.json", {"at": _now(), **body}, name="slot.retry")

    # -- reads

    def spec(self) -> dict[str, Any] | None:
        return read_json(self.path / layout.SPEC)

    def pinned(self) -> Pin | None:
        body = read_json(self.path / layout.ACCEPTED)
        if body is None or not isinstance(body.get("attempt"), int) or not isinstance(body.get("restart"), int):
            return None
        return Pin(body["attempt"], body["restart"])

    def attempt_numbers(self) -> list[int]:
        folder = self.path / layout.ATTEMPTS
        try:
            names = [entry.name for entry in folder.iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def retries(self) -> int:
        try:
            return sum(1 for entry in (self.path / "retries").iterdir() if entry.name.endswith(".json"))
        except OSError:
            return 0

    def grants(self) -> list[dict[str, Any]]:
        """The operator's grants in their order; `allowed` attempts in all, `attempt`: the newest one at that time."""
        return [read_json(self.path / "retries" / f"{n:03d}.json") or {} for n in range(1, self.retries() + 1)]

    def submitted(self, n: int) -> dict[str, Any] | None:
        return read_json(self.attempt(n) / layout.SUBMITTED)

    def order(self, n: int) -> dict[str, Any] | None:
        return read_json(self.attempt(n) / layout.ORDER)

    def settled(self, n: int) -> dict[str, Any] | None:
        return read_json(self.attempt(n) / layout.SETTLED)

    def member(self, n: int) -> dict[str, Any] | None:
        """How the process of this member of a pack ended, as its pack noted it."""
        return read_json(self.attempt(n) / MEMBER)

    def claim(self, n: int) -> Claim | None:
        body = read_json(self.attempt(n) / layout.CLAIM)
        if body is None or body.get("digest") != self.digest or body.get("attempt") != n:
            return None
        job_id, restart = body.get("job_id"), body.get("restart")
        if not isinstance(job_id, str) or not isinstance(restart, int):
            return None
        cpus = body.get("cpus_seen")
        return Claim(
            attempt=n,
            job_id=job_id,
            restart=restart,
            host=str(body.get("host") or ""),
            started=str(body.get("started") or ""),
            cpus_seen=cpus if isinstance(cpus, int) else None,
        )

    def result(self, n: int) -> Result | None:
        """The result of attempt `n` if it parses and fits the claim; anything else is "not there yet"."""
        body = read_json(self.attempt(n) / layout.RESULT)
        claim = self.claim(n)
        if body is None or claim is None or body.get("schema") != layout.SCHEMA:
            return None
        fits = (
            body.get("digest") == self.digest
            and body.get("attempt") == n
            and body.get("job_id") == claim.job_id
            and body.get("restart") == claim.restart
            and body.get("outcome") in {"ok", "failed"}
        )
        return Result(n, claim.job_id, claim.restart, body) if fits else None

    def value(self) -> Result | None:
        """The pinned result, if there is one and it can be read."""
        pin = self.pinned()
        return self.result(pin.attempt) if pin else None

    # -- removal

    def move_to(self, destination: Path) -> None:
        """Rename the whole slot away (garbage collection)."""
        make_folder(destination.parent)
        with effect("gc.trash"):
            self.path.rename(destination)
            sync_folder(destination.parent)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
