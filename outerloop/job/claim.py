"""The claim: which job executes an attempt. First wins, by link(2).

Covered: who this job is, what hardware it sees, claiming, taking over after a restart, checking the claim again
before the result is written. Not covered: what happens after the claim.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outerloop.job import files, layout

GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""What Slurm's gres plugin sets for NVIDIA, AMD and Intel devices (gres.conf manual page, AutoDetect)."""

_NO_DEVICES = frozenset({"", "nodevfiles", "none", "-1"})


class Refusal(Exception):
    """This job may not execute the attempt. Carries the exit code that says why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class Identity:
    """The job as the cluster names it. `restart` is 0 for a first start."""

    job_id: str
    restart: int
    host: str
    node: str


def identity(env: Mapping[str, str]) -> Identity:
    """Who this job is. Raises ValueError when neither Slurm nor the local backend says so.

    The local backend's id comes first: it is only set on purpose, while SLURM_JOB_ID may be left over from an
    allocation in which a local run was started.
    """
    local = env.get("OUTERLOOP_LOCAL_JOB_ID", "")
    array, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
    plain = env.get("SLURM_JOB_ID", "")
    job_id = local or (f"{array}_{task}" if array and task else plain)
    if not job_id:
        raise ValueError("no job id: neither SLURM_JOB_ID nor OUTERLOOP_LOCAL_JOB_ID is set")
    restart = env.get("SLURM_RESTART_COUNT", "") if not local else ""
    host = socket.gethostname()
    return Identity(job_id, int(restart) if restart.isdecimal() else 0, host, env.get("SLURMD_NODENAME") or host)


def cpus_seen() -> int:
    """CPUs that this process may use (its affinity, not the machine's count)."""
    return len(os.sched_getaffinity(0))


def gpus_seen(env: Mapping[str, str]) -> list[str]:
    """The GPUs that Slurm or the local backend gave to this job, as they were named."""
    for name in (*GPU_VARIABLES, "SLURM_JOB_GPUS"):
        if name in env:
            text = env[name].strip()
            return [] if text.lower() in _NO_DEVICES else [part.strip() for part in text.split(",") if part.strip()]
    return []


def process_start(pid: int) -> int:
    """Start time of a process in clock ticks since boot: field 22 of /proc/<pid>/stat. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read()
    # The command name may hold blanks and brackets: fields are counted after the last one.
    return int(text[text.rindex(b")") + 2 :].split()[19])


def _body(digest: str, attempt: int, me: Identity, env: Mapping[str, str]) -> dict[str, Any]:
    return {
        "schema": layout.SCHEMA,
        "digest": digest,
        "attempt": attempt,
        "job_id": me.job_id,
        "restart": me.restart,
        "host": me.host,
        "node": me.node,
        "pid": os.getpid(),
        "pid_start": process_start(os.getpid()),
        "started": files.utc_now(),
        "cpus_seen": cpus_seen(),
        "gpus_seen": gpus_seen(env),
    }


def claim(folder: str, digest: str, attempt: int, me: Identity, env: Mapping[str, str], resumable: bool) -> None:
    """Claim the attempt in `folder`. Raises Refusal (95 or 99), after which nothing was touched, or OSError.

    An attempt that is settled is not begun any more, nor gone on with: its job was believed gone, another attempt has
    its place, and two of them would work in one `state/` and on twice the hardware.
    """
    path = os.path.join(folder, layout.CLAIM)
    body = _body(digest, attempt, me, env)
    if not files.listed(path):
        _refuse_settled(folder, attempt, me)
        if files.publish(path, files.encode(body)):
            return
    try:
        holder = files.read_object(path)
    except (OSError, ValueError) as error:
        raise Refusal(layout.EXIT_NOT_CLAIMANT, f"claimed by somebody whose claim cannot be read: {error}") from error
    earlier = holder.get("restart")
    if holder.get("job_id") != me.job_id or not isinstance(earlier, int) or earlier >= me.restart:
        who = f"job {holder.get('job_id')} (restart {earlier})"
        raise Refusal(layout.EXIT_NOT_CLAIMANT, f"attempt {attempt} is claimed by {who}, this is {me.job_id}")
    if not resumable:
        raise Refusal(layout.EXIT_RESTARTED, f"job {me.job_id} was restarted, but this work cannot resume")
    _refuse_settled(folder, attempt, me)
    own = os.path.join(folder, layout.restart_folder(me.restart))
    os.makedirs(own, exist_ok=True)
    # One process per restart may take over, however many there are.
    if not files.publish(os.path.join(own, layout.CLAIM), files.encode(body)):
        raise Refusal(layout.EXIT_NOT_CLAIMANT, f"restart {me.restart} of job {me.job_id} is claimed already")
    files.replace(path, files.encode(body))


def _refuse_settled(folder: str, attempt: int, me: Identity) -> None:
    if files.listed(os.path.join(folder, layout.SETTLED)):
        why = f"attempt {attempt} was settled before job {me.job_id} (restart {me.restart}) began"
        raise Refusal(layout.EXIT_NOT_CLAIMANT, why)


def confirm(folder: str, digest: str, attempt: int, me: Identity, env: Mapping[str, str]) -> None:
    """Make sure that the claim is still this job's before it writes a result.

    A process of an earlier restart that was frozen while it took over may put its claim over a later one: the later
    one puts it right here, and the earlier one is refused. Raises Refusal (95 or 99) or OSError.
    """
    path = os.path.join(folder, layout.CLAIM)
    try:
        holder = files.read_object(path)
    except ValueError as error:
        raise Refusal(layout.EXIT_NOT_CLAIMANT, str(error)) from error
    earlier = holder.get("restart")
    if holder.get("job_id") != me.job_id or not isinstance(earlier, int):
        raise Refusal(layout.EXIT_NOT_CLAIMANT, f"the claim went to job {holder.get('job_id')}")
    if earlier > me.restart:
        raise Refusal(layout.EXIT_NOT_CLAIMANT, f"restart {earlier} of this job holds the claim")
    if earlier < me.restart:
        files.replace(path, files.encode(_body(digest, attempt, me, env)))
