"""What was asked of an entry: training data for a challenge, with everything that is fixed about it as texts.

Covered: the request of an entry, the identity of the question. Not covered: making one (submit_entry.py), its work
(entry_work.py), what came of it (entries.py). No prompt and no answer of a suite stands in a request.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outerloop.controller.request import REQUEST_SCHEMA, Execution, champion_key
from outerloop.slots import digest_of

__all__ = ["EMPTY_TREE", "TARGET", "UNTRAINED", "EntryRequest", "SuiteSpec", "entry_question"]

TARGET = "challenges"
"""What stands for a repository in the record: entries have none."""
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""git's tree without files, which every repository has: the working folder of a stage begins empty."""
UNTRAINED = "untrained"
"""The opponent while there is no champion."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class SuiteSpec(_Frozen):
    """One suite as it was when the entry was submitted."""

    id: str
    """Its fragment's: names its measures."""
    evaluator: str
    """Digest of its content and of how it is evaluated."""
    config: str
    """The pipeline's configuration with this suite alone."""
    task_list: str
    """File name of the list, as the configuration names it."""
    tasks: str
    """The list itself: names of tasks."""


class EntryRequest(_Frozen):
    """An entry as it was asked."""

    schema_: int = Field(default=REQUEST_SCHEMA, alias="schema")
    id: str
    kind: Literal["entry"] = "entry"
    question: str
    ask: int = 0
    asking: int = 1
    """The how-manieth decision on this question it is: what alpha is split by."""
    target: str = TARGET
    challenge: str
    definition: str
    """Digest of model, method, suites and rule: two entries of one definition can be compared."""
    subject: str
    """The train file's name, for people."""
    data_sha256: str
    data_path: str
    """The clean table in the state folder."""
    rows: dict[str, int]
    """By training stage."""
    submitter: str
    repository: str = ""
    created_at: str
    train_seeds: tuple[int, ...]
    stages: tuple[str, ...]
    config: str
    """The pipeline's configuration for training."""
    tables: dict[str, str]
    """By stage: what of the configuration determines it, as canonical text."""
    model: str
    """Identity of the model that is trained: its source, and the digest of its files where it has some."""
    versions: dict[str, str]
    """Of the libraries that train and evaluate."""
    suites: tuple[SuiteSpec, ...]
    reserve: tuple[SuiteSpec, ...] = ()
    alpha: str
    min_delta: str
    contamination_limit: str
    contamination_checks: int = 5
    """How many data sets a submitter may have checked against the suites in a week; requests of old say nothing, and
    had the default."""
    python: str
    """The interpreter that has these libraries, on the nodes too."""
    hub: str = ""
    vllm: str = ""
    """Python of the environment that has vLLM, where it is another one."""
    cpus: int = 1
    memory_mb: int | None = None
    gpus: int = 0
    minutes: float
    """Of one attempt of one stage; a training goes on in another one."""
    execution: Execution
    replicate: int = 0
    """Not 0 after an asking that failed: its trainings are done anew."""
    priority: int = 0

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @property
    def champion_key(self) -> str:
        return champion_key(self.target, self.benchmark, self.definition)

    # What a run's row asks of every request. The data's digest stands where a climb has its candidate.

    @property
    def benchmark(self) -> str:
        return self.challenge

    @property
    def base_commit(self) -> str:
        return UNTRAINED

    @property
    def base_tree(self) -> str:
        return EMPTY_TREE

    @property
    def candidate_commit(self) -> str:
        return self.data_sha256

    @property
    def candidate_tree(self) -> str:
        return EMPTY_TREE


def entry_question(*, challenge: str, definition: str, data_sha256: str) -> str:
    """What is asked, as 64 hex digits: one challenge and one content of the data have one verdict."""
    return digest_of({"kind": "entry", "challenge": challenge, "definition": definition, "data": data_sha256})
