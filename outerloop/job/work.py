"""What spec.json and attempt.json ask of this job, checked before anything is done.

Covered: reading both into typed values, with a sentence for each thing that is wrong. Not covered: doing it.
Absent keys take the defaults of `outerloop.slots.identity.Determinants` and of the layout's docstring.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outerloop.job import layout

ISOLATIONS = ("none", "bwrap", "apptainer")

DEFAULT_LOG_BYTES = 1024 * 1024
DEFAULT_TERM_GRACE_SECONDS = 5.0
DEFAULT_CAP_BYTES = 1024 * 1024 * 1024
"""Of declared outputs and of kept artifacts, where the spec states no cap."""

_OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = re.compile(r"(HOME|PATH)$|(LD_|GIT_|PYTHON|SLURM_|OUTERLOOP_)")
"""Variables that change what runs instead of what is asked of it; the contract refuses them first."""
LAUNCH_VARIABLES = frozenset({"OUTERLOOP_STRATEGY", "OUTERLOOP_STRATEGY_FILE", "OUTERLOOP_SHARDS"})
"""What the launch compilers tell a training script; a launch alone may carry them. A test compares the two."""


class SpecError(ValueError):
    """spec.json or attempt.json cannot be executed; the message says which key and why."""


@dataclass(frozen=True)
class InputFile:
    """Something to lay at `path` in the tree; `hidden` ones only in the scorer's tree.

    An absolute `path` stays where it is: a sandbox shows it there, and without one there is nothing to do.
    """

    path: str
    source: str
    digest: str
    hidden: bool


@dataclass(frozen=True)
class Launch:
    """A launch line with tokens, its variables and the texts to write into the output folder first."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True)
class Work:
    """What to execute and under which limits. Paths in `outputs` are relative to the tree."""

    digest: str
    attempt: int
    kind: str
    tree: str
    mirror: str
    command: str
    launch: Launch | None
    metric: str
    guards: tuple[str, ...]
    score: str
    items: bool
    score_tree: str
    outputs: tuple[str, ...]
    env: Mapping[str, str]
    inputs: tuple[InputFile, ...]
    environment_slot: str
    network: bool
    resumable: bool
    cpus: int
    gpus: int
    nodes: int
    minutes: float
    isolation: str
    image_path: str
    cache_seed: str
    gpu_form: tuple[str, ...]
    reports: Mapping[str, Any] | None = None
    """Reports in the checkpoint folder that a lost attempt may have finished; see reports.py."""
    infrastructure_exits: tuple[int, ...] = ()
    """Exit codes of the command, and signals as negative numbers, that say nothing of what was submitted: an evaluation
    that was refused, a training that somebody killed."""
    keep_logs_bytes: int = DEFAULT_LOG_BYTES
    term_grace_seconds: float = DEFAULT_TERM_GRACE_SECONDS
    output_cap_bytes: int = DEFAULT_CAP_BYTES
    artifact_cap_bytes: int = DEFAULT_CAP_BYTES


@dataclass
class _Reader:
    """Typed access to one mapping, with the place of each complaint."""

    values: Mapping[str, Any]
    place: str
    complaints: list[str] = field(default_factory=list)

    def get(self, key: str, kind: type, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.complaints.append(f"{self.place}.{key} should be {kind.__name__}, not {type(value).__name__}")
            return default
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.get(key, list, [])
        if not all(isinstance(item, str) for item in value):
            self.complaints.append(f"{self.place}.{key} should hold texts only")
            return ()
        return tuple(value)

    def codes(self, key: str) -> tuple[int, ...]:
        value = self.get(key, list, [])
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            self.complaints.append(f"{self.place}.{key} should hold numbers only")
            return ()
        return tuple(value)

    def variables(self, key: str, also: frozenset[str] = frozenset()) -> dict[str, str]:
        value = self.get(key, dict, {})
        for name, text in value.items():
            if not isinstance(text, str) or "\0" in text:
                self.complaints.append(f"{self.place}.{key}.{name} should be text")
            elif not _VARIABLE.fullmatch(name):
                self.complaints.append(f"{self.place}.{key}: {name!r} cannot name a variable")
            elif _REFUSED.match(name) and name not in also:
                self.complaints.append(f"{self.place}.{key}: {name} may not be declared")
        return value if not self.complaints else {}


def inside(path: str) -> bool:
    """Whether a declared path is relative, normal and stays below its folder."""
    return (
        bool(path)
        and not os.path.isabs(path)
        and "\0" not in path
        and os.path.normpath(path) == path.rstrip("/")
        and path.split("/")[0] not in {"..", "."}
    )


def is_resumable(spec: Mapping[str, Any]) -> bool:
    """Whether the work may go on from where an earlier start left it."""
    work = spec.get("work")
    return isinstance(work, dict) and work.get("resumable") is True


def read_work(spec: Mapping[str, Any], order: Mapping[str, Any], digest: str, attempt: int) -> Work:
    """The work of attempt `attempt` of slot `digest`. Raises SpecError naming every problem found."""
    top = _Reader(spec, "spec")
    facts = _Reader(top.get("determinants", dict, {}), "determinants", top.complaints)
    how = _Reader(top.get("work", dict, {}), "work", top.complaints)
    limits = _Reader(order, "attempt", top.complaints)
    for name, source in (("spec.json", spec), ("attempt.json", order)):
        if source.get("schema") != layout.SCHEMA:
            top.complaints.append(f"{name} has schema {source.get('schema')!r}, this program reads {layout.SCHEMA}")
        if source.get("digest") != digest:
            top.complaints.append(f"{name} belongs to another slot ({source.get('digest')!r})")
    if order.get("attempt") != attempt:
        top.complaints.append(f"attempt.json belongs to attempt {order.get('attempt')!r}, not {attempt}")
    work = Work(
        digest=digest,
        attempt=attempt,
        kind=how.get("kind", str, "") or facts.get("kind", str, "measure"),
        tree=facts.get("tree", str, ""),
        mirror=how.get("mirror", str, ""),
        command=facts.get("command", str, ""),
        launch=_launch(facts, how),
        metric=facts.get("metric", str, ""),
        guards=facts.texts("guards"),
        score=facts.get("score", str, ""),
        items=facts.get("items", bool, False),
        score_tree=how.get("base_tree", str, "") or facts.get("score_tree", str, ""),
        outputs=facts.texts("outputs"),
        env=facts.variables("env"),
        inputs=_inputs(how),
        environment_slot=how.get("environment_slot", str, ""),
        network=how.get("network", bool, False) or facts.get("network", bool, False),
        resumable=how.get("resumable", bool, False),
        cpus=facts.get("cpus", int, 1),
        gpus=facts.get("gpus", int, 0),
        nodes=facts.get("nodes", int, 1),
        minutes=limits.get("minutes", float, 0.0),
        isolation=limits.get("isolation", str, "none"),
        image_path=limits.get("image_path", str, ""),
        cache_seed=limits.get("cache_seed", str, ""),
        gpu_form=limits.texts("gpu_form"),
        reports=how.get("reports", dict, None),
        infrastructure_exits=how.codes("infrastructure_exits"),
        keep_logs_bytes=limits.get("keep_logs_bytes", int, DEFAULT_LOG_BYTES),
        term_grace_seconds=limits.get("term_grace_seconds", float, DEFAULT_TERM_GRACE_SECONDS),
        output_cap_bytes=how.get("output_cap_bytes", int, DEFAULT_CAP_BYTES),
        artifact_cap_bytes=how.get("artifact_cap_bytes", int, DEFAULT_CAP_BYTES),
    )
    complaints = top.complaints + _contradictions(work)
    if complaints:
        raise SpecError("; ".join(complaints))
    return work


def _contradictions(work: Work) -> list[str]:
    wrong = []
    if not _OBJECT_ID.fullmatch(work.tree):
        wrong.append(f"determinants.tree {work.tree!r} is no full git object id")
    if not os.path.isabs(work.mirror):
        wrong.append(f"work.mirror {work.mirror!r} is no absolute path")
    if work.score and not _OBJECT_ID.fullmatch(work.score_tree):
        wrong.append(f"there is a score command but no base tree to run it from ({work.score_tree!r})")
    if work.launch is None and not work.command.strip():
        wrong.append("there is neither a command nor a launch")
    if "\0" in work.command or "\0" in work.score:
        wrong.append("a command holds a NUL byte")
    if work.kind not in {"measure", "environment"}:
        wrong.append(f"kind {work.kind!r} is neither 'measure' nor 'environment'")
    if work.isolation not in ISOLATIONS:
        wrong.append(f"attempt.isolation {work.isolation!r} is none of {', '.join(ISOLATIONS)}")
    if work.isolation != "apptainer" and work.image_path:
        wrong.append(f"an image can only be used with isolation apptainer, not {work.isolation}")
    if work.isolation == "apptainer" and not work.image_path:
        wrong.append("isolation apptainer needs attempt.image_path")
    if not 0 < work.minutes < float("inf"):
        wrong.append(f"attempt.minutes {work.minutes!r} should be above 0")
    if work.reports is not None and not work.resumable:
        wrong.append("reports that survive an attempt need resumable work")
    if work.nodes > 1 and work.kind == "environment":
        wrong.append("an environment is built on one node")
    if work.nodes > 1 and work.launch is None:
        wrong.append("several nodes need a launch, not a command")
    if work.nodes > 1 and work.isolation != "none" and not work.network:
        wrong.append("several nodes cannot meet in a sandbox without network")
    if work.keep_logs_bytes < 0 or work.term_grace_seconds < 0:
        wrong.append("attempt.keep_logs_bytes and attempt.term_grace_seconds cannot be negative")
    wrong += [f"output {path!r} is no path inside the tree" for path in work.outputs if not inside(path)]
    for item in work.inputs:
        if not inside(item.path.removeprefix("/")):
            wrong.append(f"input {item.path!r} is neither a path inside the tree nor a plain absolute one")
    wrong += [f"input {i.path!r}: source {i.source!r} is not absolute" for i in work.inputs if i.source[:1] != "/"]
    return wrong


def _launch(facts: _Reader, how: _Reader) -> Launch | None:
    value = how.get("launch", dict, None) or facts.get("launch", dict, None)
    if value is None:
        return None
    reader = _Reader(value, "launch", facts.complaints)
    argv, env = reader.texts("argv"), reader.variables("env", LAUNCH_VARIABLES)
    texts = reader.get("files", dict, {})
    if not argv or not argv[0]:
        facts.complaints.append("launch.argv is empty")
    for name, text in texts.items():
        if not isinstance(text, str):
            facts.complaints.append(f"launch.files.{name} should be text")
        elif not inside(name):
            facts.complaints.append(f"launch.files: {name!r} is no path inside the output folder")
    return Launch(argv, env, texts)


def _inputs(how: _Reader) -> tuple[InputFile, ...]:
    found = []
    for number, value in enumerate(how.get("input_files", list, [])):
        if not isinstance(value, dict):
            how.complaints.append(f"work.input_files[{number}] should be an object")
            continue
        item = _Reader(value, f"work.input_files[{number}]", how.complaints)
        path, source = item.get("path", str, ""), item.get("source", str, "")
        found.append(InputFile(path.rstrip("/"), source, item.get("digest", str, ""), item.get("hidden", bool, False)))
    return tuple(found)
