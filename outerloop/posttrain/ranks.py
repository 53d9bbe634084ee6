"""Several trainer processes on one machine, one for each GPU of the layout: starting, watching, ending them together.

Covered: a stage as so many processes that find each other through a file, a signal for all of them, the death of one,
the death of who started them. Not covered: what they train (training.py), several nodes.

The processes are data parallel: each has the whole model and its share of every batch. A rank that ends before its time
ends all of them, and the next attempt goes on from the newest valid checkpoint, as with one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from outerloop.posttrain.config import Config
from outerloop.posttrain.serve import UNAVAILABLE
from outerloop.posttrain.store import newest_valid_checkpoint, read_record
from outerloop.posttrain.training import DONE, STOPPED, StageError, Stopped, train
from outerloop.torch import world

__all__ = ["RanksError", "train_together"]

_JOB = ".ranks.json"
"""What the ranks train, in the stage's folder while they do."""
_MEETING = "OUTERLOOP_RANKS_MEET_AT"
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_LOOK_SECONDS = 0.05
_SETTLE_SECONDS = 5.0
"""What the others have after the end of one to say why they end; they hang in a collective mostly."""
_PR_SET_PDEATHSIG = 1
"""prctl(2)."""


class RanksError(Exception):
    """The ranks ended before they were done. `code` is the exit code that says whose fault it is."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def train_together(
    stage: str,
    config: Config,
    rows: Sequence[Mapping[str, Any]],
    base: Path,
    out: Path,
    *,
    seed: int,
    reports: Path | None = None,
) -> dict[str, Any]:
    """As training.train, by `config.processes` processes. Raises Stopped after a signal, RanksError."""
    record = read_record(out / DONE)
    if record is not None:
        return record
    out.mkdir(parents=True, exist_ok=True)
    # once, before anybody reads: it removes torn ones
    resume = newest_valid_checkpoint(out / "checkpoints")
    job = {
        "stage": stage,
        "config": config.model_dump(mode="json", exclude_none=True),
        "rows": [dict(row) for row in rows],
        "base": str(base.absolute()),
        "out": str(out.absolute()),
        "seed": seed,
        "reports": None if reports is None else str(reports.absolute()),
        "resume": None if resume is None else str(resume.absolute()),
    }
    path = out / _JOB
    path.write_text(json.dumps(job))
    meeting = Path(tempfile.mkdtemp(prefix="ol-ranks-"))
    try:
        _run(stage, path, config.processes, meeting)
    finally:
        shutil.rmtree(meeting, ignore_errors=True)
        path.unlink(missing_ok=True)
    record = read_record(out / DONE)
    if record is None:
        raise RanksError(UNAVAILABLE, f"the processes of {stage} ended well and left no {DONE}")
    return record


def _run(stage: str, job: Path, count: int, meeting: Path) -> None:
    """Start the ranks and see them end. Nothing of them is left after that. Raises Stopped, RanksError."""
    ranks: list[subprocess.Popen[bytes]] = []
    asked: list[signal.Signals] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(signal.Signals(number))
        for rank in ranks:
            rank.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        isolated = ["-I"] if sys.flags.isolated else []
        words = [sys.executable, *isolated, "-m", "outerloop.posttrain.ranks", str(job.absolute()), str(os.getpid())]
        for number in range(count):
            ranks.append(subprocess.Popen(words, env=_environment(number, count, meeting), stdin=subprocess.DEVNULL))
            if asked:  # it came while this one was on its way
                ranks[-1].send_signal(asked[-1])
        while all(rank.poll() is None for rank in ranks):
            time.sleep(_LOOK_SECONDS)
        _settle(ranks)
        codes = [rank.poll() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    _judge(stage, codes, asked)


def _settle(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for the others: as long as it takes while all end well, a moment once one did not."""
    deadline: float | None = None
    while any(rank.poll() is None for rank in ranks):
        if deadline is None and any(rank.poll() not in (None, 0, STOPPED) for rank in ranks):
            deadline = time.monotonic() + _SETTLE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(_LOOK_SECONDS)


def _judge(stage: str, codes: Sequence[int | None], asked: Sequence[signal.Signals]) -> None:
    """What the exit codes say together; None is a rank that hung and was killed. Raises Stopped, RanksError."""
    if all(code == 0 for code in codes):
        return
    if asked:
        raise Stopped(f"{asked[0].name} ended {stage} and its {len(codes)} processes")
    killed = [(number, code) for number, code in enumerate(codes) if code is not None and code < 0]
    if killed:
        number, code = killed[0]
        raise RanksError(UNAVAILABLE, f"rank {number} of {stage} was ended by {signal.Signals(-code).name}")
    # a rank whose neighbour failed fails too, as infrastructure: what the neighbour says counts
    told = [code for code in codes if code not in (None, 0, UNAVAILABLE)]
    if STOPPED in told:
        raise Stopped(f"{stage} and its {len(codes)} processes ended")
    code = told[0] if told else UNAVAILABLE
    assert code is not None
    raise RanksError(code, f"{stage} failed in rank {codes.index(code) if code in codes else 0}, see above")


def _environment(number: int, count: int, meeting: Path) -> dict[str, str]:
    """The variables that torchrun would set, but for a port: on one machine a file is enough."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    share = (int(threads) if threads.isdecimal() else len(os.sched_getaffinity(0))) // count
    return {
        **os.environ,
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": str(max(1, share)),
        # a node's own name need not resolve, and nothing of this leaves the machine
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        _MEETING: str(meeting / "store"),
    }


# -- a rank


def main(argv: Sequence[str]) -> int:
    """Be one rank: the job's file, and the process that must not be outlived."""
    _end_with(int(argv[1]))
    from outerloop.posttrain.offline import offline

    offline()
    from outerloop.posttrain.pipeline import reward_functions

    job = json.loads(Path(argv[0]).read_bytes())
    config = Config.model_validate(job["config"])
    try:
        with _together():
            train(
                job["stage"],
                config,
                job["rows"],
                Path(job["base"]),
                Path(job["out"]),
                seed=job["seed"],
                rewards=reward_functions(config) if job["stage"] == "grpo" else (),
                reports=None if job["reports"] is None else Path(job["reports"]),
                resume=None if job["resume"] is None else Path(job["resume"]),
            )
    except Stopped:
        return STOPPED
    except StageError as error:
        if world.rank() == 0:
            print(error, file=sys.stderr)
        return 2
    except Exception as error:
        if _of_neighbours(error):
            print(f"rank {world.rank()}: {error}", file=sys.stderr)
            return UNAVAILABLE
        traceback.print_exc()
        return 1
    return 0


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, kill -9 included."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(STOPPED)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """The process group of the ranks."""
    import torch

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(world.local_rank())
    else:
        # transformers 5.17 reads an optimizer's state to "cpu:0", which torch.load knows no way to
        torch.serialization.register_package(5, lambda storage: None, _to_any_cpu)
    torch.distributed.init_process_group(
        "nccl" if gpu else "gloo",
        init_method=f"file://{os.environ[_MEETING]}",
        rank=world.local_rank(),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    yield
    torch.distributed.destroy_process_group()


def _to_any_cpu(storage: Any, location: object) -> Any:
    return storage if isinstance(location, str) and location.startswith("cpu:") else None


def _of_neighbours(error: BaseException) -> bool:
    """Whether it says that another rank, or the way to it, is gone."""
    import torch

    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a group whose other members are gone would be waited for
