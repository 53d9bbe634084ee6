"""What was asked: runs/<id>/request.json, written once before anything is measured.

Covered: the request of a climb with everything about this deployment that must not change while it runs (lanes,
prologues, image digests, inputs), and the identity of the question. Not covered: what was drawn or decided later
(ledger.py).
"""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outerloop.slots import digest_of

__all__ = ["ClimbRequest", "Execution", "InputFile", "champion_key", "question_of", "run_name"]

REQUEST_SCHEMA = 1
RUN_ID_DIGITS = 10


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class InputFile(_Frozen):
    """A declared input: `source` on shared storage is what the job sees as `path`."""

    path: str
    source: str
    digest: str
    hidden: bool = False


class Execution(_Frozen):
    """How and where the measures of one benchmark run, frozen at submission."""

    lane: dict[str, Any]
    prologue: str = ""
    cache_seed: str = ""
    isolation: Literal["none", "bwrap", "apptainer"] = "none"
    image_path: str = ""
    image_digest: str = ""
    image_stamp: str = ""
    """What `content_stamp` said of the image when its digest was taken."""
    gpu_type: str = ""
    inputs: tuple[InputFile, ...] = ()


class ClimbRequest(_Frozen):
    """A climb as it was asked."""

    schema_: int = Field(default=REQUEST_SCHEMA, alias="schema")
    id: str
    kind: Literal["climb"] = "climb"
    question: str
    ask: int = 0
    target: str
    benchmark: str
    definition: str
    base_commit: str
    base_tree: str
    base_revision: str
    candidate_commit: str
    candidate_tree: str
    candidate_revision: str
    subject: str = ""
    champion_seq: int = 0
    """The champion that the base is (0: there was none yet)."""
    promotable: bool = True
    """Whether acceptance makes a champion: the base is the champion, or what the first champion is measured against."""
    submitter: str
    sealed: bool = False
    """A rule has a ladder: nothing that is measured may be told to the submitter."""
    nonce: str = ""
    """The submission that made it, where a service took it from its spool."""
    repository: str
    created_at: str
    execution: dict[str, Execution]
    """By benchmark name: the climbed one and its whole suite."""
    platform: str = ""
    priority: int = 0
    gpu_hours: float | None = None
    runs_per_week: int | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @property
    def champion_key(self) -> str:
        return champion_key(self.target, self.benchmark, self.definition)


def question_of(target: str, benchmark: str, definition: str, base_tree: str, candidate_tree: str) -> str:
    """What is asked, as 64 hex digits: the same question has one verdict."""
    return digest_of(
        {
            "kind": "climb",
            "target": target,
            "benchmark": benchmark,
            "definition": definition,
            "base": base_tree,
            "candidate": candidate_tree,
        }
    )


def run_name(owner: str, state: str, question: str, ask: int, *, prefix: str = "c") -> str:
    """The run's id, from who asks what, so that a submission repeated after a crash finds its first half.

    Owner and state folder are part of it because several of them may share one record. `prefix` shows the kind: c for
    climbs, t for trainings.
    """
    asked = {"owner": owner, "state": state, "question": question, "ask": ask}
    return f"{prefix}-{digest_of(asked)[:RUN_ID_DIGITS]}"


def champion_key(target: str, benchmark: str, definition: str) -> str:
    """Folder name of a champion's history."""
    return f"{benchmark}-{digest_of([target, benchmark, definition])[:24]}"


def fresh_seed() -> int:
    """A seed from the OS's entropy, between 1 and 2³¹ − 1, which every seed variable takes."""
    return secrets.randbelow(2**31 - 1) + 1
