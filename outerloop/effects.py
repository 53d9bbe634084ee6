"""Every effect on the outside world has a name, and a process can be killed or paused just before or after it.

Covered: the registry of effect names, the `effect` context manager, and the fault that `OUTERLOOP_FAULT` arms.
Not covered: what an effect does. Standard library only, because jobs and controllers both import it.

A fault is written `before:NAME:kill`, `after:NAME:kill`, or with `stop` for SIGSTOP; a trailing `:N` means the
N-th time that the point is reached (default 1). Several stand with commas between them; the first that is reached
strikes. A test enumerates `EFFECTS`, and another one walks the syntax trees of the effectful rooms and fails when an
effect is not inside `with effect(...)`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["EFFECTS", "effect"]

FAULT_VARIABLE = "OUTERLOOP_FAULT"
TRACE_VARIABLE = "OUTERLOOP_FAULT_TRACE"
"""A file to which every point that is reached is appended: how a test knows what there is to attack."""

EFFECTS: dict[str, str] = {
    "mirror.fetch": "the target's commits are fetched into the bare mirror",
    "mirror.pin": "a ref pins a commit of a run in the mirror",
    "run.request": "runs/<id>/request.json is linked into place",
    "run.event": "runs/<id>/events/<seq>.json is linked into place",
    "run.marker": "a doorbell marker is touched in a run's folder",
    "campaign.event": "a campaign's next event is linked into place: the compare-and-set of its ledger",
    "campaign.config": "a training's config is written into the campaign's folder",
    "campaign.watch": "an idle campaign notes what its candidates file was",
    "campaign.aside": "something unexpected in a campaign's folder is moved aside",
    "campaign.link": "what a job left is linked into the campaign's folder",
    "campaign.teacher": "a teacher file is moved into place",
    "entry.data": "an entry's clean data are put into the state folder, or the folder of sealed rows is made",
    "champion.link": "champions/<key>/<seq>.json is linked into place: the compare-and-set",
    "noise.study": "noise/<key>/<number>.json is linked into place: a finished noise study",
    "study.asked": "studies/<nonce>.json is linked into place: a submitter of a service asked for a noise study",
    "study.remove": "studies/<nonce>.json is removed: the study was answered",
    "ladder.link": "ladders/<key>/<seq>.json is linked into place: a rung is claimed",
    "spool.make": "a folder of the spool is made, or its mode is set right",
    "spool.public": "what a service says of itself is written into its spool",
    "spool.secret": "a submitter's secret, which names its answers, is linked into place",
    "spool.leave": "a submission is put into a service's spool",
    "spool.remove": "a submission that was taken or refused is removed from the spool",
    "reply.watch": "who may know of a run is linked into the run's folder",
    "reply.write": "what a submitter may know is written into the spool",
    "inbox.write": "a request is left in the inbox for the tick",
    "inbox.remove": "an imported request is removed from the inbox",
    "slot.spec": "a slot's spec.json is linked into place",
    "slot.pin": "accepted is linked: the slot's value is decided",
    "slot.retry": "a retry grant is linked into a slot",
    "attempt.prepare": "an attempt's folder, attempt.json and job.sh are written",
    "attempt.submitted": "submitted.json is written after the cluster accepted a job",
    "attempt.settled": "settled.json is linked: how an attempt ended and why",
    "array.map": "an array's task map is linked into place, before the array is submitted",
    "array.script": "an array's script is written",
    "array.log": "a settled task's log is shown in its attempt's folder",
    "array.submitted": "the array's submitted.json is written after the cluster accepted it",
    "compute.submit": "a measuring job, or an array of them, is handed to the cluster",
    "compute.wake": "a wake job is handed to the cluster",
    "compute.cancel": "the cluster is asked to cancel jobs",
    "tx.enqueue": "a run, its request and its first state are committed",
    "tx.lease": "a run's lease is taken",
    "tx.release": "a run's lease is given back",
    "tx.fold": "events found on disk are folded into the record",
    "tx.plan": "measures and slots that a run needs are committed",
    "tx.campaign": "an event of a campaign is committed, or the campaign's jobs are",
    "tx.intent": "an attempt's intent is committed",
    "tx.outcome": "the outcome of a submission is committed",
    "tx.observe": "what the queue and the files showed is committed",
    "tx.park": "a run is parked with what it waits for",
    "tx.wake": "a wake job's row is committed",
    "tx.end": "a run's verdict is committed",
    "tx.block": "a run is blocked with its reason",
    "tx.operator": "an operator's cancel or retry is committed",
    "tx.tick": "the tick's heartbeat and housekeeping are committed",
    "tx.notify": "what people were told is committed, after it was sent",
    "tx.rebuild": "the record is made anew from disk, in one transaction",
    "tx.collect": "garbage collection is committed",
    "archive.write": "an archive of a run is renamed into place",
    "gc.trash": "a folder is renamed into the trash",
    "gc.delete": "old trash is deleted",
}
"""Name of each effect -> what has happened when it is done."""

_reached: dict[str, int] = {}


def _point(place: str, name: str) -> None:
    trace = os.environ.get(TRACE_VARIABLE)
    if trace:
        with open(trace, "a") as stream:  # noqa: PTH123 - this file is imported by every job and stays small
            stream.write(f"{place}:{name}\n")
    armed = os.environ.get(FAULT_VARIABLE)
    if not armed:
        return
    key = f"{place}:{name}"
    faults = [parts for fault in armed.split(",") if (parts := fault.split(":"))[:2] == [place, name]]
    if not faults:
        return
    _reached[key] = _reached.get(key, 0) + 1
    for parts in faults:
        if _reached[key] == (int(parts[3]) if len(parts) > 3 else 1):
            os.kill(os.getpid(), signal.SIGSTOP if len(parts) > 2 and parts[2] == "stop" else signal.SIGKILL)


@contextmanager
def effect(name: str) -> Iterator[None]:
    """Mark the enclosed lines as the effect `name`. Raises KeyError for a name that is not in `EFFECTS`."""
    if name not in EFFECTS:
        raise KeyError(f"effect {name!r} is not registered in outerloop.effects.EFFECTS")
    _point("before", name)
    yield
    _point("after", name)
