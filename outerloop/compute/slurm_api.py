"""Slurm through pyslurm where that is better, through the command line everywhere else.

Covered: submit, cancel and the look-up of one job, in a child process with a deadline (`python -m
outerloop.compute.slurm_api`); whether pyslurm loads and fits the cluster; the command line as fallback, call by call.
Not covered: listings, history and limits, which the command line answers better: pyslurm fetches everybody's jobs,
takes 128 off exit codes from 128 up, and cannot ask accounting by state or for jobs that never were eligible.

A submission falls back to sbatch only when it is certain that nothing was sent. In doubt its outcome is Unknown.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from outerloop.compute.argv import ArrayRange, check_job
from outerloop.compute.jobids import is_job_id
from outerloop.compute.protocol import (
    Accepted,
    History,
    JobRow,
    JobSpec,
    Listing,
    NoAnswer,
    Refused,
    SiteLimits,
    SubmitOutcome,
    Unavailable,
    Unknown,
    When,
)
from outerloop.compute.pyslurm_words import CannotSay, describe, fits, read_error, read_records
from outerloop.compute.slurm import SlurmCli, make_durable_folder

__all__ = ["SlurmApi", "pyslurm_installed"]

log = logging.getLogger(__name__)

LOAD_SECONDS = 15.0
"""For importing pyslurm: 40 ms as a rule, but a slurm.conf that cannot be found is looked for for 59 s."""
WARM_UP_CALLS = 25
"""Requests of one process that go through the command line first. A child costs a Python start, an import (37 ms) and a
question to the controller, about 0.1 s; after that each request saves 4 ms (1.1 ms against sbatch's 5.2, medians with
pyslurm 25.11.2 on Slurm 25.11.7). Waiting until as much was spent as the child costs is never worse than twice the
best choice."""
_LONGEST_REQUEST = 60_000
"""What a pipe takes without anybody reading (pipe(7): 65,536 bytes), so that no write waits for the child."""
MOST_DEATHS = 2
"""Times that the library may fail in one process before the command line does the rest: a lost child, or a submission
that it left in doubt for another reason than the controller."""

# The job is over, or was never there.
_NOTHING_TO_CANCEL = frozenset({2017, 2021})
# The controller does not listen, or does not answer: Slurm's tools would wait for it just as long, in vain.
_CONTROLLER_DOWN = frozenset({1800, 5004})


def pyslurm_installed(path: Path | None = None) -> bool:
    """Whether there is a pyslurm to try. Does not import it: that may end the process."""
    if path is not None:
        return (path / "pyslurm").is_dir()
    return importlib.util.find_spec("pyslurm") is not None


class _Died(Exception):
    """The child gave no answer. `begun`: the request may have reached the controller."""

    def __init__(self, why: str, begun: bool) -> None:
        self.begun = begun
        super().__init__(why)


class _NotYet(Exception):
    """Whether the library fits cannot be said just now."""


class SlurmApi:
    """The Compute protocol on pyslurm and, behind it, the command line. Safe to use from several threads."""

    name = "slurm"
    arrays = True

    def __init__(
        self,
        cli: SlurmCli,
        *,
        path: Path | None = None,
        warm_up: int = WARM_UP_CALLS,
        load_seconds: float = LOAD_SECONDS,
        cluster_version: str | None = None,
    ) -> None:
        """`path` is a folder with pyslurm where outerloop's own environment has none. The first `warm_up` requests go
        to the command line. `cluster_version` saves the question."""
        self._cli = cli
        self._path = path
        self._warm_up = warm_up
        self._load_seconds = load_seconds
        self._cluster_version = cluster_version
        self._calls = 0
        self._deaths = 0
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._why_not: str | None = None
        self._not_yet = ""

    # ------------------------------------------------------------------------------------------ requests

    def submit(self, job: JobSpec) -> SubmitOutcome:
        return self._submit(job, None)

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        return self._submit(job, ArrayRange(count, throttle))

    def _submit(self, job: JobSpec, tasks: ArrayRange | None) -> SubmitOutcome:
        def by_command_line(why: str) -> SubmitOutcome:
            if why:
                log.debug("submitted by sbatch: %s", why)
            return self._cli.submit(job) if tasks is None else self._cli.submit_array(job, tasks.count, tasks.throttle)

        with self._lock:
            child = self._ready()
            if child is None:
                return by_command_line("")
            refused = check_job(job, tasks, max_script_bytes=self._cli.max_script_bytes)
            if refused:
                return refused
            try:
                said = describe(job, tasks, {**self._cli.environment(), **_of_the_submitter()})
            except CannotSay as reason:
                return by_command_line(str(reason))
            try:
                make_durable_folder(job.log.parent)
            except OSError as error:
                return Refused("LogFolder", When.LATER, f"{job.log.parent}: {error.strerror}")
            try:
                answer = child.ask({"do": "submit", "description": said}, self._cli.submit_timeout)
            except _Died as death:
                self._lost()
                return Unknown(f"pyslurm: {death}") if death.begun else by_command_line(str(death))
            match answer.get("error"):
                case None:
                    job_id = answer.get("ok")
                    if isinstance(job_id, int) and job_id > 0:
                        return Accepted(str(job_id), notes=answer["printed"])
                    return Unknown(f"pyslurm succeeded but said {job_id!r} for the job's id")
                case "rpc":
                    outcome = read_error(answer["errno"], answer["text"], answer["printed"])
                    if isinstance(outcome, Unknown) and answer["errno"] not in _CONTROLLER_DOWN:
                        self._lost()
                    return outcome
                case "cannot":
                    return by_command_line(answer["text"])
                case _:
                    return by_command_line(f"pyslurm does not take it ({answer['text']})")

    def cancel(self, ids: Iterable[str]) -> NoAnswer | None:
        """Whole jobs through pyslurm; tasks of arrays, which it cannot name, and whatever it fails at through scancel,
        to which asking twice is the same as asking once."""
        wanted = sorted({job_id for job_id in ids if is_job_id(job_id)})
        left = [job_id for job_id in wanted if not job_id.isdigit()]
        whole = [job_id for job_id in wanted if job_id.isdigit()]
        with self._lock:
            while whole:
                child = self._ready()
                if child is None:
                    break
                try:
                    answer = child.ask({"do": "cancel", "id": int(whole[0])}, self._cli.query_timeout)
                except _Died:
                    self._lost()
                    break
                if answer.get("error") and answer.get("errno") not in _NOTHING_TO_CANCEL:
                    log.debug("cancelled by scancel: %s", _complaint(answer))
                    break
                whole.pop(0)
        left += whole
        return self._cli.cancel(left) if left else None

    def look_up(self, job_id: str) -> JobRow | NoAnswer | None:
        """One job as the controller knows it. Exit codes are asked for by scontrol: pyslurm's are wrong from 128 up."""
        if job_id.isdigit():
            with self._lock:
                child = self._ready()
                if child is not None:
                    try:
                        answer = child.ask({"do": "look_up", "id": int(job_id)}, self._cli.query_timeout)
                    except _Died:
                        self._lost()
                    else:
                        if answer.get("errno") in _CONTROLLER_DOWN:
                            return NoAnswer(f"pyslurm: {answer['text']}")
                        if answer.get("error"):
                            log.debug("looked up by scontrol: %s", _complaint(answer))
                        else:
                            for row in read_records([answer["ok"]]):
                                knows_its_exit = not row.state.final or row.exit_code is not None
                                if row.job_id == job_id and knows_its_exit:
                                    return row
        return self._cli.look_up(job_id)

    # ----------------------------------------------------------------------------------------- questions

    def listing(self) -> Listing | NoAnswer:
        return self._cli.listing()

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
        return self._cli.history(since, ids, names)

    def limits(self) -> SiteLimits | NoAnswer:
        return self._cli.limits()

    # --------------------------------------------------------------------------------------------- child

    @property
    def command_line(self) -> SlurmCli:
        """What everything falls back to."""
        return self._cli

    def why_not(self) -> str:
        """Start pyslurm now and say why it is not used; empty when it is. For doctor."""
        with self._lock:
            self._calls = max(self._calls, self._warm_up)
            self._not_yet = ""
            self._ready()
            return self._why_not or self._not_yet

    def close(self) -> None:
        """End the child. The next request starts another."""
        with self._lock:
            if self._child is not None:
                self._child.end()
                self._child = None

    def _ready(self) -> _Child | None:
        """The child, started if it is worth it; None when the command line has to do."""
        self._calls += 1
        if self._child is not None and self._child.owner != os.getpid():
            # After a fork: two processes at one pair of pipes would read each other's answers.
            self._child = None
        if self._why_not is not None or self._calls <= self._warm_up:
            return None
        if self._child is None:
            try:
                self._child = self._start()
            except _Died as death:
                self._why_not = str(death)
                log.info("pyslurm is not used: %s", death)
            except _NotYet as trouble:
                # Asked again later, and not with each request: during an outage every question takes its time.
                self._not_yet = str(trouble)
                self._calls = min(0, self._warm_up - WARM_UP_CALLS)
        return self._child

    def _start(self) -> _Child:
        conf = self._cli.slurm_conf
        if conf is not None and not os.access(conf, os.R_OK):
            # Importing pyslurm would look for it for a minute and then end the process.
            raise _Died(f"{conf} cannot be read", False)
        cluster = self._cluster_version
        if cluster is None:
            limits = self._cli.limits()
            if isinstance(limits, NoAnswer):
                raise _NotYet(f"the cluster does not say its version: {limits.why}")
            cluster = self._cluster_version = limits.version
        child = _Child(self._cli.environment(), self._path, self._load_seconds)
        if not fits(child.version, cluster):
            child.end()
            raise _Died(f"pyslurm {child.version} does not fit Slurm {cluster or 'that tells no version'}", False)
        return child

    def _lost(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            self._why_not = f"it failed {self._deaths} times"
            log.warning("pyslurm is not used any more: %s", self._why_not)


class _Child:
    """A running `python -m outerloop.compute.slurm_api`. Raises _Died when it does not load pyslurm in time."""

    def __init__(self, environment: Mapping[str, str], path: Path | None, load_seconds: float) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`, with the process)
        self._read = 0
        self._number = 0
        self._buffer = b""
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "outerloop.compute.slurm_api", *([str(path)] if path else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
        )
        self._finish = weakref.finalize(self, _end, self._process, self._printed, self.owner)
        try:
            hello = self._line(time.monotonic() + load_seconds)
        except _Died as death:
            printed = self._new_lines()
            self.end()
            raise _Died(f"loading it: {death}" + (f": {printed.splitlines()[-1]}" if printed else ""), False) from None
        if not hello.get("hello"):
            self.end()
            raise _Died(f"it does not load: {hello.get('why') or 'it has no version'}", False)
        self.version = str(hello["hello"])
        self._new_lines()

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request, with what the library printed meanwhile as "printed"."""
        self._number += 1
        begun = False
        deadline = time.monotonic() + seconds
        line = json.dumps({"number": self._number, **request}).encode() + b"\n"
        if len(line) > _LONGEST_REQUEST:
            return {"error": "input", "text": f"a request of {len(line)} bytes"}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError as error:
            # A cut line is no request: the child reads whole ones only.
            raise _Died(f"the process is gone ({error.strerror})", False) from None
        while True:
            try:
                answer = self._line(deadline)
            except _Died as death:
                raise _Died(str(death), begun or self._had_begun()) from None
            if answer.get("number") != self._number:
                raise _Died("it answered another request", True)
            if answer.get("begun"):
                begun = True
                continue
            return {**answer, "printed": self._new_lines()}

    def end(self) -> None:
        self._finish()

    def _had_begun(self) -> bool:
        """Kill the child, and say whether it had begun with the request after all: it may have done so between the
        deadline and its death."""
        assert self._process.stdout is not None
        _kill(self._process)
        self._buffer += self._process.stdout.read()
        mark = json.dumps({"number": self._number, "begun": True}).encode()
        return mark in self._buffer

    def _line(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise _Died("no answer in time", False)
            more = os.read(descriptor, 1 << 16)
            if not more:
                code = self._wait_a_moment()
                raise _Died("the process ended" + (f" with {code}" if code is not None else ""), False)
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _Died(f"it said {line[:80]!r}", False)
        return answer

    def _wait_a_moment(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return None

    def _new_lines(self) -> str:
        """What was printed to stderr since the last look."""
        end = os.fstat(self._printed.fileno()).st_size
        text = os.pread(self._printed.fileno(), min(end - self._read, 1 << 16), self._read)
        self._read = end
        return text.decode("utf-8", "replace").strip()


def _end(process: subprocess.Popen[bytes], printed: IO[bytes], owner: int) -> None:
    """Kill the child, whose lock on the interpreter no gentler signal gets past, and reap it. A fork of the process
    that started it lets go of it only."""
    if os.getpid() == owner:
        _kill(process)
    else:
        process.returncode = 0  # not ours to wait for
    for stream in (process.stdin, process.stdout, printed):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _complaint(answer: Mapping[str, Any]) -> str:
    where = "" if answer["error"] == "rpc" else "pyslurm does not take it: "
    return f"{where}{answer['text']}"


def _of_the_submitter() -> dict[str, str]:
    """What sbatch tells a job of its submitter and pyslurm does not (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
    slurmstepd takes the job's umask from SLURM_UMASK, and its niceness where slurm.conf has PropagatePrioProcess."""
    umask = "0022"
    # os.umask cannot be read without being set; Linux shows it too.
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        umask = next(line.split()[1] for line in lines if line.startswith("Umask:"))
    return {
        "SLURM_UMASK": umask,
        "SLURM_SUBMIT_DIR": str(Path.cwd()),
        "SLURM_SUBMIT_HOST": socket.gethostname(),
        "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0)),
    }


if __name__ == "__main__":
    from outerloop.compute.pyslurm_child import main

    sys.exit(main(sys.argv[1:]))
