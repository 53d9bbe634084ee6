"""The phases of one attempt, in order, once it is claimed and its spec is read.

Covered: setup, command, score, parse, artifacts, and which failure is whose. Not covered: claiming and writing the
result (wrapper.py).
"""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from outerloop.job import artifacts, checkout, environment, files, launch, layout, process, reports, sandbox, scratch
from outerloop.job.items import read_items
from outerloop.job.metric import MetricScanner, Unusable
from outerloop.job.report import Report, Stopped
from outerloop.job.streams import CappedLog, Stream
from outerloop.job.work import Work

STDERR_TAIL_CHARACTERS = 2000
FULL_BYTES = 1024 * 1024
"""A scratch file system with less than this left counts as full."""

REQUEUE_MARK = "requeue.json"
"""Left in the checkpoint folder by work that wants to go on in another attempt."""

REFUSED = "REFUSED"
"""Reason of a command that ended with one of its `infrastructure_exits`."""

SCORE_STDOUT = "score.stdout.log"
SCORE_STDERR = "score.stderr.log"
LAST_SIGNAL = 64
SHELL_REPORTED = frozenset(
    {signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV}
)
"""What ends programs by accident. A shell that waited for such a program exits with 128 + n (POSIX, Exit Status for
Commands), and nobody exits with these codes on purpose."""
_SHELL = ("/bin/sh", "-c")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Execution:
    """One attempt's phases. `run` returns when there is a value and raises Stopped when there is none."""

    def __init__(self, work: Work, report: Report, place: scratch.Scratch, signals: process.Signals) -> None:
        self.work = work
        self.report = report
        self.scratch = place
        self.signals = signals
        self.env: Mapping[str, str] = report.env
        self.own = os.path.join(
            report.slot, layout.ATTEMPTS, str(work.attempt), layout.restart_folder(report.me.restart)
        )
        self.output = os.path.join(self.own, layout.OUT)
        self.state = os.path.join(report.slot, layout.STATE) if work.resumable else ""
        self.live_output = work.resumable or work.launch is not None
        self.tree = os.path.join(self.own if work.nodes > 1 else place.path, "tree")
        self.environment = ""
        self.scanner = MetricScanner(work.metric, work.guards)
        self.limit_seconds: float | None = work.minutes * 60
        self.shared: list[str] = []
        """Folders outside scratch that must go at the end."""

    def run(self) -> None:
        """All phases. Raises Stopped."""
        try:
            with self.report.phase("setup"):
                self._guard("setup", self._set_up)
            with self.report.phase("command") as entry:
                self._guard("command", lambda: self._command(entry))
            if self.work.score:
                with self.report.phase("score") as entry:
                    self._guard("score", lambda: self._score(entry))
            if self.work.metric:
                with self.report.phase("parse"):
                    self._parse()
            if self.work.outputs:
                with self.report.phase("artifacts"):
                    self._guard("artifacts", self._keep)
        finally:
            for folder in self.shared:
                files.remove_tree(folder)
        self.report.body.update(outcome="ok", exit_code=0)

    def _guard(self, phase: str, action: Any) -> None:
        """Turn the errors that a disk or a node can make into a failed result."""
        try:
            action()
        except OSError as error:
            if error.errno in _FULL:
                raise Stopped(phase, "SCRATCH_FULL", f"a disk is full: {error}") from error
            raise Stopped(phase, "RESOURCES", str(error)) from error
        except artifacts.InputError as error:
            raise Stopped(phase, "INPUT", str(error)) from error
        except artifacts.ArtifactError as error:
            raise Stopped("artifacts", "ARTIFACT", str(error)) from error
        except sandbox.SandboxError as error:
            raise Stopped("setup", "SANDBOX", str(error), code=layout.EXIT_SANDBOX) from error

    # -- setup

    def _set_up(self) -> None:
        work = self.work
        if len(self.report.body["gpus_seen"]) < work.gpus and len(sandbox.gpu_devices()) < work.gpus:
            seen = len(self.report.body["gpus_seen"])
            raise Stopped("setup", "RESOURCES", f"{work.gpus} GPUs were asked for, this job sees {seen}")
        os.makedirs(self.own, exist_ok=True)
        if work.outputs or self.live_output:
            os.makedirs(self.output, exist_ok=True)
        if self.state:
            os.makedirs(self.state, exist_ok=True)
        if work.nodes > 1:
            files.remove_tree(self.tree)
            self.shared.append(self.tree)
        self.environment_slot()
        for item in work.inputs:
            artifacts.check_input(item)
        self.fresh_caches("run")
        self._materialise(work.tree, self.tree)
        for path in work.outputs:
            _output_place(self.tree, path, work.isolation != "none")
        self._place_inputs(self.tree, hidden=False)
        self._stop_if_asked("setup")

    def environment_slot(self) -> None:
        """Find the environment, or make the place where it is built."""
        work = self.work
        if work.kind == "environment":
            self.environment = os.path.join(os.path.dirname(self.own), "env")
            files.remove_tree(self.environment)
            os.mkdir(self.environment)
        elif work.environment_slot:
            self.environment = _built_environment(work.environment_slot)

    def fresh_caches(self, name: str) -> None:
        """Home, temporary folder and caches of one command. The scorer's are not the candidate's."""
        for part in ("home", "tmp", "cache"):
            self.scratch.folder(f"{name}/{part}")
        seed = self.work.cache_seed or self.env.get("OUTERLOOP_CACHE_SEED", "")
        if seed and os.path.isdir(seed):
            scratch.seed_cache(seed, os.path.join(self.scratch.path, name, "cache"))

    def _materialise(self, tree: str, destination: str) -> None:
        os.mkdir(destination, 0o755)
        home = self.scratch.folder("git")
        try:
            checkout.checkout(self.work.mirror, tree, destination, home, self.env, self.signals)
        except checkout.CheckoutError as error:
            self._stop_if_asked("setup")
            reason = "SCRATCH_FULL" if self._scratch_is_full() else "CHECKOUT"
            raise Stopped(
                "setup", reason, f"tree {tree} could not be checked out: {error}", code=layout.EXIT_CHECKOUT
            ) from error

    def _place_inputs(self, tree: str, *, hidden: bool) -> None:
        for item in self.work.inputs:
            if (item.hidden and not hidden) or os.path.isabs(item.path):
                continue
            if self.work.isolation == "none":
                artifacts.place_input(tree, item)
            else:
                artifacts.mount_point(tree, item.path, os.path.isdir(item.source))

    def _stop_if_asked(self, phase: str) -> None:
        number = self.signals.stop
        if number is not None:
            raise Stopped(phase, "CANCELLED", f"signal {number} came during {phase}", code=128 + number, signal=number)

    def _scratch_is_full(self) -> bool:
        try:
            room = os.statvfs(self.scratch.path)
        except OSError:
            return False
        return room.f_bavail * room.f_frsize < FULL_BYTES or (room.f_files > 0 and room.f_favail == 0)

    # -- command

    def _command(self, entry: dict[str, Any]) -> None:
        work = self.work
        view = self.view("run", self.tree, inside_output=True)
        if work.reports is not None and not reports.prepare(work.reports, self.state, self.output, view.checkpoints):
            # An earlier attempt finished every report and was lost before it could say so.
            entry["seconds"] = 0.0
            return
        out = CappedLog(os.path.join(self.own, layout.STDOUT), work.keep_logs_bytes)
        err = CappedLog(os.path.join(self.own, layout.STDERR), work.keep_logs_bytes)
        mark = self._requeue_mark()
        scanner = None if work.score or not work.metric else self.scanner
        try:
            ended = self._launch(view, out, err, scanner)
        finally:
            out.close()
            err.close()
            body = self.report.body
            body["stdout"], body["stderr"] = out.summary(), err.summary()
            body["stderr_tail"] = err.last(STDERR_TAIL_CHARACTERS)
        entry["seconds"] = round(ended.seconds, 6)
        self._account(ended)
        if ended.exit_code == os.EX_TEMPFAIL:
            self._refuse_unfinished(ended, mark)
        self._judge_end("command", ended)
        self._refuse_unfinished(ended, mark)

    def _launch(
        self, view: environment.View, out: CappedLog, err: CappedLog, scanner: MetricScanner | None
    ) -> process.Ended:
        work = self.work
        if work.launch is None:
            env = self._variables(view, work.env)
            return self.run_command([*_SHELL, work.command], view, env, "run", self.tree, out, err, scanner)
        launch.write_files(self.output, work.launch.files)
        meets = launch.needs_endpoint(work.launch)
        tries = launch.PORT_TRIES if meets else 1
        while True:
            tries -= 1
            endpoint = f"{socket.gethostname()}:{launch.free_port()}" if meets else ""
            if work.nodes > 1:
                ended = self._run_on_nodes(endpoint, out, err, scanner)
            else:
                argv, env = self.launch_line(view, endpoint)
                ended = self.run_command(argv, view, env, "run", self.tree, out, err, scanner)
            failed = ended.exit_code not in (0, None) and not ended.timed_out and ended.stopped_by is None
            if not (tries and failed and launch.port_was_taken(err.last(4 * STDERR_TAIL_CHARACTERS))):
                return ended

    def launch_line(self, view: environment.View, endpoint: str) -> tuple[list[str], dict[str, str]]:
        """A launch's arguments and variables on this node, tokens replaced."""
        spec = self.work.launch
        assert spec is not None
        values = launch.tokens(self.work.digest, self.work.attempt, view.output, endpoint)
        declared = {**self.work.env, **{name: launch.fill(text, values) for name, text in spec.env.items()}}
        # The shell looks the program up on the command's own search path, in the sandbox if there is one.
        argv = [*_SHELL, 'exec "$@"', "sh", *(launch.fill(text, values) for text in spec.argv)]
        return argv, self._variables(view, declared)

    def _run_on_nodes(
        self, endpoint: str, out: CappedLog, err: CappedLog, scanner: MetricScanner | None
    ) -> process.Ended:
        """One rank program per node through srun, which keeps its SLURM_*; the ranks get none of them."""
        work = self.work
        path = self.env.get("PATH") or environment.DEFAULT_PATH
        srun = checkout.find_program("srun", path)
        if not srun:
            raise Stopped("setup", "RESOURCES", "several nodes need srun, which is not on this node's PATH")
        rank = [sys.executable, "-I", "-m", "outerloop.job.rank", self.report.slot, str(work.attempt), endpoint]
        ended = process.run(
            launch.srun_argv(srun, work.nodes, work.cpus, work.gpu_form, rank),
            env=self.env,
            cwd="/",
            signals=self.signals,
            stdout=[out.feed] if scanner is None else [out.feed, scanner.feed],
            stderr=[err.feed],
            limit_seconds=self.limit_seconds,
            grace_seconds=work.term_grace_seconds,
        )
        if ended.exit_code == layout.EXIT_SANDBOX and launch.RANK_COMPLAINT in err.last(STDERR_TAIL_CHARACTERS):
            raise sandbox.SandboxError(err.last(300).strip())
        first = os.path.join(self.own, launch.FIRST_FAILURE)
        if ended.exit_code and files.listed(first):
            told = files.read_object(first)
            files.unlink_quietly(first)
            return dataclasses.replace(ended, exit_code=told.get("exit_code"), signal=told.get("signal"))
        return ended

    def _variables(self, view: environment.View, declared: Mapping[str, str]) -> dict[str, str]:
        return environment.command_environment(self.env, declared, view, network=self.work.network, gpus=self.work.gpus)

    def view(self, name: str, tree: str, *, inside_output: bool) -> environment.View:
        """The command's places, as it will see them. `inside_output`: it is the command, not the scorer."""
        contained = self.work.isolation != "none"
        base = sandbox.INSIDE if contained else os.path.join(self.scratch.path, name)
        checkpoints = output = ""
        if inside_output and self.state:
            checkpoints = f"{base}/checkpoints" if contained else self.state
        if inside_output and self.live_output:
            output = f"{base}/output" if contained else self.output
        return environment.View(
            tree=f"{base}/tree" if contained else tree,
            home=f"{base}/home",
            tmp="/tmp" if contained else f"{base}/tmp",
            scratch=base,
            checkpoints=checkpoints,
            output=output,
            environment=self.environment,
            build=self.work.kind == "environment",
        )

    def _room(self, name: str, tree: str, view: environment.View, env: Mapping[str, str]) -> sandbox.Room:
        """What the sandbox shows: the tree read-only, with the folders of declared outputs writable."""
        work = self.work
        own = os.path.join(self.scratch.path, name)
        command = name == "run"
        writable = [(f"{own}/{part}", f"{sandbox.INSIDE}/{part}") for part in ("home", "cache")]
        writable.append((f"{own}/tmp", "/tmp"))
        readable = [(tree, view.tree)]
        if view.checkpoints:
            writable.append((self.state, view.checkpoints))
        if view.output:
            writable.append((self.output, view.output))
        if command:
            places = dict.fromkeys(_output_place(tree, path, True) for path in work.outputs)
            writable += [(os.path.join(tree, place), f"{view.tree}/{place}") for place in places]
        over: list[tuple[str, str]] = []
        if self.environment and view.build:
            writable.append((self.environment, self.environment))
        elif self.environment:
            over += [(path, path) for path in sandbox.interpreter_prefixes(self.environment)]
            over.append((self.environment, self.environment))
        for item in work.inputs:
            if not (item.hidden and command):
                over.append((os.path.realpath(item.source), os.path.join(view.tree, item.path)))
        return sandbox.Room(
            readable=readable,
            writable=writable,
            over=over,
            hidden=_record_folders(self.report.slot, work.mirror),
            home=f"{own}/home",
            cwd=view.tree,
            network=work.network,
            gpus=work.gpus,
            path=env.get("PATH", ""),
            library_path=env.get("LD_LIBRARY_PATH", ""),
            devices=sandbox.gpu_devices() if work.gpus else (),
        )

    def run_command(
        self,
        argv: Sequence[str],
        view: environment.View,
        env: dict[str, str],
        name: str,
        tree: str,
        out: Stream,
        err: Stream,
        scanner: MetricScanner | None,
    ) -> process.Ended:
        """Run one command to its end, contained as the attempt says. Raises SandboxError and OSError."""
        work = self.work
        isolation = work.isolation
        keep: list[int] = []
        reader = -1
        mark = ""
        if isolation == "bwrap":
            program = self._program("bwrap")
            reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            keep.append(writer)
            argv = sandbox.bwrap_argv(program, self._room(name, tree, view, env), process.behind_gate(argv), writer)
        elif isolation == "apptainer":
            mark = self.scratch.folder(f"{name}/mark")
            room = self._room(name, tree, view, env)
            argv = sandbox.apptainer_argv(self._program("apptainer"), room, work.image_path, argv, mark)
            env = sandbox.apptainer_environment(env, self.env)
        try:
            ended = process.run(
                argv,
                env=env,
                cwd="/" if isolation != "none" else tree,
                signals=self.signals,
                stdout=[out.feed] if scanner is None else [out.feed, scanner.feed],
                stderr=[err.feed],
                limit_seconds=self.limit_seconds,
                grace_seconds=work.term_grace_seconds,
                keep=keep,
                carriers=sandbox.CARRIERS[isolation],
                gated=isolation == "bwrap",
            )
        finally:
            for handle in keep:
                os.close(handle)
        if isolation == "bwrap":
            started = sandbox.bwrap_started(_read_all(reader)) or ended.timed_out or ended.stopped_by is not None
        else:
            started = not mark or os.path.exists(os.path.join(mark, sandbox.STARTED_MARK))
        if not started and ended.exit_code is not None:
            words = err.last(300).strip() or f"{isolation} ended with {ended.exit_code}"
            raise sandbox.SandboxError(f"the sandbox could not be set up: {words}")
        return ended

    def _program(self, name: str) -> str:
        program = checkout.find_program(name, self.env.get("PATH") or environment.DEFAULT_PATH)
        if not program:
            raise sandbox.SandboxError(f"this node has no {name}; the attempt asks for isolation {self.work.isolation}")
        return program

    def _account(self, ended: process.Ended) -> None:
        body = self.report.body
        body["cpu_seconds"] = round(body["cpu_seconds"] + ended.cpu_seconds, 3)
        body["max_rss_mb"] = round(max(body["max_rss_mb"], ended.max_rss_mb), 3)
        body["killed_processes"] += ended.killed

    def _judge_end(self, phase: str, ended: process.Ended) -> None:
        """Raises Stopped unless the command ended by itself with 0."""
        work = self.work
        code, number = ended.exit_code, ended.signal
        if work.isolation != "none" and code is not None and 128 < code <= 128 + LAST_SIGNAL:
            # A container's init reports a fatal signal as 128 + n.
            number = code - 128
            code = None
        if ended.stopped_by is not None:
            by = ended.stopped_by
            raise Stopped(
                phase, "CANCELLED", f"signal {by} came during {phase}", code=128 + by, exit_code=code, signal=by
            )
        if ended.timed_out:
            limit = f"the {phase} was still running after its {work.minutes:g} minutes"
            raise Stopped(phase, "TIMEOUT", limit, exit_code=code, signal=number)
        if ended.survivors:
            raise Stopped(phase, "RESOURCES", f"{ended.survivors} processes of the {phase} could not be killed")
        if code == 0:
            return
        if ended.warned_by is not None:
            by = ended.warned_by
            raise Stopped(
                phase, "CANCELLED", f"the {phase} ended after signal {by}", code=128 + by, exit_code=code, signal=by
            )
        if self._scratch_is_full():
            raise Stopped(phase, "SCRATCH_FULL", "the scratch disk is full", exit_code=code, signal=number)
        if number is not None and -number in work.infrastructure_exits:
            raise Stopped(phase, REFUSED, f"the {phase} was killed by {signal_words(number)}", signal=number)
        if number is not None:
            raise Stopped(phase, f"SIGNAL_{number}", f"the {phase} was killed by {signal_words(number)}", signal=number)
        assert code is not None, "a command ends by a signal or with a code"
        reported = code - 128
        if reported in SHELL_REPORTED:
            told = f"the {phase} exited with {code}: its shell reports {signal_words(reported)}"
            raise Stopped(phase, f"SIGNAL_{reported}", told, exit_code=code)
        if code in work.infrastructure_exits:
            raise Stopped(phase, REFUSED, f"the {phase} exited with {code}: it was not carried out", exit_code=code)
        raise Stopped(phase, f"EXIT_{code}", f"the {phase} exited with {code}", exit_code=code)

    def _requeue_mark(self) -> tuple[int, int] | None:
        """Which requeue mark lies in the checkpoint folder, if there is one."""
        try:
            status = os.lstat(os.path.join(self.state, REQUEUE_MARK)) if self.state else None
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns) if status else None

    def _refuse_unfinished(self, ended: process.Ended, earlier: tuple[int, int] | None) -> None:
        """Work that left a new requeue mark is not done, whatever it exited with."""
        mark = self._requeue_mark()
        if mark is None or mark == earlier:
            return
        by = ended.warned_by
        raise Stopped(
            "command",
            "CANCELLED",
            f"the work left {REQUEUE_MARK} and asks to go on" + (f" after signal {by}" if by else ""),
            exit_code=ended.exit_code,
            signal=by,
        )

    # -- score, parse, artifacts

    def _score(self, entry: dict[str, Any]) -> None:
        work = self.work
        tree = os.path.join(self.scratch.path, "base")
        self._materialise(work.score_tree, tree)
        artifacts.collect(self._output_root(), work.outputs, tree, work.output_cap_bytes, durable=False)
        self._place_inputs(tree, hidden=True)
        self.fresh_caches("score")
        out = CappedLog(os.path.join(self.own, SCORE_STDOUT), work.keep_logs_bytes)
        err = CappedLog(os.path.join(self.own, SCORE_STDERR), work.keep_logs_bytes)
        view = self.view("score", tree, inside_output=False)
        argv = [*_SHELL, work.score]
        env = self._variables(view, work.env)
        try:
            ended = self.run_command(argv, view, env, "score", tree, out, err, self.scanner)
        finally:
            out.close()
            err.close()
        entry["seconds"] = round(ended.seconds, 6)
        self.report.body["killed_processes"] += ended.killed
        try:
            self._judge_end("score", ended)
        except Stopped:
            self.report.body["stderr_tail"] = err.last(STDERR_TAIL_CHARACTERS)
            raise

    def _output_root(self) -> str:
        """Where declared outputs are: the live output folder when all of them are there, else the tree."""
        paths = self.work.outputs
        if self.live_output and all(os.path.lexists(os.path.join(self.output, path)) for path in paths):
            return self.output
        return self.tree

    def _parse(self) -> None:
        try:
            measured = self.scanner.measured()
        except Unusable as error:
            raise Stopped("parse", "NO_METRIC", str(error), exit_code=0) from error
        self.report.body["metric"] = {"name": self.work.metric, "text": measured.text}
        self.report.body["guards"] = measured.guards
        if self.work.items:
            try:
                self.report.body["items"] = read_items(os.path.join(self.own, SCORE_STDOUT))
            except (OSError, ValueError) as error:
                raise Stopped("parse", "NO_METRIC", f"no per-item losses: {error}", exit_code=0) from error

    def _keep(self) -> None:
        root, cap = self._output_root(), self.work.artifact_cap_bytes
        self.report.body["artifacts"] = artifacts.collect(root, self.work.outputs, self.output, cap, durable=True)


def signal_words(number: int) -> str:
    """`SIGSEGV (signal 11: Segmentation fault)`; signals without a name by their number."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (signal {number}: {signal.strsignal(number)})"


def _built_environment(slot: str) -> str:
    """The `env` folder of an environment slot's accepted attempt, or the folder itself when it is no slot."""
    accepted = os.path.join(slot, layout.ACCEPTED)
    if files.listed(accepted):
        try:
            attempt = files.read_object(accepted).get("attempt")
        except (OSError, ValueError) as error:
            raise Stopped("setup", "ENVIRONMENT", f"the environment slot cannot be read: {error}") from error
        folder = os.path.join(slot, layout.ATTEMPTS, str(attempt), "env")
    else:
        folder = slot if os.path.isdir(os.path.join(slot, "bin")) else ""
    if not folder or not os.path.isdir(folder):
        raise Stopped("setup", "ENVIRONMENT", f"the environment {slot} is not built")
    return folder


def _output_place(tree: str, path: str, contained: bool) -> str:
    """What a declared output needs to be writable, made if absent: its parent folder, in the root the file itself.

    The folder exists in every isolation, so that a program meets the same tree in each.
    """
    path = path.rstrip("/")
    parent = os.path.dirname(path)
    if parent or contained:
        artifacts.mount_point(tree, parent or path, bool(parent))
    return parent or path


def _record_folders(slot: str, mirror: str) -> list[str]:
    """Folders that no sandbox may show: the state folder that holds the slots, and the mirrors."""
    state = os.path.dirname(os.path.dirname(os.path.dirname(slot)))
    return [os.path.realpath(path) for path in (state, os.path.dirname(mirror)) if path != "/"]


def _read_all(reader: int) -> bytes:
    data = b""
    try:
        while block := os.read(reader, 65536):
            data += block
    except BlockingIOError:
        pass
    finally:
        os.close(reader)
    return data


__all__ = ["Execution", "Stopped"]
