"""What the test job on a node says. Not covered: running it (probe.py)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from outerloop.compute.reasons import pending_reason
from outerloop.controller.doctor.database import SKEW_SECONDS
from outerloop.controller.doctor.finding import FAIL, OK, WARN, Finding, Site
from outerloop.controller.doctor.probe import ProbeAnswer, run_probe
from outerloop.controller.doctor.spelling import command_line

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
    cli = command_line(site)
    answer = run_probe(
        site.compute,
        site.root,
        site.settings.lane("default"),
        deployment=site.settings.deployment,
        python=site.settings.python,
        prologue=lane.prologue if lane is not None else "",
        sandbox=(lane.isolation if lane is not None and lane.isolation else site.settings.isolation) == "bwrap",
        tools=cli.tools if cli is not None else None,
        slurm_conf=cli.slurm_conf if cli is not None else None,
        template=site.settings.slurm.job_name,
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
    for where in ("exclusive", "exclusive_here"):
        if facts.get(where) is not True:
            yield Finding(
                "job",
                FAIL,
                f"{told}, but node and host do not exclude each other there: {facts.get(where)}",
                "set `state` to a file system whose link(2) is atomic between nodes; claims rest on it",
            )
            return
    yield Finding("job", OK, f"{told} (python {facts.get('python')}); each found the other's hard link taken")
    if facts.get("sandbox"):
        yield Finding(
            "sandbox",
            FAIL,
            f"bwrap fails on {facts.get('host')}: {facts.get('sandbox')}",
            "install bubblewrap there and allow unprivileged user namespaces",
        )
    yield from _submits(site, facts)
    elsewhere = facts.get("host") != socket.gethostname()
    if elsewhere and site.backend == "slurm" and not site.settings.database_url.get_secret_value():
        yield Finding(
            "wake",
            WARN,
            f"the embedded record serves this host alone: a wake job on {facts.get('host')} leaves a mark for the tick",
            'set database_url to a Postgres that nodes reach, or wake.mode = "never"',
        )
    site.propose(
        ("site", "clock_difference_seconds"),
        round(float(facts.get("time") or time.time()) - time.time() + answer.seconds / 2, 1),
        f"job {answer.job_id} on {facts.get('host')}, uncertain by {answer.seconds:.1f} s",
    )
    lag = abs(float(facts.get("time") or time.time()) - time.time())
    if lag > SKEW_SECONDS + answer.seconds:
        yield Finding(
            "clock",
            WARN,
            f"the clock of {facts.get('host')} differs from this host's by about {lag:.0f} s",
            "let both follow NTP",
        )


def _submits(site: Site, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """What a wake job can do on this node."""
    cli = command_line(site)
    if cli is None:
        return
    host = facts.get("host")
    tools = {name for name, there in (facts.get("tools") or {}).items() if there}
    missing = sorted(set(cli.tools) - tools)
    tried = f"looked for on {host}"
    site.propose(("site", "tools_on_nodes"), tuple(sorted(tools)), tried)
    refused = str(facts.get("submit") or "")
    able = "sbatch" in tools and not refused
    told = f"sbatch --test-only in a job on {host}: {refused.splitlines()[-1] if refused else 'taken'}"
    site.propose(("slurm", "submit_from_jobs"), "yes" if able else "no", told if "sbatch" in tools else tried)
    if able and not missing:
        yield Finding("wake", OK, f"{host} has Slurm's tools and may submit from inside a job")
    elif able:
        yield Finding(
            "wake",
            WARN,
            f"{host} lacks {', '.join(missing)}: a wake job there knows less, and leaves the rest to the tick",
            "set wake.lane to nodes with all of Slurm's tools",
        )
    else:
        why = f"has no sbatch (nor {', '.join(missing)})" if "sbatch" in missing else f"may not submit: {refused}"
        yield Finding(
            "wake",
            WARN if site.settings.slurm.submit_from_jobs != "yes" else FAIL,
            f"{host} {why}; a wake job there leaves a mark, and the tick does the work",
            'set slurm.submit_from_jobs = "no", or wake.mode = "never"',
        )
