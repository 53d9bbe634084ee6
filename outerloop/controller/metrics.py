"""What a tick tells a monitoring system: a file in the Prometheus text format, for node_exporter's textfile collector.

Covered: gauges of runs, jobs, verdicts and of the tick itself, written whole or not at all. Not covered: serving them,
alert rules (docs/how-to/watch.md shows some). When no tick succeeds the file stays as it was, so alert on the age of
`outerloop_tick_timestamp_seconds`.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (written by prometheus-client).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from sqlalchemy import func, select

from outerloop.controller import views
from outerloop.controller.tick import TickReport
from outerloop.record.models import Run
from outerloop.record.store import Record

__all__ = ["METRICS", "record_metrics", "samples", "write_metrics"]

METRICS: dict[str, str] = {
    "outerloop_tick_timestamp_seconds": "Unix time at which the last successful tick ended.",
    "outerloop_tick_duration_seconds": "How long that tick took.",
    "outerloop_queue_answered": "1 when the queue answered that tick completely, else 0.",
    "outerloop_tick_jobs_submitted": "Jobs that the tick submitted.",
    "outerloop_tick_jobs_settled": "Attempts whose end the tick saw.",
    "outerloop_runs": "Open runs, by state (queued, waiting, blocked).",
    "outerloop_runs_broken": "Open runs that an error inside outerloop stops.",
    "outerloop_runs_ended": "Ended runs in the record, by verdict.",
    "outerloop_jobs": "Live jobs as the queue last showed them, by state and pending reason.",
    "outerloop_oldest_open_run_seconds": "Age of the oldest run that is queued or waiting, 0 without one.",
}
"""Name -> what it is, as it stands in the file. All are gauges."""

Sample = tuple[str, Mapping[str, str], float]


def samples(record: Record, report: TickReport, *, now: float) -> list[Sample]:
    """Every metric with its labels and value. `now`: Unix seconds. Raises SQLAlchemy's errors."""
    seen = views.overview(record)
    with record.reading() as session:
        ended = session.execute(
            select(func.coalesce(Run.verdict, ""), func.count())
            .where(Run.realm_id == record.realm_id, Run.state == "ended")
            .group_by(Run.verdict)
        ).all()
    age = (seen.now - seen.oldest).total_seconds() if seen.oldest is not None else 0.0
    found: list[Sample] = [
        ("outerloop_tick_timestamp_seconds", {}, now),
        ("outerloop_tick_duration_seconds", {}, report.seconds),
        ("outerloop_queue_answered", {}, float(report.queue_answered)),
        ("outerloop_tick_jobs_submitted", {}, float(sum(item.submitted for item in report.advanced))),
        ("outerloop_tick_jobs_settled", {}, float(report.settled)),
        ("outerloop_runs_broken", {}, float(seen.broken)),
        ("outerloop_oldest_open_run_seconds", {}, age),
    ]
    for state in ("queued", "waiting", "blocked"):
        found.append(("outerloop_runs", {"state": state}, float(getattr(seen, state))))
    found += [("outerloop_runs_ended", {"verdict": str(verdict)}, float(count)) for verdict, count in ended]
    found += [
        ("outerloop_jobs", {"state": row.state, "reason": row.reason or ""}, float(row.jobs))
        for row in views.queue(record)
    ]
    return found


def write_metrics(path: Path, found: Iterable[Sample]) -> None:
    """Write the samples to `path`, by rename. Raises OSError, ImportError without prometheus-client."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for name, labels, value in found:
        gauge = gauges.get(name)
        if gauge is None:
            gauge = gauges[name] = Gauge(name, METRICS[name], tuple(labels), registry=registry)
        (gauge.labels(**labels) if labels else gauge).set(value)
    write_to_textfile(str(path), registry)
    # The library's temporary file has the mode of a private one; the exporter runs as another account.
    path.chmod(0o644)


def record_metrics(record: Record, report: TickReport, path: Path) -> None:
    """What `outerloop tick --metrics PATH` does after a tick that ran."""
    write_metrics(path, samples(record, report, now=time.time()))
