"""What the program costs around a command that does nothing."""

from __future__ import annotations

import resource
import subprocess
import sys

from outerloop.job import layout
from outerloop.job.script import job_script
from tests.unit.job.rig import Rig

CPU_SECONDS = 0.25
"""Promised overhead of a job, checkout and fsyncs included, against a bare `true`."""


def test_the_wrapper_around_true_costs_little(rig: Rig) -> None:
    """The best of five, because the promise is for a machine that is not busy with something else."""

    def cpu(argv: list[str], env: dict[str, str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, env=env, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    costs = []
    for _ in range(5):
        slot = rig.slot("true", determinants={"metric": ""})
        script = slot.attempt() / layout.SCRIPT
        script.write_text(job_script(sys.executable, slot.path, 1, "", ""))
        costs.append(cpu(["bash", str(script)], slot.environment()) - cpu(["bash", "-c", "true"], {"PATH": "/usr/bin"}))
    assert min(costs) < CPU_SECONDS, costs
