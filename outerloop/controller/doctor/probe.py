"""A tiny real job that reads a token from the state folder and answers there: does a node see what we see?

Covered: writing the probe, submitting it through the configured backend, waiting, reading the answer, tidying up. Not
covered: what an answer means (doctor.py). Nothing of the record is touched.
"""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outerloop.compute.argv import sbatch_argv
from outerloop.compute.names import NAME, job_name
from outerloop.compute.protocol import Accepted, Compute, JobRow, JobSpec, JobState, Lane, LooksUp, NoAnswer, Refused
from outerloop.effects import effect
from outerloop.slots import StateRoot
from outerloop.slots.files import make_folder, read_json, replace

__all__ = ["BWRAP_PROBE", "ProbeAnswer", "run_probe"]

PROBE_MINUTES = 2.0
POLL_SECONDS = 0.3
ABSENT_LISTINGS = 3
"""A job that so many complete listings in a row lack is over; its answer may still be on its way."""
LAG_SECONDS = 15.0
"""How long an answer may lag behind the end of its job: NFS clients cache attributes for up to 60 s by default, but a
listed folder is asked for anew."""
LOG_TAIL = 600

BWRAP_PROBE = (
    *("bwrap", "--die-with-parent", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--cap-drop", "ALL", "--unshare-net"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"),
)
"""The same namespaces as a measured command gets (job.sandbox; a test compares them), around nothing."""

# Standard library only until the facts are written: the node may lack everything else.
_PROGRAM = """\
import json, os, shutil, socket, subprocess, sys, time
folder = sys.argv[1]
with open(os.path.join(folder, "ask.json")) as file:
    ask = json.load(file)
facts = {"host": socket.gethostname(), "python": sys.version.split()[0], "time": time.time(), "outerloop": "",
         "why_not": "", "link": False, "exclusive": False, "sandbox": "", "submit": "",
         "tools": {name: bool(shutil.which(path)) for name, path in ask["tools"].items()},
         "cpus": len(os.sched_getaffinity(0)), "scratch": os.environ.get("SLURM_TMPDIR") or
         os.environ.get("TMPDIR") or "/tmp"}
with open(os.path.join(folder, "token")) as file:
    facts["token"] = file.read().strip()
def complaint(argv, environment):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                              env=environment)
        return "" if done.returncode == 0 else done.stderr.strip()[-300:] or "exit code %d" % done.returncode
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
try:
    import outerloop
    facts["outerloop"] = outerloop.__version__
except BaseException as error:
    facts["why_not"] = "%s: %s" % (type(error).__name__, error)
if ask["sandbox"]:
    facts["sandbox"] = complaint(ask["sandbox"], None)
if ask["submit"]:
    # As outerloop calls it: none of this job's own SLURM_* may act as an option.
    clean = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "PATH") if name in os.environ}
    facts["submit"] = complaint(ask["submit"], dict(clean, **ask["environment"]))
target, trial = os.path.join(folder, "token"), os.path.join(folder, "of-the-node")
try:
    os.link(target, trial)
    facts["link"] = os.path.samefile(target, trial)
except OSError as error:
    facts["link"] = str(error)
try:
    os.link(target, os.path.join(folder, "of-the-submitter"))
    facts["exclusive"] = "a name that was taken could be taken again"
except FileExistsError:
    facts["exclusive"] = True
except OSError as error:
    facts["exclusive"] = str(error)
temporary = os.path.join(folder, ".answer")
with open(temporary, "w") as file:
    json.dump(facts, file)
    file.flush()
    os.fsync(file.fileno())
os.rename(temporary, os.path.join(folder, "answer.json"))
"""


@dataclass(frozen=True)
class ProbeAnswer:
    """What became of the probe. `facts` is None unless the job answered with our token."""

    job_id: str = ""
    facts: dict[str, Any] | None = None
    seconds: float = 0.0
    refused: Refused | None = None
    trouble: str = ""
    """Why there is no answer, as a sentence."""
    pending: str = ""
    """Slurm's reason when the job was still pending at the deadline."""
    log: str = ""
    notes: list[str] = field(default_factory=list)


def run_probe(
    compute: Compute,
    root: StateRoot,
    lane: Lane,
    *,
    deployment: str,
    python: str,
    prologue: str = "",
    sandbox: bool = False,
    tools: Mapping[str, Path] | None = None,
    slurm_conf: Path | None = None,
    template: str = NAME,
    seconds: float = 120.0,
) -> ProbeAnswer:
    """Submit the probe and wait for its answer, at most `seconds`; a job that is late is cancelled.

    `tools` are Slurm's, as they are found here: the job says which of them it finds, and whether sbatch would take a
    job from inside a job (--test-only).

    Makes a folder in the state folder and removes it again. Raises OSError when that cannot be written.
    """
    token = secrets.token_hex(8)
    folder = root.path / "doctor" / token
    make_folder(folder)
    try:
        replace(folder / "token", token + "\n", name="attempt.prepare")
        program, script = folder / "probe.py", folder / "probe.sh"
        replace(program, _PROGRAM, name="attempt.prepare")
        words = [python, "-I", str(program), str(folder)]
        lines = ["#!/bin/bash", *([prologue.rstrip("\n")] if prologue.strip() else []), f"exec {shlex.join(words)}"]
        replace(script, "\n".join(lines) + "\n", name="attempt.prepare", mode=0o755)
        job = JobSpec(
            name=job_name(deployment, "doctor", token, 1, template=template),
            script=script,
            log=folder / "probe.log",
            workdir=folder,
            lane=lane,
            minutes=PROBE_MINUTES if lane.max_minutes is None else min(PROBE_MINUTES, lane.max_minutes),
        )
        sbatch = (tools or {}).get("sbatch")
        ask = {
            "sandbox": BWRAP_PROBE if sandbox else [],
            "tools": {name: str(path) for name, path in (tools or {}).items()},
            "submit": [*sbatch_argv(sbatch, job)[:1], "--test-only", *sbatch_argv(sbatch, job)[1:]] if sbatch else [],
            "environment": {"SLURM_CONF": str(slurm_conf)} if slurm_conf else {},
        }
        replace(folder / "ask.json", json.dumps(ask), name="attempt.prepare")
        with effect("attempt.prepare"):
            (folder / "of-the-submitter").hardlink_to(folder / "token")
        return _carry_out(compute, job, folder, token, seconds)
    finally:
        with effect("gc.delete"):
            shutil.rmtree(folder, ignore_errors=True)


def _carry_out(compute: Compute, job: JobSpec, folder: Path, token: str, seconds: float) -> ProbeAnswer:
    began = time.monotonic()
    with effect("compute.submit"):
        outcome = compute.submit(job)
    if isinstance(outcome, Refused):
        return ProbeAnswer(refused=outcome, trouble=outcome.detail or outcome.reason)
    if not isinstance(outcome, Accepted):
        return ProbeAnswer(trouble=outcome.why)
    row: JobRow | None = None
    absent, ended_at = 0, 0.0
    while time.monotonic() - began < seconds:
        facts = read_json(folder / "answer.json")
        if facts is not None:
            took = time.monotonic() - began
            if facts.get("token") != token:
                return ProbeAnswer(outcome.job_id, trouble="the job read another token than ours", seconds=took)
            facts["exclusive_here"] = _taken(folder)
            return ProbeAnswer(outcome.job_id, facts=facts, seconds=took)
        seen = _look(compute, outcome.job_id)
        if not isinstance(seen, NoAnswer):
            row = seen or (row if absent < ABSENT_LISTINGS else None)
            absent = 0 if seen is not None else absent + 1
            over = absent >= ABSENT_LISTINGS or (row is not None and row.state.final)
            ended_at = (ended_at or time.monotonic()) if over else 0.0
            if ended_at and time.monotonic() - ended_at > LAG_SECONDS:
                break
        time.sleep(POLL_SECONDS)
    took = time.monotonic() - began
    log = _log(folder / "probe.log")
    if ended_at:
        how = row.state.value if row is not None else "gone from the queue"
        told = f"job {outcome.job_id} ended ({how}) without an answer in the state folder"
        return ProbeAnswer(outcome.job_id, seconds=took, trouble=told, log=log)
    with effect("compute.cancel"):
        compute.cancel([outcome.job_id])
    state = row.state if row is not None else JobState.UNKNOWN
    told = f"job {outcome.job_id} was still {state.value} after {took:.0f} s and was cancelled"
    return ProbeAnswer(
        outcome.job_id,
        seconds=took,
        trouble=told,
        pending=(row.reason or "None") if row is not None and state is JobState.PENDING else "",
        log=log,
    )


def _look(compute: Compute, job_id: str) -> JobRow | NoAnswer | None:
    if isinstance(compute, LooksUp):
        seen = compute.look_up(job_id)
        if not isinstance(seen, NoAnswer):
            return seen
    listing = compute.listing()
    if isinstance(listing, NoAnswer) or listing.bad_rows:
        return NoAnswer("no complete listing")
    return listing.by_id().get(job_id)


def _taken(folder: Path) -> bool | str:
    """Whether this host, too, finds the name taken that the node took."""
    try:
        (folder / "of-the-node").hardlink_to(folder / "token")
    except FileExistsError:
        return True
    except OSError as error:
        return str(error)
    return "a name that the node had taken could be taken again here"


def _log(path: Path) -> str:
    try:
        return path.read_bytes()[-LOG_TAIL:].decode("utf-8", "replace").strip()
    except OSError:
        return ""
