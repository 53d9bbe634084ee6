""".outerloop.toml -> Contract, Benchmark: what a target says about itself. Untrusted input.

Covered: names, types, ranges and cross-references, every problem at once with its line; the hash that says which
champions compare; writing a first contract. Not covered: where the text comes from (the base commit, by the
dispatcher), whether a diff stays inside the scope (controller), what a rule decides (climb).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from outerloop.contract_text import contract_text
from outerloop.contract_values import (
    CONTRACT_FILE,
    Amount,
    Command,
    Digest,
    Direction,
    Gibibytes,
    InputPath,
    LaneName,
    Line,
    Minutes,
    Name,
    Names,
    OptionalCommand,
    OptionalLine,
    OptionalVariable,
    TreePaths,
    Variable,
    VariableText,
    as_tuple,
)
from outerloop.problems import Key, Problem, render, suggestion, translate
from outerloop.toml_lines import ParsedToml, read_toml

if TYPE_CHECKING:
    from outerloop.climb.model import BenchmarkRule, Rule

__all__ = [
    "CONTRACT_FILE",
    "MAX_BYTES",
    "Benchmark",
    "Budgets",
    "Contract",
    "ContractError",
    "EnvironmentSpec",
    "GuardSpec",
    "InputSpec",
    "RegressionSpec",
    "Scope",
    "parse_contract",
    "render_contract",
]

MAX_BYTES = 64 * 1024
"""Largest contract that is read."""

MAX_BENCHMARKS = 256
_MAX_PROBLEMS = 100
"""Problems that are reported; it bounds the work that a hostile file can cause."""

ALL_OTHERS = "*"


class ContractError(Exception):
    """The contract can't be used. The text names every problem, with its line."""

    def __init__(self, problems: list[Problem], source: str = CONTRACT_FILE) -> None:
        self.source = source
        self.problems = problems
        super().__init__(render(source, problems))


class UnknownBenchmarkError(ContractError):
    """The contract has no benchmark of that name; the text suggests the nearest."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class RegressionSpec(_Table):
    """How much a sibling may lose, as fractions of the absolute value of its own baseline."""

    free: Amount = Field(default=Decimal(0), description="A mean loss up to this passes by itself.")
    max: Amount = Field(default=Decimal(0), description="The confidence bound of the loss must stay below this.")
    requires_gain: Amount = Field(
        default=Decimal(0), description="A loss between free and max passes only with a climbed gain of this size."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.free > self.max:
            raise ValueError(f"free = {self.free} must not exceed max = {self.max}")
        return self


class GuardSpec(_Table):
    """Another metric of the same output line that must not get worse."""

    metric: Line = Field(description="Its key in the benchmark's output line.")
    direction: Direction = Field(default="min", description="Which way is better.")
    max_loss: Amount | None = Field(default=None, description="Largest loss, in the metric's own unit.")
    max_loss_rel: Amount | None = Field(default=None, description="Largest loss, as a fraction of the baseline.")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.max_loss is None and self.max_loss_rel is None:
            raise ValueError("needs max_loss or max_loss_rel")
        return self


class InputSpec(_Table):
    """A file or folder that the benchmark reads and that is no part of the tree."""

    path: InputPath = Field(
        description="Relative to the target's checkout, or absolute on shared storage (where the site allows it)."
    )
    digest: Digest = Field(default="content", description='"content", or the expected "sha256:…".')
    hidden: StrictBool = Field(default=False, description="Mounted only for the score command.")

    @property
    def is_absolute(self) -> bool:
        return self.path.startswith("/")


def _rule_table(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError('must be a table: { kind = "threshold" }')
    return value


class Benchmark(_Table):
    """One named command with its metric, resources and decision rule."""

    name: Name = Field(description="Short name, unique in the contract.")
    command: Command = Field(description="Shell command, run at the top of the tree.")
    metric: Line = Field(description="Key of the number in the JSON object that the command prints last.")
    direction: Direction = Field(description="Whether less or more is better.")
    score: OptionalCommand = Field(
        default="", description="Command run from the base tree over the outputs, after the candidate is dead."
    )
    outputs: TreePaths = Field(default=(), description="Files and folders that the command leaves, kept as artifacts.")
    seed_env: OptionalVariable = Field(
        default="", description="Variable that carries the paired seed. Empty: the command takes no seed."
    )
    deterministic: StrictBool = Field(
        default=False, description="The same tree (and seed) always gives the same number, so it is measured once."
    )
    env: dict[Variable, VariableText] = Field(
        default_factory=dict, max_length=256, description="Further environment variables of the command."
    )
    minutes: Minutes = Field(default=Decimal(60), description="Limit of the command itself, setup not counted.")
    cpus: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(default=1, description="CPUs per node.")
    memory_gb: Gibibytes | None = Field(default=None, description="Memory per node in GiB. Unset: the site's default.")
    gpus: Annotated[StrictInt, Field(ge=0, le=1024)] = Field(default=0, description="GPUs per node.")
    gpu_type: OptionalLine = Field(default="", description="GPU type; timings on different types don't compare.")
    nodes: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(default=1, description="Nodes.")
    lane: LaneName = Field(
        default="", description='Lane of the settings to run in. Empty: "gpu" with gpus, else "default".'
    )
    image: OptionalLine = Field(default="", description="Container image. Empty: the lane's.")
    isolation: Literal["none", "bwrap", "apptainer"] | None = Field(
        default=None, description="Weakest sandbox that this benchmark may be measured in. Unset: the site's."
    )
    network: StrictBool = Field(default=False, description="Inside a sandbox, whether the command has the network.")
    resumable: StrictBool = Field(
        default=False, description="The command resumes from its checkpoint folder after a preemption or time limit."
    )
    min_delta: Amount = Field(default=Decimal(0), description="Smallest gain that counts, in the metric's unit.")
    min_delta_rel: Amount = Field(
        default=Decimal(0), description="Smallest gain that counts, as a fraction of the baseline."
    )
    baseline: Literal["paired", "cached"] = Field(
        default="paired", description="Measure the base with each candidate, or reuse earlier base measurements."
    )
    suite: Names = Field(
        default=(), description='Siblings measured when the diff touches scope.shared. "*" is all others.'
    )
    regression: RegressionSpec | None = Field(default=None, description="How much this benchmark may lose as sibling.")
    guards: Annotated[tuple[GuardSpec, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="Other metrics of the output line that must not get worse."
    )
    inputs: Annotated[tuple[InputSpec, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="Files and folders outside the tree that determine the result."
    )
    rule: Annotated[dict[str, Any], BeforeValidator(_rule_table)] = Field(
        default_factory=dict, description="Decision rule: threshold (default), paired or sequential."
    )
    eager: StrictBool = Field(default=False, description="Measure siblings and the first batch together with the pair.")
    pack: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        default=1, description="Short measures of one shape that may share a job, one after another."
    )
    colocate: StrictBool = Field(
        default=False, description="Run both sides of a pair interleaved in one job on one node, for timings."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.score and not self.outputs:
            raise ValueError("outputs: is missing: score reads nothing but the declared outputs")
        if self.seed_env and self.seed_env in self.env:
            raise ValueError(f"env.{self.seed_env}: is the seed variable; it is set for each pair")
        if any(given.hidden for given in self.inputs) and not self.score:
            raise ValueError("inputs: a hidden input is mounted only for score, and there is no score command")
        if self.nodes > 1 and self.colocate:
            raise ValueError("colocate: runs both sides on one node, but nodes is greater than 1")
        return self

    @property
    def memory_mb(self) -> int | None:
        """Memory per node in MiB, rounded up."""
        if self.memory_gb is None:
            return None
        return int((self.memory_gb * 1024).to_integral_value(rounding="ROUND_CEILING"))

    def definition(self) -> dict[str, Any]:
        """What the number means: two champions compare only when this is equal.

        Inside: command, metric, direction, score and what it reads, variables, seed variable, determinism, inputs
        and the resources that change a timing or a training (CPUs, memory, GPUs, nodes, image). Outside, because
        they say how evidence is gathered or when it suffices and not what is measured: rule, floors, guards,
        suite, regression, baseline, minutes, lane, isolation, network, pack, eager, colocate, resumable.
        """
        return {
            "schema": 1,
            "command": self.command,
            "metric": self.metric,
            "direction": self.direction,
            "score": self.score,
            "outputs": sorted(self.outputs) if self.score else [],
            "seed_env": self.seed_env,
            "deterministic": self.deterministic,
            "env": dict(self.env),
            "inputs": sorted([given.path, given.digest, given.hidden] for given in self.inputs),
            "cpus": self.cpus,
            "memory_mb": self.memory_mb,
            "gpus": self.gpus,
            "gpu_type": self.gpu_type,
            "nodes": self.nodes,
            "image": self.image,
        }

    def definition_hash(self) -> str:
        """SHA-256 (64 hex digits) of the canonical JSON of `definition()`."""
        canonical = json.dumps(self.definition(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def parsed_rule(self) -> Rule:
        """The decision rule. Never raises for a benchmark that came from `parse_contract`."""
        from outerloop.climb.rule import parse_rule

        return parse_rule(self.rule)

    def judged_by(self, *, noise_sd: Decimal | None = None) -> BenchmarkRule:
        """What `outerloop.climb` needs to know to judge this benchmark. Raises RuleError for what can't be judged."""
        from outerloop.climb.model import BenchmarkRule, Guard, Regression

        regression = self.regression
        return BenchmarkRule(
            name=self.name,
            metric=self.metric,
            direction=self.direction,
            min_delta=self.min_delta,
            min_delta_rel=self.min_delta_rel,
            rule=self.parsed_rule(),
            regression=None
            if regression is None
            else Regression(free=regression.free, max=regression.max, requires_gain=regression.requires_gain),
            guards=tuple(
                Guard(
                    metric=guard.metric,
                    direction=guard.direction,
                    max_loss=guard.max_loss,
                    max_loss_rel=guard.max_loss_rel,
                )
                for guard in self.guards
            ),
            baseline=self.baseline,
            seeded=bool(self.seed_env),
            deterministic=self.deterministic,
            noise_sd=noise_sd,
        )


class EnvironmentSpec(_Table):
    """Built once per content, as a slot of its own."""

    setup: Command = Field(description="Shell command that builds the environment in $OUTERLOOP_ENV.")
    files: TreePaths = Field(default=(), description="Files of the tree whose content determines the environment.")


def _covers(entry: str, path: str) -> bool:
    return path.startswith(entry) if entry.endswith("/") else path == entry


class Scope(_Table):
    """The only paths that a candidate may change. An entry that ends with a slash is a folder, else one file."""

    allowed: TreePaths = Field(default=(), description="Paths that a candidate may change.")
    shared: TreePaths = Field(
        default=(), description="Paths that a candidate may change as well, at the price of measuring the suite."
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.allowed and not self.shared:
            raise ValueError('allowed: is missing: no candidate could change anything; name folders, ["src/"]')
        return self

    def permits(self, path: str) -> bool:
        """Whether a candidate may change `path` (relative, as git prints it). The contract never."""
        if path == CONTRACT_FILE or ".." in path.split("/"):
            return False
        return any(_covers(entry, path) for entry in (*self.allowed, *self.shared))

    def is_shared(self, path: str) -> bool:
        """Whether changing `path` concerns the siblings too."""
        return any(_covers(entry, path) for entry in self.shared)


class Budgets(_Table):
    """Limits that the target sets itself; the deployment's own hold besides."""

    gpu_hours: Amount | None = Field(default=None, description="GPU-hours. Unset: no limit.")
    runs_per_week: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="Runs per week. Unset: no limit."
    )


class Contract(_Table):
    """A target's statement of its benchmarks, scope and budgets."""

    benchmarks: Annotated[tuple[Benchmark, ...], BeforeValidator(as_tuple)] = Field(description="The benchmarks.")
    environment: EnvironmentSpec | None = Field(default=None, description="How the environment is built.")
    scope: Scope = Field(description="What a candidate may change.")
    budgets: Budgets = Field(default_factory=Budgets, description="Limits of this target.")

    def benchmark(self, name: str) -> Benchmark:
        """The benchmark called `name`. Raises UnknownBenchmarkError (a ContractError), which suggests the nearest."""
        for found in self.benchmarks:
            if found.name == name:
                return found
        names = [found.name for found in self.benchmarks]
        raise UnknownBenchmarkError([Problem(0, (), f'there is no benchmark "{name}"; {suggestion(name, names)}')])

    def siblings(self, name: str) -> tuple[Benchmark, ...]:
        """The suite of benchmark `name`, "*" spelled out, in the contract's order and without itself."""
        climbed = self.benchmark(name)
        everyone = ALL_OTHERS in climbed.suite
        return tuple(
            other for other in self.benchmarks if other.name != name and (everyone or other.name in climbed.suite)
        )


# reading


_PREFIXED = re.compile(r"(?P<key>[A-Za-z_]+(?:\.[A-Za-z0-9_]+)*): (?P<rest>.*)", re.DOTALL)


def parse_contract(text: str | bytes, source: str = CONTRACT_FILE) -> Contract:
    """Read a contract. `source` names the file in messages. Raises ContractError with every problem, never another."""
    parsed = _parse(text, source)
    problems = list(parsed.problems)
    contract: Contract | None = None
    unread = 0
    if parsed.complete:
        try:
            contract = Contract.model_validate(parsed.data)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=True)
            problems += _field_problems(details[:_MAX_PROBLEMS], parsed)
            unread = max(0, len(details) - _MAX_PROBLEMS)
        problems += _cross_problems(parsed)
    if contract is not None and not problems:
        problems += _judging_problems(contract, parsed)
    if problems or contract is None:
        raise ContractError(_first(problems, unread), source)
    return contract


def _parse(text: str | bytes, source: str) -> ParsedToml:
    def refuse(line: int, message: str) -> NoReturn:
        raise ContractError([Problem(line, (), message)], source)

    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        refuse(0, f"is larger than {MAX_BYTES // 1024} KiB; a contract is read only up to that size")
    try:
        return read_toml(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        refuse(raw.count(b"\n", 0, error.start) + 1, "is not UTF-8 text")


def _first(problems: list[Problem], unread: int) -> list[Problem]:
    unique = sorted(dict.fromkeys(problems), key=lambda problem: (problem.line == 0, problem.line))
    left = unread + max(0, len(unique) - _MAX_PROBLEMS)
    return [*unique[:_MAX_PROBLEMS], Problem(0, (), f"and {left} more problems")] if left else unique


def _field_problems(details: list[Any], parsed: ParsedToml) -> list[Problem]:
    found = []
    for detail in details:
        key, message = translate(detail, Contract)
        if detail["type"] == "missing" and key[-1] in parsed.broken:
            continue  # its line is not TOML, which was reported
        inner = _PREFIXED.fullmatch(message) if detail["type"] == "value_error" else None
        if inner is not None:
            key = (*key, *inner.group("key").split("."))
            message = inner.group("rest")
        if key == ("benchmarks",) and detail["type"] == "missing":
            message = "is missing: add a section [[benchmarks]], or begin with: outerloop contract init"
        if key == ("scope",) and detail["type"] == "missing":
            message = 'is missing: add a section [scope] with allowed = ["src/"], the paths that a candidate may change'
        found.append(Problem(parsed.lines.line(key), key, message))
    return found


def _cross_problems(parsed: ParsedToml) -> list[Problem]:
    """What concerns several keys, checked on the raw tables so that one wrong field doesn't hide it."""
    listed = parsed.data.get("benchmarks")
    if not isinstance(listed, list):
        return []
    found: list[Problem] = []

    def add(key: Key, message: str) -> None:
        found.append(Problem(parsed.lines.line(key), key, message))

    if not listed:
        add(("benchmarks",), "must have at least one benchmark")
    if len(listed) > MAX_BENCHMARKS:
        add(("benchmarks",), f"has {len(listed)} benchmarks; at most {MAX_BENCHMARKS} are read")
        return found
    first: dict[str, int] = {}
    for index, table in enumerate(listed):
        name = table.get("name") if isinstance(table, Mapping) else None
        if isinstance(name, str) and name in first:
            line = parsed.lines.line(("benchmarks", first[name], "name"))
            add(("benchmarks", index, "name"), f'"{name}" is the name of another benchmark already (line {line})')
        elif isinstance(name, str):
            first[name] = index
    for index, table in enumerate(listed):
        if not isinstance(table, Mapping) or len(found) > _MAX_PROBLEMS:
            continue
        suite = table.get("suite")
        for position, sibling in enumerate(suite if isinstance(suite, list) else []):
            key: Key = ("benchmarks", index, "suite", position)
            if sibling == table.get("name"):
                add(key, "is the benchmark itself")
            elif isinstance(sibling, str) and sibling != ALL_OTHERS and sibling not in first:
                others = [name for name in first if name != table.get("name")]
                hint = suggestion(sibling, others) if others else "this is the only one"
                add(key, f'there is no benchmark "{sibling}"; {hint}')
            if len(found) > _MAX_PROBLEMS:
                break
        if isinstance(table.get("rule"), Mapping):
            for message in _rule_problems(table["rule"]):
                word = message.split(" ", 1)[0]
                add(("benchmarks", index, "rule", *((word,) if word in table["rule"] else ())), message)
    return found


def _rule_problems(table: Mapping[str, Any]) -> tuple[str, ...]:
    from outerloop.climb.model import RuleError
    from outerloop.climb.rule import parse_rule

    try:
        parse_rule(table)
    except RuleError as error:
        return error.problems
    return ()


def _judging_problems(contract: Contract, parsed: ParsedToml) -> list[Problem]:
    from outerloop.climb.model import RuleError

    found = []
    for index, benchmark in enumerate(contract.benchmarks):
        try:
            benchmark.judged_by()
        except RuleError as error:
            key: Key = ("benchmarks", index)
            prefix = f"benchmark {benchmark.name}: "
            found += [Problem(parsed.lines.line(key), key, text.removeprefix(prefix)) for text in error.problems]
    return found


def render_contract(
    *,
    command: str,
    metric: str,
    direction: str,
    name: str,
    allowed: tuple[str, ...] = ("src/",),
    shared: tuple[str, ...] = (),
    minutes: int = 10,
    cpus: int = 1,
    memory_gb: int | None = None,
    gpus: int = 0,
    seed_env: str = "",
    score: str = "",
    outputs: tuple[str, ...] = (),
) -> str:
    """A commented first contract. Raises ContractError, naming the key, for values that a contract may not have."""
    text = contract_text(
        command=command,
        metric=metric,
        direction=direction,
        name=name,
        allowed=allowed,
        shared=shared,
        minutes=minutes,
        cpus=cpus,
        memory_gb=memory_gb,
        gpus=gpus,
        seed_env=seed_env,
        score=score,
        outputs=outputs,
    )
    try:
        parse_contract(text, CONTRACT_FILE)
    except ContractError as error:
        raise ContractError([Problem(0, problem.key, problem.message) for problem in error.problems]) from None
    return text
