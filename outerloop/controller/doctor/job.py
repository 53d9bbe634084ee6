"""What the test job on a node says. Not covered: running it (probe.py)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from outerloop.compute.reasons import pending_reason
from outerloop.controller.doctor.database import SKEW_SECONDS
from outerloop.controller.doctor.finding import FAIL, OK, WARN, Finding, Site
from outerloop.controller.doctor.probe import ProbeAnswer, run_probe

__all__ = ["node_job"]


def node_job(site: Site) -> Iterator[Finding]:
    if site.compute is None or (site.backend == "slurm" and site.limits is None):
        yield Finding("job", WARN, "no test job: the cluster gave no answer")
        return
    if site.backend == "slurm" and "default" not in site.settings.lanes:
        yield Finding("job", WARN, "no test job: there is no default lane")
        return
    if not site.root.path.is_dir():
        yield Finding("job", WARN, "no test job: the state folder does not exist yet", "run `outerloop init`")
        return
    lane = site.settings.lanes.get("default")
    slurm_bin = site.settings.slurm.bin_dir
    answer = run_probe(
        site.compute,
        site.root,
        site.settings.lane("default"),
        deployment=site.settings.deployment,
        python=site.settings.python,
        prologue=lane.prologue if lane is not None else "",
        sandbox=(lane.isolation if lane is not None and lane.isolation else site.settings.isolation) == "bwrap",
        sbatch="" if site.backend == "local" else str(slurm_bin / "sbatch") if slurm_bin else "sbatch",
        seconds=site.probe_seconds,
    )
    yield from _read_probe(site, answer)


def _read_probe(site: Site, answer: ProbeAnswer) -> Iterator[Finding]:
    from outerloop import __version__

    facts = answer.facts
    if facts is None:
        log = f" It printed: {' / '.join(answer.log.splitlines()[-3:])}" if answer.log else ""
        if answer.refused is not None:
            yield Finding(
                "job",
                FAIL,
                f"a test job was refused ({answer.refused.reason}): {answer.trouble}",
                "change the lane as the message says",
                cluster=answer.refused.when.value == "later",
            )
        elif answer.pending:
            yield Finding(
                "job",
                WARN,
                f"{answer.trouble} ({answer.pending}: {pending_reason(answer.pending).sentence})",
                "try again with a longer --job-seconds",
            )
        else:
            yield Finding(
                "job",
                FAIL,
                f"{answer.trouble}.{log}",
                f"a node must see {site.root.path} and run {site.settings.python}",
                cluster=not answer.job_id,
            )
        return
    told = f"job {answer.job_id} on {facts.get('host')} read and wrote the state folder in {answer.seconds:.1f} s"
    if facts.get("outerloop") != __version__:
        why = facts.get("why_not") or f"it has outerloop {facts.get('outerloop')}, not {__version__}"
        yield Finding(
            "job",
            FAIL,
            f"{told}, but can't import outerloop: {why}",
            "install outerloop where nodes see it, and set `python` to that interpreter",
        )
        return
    if facts.get("link") is not True:
        yield Finding(
            "job",
            FAIL,
            f"{told}, but can't make a hard link there: {facts.get('link')}",
            "set `state` to a file system with hard links",
        )
        return
    yield Finding("job", OK, f"{told} (python {facts.get('python')})")
    if facts.get("sandbox"):
        yield Finding(
            "sandbox",
            FAIL,
            f"bwrap fails on {facts.get('host')}: {facts.get('sandbox')}",
            "install bubblewrap there and allow unprivileged user namespaces",
        )
    if facts.get("sbatch") is False:
        yield Finding(
            "wake",
            WARN,
            f"{facts.get('host')} has no sbatch, so a wake job can't submit further jobs there",
            'the tick does it; set wake.lane to nodes with Slurm\'s tools, or wake.mode = "never"',
        )
    elsewhere = facts.get("host") != socket.gethostname()
    if elsewhere and site.backend == "slurm" and not site.settings.database_url.get_secret_value():
        yield Finding(
            "wake",
            WARN,
            f"the embedded record serves this host alone: a wake job on {facts.get('host')} leaves a mark for the tick",
            'set database_url to a Postgres that nodes reach, or wake.mode = "never"',
        )
    lag = abs(float(facts.get("time") or time.time()) - time.time())
    if lag > SKEW_SECONDS + answer.seconds:
        yield Finding(
            "clock",
            WARN,
            f"the clock of {facts.get('host')} differs from this host's by about {lag:.0f} s",
            "let both follow NTP",
        )
