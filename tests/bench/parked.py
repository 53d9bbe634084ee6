"""A record with thousands of parked runs, put there by COPY, and what the queue says about their jobs.

Covered: rows as submitting leaves them, so that a tick finds what it would find; nothing on disk, because a tick opens
no slot to which nothing happened. Not covered: rows of ended runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

__all__ = ["FIRST_JOB", "MEASURES", "load_parked", "queue_text"]

MEASURES = 5
FIRST_JOB = 2_000_000
_FIRST_ROW = 1_000_000
"""Above what the record's own sequences reach."""


def _digest(number: int) -> str:
    return hashlib.sha256(f"parked {number}".encode()).hexdigest()


def _name(number: int) -> str:
    return f"ol-bench-speed-{_digest(number)[:16]}-1"


def load_parked(url: str, realm_id: int, runs: int, *, measures: int = MEASURES, first: int = 0) -> None:
    """`runs` runs that wait for `measures` running jobs each, due tomorrow."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    commits = ["0" * 40] * 4
    with psycopg.connect(plain) as connection, connection.cursor() as cursor:

        def copy(table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
            with cursor.copy(f"copy {table} ({columns}) from stdin") as sink:
                for row in rows:
                    sink.write_row(row)

        numbers = range(first, first + runs)
        jobs = range(first * measures, (first + runs) * measures)
        now = cursor.execute("select now()").fetchone()
        tomorrow = cursor.execute("select now() + interval '1 day'").fetchone()
        assert now is not None and tomorrow is not None
        copy(
            "runs",
            "id, realm_id, kind, question, target, benchmark, definition, base_commit, base_tree, candidate_commit,"
            " candidate_tree, submitter, request, state, state_reason, due_at",
            (
                (f"parked{n:06d}", realm_id, "climb", _digest(-n - 1), "bench", "speed", "d", *commits, "bench", "{}",
                 "waiting", "JOBS", tomorrow[0])
                for n in numbers
            ),
        )  # fmt: skip
        copy(
            "slots",
            'id, realm_id, digest, label, target, submitter, "order"',
            (
                (_FIRST_ROW + job, realm_id, _digest(job), "speed", "bench", "bench", '{"minutes": 2, "cpus": 1}')
                for job in jobs
            ),
        )
        copy(
            "measures",
            "id, run_id, slot_id, role, benchmark, side, pair",
            (
                (_FIRST_ROW + job, f"parked{job // measures:06d}", _FIRST_ROW + job, f"candidate-{job % measures}",
                 "speed", "candidate", 0)
                for job in jobs
            ),
        )  # fmt: skip
        copy(
            "attempts",
            "id, realm_id, slot_id, n, state, job_name, job_id, minutes, command_minutes, slurm_state, node,"
            " intent_at, submitted_at, observed_at",
            (
                (_FIRST_ROW + job, realm_id, _FIRST_ROW + job, 1, "submitted", _name(job), str(FIRST_JOB + job), 7.0,
                 2.0, "running", "n1", now[0], now[0], now[0])
                for job in jobs
            ),
        )  # fmt: skip
        copy("awaits", "run_id, attempt_id", ((f"parked{job // measures:06d}", _FIRST_ROW + job) for job in jobs))
    with psycopg.connect(plain, autocommit=True) as connection:
        # What autovacuum does some minutes after such a load: the visibility map that index-only reads need.
        connection.execute("vacuum analyze runs, slots, measures, attempts, awaits")


def queue_text(runs: int, *, measures: int = MEASURES) -> str:
    """squeue's answer in the backend's format: every job runs, one line each, which is the longest that it can be."""
    times = "2026-01-02T03:04:05|2026-01-02T03:05:06|2026-01-03T03:05:06"
    return "".join(
        f"row|{FIRST_JOB + job}|RUNNING|{times}|node{job % 100:03d}|None|{_name(job)}\n"
        for job in range(runs * measures)
    )


def replayed_tools(folder: Path, queue: str) -> Path:
    """A folder with Slurm's tools: squeue prints `queue`, sacct nothing, sbatch counts up; each call is written down.

    Not a cluster: what is measured with it is our side alone. `calls` in the folder has a line for each call.
    """
    folder.mkdir(parents=True)
    (folder / "queue").write_text(queue)
    body = {
        "squeue": f"exec cat {folder}/queue",
        "sacct": "exit 0",
        "scancel": "exit 0",
        "scontrol": "exit 1",
        "sbatch": f"n=$(wc -l < {folder}/calls); echo $((9000000 + n))",
    }
    for tool, does in body.items():
        path = folder / tool
        path.write_text(f"#!/bin/sh\necho {tool} >> {folder}/calls\n{does}\n")
        path.chmod(0o755)
    return folder
