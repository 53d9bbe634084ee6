"""The local backend's folder: job folders, records written once, process identities, CPU and GPU tokens.

    <spool>/
      machine            which machine the jobs are processes of
      mutex              flock: ids are given out and tokens taken under it
      next-id
      tokens/cpu-0 ...   flock: held by a job's processes, so a crash can never lose one
      waiting/<id>       flock: held by a job that waits for tokens, oldest first
      jobs/<id>/         request.json script launcher.json runner.json script.json waiting.json cancel final.json
      ended/<id>/        the same, once it has been final for a while

Covered: the layout, atomic writes, who is alive, all-or-nothing tokens. A GPU that jobs may share has a token per
place: gpu-0, gpu-0-1, ... Not covered: running a job (local_job.py), the
Compute protocol (local.py). Linux only: identities are read from /proc. The folder must be on a local file system.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outerloop.compute.local_admission import Asked, Machine, Wait, admit
from outerloop.compute.protocol import JobState
from outerloop.compute.reasons import LOCAL_WAIT

__all__ = ["Identity", "JobFolder", "Spool", "boot_id", "machine_id"]

# What stands in the mark of a waiting job that no token would help.
WAITS_FOR_MACHINE = "machine"


def boot_id() -> str:
    """A text that is another one after every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine_id() -> str:
    """A text that tells this machine from another one on the same network home. Survives a change of host name."""
    try:
        return Path("/etc/machine-id").read_text().strip() or os.uname().nodename
    except OSError:
        return os.uname().nodename


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same pid: its start (clock ticks since boot) and
    the boot that it belongs to."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int, *, zombies: bool = False) -> Identity | None:
        """The identity of a live process, None when there is none. A zombie is none, unless `zombies` is set."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        # proc(5): after the command come state (field 3) ... starttime (field 22).
        return None if fields[0] in "ZX" and not zombies else cls(pid, int(fields[19]), boot_id())

    @property
    def alive(self) -> bool:
        return Identity.of(self.pid) == self


def write_json(path: Path, content: Any) -> None:
    """Write by temporary file and rename, durably: a reader sees all of it or nothing."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """The content, None when it is not there or unreadable (a power cut may leave zero bytes)."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


class JobFolder:
    """One job's files. `final.json` is made by link, so the first who says how the job ended is right."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job_id = path.name
        self.script = path / "script"
        self.request_file = path / "request.json"

    def request(self) -> dict[str, Any] | None:
        found = read_json(self.request_file)
        return found if isinstance(found, dict) else None

    def write(self, name: str, content: Any) -> None:
        """Write `name`.json."""
        write_json(self.path / f"{name}.json", content)

    def read(self, name: str) -> dict[str, Any] | None:
        found = read_json(self.path / f"{name}.json")
        return found if isinstance(found, dict) else None

    def write_identity(self, role: str, pid: int, **more: Any) -> None:
        """Record that process `pid` is this job's `role`: launcher, runner or script."""
        # A child of ours that has ended already is a zombie until we look, and its record is wanted all the same.
        identity = Identity.of(pid, zombies=True)
        if identity is not None:
            self.write(role, {**asdict(identity), **more})

    def identity(self, role: str) -> Identity | None:
        found = self.read(role)
        try:
            return Identity(found["pid"], found["start"], found["boot"]) if found else None
        except KeyError:
            return None

    def alive(self, *roles: str) -> bool:
        """Whether one of the job's processes lives."""
        return any(identity.alive for role in roles if (identity := self.identity(role)))

    def finish(
        self, state: JobState, *, exit_code: int | None, signal: int | None, ended: float, cancelled_by: str = ""
    ) -> bool:
        """Say how the job ended. False when somebody has said so before."""
        content = {
            "state": state.value,
            "exit_code": exit_code,
            "signal": signal,
            "ended": ended,
            "cancelled_by": cancelled_by,
        }
        temporary = self.path / f".final-{os.getpid()}-{os.urandom(4).hex()}"
        write_json(temporary, content)
        try:
            os.link(temporary, self.path / "final.json")
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held around "has it ended? then start" and "does it live? no, then end it": they exclude each other."""
        with locked(self.path / "lock"):
            yield

    @property
    def cancelled_by(self) -> str | None:
        """Who asked for the end of the job, None when nobody did."""
        try:
            return (self.path / "cancel").read_text()
        except OSError:
            return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """flock(2) on `path`, waiting for it; the kernel lets go when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the flock of `path`, None when somebody else has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class Spool:
    """The whole folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.jobs = path / "jobs"
        self.ended = path / "ended"
        self.tokens = path / "tokens"
        self.waiting = path / "waiting"
        self.new = path / "new"

    def prepare(self) -> str:
        """Make the folders, private because requests hold environments; why it cannot be used, else an empty text."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.jobs, self.ended, self.tokens, self.waiting, self.new):
            folder.mkdir(exist_ok=True, mode=0o700)
        owner = self.path / "machine"
        mine = {"machine": machine_id(), "name": os.uname().nodename}
        with locked(self.path / "mutex"):
            found = read_json(owner)
            if found is None:
                write_json(owner, mine)
                return ""
        if found["machine"] != mine["machine"]:
            return f"the local jobs in {self.path} are processes of machine {found['name']}, this is {mine['name']}"
        return ""

    def add(self, request: dict[str, Any], script: bytes) -> JobFolder:
        """A new job folder with the next id, complete before anybody can see it."""
        draft = Path(tempfile.mkdtemp(dir=self.new))
        folder = JobFolder(draft)
        folder.script.write_bytes(script)
        folder.script.chmod(0o700)
        folder.write("request", request)
        with locked(self.path / "mutex"):
            counter = read_json(self.path / "next-id")
            taken = (
                [int(path.name) for home in (self.jobs, self.ended) for path in home.iterdir()] if not counter else []
            )
            number = counter or max(taken, default=0) + 1
            write_json(self.path / "next-id", number + 1)
            final = self.jobs / str(number)
            draft.rename(final)
        return JobFolder(final)

    def find(self, job_id: str) -> JobFolder | None:
        # Twice: a job moves from jobs/ to ended/ between two looks.
        for home in (self.jobs, self.ended, self.jobs, self.ended):
            if (home / job_id).is_dir():
                return JobFolder(home / job_id)
        return None

    def live(self) -> list[JobFolder]:
        """Jobs that have not been moved away as ended, oldest first."""
        return [JobFolder(path) for path in sorted(self.jobs.iterdir(), key=lambda path: int(path.name))]

    def retire(self, folder: JobFolder) -> None:
        """Move a job that has been final for a while out of the listing."""
        try:
            folder.path.rename(self.ended / folder.job_id)
        except FileNotFoundError:
            return

    # ---------------------------------------------------------------------------------------- tokens

    @contextmanager
    def turn(self, job_id: str) -> Iterator[None]:
        """Stand in the queue for tokens as long as the enclosed lines run, or until this process dies."""
        mark = self.waiting / job_id
        # Under the mutex: whoever looks sees the mark held, or not at all.
        with locked(self.path / "mutex"):
            descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)
            os.close(descriptor)

    def take(
        self,
        job_id: str,
        wanted: Sequence[tuple[str, int, int]],
        *,
        asked: Asked | None = None,
        machine: Machine | None = None,
        gpus: int = 0,
        share: int = 1,
        running: int = 0,
    ) -> dict[str, list[tuple[int, int]]] | str:
        """All the tokens of a job, or none: kind -> [(token, descriptor that holds it)], else the reason for waiting.

        `wanted` is (kind, how many, how many there are). With `asked`, GPUs are taken besides, of `gpus`, each with
        room for `share` jobs; `machine` was read a moment ago. Under the mutex, so two jobs cannot each hold half of
        what the other one needs, and strictly oldest first, so that a wide job is not starved by narrow ones. Only
        who waits for the machine (a stranger's memory, the control group) holds up nobody: it may last for days.
        """
        with locked(self.path / "mutex"):
            for mark in self.waiting.iterdir():
                if int(mark.name) < int(job_id):
                    descriptor = try_lock(mark)
                    if descriptor is None:
                        if _waits_for_machine(mark):
                            continue
                        return "Priority"
                    mark.unlink(missing_ok=True)
                    os.close(descriptor)
            held: dict[str, list[tuple[int, int]]] = {}
            reason = ""
            for kind, count, total in wanted:
                held[kind] = []
                for token in range(total):
                    if len(held[kind]) == count:
                        break
                    descriptor = try_lock(self.tokens / f"{kind}-{token}")
                    if descriptor is not None:
                        held[kind].append((token, descriptor))
                if len(held[kind]) < count:
                    reason = "Resources"
                    break
            if not reason and asked is not None:
                found = self._take_gpus(asked, machine or Machine(), gpus, share, running)
                if isinstance(found, str):
                    reason = found
                elif found:
                    held["gpu"] = found
            (self.waiting / job_id).write_text(WAITS_FOR_MACHINE if reason.startswith(LOCAL_WAIT) else "")
            if reason:
                _let_go(descriptor for taken in held.values() for _, descriptor in taken)
                return reason
            return held

    def _take_gpus(
        self, asked: Asked, machine: Machine, gpus: int, share: int, running: int
    ) -> list[tuple[int, int]] | str:
        """One place on each GPU that the decision names, or the reason for waiting. Under the mutex."""
        free: dict[int, list[int]] = {device: [] for device in range(gpus)}
        if asked.gpus:
            for device, place in itertools.product(range(gpus), range(share)):
                descriptor = try_lock(self.tokens / (f"gpu-{device}" if place == 0 else f"gpu-{device}-{place}"))
                if descriptor is not None:
                    free[device].append(descriptor)
        decision = admit(asked, machine, [share - len(free[device]) for device in range(gpus)], share, running)
        if isinstance(decision, Wait):
            _let_go(itertools.chain.from_iterable(free.values()))
            return decision.reason
        taken = [(device, free[device].pop(0)) for device in decision.devices]
        _let_go(itertools.chain.from_iterable(free.values()))
        return taken


def _waits_for_machine(mark: Path) -> bool:
    try:
        return mark.read_text() == WAITS_FOR_MACHINE
    except FileNotFoundError:  # its job has what it wanted, this instant
        return True


def _let_go(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
