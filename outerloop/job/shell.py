"""`python -I -m outerloop.job.shell SLOT ATTEMPT`: a shell where the command would run.

Covered: the same set-up as an attempt's (checkout, inputs, environment, sandbox), then an interactive shell in place of
the command; OUTERLOOP_COMMAND holds the command. Not covered: results: nothing is claimed, judged or kept. For people;
`outerloop reproduce --shell` starts it on a copy of the slot.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

from outerloop.job import claim, files, layout, process, sandbox, scratch
from outerloop.job.execution import Execution, Stopped
from outerloop.job.report import Report, read_work

SHELL = ("/bin/bash", "--noprofile", "--norc", "-i")
LAUNCH_PREFIX = 4
"""Words of a launch line before the launch's own: sh -c 'exec "$@"' sh."""
PROMPT = r"outerloop:\w\$ "


def main(argv: list[str]) -> int:
    """Set up attempt `argv[1]` of the slot folder `argv[0]` and start a shell; returns the shell's exit code."""
    slot, attempt = argv[0], int(argv[1])
    env = dict(os.environ)
    me = claim.identity(env)
    report = Report(slot, os.path.basename(slot), attempt, me, env)
    place = scratch.make(env, me.job_id)
    try:
        return _shell(report, place)
    except Stopped as stopped:
        print(f"outerloop: {stopped.phase} failed: {stopped.reason}: {stopped.detail}", file=sys.stderr, flush=True)
        return stopped.code
    except sandbox.SandboxError as error:
        print(f"outerloop: {error}", file=sys.stderr, flush=True)
        return layout.EXIT_SANDBOX
    finally:
        place.remove()


def _shell(report: Report, place: scratch.Scratch) -> int:
    work = read_work(report)
    signals = process.Signals()
    signals.install()  # the set-up can be interrupted
    execution = Execution(work, report, place, signals)
    keep: list[int] = []
    try:
        execution._guard("setup", execution._set_up)
        view = execution.view("run", execution.tree, inside_output=True)
        if work.launch is None:
            command, env = work.command, execution._variables(view, work.env)
        else:
            line, env = execution.launch_line(view, "")
            command = shlex.join(line[LAUNCH_PREFIX:])
        env |= {"OUTERLOOP_COMMAND": command, "PS1": PROMPT, "TERM": report.env.get("TERM", "dumb")}
        argv = list(SHELL)
        if work.isolation == "bwrap":
            status = os.open(os.devnull, os.O_WRONLY)
            keep.append(status)
            room = execution._room("run", execution.tree, view, env)
            argv = sandbox.bwrap_argv(execution._program("bwrap"), room, argv, status)
        elif work.isolation == "apptainer":
            room = execution._room("run", execution.tree, view, env)
            mark = place.folder("run/mark")
            argv = sandbox.apptainer_argv(execution._program("apptainer"), room, work.image_path, argv, mark)
            env = sandbox.apptainer_environment(env, report.env)
        print(f"The command is in $OUTERLOOP_COMMAND: {command}", file=sys.stderr)
        print(
            '`eval "$OUTERLOOP_COMMAND"` runs it, `exit` leaves; nothing here is recorded.', file=sys.stderr, flush=True
        )
        # From here on the shell answers to the terminal, and whoever ends this program ends it.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        # A handler rather than "ignore", which the commands typed there would inherit.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        cwd = execution.tree if work.isolation == "none" else "/"
        return subprocess.run(argv, env=env, cwd=cwd, pass_fds=keep, check=False).returncode
    finally:
        for handle in keep:
            os.close(handle)
        for folder in execution.shared:
            files.remove_tree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
