"""More random schedules than a test run has time for: `python -m tests.nightly --schedules 20000`.

Covered: a Postgres of its own, playing seeds in several processes, printing every seed that fails and going on.
`--seed N` replays one and prints its steps. Exit code 1 when a schedule failed.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outerloop.record import embedded, migrate
from tests.postgres.conftest import _PREFIX, _database_url, _execute, _sweep, open_folder
from tests.simulation.schedule import play
from tests.simulation.world import World

PROGRESS_SECONDS = 60.0
"""Between two lines that say how far a process is."""
GARBAGE = 100_000
"""Objects that are made before the collector looks for cycles."""


@contextmanager
def server() -> Iterator[str]:
    """A fast Postgres (no fsync) for as long as it is needed."""
    _sweep()
    folder = open_folder(_PREFIX)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(embedded.FAST_VARIABLE, "1")
            yield embedded.ensure_running(folder)
    finally:
        embedded.remove(folder)


def fast_folder() -> Path:
    """A temporary folder in memory where there is one: a schedule makes and removes a few hundred files."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="ol-sim-", dir=memory if os.access(memory, os.W_OK) else None))


@contextmanager
def world(url: str, name: str) -> Iterator[World]:
    """A world on a database of its own."""
    _execute(url, f"create database {name}")
    database = _database_url(url, name)
    migrate.upgrade(database)
    folder = fast_folder()
    try:
        with pytest.MonkeyPatch.context() as patch:
            made = World(folder, database, patch)
            try:
                yield made
            finally:
                made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Played:
    """What a process played: how many, and what each failing seed said."""

    played: int = 0
    failures: dict[int, str] = field(default_factory=dict)


def work(url: str, number: int, seeds: Sequence[int], seconds: float = math.inf) -> Played:
    """Play these seeds, beginning none after `seconds`."""
    done = Played()
    with world(url, f"nightly_{number}") as made:
        gc.collect()
        # What is there now stays, and a schedule leaves little behind: the collector need not look again and again.
        gc.freeze()
        gc.set_threshold(GARBAGE)
        started = said = time.monotonic()
        for seed in seeds:
            if time.monotonic() - started > seconds:
                break
            try:
                play(made, seed)
            except AssertionError as error:
                done.failures[seed] = str(error)
                print(str(error), flush=True)
            done.played += 1
            if time.monotonic() - said >= PROGRESS_SECONDS:
                said = time.monotonic()
                each = (said - started) / done.played
                print(f"process {number}: {done.played} of {len(seeds)}, to seed {seed}, {each:.3f} s each", flush=True)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="replay this one only, and print what happened")
    options = parser.parse_args()
    with server() as url:
        if options.seed is not None:
            with world(url, "replay") as made:
                play(made, options.seed)
                print(made.describe())
            return 0
        seeds = range(options.first, options.first + options.schedules)
        shares = [(url, i, seeds[i :: options.processes]) for i in range(options.processes)]
        started = time.monotonic()
        if len(shares) == 1:
            results = [work(*shares[0])]
        else:
            with multiprocessing.get_context("spawn").Pool(len(shares)) as pool:
                results = pool.starmap(work, shares)
        failed = sorted(seed for result in results for seed in result.failures)
        played = sum(result.played for result in results)
        print(f"{played} schedules, {len(failed)} failed, {time.monotonic() - started:.0f} s")
        if failed:
            print(f"failing seeds: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
