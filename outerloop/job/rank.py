"""What srun starts on every node of a launch over several nodes: this node's part of the work.

Covered: the node's own scratch, variables without any of Slurm's, the sandbox, signals, cleaning up.
Not covered: the attempt's claim, limit, logs and result, which are the wrapper's on the first node.

`python -I -m outerloop.job.rank <slot> <attempt> <endpoint>`. Exits as the command did.
"""

from __future__ import annotations

import os
import sys

from outerloop.job import claim, files, layout, process, scratch
from outerloop.job.execution import Execution
from outerloop.job.launch import FIRST_FAILURE, RANK_COMPLAINT
from outerloop.job.report import Report, Stopped, read_work
from outerloop.job.sandbox import SandboxError
from outerloop.job.streams import PassedOn


def main(argv: list[str]) -> int:
    """Run this node's part; returns the exit code."""
    slot, attempt, endpoint = argv[0], int(argv[1]), argv[2]
    env = dict(os.environ)
    signals = process.Signals()
    signals.install()
    process.keep_descriptors_private()
    process.become_subreaper()
    os.chdir("/")
    report = Report(slot, os.path.basename(slot), attempt, claim.identity(env), env)
    scratch.sweep(env)
    try:
        place = scratch.make(env, report.me.job_id)
    except OSError as error:
        print(f"{RANK_COMPLAINT}{report.me.node}: no scratch folder: {error}", file=sys.stderr, flush=True)
        return 1
    try:
        execution = Execution(read_work(report), report, place, signals)
        execution.limit_seconds = None
        execution.environment_slot()
        execution.fresh_caches("run")
        view = execution.view("run", execution.tree, inside_output=True)
        line, variables = execution.launch_line(view, endpoint)
        out, err = PassedOn(1), PassedOn(2)
        ended = execution.run_command(line, view, variables, "run", execution.tree, out, err, None)
    except (Stopped, SandboxError, OSError) as error:
        print(f"{RANK_COMPLAINT}{report.me.node}: {error}", file=sys.stderr, flush=True)
        return layout.EXIT_SANDBOX if isinstance(error, SandboxError) else 1
    finally:
        place.remove()
    if ended.exit_code != 0 and ended.stopped_by is None:
        # srun reports the highest code of all ranks, and those that it kills because of this one have a higher one.
        first = {"exit_code": ended.exit_code, "signal": ended.signal, "node": report.me.node}
        files.publish(os.path.join(execution.own, FIRST_FAILURE), files.encode(first))
    return ended.exit_code if ended.exit_code is not None else 128 + (ended.signal or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
