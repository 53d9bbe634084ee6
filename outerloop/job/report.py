"""result.json while it comes into being, and the reading of what is asked.

Covered: the shape of the result, timing of phases, spec.json and attempt.json with a failed result for what is
wrong in them. Not covered: writing the result (wrapper.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from outerloop.job import claim, files, layout, work


class Stopped(Exception):
    """The attempt ends here, with a failed result."""

    def __init__(
        self,
        phase: str,
        reason: str,
        detail: str,
        *,
        code: int = 1,
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.phase, self.reason, self.detail = phase, reason, detail
        self.code, self.exit_code, self.signal = code, exit_code, signal


class Report:
    """result.json while it comes into being."""

    def __init__(self, slot: str, digest: str, attempt: int, me: claim.Identity, env: Mapping[str, str]) -> None:
        self.slot = slot
        self.me = me
        self.env = env
        self.body: dict[str, Any] = {
            "schema": layout.SCHEMA,
            "digest": digest,
            "attempt": attempt,
            "job_id": me.job_id,
            "restart": me.restart,
            "host": me.host,
            "outcome": "failed",
            "reason": None,
            "phase": None,
            "detail": "",
            "exit_code": None,
            "signal": None,
            "metric": None,
            "guards": {},
            "phases": {},
            "cpu_seconds": 0.0,
            "max_rss_mb": 0.0,
            "cpus_seen": claim.cpus_seen(),
            "gpus_seen": claim.gpus_seen(env),
            "stdout": {"bytes": 0, "sha256": "", "cut": False},
            "stderr": {"bytes": 0, "sha256": "", "cut": False},
            "stderr_tail": "",
            "isolation": "none",
            "artifacts": [],
            "killed_processes": 0,
            "minutes": 0.0,
        }

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a phase; an exception passes through with the phase closed. `seconds` set inside is kept."""
        began = time.monotonic()
        entry: dict[str, Any] = {"started": files.utc_now()}
        self.body["phases"][name] = entry
        try:
            yield entry
        finally:
            entry["ended"] = files.utc_now()
            entry.setdefault("seconds", round(time.monotonic() - began, 6))

    def failed(self, stopped: Stopped) -> None:
        self.body.update(
            outcome="failed",
            reason=stopped.reason,
            phase=stopped.phase,
            detail=stopped.detail,
            exit_code=stopped.exit_code,
            signal=stopped.signal,
        )


def read_work(report: Report) -> work.Work:
    """What this attempt is asked to do. Raises Stopped (SPEC)."""
    try:
        spec = files.read_object_patiently(os.path.join(report.slot, layout.SPEC))
        order = files.read_object_patiently(
            os.path.join(report.slot, layout.ATTEMPTS, str(report.body["attempt"]), layout.ORDER)
        )
        asked = work.read_work(spec, order, report.body["digest"], report.body["attempt"])
    except (OSError, ValueError) as error:
        raise Stopped("setup", "SPEC", str(error), code=layout.EXIT_SPEC) from error
    report.body["isolation"], report.body["minutes"] = asked.isolation, asked.minutes
    return asked
