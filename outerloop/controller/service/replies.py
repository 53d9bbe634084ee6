"""What submitters are told: a file for each submission, and one for each of their runs.

Covered: which submitter looks at which run, what of a run may be known, writing it when it changed. Not covered: the
rendering for terminals (cli.service_client), taking submissions (intake.py).

A run with a ladder is sealed: its state and the ladder's answer, and nothing that was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from outerloop.climb import Verdict
from outerloop.climb.explain import render
from outerloop.controller.argument import gather, notes_of
from outerloop.controller.ladders import is_sealed
from outerloop.controller.service.spool import Spool
from outerloop.controller.shown import RunView
from outerloop.controller.views import one_run
from outerloop.job import layout
from outerloop.record.models import Heartbeat, Run
from outerloop.record.store import Record
from outerloop.slots import SlotDirectory, StateRoot
from outerloop.slots.files import make_folder, publish, read_json, replace

__all__ = ["answer", "publish_run", "publish_runs", "watch"]

WIDTH = 80
LOG_TAIL_BYTES = 64 * 1024
"""Of each of a measure's streams; the whole of them stays with the service."""
MOST_LOG_BYTES = 8 * 1024 * 1024
"""Of all streams of one kind of a run, shared alike: what is told of a run is one file."""
OVERLAP = timedelta(minutes=10)
"""A transaction may commit later than its `updated_at`; what is this much older is looked at again."""
_BEAT = "replies"


@dataclass(frozen=True)
class Looks:
    """What is needed to look at a run."""

    record: Record
    root: StateRoot


def answer(spool: Spool, reply: str, nonce: str, body: Mapping[str, Any]) -> None:
    """Tell a submitter what became of a submission."""
    _folder(spool, reply)
    replace(spool.reply(reply) / f"{nonce}.json", {"schema": 1, **body}, name="reply.write")


def _folder(spool: Spool, reply: str) -> None:
    """The answers' folder, passable whatever the service's umask is."""
    for folder in (spool.reply(reply), spool.reply(reply) / "runs"):
        if not folder.is_dir():
            make_folder(folder)
            folder.chmod(0o755)


def watch(root: StateRoot, run_id: str, reply: str) -> None:
    """Note durably that whoever reads `reply` may know of this run."""
    publish(root.run(run_id) / "watchers" / reply, {"reply": reply}, name="reply.watch", mode=0o600)


def watchers(root: StateRoot, run_id: str) -> list[str]:
    try:
        return sorted(entry.name for entry in (root.run(run_id) / "watchers").iterdir() if len(entry.name) == 64)
    except OSError:
        return []


def publish_runs(record: Record, root: StateRoot, spool: Spool, now_due: Iterable[str] = ()) -> int:
    """Write anew what is told of every run that changed since the last time; returns how many were written."""
    with record.reading() as session:
        since = session.scalar(
            select(Heartbeat.at).where(Heartbeat.realm_id == record.realm_id, Heartbeat.name == _BEAT)
        )
        began = session.scalar(select(func.now()))
        changed = select(Run.id).where(Run.realm_id == record.realm_id)
        if since is not None:
            changed = changed.where(Run.updated_at > since - OVERLAP)
        runs = {*session.scalars(changed), *now_due}
    written = sum(publish_run(record, root, spool, run_id) for run_id in sorted(runs))
    with record.transaction("tx.tick") as session:
        values = {"realm_id": record.realm_id, "name": _BEAT, "host": "", "body": {"written": written}, "at": began}
        session.execute(
            insert(Heartbeat)
            .values(**values)
            .on_conflict_do_update(index_elements=["realm_id", "name"], set_={"at": began, "body": values["body"]})
        )
    return written


def publish_run(record: Record, root: StateRoot, spool: Spool, run_id: str) -> int:
    """Write what each submitter of a run may know of it; returns how many files changed."""
    readers = watchers(root, run_id)
    if not readers:
        return 0
    body = public_view(Looks(record, root), run_id)
    if body is None:
        return 0
    written = 0
    for reply in readers:
        path = spool.reply(reply) / "runs" / f"{run_id}.json"
        if read_json(path) == body:
            continue
        _folder(spool, reply)
        replace(path, body, name="reply.write")
        written += 1
    return written


def public_view(looks: Looks, run_id: str) -> dict[str, Any] | None:
    """What a run's submitter may know of it."""
    view = one_run(looks.record, run_id)
    if view is None:
        return None
    row = view.row
    body: dict[str, Any] = {
        "schema": 1,
        "run": row.id,
        "kind": row.kind,
        "target": row.target,
        "benchmark": row.benchmark,
        "label": row.label,
        "candidate": row.candidate_commit,
        "base": row.base_commit,
        "submitter": row.submitter,
        "state": row.state,
        "verdict": row.verdict,
        "created_at": row.created_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at is not None else None,
        "sealed": False,
    }
    ladder = next((dict(e.body) for e in view.events if e.kind == "ladder"), None)
    if is_sealed(view.request):
        return body | _sealed(row, ladder)
    if row.kind == "training":
        return body | _training(looks, view)
    argument = gather(looks, view)
    explained: list[str] = []
    if view.evidence is not None and argument.plan is not None:
        verdict = Verdict.from_json(view.evidence)
        explained = render(verdict, argument.plan, argument.readings, WIDTH).splitlines()
    return body | {
        "reason": row.verdict_reason or row.state_reason,
        "sentence": row.sentence or row.state_detail,
        "explain": explained,
        "notes": notes_of(argument),
        "evidence": view.evidence,
        "measures": _measures(looks, view),
    }


def _training(looks: Looks, view: RunView) -> dict[str, Any]:
    """What is told of a training: how each task stands, what its processes reported, how it ended."""
    row = view.row
    noted = next((event.body for event in view.events if event.kind == "facts"), {})
    return {
        "reason": row.verdict_reason or row.state_reason,
        "sentence": row.sentence or row.state_detail,
        "explain": [],
        "notes": [],
        "evidence": view.evidence,
        "reports": noted.get("reports") or {},
        "measures": _measures(looks, view),
    }


def _measures(looks: Looks, view: RunView) -> list[dict[str, Any]]:
    """State, value and, once the run has ended, the ends of the logs of each measure or task."""
    ended = view.row.state == "ended"
    tail = min(LOG_TAIL_BYTES, MOST_LOG_BYTES // max(1, len(view.current)))
    return [
        {
            "role": measure.role,
            "state": measure.state,
            "reason": measure.reason,
            "value": str(measure.value) if measure.value is not None else None,
            "logs": _logs(looks.root, measure.slot, [a.n for a in measure.attempts][-1:], tail) if ended else {},
        }
        for measure in view.current
    ]


def _sealed(row: Any, ladder: dict[str, Any] | None) -> dict[str, Any]:
    """A ladder's run: whether it ended, and the ladder's answer. Reasons that follow from hidden data are left out."""
    told: dict[str, Any] = {"sealed": True, "reason": "", "sentence": "", "explain": [], "measures": []}
    if row.state != "ended":
        told["reason"] = row.state_reason if row.state == "blocked" else ""
        told["sentence"] = "this benchmark has a ladder: nothing is told before its answer"
        return told
    if row.verdict in ("cancelled",) or row.verdict_reason == "scope":
        return told | {"reason": row.verdict_reason or "", "sentence": row.sentence or ""}
    if row.verdict == "failed":
        return told | {"reason": "candidate-error", "sentence": "the candidate failed; a ladder keeps its logs sealed"}
    if ladder is None:
        return told | {"sentence": "it ended without an answer of the ladder"}
    if row.verdict == "accepted" and ladder["improved"]:
        return told | {
            "sentence": f"accepted: above the ladder's step; the released mean loss is {ladder['released']:g}",
            "ladder": {"improved": True, "released": ladder["released"], "items": ladder["items"]},
        }
    # Whether the step or the rule refused it is one bit of the hidden set: both are told alike.
    best = ladder["best"]
    stays = "nothing was released yet" if best is None else f"the best released mean loss stays {best:g}"
    return told | {
        "verdict": "rejected",
        "reason": "ladder",
        "sentence": f"rejected: not above the ladder's step; {stays}",
        "ladder": {"improved": False, "released": best, "items": ladder["items"]},
    }


def _logs(root: StateRoot, digest: str, numbers: list[int], most: int) -> dict[str, str]:
    found = {}
    for n in numbers:
        folder = SlotDirectory(root.slot(digest), digest).logs(n)
        for name in (layout.STDOUT, layout.STDERR):
            text = _tail(folder / name, most)
            if text:
                found[name] = text
    return found


def _tail(path: Path, most: int) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - most))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
