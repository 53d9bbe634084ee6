"""Why a submission was refused, and why a job pends.

Covered: what sbatch printed -> Refused(reason, when), or None when nobody can know whether the job exists; pending
reasons -> will clear, may clear, never, with a sentence for people. Not covered: what to do about it (dispatch).

A new message from a site: add the captured text under tests/fixtures/slurm/ and a line to a table here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from outerloop.compute.protocol import Refused, When

__all__ = ["HELD_BY_USER", "NEVER", "Clears", "PendingReason", "classify_refusal", "pending_reason"]

# What a record of a job that sbatch refused for its resources carries: the shadow of the refusal.
SHADOW_REASON = "BadConstraints"

# ------------------------------------------------------------------------------------------------ refusals

# The request may have reached the controller: it may hold the job although its client failed. Measured: with
# slurmctld stopped, sbatch prints the first of these, exits 1, and the job runs when slurmctld goes on.
_NOBODY_KNOWS = (
    "socket timed out on send/recv operation",
    "zero bytes were transmitted or received",
    "unable to contact slurm controller (send failure)",
    "unable to contact slurm controller (receive failure)",
    "unable to contact slurm controller (shutdown failure)",
    "communication receive failure",
    "communication send failure",
    "communication shutdown failure",
    "message receive failure",
    "message send failure",
    "protocol authentication error",
    "insane message length",
    "incompatible versions of client and server code",
    "header lengths are longer than data received",
    "unexpected message received",
    "unspecified error",
    "connection reset by peer",
    "connection timed out",
    "broken pipe",
)

# Part of the message, lower case -> reason, when. The first hit wins, so the narrow come before the wide.
# Sources: slurm_errno.c for the closing sentences, sbatch's own checks for the rest.
_MESSAGES: tuple[tuple[str, str, When], ...] = (
    ("unable to contact slurm controller (connect failure)", "ControllerDown", When.LATER),
    ("communication connection failure", "ControllerDown", When.LATER),
    ("could not establish a configuration source", "NoConfiguration", When.LATER),
    ("munge encode failed", "AuthenticationDown", When.LATER),
    ("slurm backup controller in standby mode", "ControllerDown", When.LATER),
    ("resource temporarily unavailable", "ControllerBusy", When.LATER),
    ("temporarily unable to accept job", "ControllerBusy", When.LATER),
    ("too many requests", "ControllerBusy", When.LATER),
    ("slurmdbd connection is down", "AccountingDown", When.LATER),
    ("i/o error writing script/environment to file", "ControllerDisk", When.LATER),
    ("job dependency problem", "Dependency", When.LATER),
    ("invalid job id specified", "Dependency", When.LATER),
    ("pathname of a file, directory or other parameter too long", "SCRIPT_TOO_LARGE", When.NEVER),
    ("script exceeds maximum", "SCRIPT_TOO_LARGE", When.NEVER),
    ("mutually exclusive", "MEMORY_FORM", When.CONFIG),
    ("cpu job", "GPU_FLAG", When.CONFIG),
    ("invalid generic resource (gres) specification", "GPU_FLAG", When.CONFIG),
    ("invalid gres specification", "GPU_FLAG", When.CONFIG),
    ("invalid trackable resource (tres) specification", "GPU_FLAG", When.CONFIG),
    ("requested time limit is invalid", "TimeLimit", When.NEVER),
    ("time limit specification required", "TimeLimit", When.NEVER),
    ("account or account/partition combination", "InvalidAccount", When.NEVER),
    ("invalid account", "InvalidAccount", When.NEVER),
    ("user's group not permitted", "PartitionAccess", When.NEVER),
    ("not permitted to use this partition", "PartitionAccess", When.NEVER),
    ("invalid partition", "InvalidPartition", When.NEVER),
    ("no partition specified or system default partition", "InvalidPartition", When.NEVER),
    ("invalid qos", "InvalidQOS", When.NEVER),
    ("requested reservation not usable now", "ReservationNotYet", When.LATER),
    ("reservation", "InvalidReservation", When.NEVER),
    ("invalid feature specification", "BadConstraints", When.NEVER),
    ("invalid node name", "InvalidNode", When.NEVER),
    ("invalid wckey", "InvalidWCKey", When.NEVER),
    ("invalid license", "InvalidLicense", When.NEVER),
    ("memory required by task is not available", "BadConstraints", When.NEVER),
    ("memory specification can not be satisfied", "BadConstraints", When.NEVER),
    ("cpu count per node can not be satisfied", "BadConstraints", When.NEVER),
    ("node count specification invalid", "BadConstraints", When.NEVER),
    ("more processors requested than permitted", "BadConstraints", When.NEVER),
    ("requested node configuration is not available", "BadConstraints", When.NEVER),
    ("job size specification", "BadConstraints", When.NEVER),
    ("requested partition configuration not available now", "PartitionConfig", When.LATER),
    ("required partition not available", "PartitionDown", When.LATER),
    ("required node not available", "NodeDown", When.LATER),
    ("requested nodes are busy", "NodesBusy", When.LATER),
    ("job violates accounting/qos policy", "AccountingPolicy", When.LATER),
    ("invalid job array specification", "ArraySize", When.LATER),
    ("slurm job queue full", "QueueFull", When.LATER),
    ("unable to open file", "SCRIPT_MISSING", When.CONFIG),
    ("does not look like a batch script", "SCRIPT_SHEBANG", When.CONFIG),
    ("contains dos line breaks", "SCRIPT_TEXT", When.CONFIG),
    ("contain a null character", "SCRIPT_TEXT", When.CONFIG),
    ("contains only whitespace", "SCRIPT_TEXT", When.CONFIG),
    ("access/permission denied", "PermissionDenied", When.CONFIG),
    ("user id is invalid", "InvalidUser", When.CONFIG),
    ("invalid user id", "InvalidUser", When.CONFIG),
)

# Limits name themselves in one word on the first error line; their closing sentence is the same for all of them.
_LIMIT = re.compile(r"\b(?:assoc|qos|max|partition)[a-z]*(?:limit|notsatisfied|restriction)\b", re.IGNORECASE)
# Caps on what is queued or in use: they pass as jobs end.
_PER_JOB = re.compile(
    r"perjob|walldur|timelimit|minnodes|mincpu|mingres|minmemory|notsatisfied|restriction", re.IGNORECASE
)

_CONTROLLER_SAID_NO = "batch job submission failed"
_NOTE = re.compile(r"sleeping and retrying", re.IGNORECASE)
_OPTION_ERROR_RC = 255
_USAGE = re.compile(r"unrecognized option|invalid option|--help|requires an argument|is ambiguous|invalid --|fatal:")
_WHO = re.compile(r"^\S*(?:sbatch|slurm)\S*:\s*(?:(?:error|fatal):\s*)?")


def classify_refusal(rc: int, stderr: str) -> Refused | None:
    """What a non-zero `rc` of sbatch means; None when the job may exist all the same.

    The reason is Slurm's own token where it prints one (AssocMaxSubmitJobLimit), one of ours otherwise
    (SCRIPT_TOO_LARGE, GPU_FLAG, MEMORY_FORM, Dependency, ControllerDown, ...). A refusal with an unknown text is
    Refused("Unrecognised", config): the controller said no, and a person should see why.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    detail = "\n".join(lines)
    whole = detail.lower()
    if any(part in whole for part in _NOBODY_KNOWS):
        return None
    first = next((line for line in lines if not _NOTE.search(line)), "")
    limit = _LIMIT.search(_WHO.sub("", first))
    if limit:
        token = limit.group(0)
        return Refused(token, When.NEVER if _PER_JOB.search(token) else When.LATER, detail)
    for line in lines:
        lowered = line.lower()
        for part, reason, when in _MESSAGES:
            if part in lowered:
                return Refused(reason, when, detail)
    if rc == _OPTION_ERROR_RC or _USAGE.search(whole):
        return Refused("OptionError", When.CONFIG, detail)
    if _CONTROLLER_SAID_NO in whole:
        return Refused("Unrecognised", When.CONFIG, detail)
    return None


# ------------------------------------------------------------------------------------------- pending reasons


class Clears(StrEnum):
    """Whether a pending reason goes away without anybody doing anything."""

    WILL = "will clear"
    MAY = "may clear"
    NEVER = "never"


@dataclass(frozen=True)
class PendingReason:
    """What a pending reason means. `held`: Slurm will not even try; not the same as waiting."""

    reason: str
    clears: Clears
    sentence: str
    held: bool = False


# How a reason of the local backend begins that is a sentence of its own (local_admission.py).
LOCAL_WAIT = "waits: "

_WILL = {
    "None": "Slurm has not looked at it yet.",
    "Priority": "Other jobs go first.",
    "Resources": "It is next, when enough nodes are free.",
    "Dependency": "It waits for other jobs to end.",
    "BeginTime": "Its start time has not come, or it was requeued a moment ago.",
    "JobArrayTaskLimit": "Its array runs as many tasks at once as it may.",
    "Prolog": "The node is being prepared.",
    "Cleaning": "It is being cleaned up after a requeue.",
    "NodeDown": "A node that it needs is down.",
    "SchedDefer": "The scheduler puts it off for a moment.",
}
_NEVER = {
    "PartitionTimeLimit": "It asks for more time than its partition ever grants.",
    "AssocMaxWallDurationPerJobLimit": "It asks for more time than the account ever grants one job.",
    "QOSMaxWallDurationPerJobLimit": "It asks for more time than the QOS ever grants one job.",
    "BadConstraints": "No node can ever satisfy what it asks for.",
    "AccountNotAllowed": "The account may not use this partition.",
    "QOSNotAllowed": "The QOS may not be used with this account or partition.",
    "InvalidAccount": "The account does not exist or is not the user's.",
    "InvalidQOS": "The QOS does not exist or is not the user's.",
    "ReservationDeleted": "Its reservation was deleted.",
    "DependencyNeverSatisfied": "A job that it waits for ended in a way that it does not accept.",
    "DeadLine": "It cannot end before its deadline.",
    "InactiveLimit": "It was inactive for too long.",
    "AssocMaxCpuPerJobLimit": "It asks for more CPUs than the account ever grants one job.",
    "AssocMaxMemPerJob": "It asks for more memory than the account ever grants one job.",
    "AssocMaxNodePerJobLimit": "It asks for more nodes than the account ever grants one job.",
    "QOSMaxCpuPerJobLimit": "It asks for more CPUs than the QOS ever grants one job.",
    "QOSMaxMemoryPerJob": "It asks for more memory than the QOS ever grants one job.",
    "QOSMaxNodePerJobLimit": "It asks for more nodes than the QOS ever grants one job.",
}
NEVER = frozenset(_NEVER)
"""Reasons by name that never clear; `pending_reason` knows the many others that name themselves limits of one job."""
# A limit on one job, however it ends; any QOSMin... asks for more than the job does. All others (...Grp..., ...PerUser,
# ...PerAccount) are on what is queued or in use.
_OF_ONE_JOB = re.compile(r"perjob|pernode$|walldur|^qosmin|notsatisfied", re.IGNORECASE)
_MAY = {
    "ReqNodeNotAvail": "A node that it needs is down, drained or reserved.",
    "PartitionDown": "The partition does not start jobs at the moment.",
    "PartitionInactive": "The partition does not take jobs at the moment.",
    "PartitionConfig": "It asks for more than the partition offers at the moment.",
    "PartitionNodeLimit": "Its partition has too few nodes that are up, or never so many.",
    "Licenses": "It waits for a license.",
    "Reservation": "It waits for its reservation.",
    "BurstBufferResources": "It waits for burst buffer space.",
    "MaxMemPerLimit": "It asks for more memory than the limit of its partition.",
    "NodeNotAvail": "A node that it needs is not available.",
}
HELD_BY_USER = "JobHeldUser"
"""Somebody's own decision, who can release the job again."""
_HELD = {
    HELD_BY_USER: "A user holds it; scontrol release lets it go.",
    "JobHeldAdmin": "An administrator holds it.",
    "launch failed requeued held": "A node could not start it, and Slurm holds it since.",
    "job requeued in held state": "It was requeued and is held since.",
    "ReservationDeletedHold": "Its reservation was deleted, and Slurm holds it since.",
    "JobHoldMaxRequeue": "It was requeued too often and Slurm holds it.",
}


@lru_cache(maxsize=1024)
def pending_reason(text: str) -> PendingReason:
    """What squeue's reason means. A reason that nobody knows may clear.

    Limits that name themselves per job or per node (QOSMaxCpuPerJobLimit) never clear; other caps may.
    """
    reason = text.strip().strip("()").strip()
    word = reason.split(",")[0].strip()
    if word.startswith(LOCAL_WAIT):
        return PendingReason(reason, Clears.MAY, "This machine has no room for it now.")
    words = word.lower().replace("_", " ")
    for known, sentence in _HELD.items():
        if words == known.lower():
            return PendingReason(reason, Clears.MAY, sentence, held=True)
    if "held" in words.split():
        return PendingReason(reason, Clears.MAY, "Slurm holds it.", held=True)
    for table, clears in ((_WILL, Clears.WILL), (_NEVER, Clears.NEVER), (_MAY, Clears.MAY)):
        for known, sentence in table.items():
            if word.lower() == known.lower():
                return PendingReason(reason, clears, sentence)
    if re.match(r"nodes required for job are ", word, re.IGNORECASE):
        return PendingReason(reason, Clears.MAY, _MAY["ReqNodeNotAvail"])
    if re.match(r"assoc|qos|max", word, re.IGNORECASE):
        if _OF_ONE_JOB.search(word):
            return PendingReason(reason, Clears.NEVER, "It asks for what no single job of its account or QOS gets.")
        return PendingReason(reason, Clears.MAY, "A limit of the account or QOS is used up by other jobs.")
    return PendingReason(reason, Clears.MAY, "Slurm gives a reason that we do not know.")
