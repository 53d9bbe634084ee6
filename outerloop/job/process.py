"""Running one command so that nothing of it survives: session, subreaper, pipes, signals, time limit, kill.

Covered: starting, pumping output, forwarding signals, charging time, killing every descendant.
Not covered: what is run and what its output means. Linux only.

Time is CLOCK_MONOTONIC. Time during which the scheduler had this job suspended is not charged: a gap between two
turns of the loop counts as suspended when SIGCONT arrived in it (Slurm's suspend sends SIGSTOP and SIGCONT to every
process of a job, this one included). A gap without SIGCONT is a slow node, and is charged.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Sink = Callable[[bytes], None]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031
"""linux/prctl.h and linux/fcntl.h; Python 3.11's fcntl lacks names for some of them on some builds."""

PIPE_BYTES = 1024 * 1024
"""The kernel's default limit for unprivileged users (/proc/sys/fs/pipe-max-size)."""

TURN_SECONDS = 0.5
"""Longest wait of the loop: bounds how late a limit is noticed."""

SETTLE_SECONDS = 0.25
"""How long helpers of a command that ended may take to end by themselves before they are killed."""

SKEW_SECONDS = 0.02
SKEW_AFTER_FAILURE_SECONDS = 0.25
"""Slurm signals the processes of a job one after another, so the command may end of a signal that this program is
about to get: how long it is waited for before the end is called the command's own."""

DRAIN_SECONDS = 2.0
"""How long output is still read after the last descendant died, when a stranger holds the pipe open."""

KILL_SECONDS = 10.0
"""How long killing is repeated before survivors are reported (uninterruptible sleep, foreign owner)."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Signals:
    """Signals that reached this program, in order. Installed once."""

    received: list[int] = field(default_factory=list)
    continued: bool = False
    reader: int = -1

    def install(self) -> None:
        """Catch TERM, INT, USR1, CHLD and CONT, and make them readable on `reader`."""
        self.reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, self._wake)
        signal.signal(signal.SIGCONT, self._note_continued)

    def _note(self, number: int, _frame: object) -> None:
        self.received.append(number)

    def _wake(self, _number: int, _frame: object) -> None:
        return

    def _note_continued(self, _number: int, _frame: object) -> None:
        self.continued = True

    @property
    def stop(self) -> int | None:
        """The first signal that asks this program to end, if there was one. USR1 is only a warning."""
        return next((n for n in self.received if n in (signal.SIGTERM, signal.SIGINT)), None)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.reader, 4096):
                pass


@dataclass(frozen=True)
class Ended:
    """How a command ended. Exactly one of `exit_code` and `signal` is set."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    stopped_by: int | None
    """TERM or INT that reached this program before the command had ended."""
    warned_by: int | None
    """USR1 that reached this program before the command had ended."""
    seconds: float
    """Charged time of the command itself, in seconds."""
    cpu_seconds: float
    max_rss_mb: float
    """Of the largest single process, in MiB."""
    killed: int
    survivors: int


def become_subreaper() -> None:
    """Orphaned descendants become children of this process (prctl(2)). Raises OSError."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER was refused")


def keep_descriptors_private() -> None:
    """Nothing that was open when this program started reaches a command, except the three standard ones."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def parents() -> dict[int, tuple[int, int]]:
    """pid -> (parent's pid, process group) of every living process that /proc shows; zombies left out."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        state, parent, group = text[text.rindex(b")") + 2 :].split(None, 3)[:3]
        if state not in (b"Z", b"X"):
            found[int(name)] = (int(parent), int(group))
    return found


def descendants(of: int) -> dict[int, tuple[int, int]]:
    """pid -> (parent, group) of every living descendant."""
    table = parents()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, tuple[int, int]] = {}
    pending = [of]
    while pending:
        for pid in children.get(pending.pop(), ()):
            found[pid] = table[pid]
            pending.append(pid)
    return found


def behind_gate(command: Sequence[str]) -> list[str]:
    """The command behind a shell that asks at its input, a socket, and executes it only when the answer comes.

    For what is started through carriers that ask the kernel to kill them with their parent (bwrap(1),
    --die-with-parent): one whose parent died before it asked is never killed, and would run the command for ever
    beside the next attempt's. When this shell runs all of them have asked; who then hears no answer has no wrapper.
    """
    return ["/bin/sh", "-c", 'echo >&0 && read -r word && exec "$@" </dev/null', "sh", *command]


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    outputs: tuple[int, int],
    keep: Sequence[int] = (),
    gate: int | None = None,
) -> int:
    """Start `argv` (absolute path first) in a session of its own, with no input; returns its pid.

    Descriptors in `keep` stay open in it. It is killed when this process dies; with a `gate`, which becomes its
    input, that is left to `behind_gate`. Raises OSError when it cannot be executed.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    me = os.getpid()
    everything = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    pid = os.fork()
    if pid == 0:
        try:
            for default in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                signal.signal(default, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
            os.setsid()
            if gate is None:
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != me:
                    os._exit(1)
            for handle in keep:
                os.set_inheritable(handle, True)
            os.dup2(null if gate is None else gate, 0)
            os.dup2(outputs[0], 1)
            os.dup2(outputs[1], 2)
            os.chdir(cwd)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.execve(argv[0], list(argv), dict(env))
        except OSError as error:
            os.write(writer, str(error.errno or errno.EIO).encode())
        finally:
            os._exit(127)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(writer)
    os.close(null)
    try:
        told = os.read(reader, 16)
    finally:
        os.close(reader)
    if told:
        os.waitpid(pid, 0)
        number = int(told)
        raise OSError(number, os.strerror(number), argv[0])
    return pid


@dataclass
class _Usage:
    """Times and memory of the children that were waited for, their own waited-for children included."""

    cpu: float = 0.0
    rss_kib: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    def reap(self) -> bool:
        """Take every finished child; False when there is no child left at all."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.statuses[pid] = status
            self.cpu += used.ru_utime + used.ru_stime
            self.rss_kib = max(self.rss_kib, used.ru_maxrss)


class _Pump:
    """Reads the pipes and feeds what comes to their sinks."""

    def __init__(self, wake: int) -> None:
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        self._sinks: dict[int, Sequence[Sink]] = {}

    def pipe(self, sinks: Sequence[Sink]) -> int:
        """A new pipe; returns its writing end. What is written to it goes to `sinks`."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, _F_SETPIPE_SZ, PIPE_BYTES)
        self._sinks[reader] = sinks
        self._poll.register(reader, select.POLLIN)
        return writer

    def gate(self) -> int:
        """A socket for the input of `behind_gate`, which is answered once."""
        mine, theirs = (end.detach() for end in socket.socketpair())

        def answer(_: bytes) -> None:
            with contextlib.suppress(OSError):
                os.write(mine, b"go\n")
            self._close(mine)

        self._sinks[mine] = [answer]
        self._poll.register(mine, select.POLLIN)
        return theirs

    @property
    def open(self) -> bool:
        return bool(self._sinks)

    def turn(self, seconds: float) -> None:
        """Wait at most so long for output or a signal, and pass on what came."""
        for handle, _ in self._poll.poll(max(0, int(seconds * 1000) + (seconds > 0))):
            if handle not in self._sinks:
                continue
            data = os.read(handle, PIPE_BYTES)
            if not data:
                self._close(handle)
                continue
            for sink in self._sinks[handle]:
                sink(data)

    def _close(self, handle: int) -> None:
        self._poll.unregister(handle)
        del self._sinks[handle]
        os.close(handle)

    def close(self) -> None:
        for handle in list(self._sinks):
            self._close(handle)


class Clock:
    """Charged seconds since `begin`, without the time that the job was suspended."""

    def __init__(self, signals: Signals, now: Callable[[], float] = time.monotonic) -> None:
        self._signals = signals
        self._now = now
        self._last = now()
        signals.continued = False
        self.charged = 0.0

    def tick(self) -> float:
        """Charge the time since the last tick; returns all of it."""
        now = self._now()
        gap, self._last = now - self._last, now
        if self._signals.continued:
            self._signals.continued = False
            gap = min(gap, TURN_SECONDS)
        self.charged += gap
        return self.charged


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    signals: Signals,
    stdout: Sequence[Sink],
    stderr: Sequence[Sink],
    limit_seconds: float | None,
    grace_seconds: float,
    keep: Sequence[int] = (),
    carriers: int = 0,
    gated: bool = False,
) -> Ended:
    """Run `argv` to its end and leave no descendant alive. Raises OSError when it cannot be started.

    `gated` says that `argv` carries a command that is `behind_gate`.

    `carriers` is the number of processes at the top of the started tree that only carry the command (bwrap's monitor
    and its init): a signal is passed to what they carry, not to them.
    """
    usage = _Usage()
    pump = _Pump(signals.reader)
    writers = [pump.pipe(stdout), pump.pipe(stderr)]
    gate = pump.gate() if gated else None
    before = seen = len(signals.received)
    try:
        child = start(argv, env, cwd, (writers[0], writers[1]), keep, gate)
    except OSError:
        pump.close()
        raise
    finally:
        for handle in writers if gate is None else (*writers, gate):
            os.close(handle)
    clock = Clock(signals)
    timed_out = killed_main = False
    deadline: float | None = None
    killed: set[int] = set()
    try:
        while True:
            usage.reap()
            charged = clock.tick()
            if child in usage.statuses:
                break
            for number in signals.received[seen:]:
                seen += 1
                forward(child, number, carriers)
                if number != signal.SIGUSR1:
                    deadline = deadline or time.monotonic() + grace_seconds
            if limit_seconds is not None and charged >= limit_seconds and deadline is None:
                timed_out = True
                forward(child, signal.SIGTERM, carriers)
                forward(child, signal.SIGCONT, carriers)
                deadline = time.monotonic() + grace_seconds
            if deadline is not None and time.monotonic() >= deadline and not killed_main:
                killed_main = True
                kill_descendants(usage, killed, pump, KILL_SECONDS)
                if child not in usage.statuses:
                    break
                continue
            left = TURN_SECONDS
            if deadline is not None:
                left = min(left, max(0.0, deadline - time.monotonic()))
            elif limit_seconds is not None:
                left = min(left, max(0.0, limit_seconds - charged))
            pump.turn(left)
            signals.drain()
        clean = usage.statuses.get(child) == 0
        skew = time.monotonic() + (SKEW_SECONDS if clean else SKEW_AFTER_FAILURE_SECONDS)
        while len(signals.received) == before and not timed_out and time.monotonic() < skew:
            pump.turn(0.01)
            signals.drain()
        arrived = signals.received[before:]
        settle = time.monotonic() + SETTLE_SECONDS
        while usage.reap() and time.monotonic() < settle:
            pump.turn(0.02)
            signals.drain()
        survivors = kill_descendants(usage, killed, pump, KILL_SECONDS)
        drain = time.monotonic() + DRAIN_SECONDS
        while pump.open and time.monotonic() < drain:
            pump.turn(0.05)
            signals.drain()
    except BaseException:
        kill_descendants(usage, killed, None, KILL_SECONDS)
        raise
    finally:
        pump.close()
    status = usage.statuses.get(child)
    code = os.waitstatus_to_exitcode(status) if status is not None else -int(signal.SIGKILL)
    return Ended(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        stopped_by=next((number for number in arrived if number != signal.SIGUSR1), None),
        warned_by=int(signal.SIGUSR1) if signal.SIGUSR1 in arrived else None,
        seconds=clock.charged,
        cpu_seconds=usage.cpu,
        max_rss_mb=usage.rss_kib / 1024,
        killed=len(killed),
        survivors=survivors,
    )


def wait(seconds: float, signals: Signals) -> None:
    """Sleep, but no longer than until a signal asks this program to end."""
    deadline = time.monotonic() + seconds
    while signals.stop is None and (left := deadline - time.monotonic()) > 0:
        select.select([signals.reader], [], [], left)
        signals.drain()


def forward(child: int, number: int, carriers: int) -> None:
    """Send a signal to the command's process group, or to the part of it that is not a carrier."""
    if carriers == 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, number)
        return
    below = descendants(child)
    carrying = {child}
    for _ in range(carriers - 1):
        carrying |= {pid for pid, (parent, _) in below.items() if parent in carrying}
    for pid, (_, group) in below.items():
        if pid not in carrying and group == child:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill_descendants(usage: _Usage, killed: set[int], pump: _Pump | None, seconds: float) -> int:
    """SIGKILL every descendant of this process, again and again until none is left; returns how many are left.

    As a subreaper this process inherits every orphan, so that neither a double fork nor setsid escapes.
    """
    me = os.getpid()
    deadline = time.monotonic() + seconds
    while usage.reap():
        alive = descendants(me)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        if time.monotonic() >= deadline:
            return max(1, len(alive))
        if pump is not None:
            pump.turn(0.005)
        else:
            time.sleep(0.005)
    return 0
