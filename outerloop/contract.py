""".outerloop.toml -> Contract, Benchmark: what a target says about itself. Untrusted input.

Covered: names, types, ranges and cross-references, every problem at once with its line; the hash that says which
champions compare; writing a first contract. Not covered: where the text comes from (the base commit, by the
dispatcher), whether a diff stays inside the scope (controller), what a rule decides (climb).
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
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

CONTRACT_FILE = ".outerloop.toml"
MAX_BYTES = 64 * 1024
"""Largest contract that is read."""

MAX_BENCHMARKS = 256
_MAX_PROBLEMS = 100
"""Problems that are reported; it bounds the work that a hostile file can cause."""

_MAX_MINUTES = 60 * 24 * 60
_MAX_TEXT = 8192

ALL_OTHERS = "*"


class ContractError(Exception):
    """The contract can't be used. The text names every problem, with its line."""

    def __init__(self, problems: list[Problem], source: str = CONTRACT_FILE) -> None:
        self.source = source
        self.problems = problems
        super().__init__(render(source, problems))


class UnknownBenchmarkError(ContractError):
    """The contract has no benchmark of that name; the text suggests the nearest."""


# kinds of values


def _list(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError('must be a list: ["…"]')
    return tuple(value)


def _number(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("must be a number, without quotes")
    if isinstance(value, int) and value.bit_length() > 128:
        raise ValueError("is out of range")
    number = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        raise ValueError("must be a finite number")
    # decimal arithmetic on 1e999999 would cost gigabytes
    if (number and not -40 <= number.adjusted() <= 40) or len(number.as_tuple().digits) > 60:
        raise ValueError("is out of range")
    return number


def _line_of_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if text != text.strip():
        raise ValueError("must not begin or end with a blank")
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def _optional_line(text: str) -> str:
    return _line_of_text(text) if text else text


def _command(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if "\0" in text:
        raise ValueError("contains a null byte")
    return text


def _optional_command(text: str) -> str:
    return _command(text) if text else text


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_RESERVED_NAMES = frozenset({"hetjob", "batch", "extern"})


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError("must be 1 to 40 of [A-Za-z0-9._-] and begin with a letter or digit (it becomes a job name)")
    if text.lower() in _RESERVED_NAMES:
        raise ValueError("is a word that Slurm uses for its own steps; choose another name")
    return text


_LANE = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def _lane(text: str) -> str:
    if text and _LANE.fullmatch(text) is None:
        raise ValueError("must be a lane's name: a letter, then [a-z0-9_-]")
    return text


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OWNED_VARIABLES = frozenset({"HOME", "PATH"})
_OWNED_PREFIXES = ("LD_", "GIT_", "PYTHON", "SLURM_", "OUTERLOOP_")


def _variable(name: str) -> str:
    if _VARIABLE.fullmatch(name) is None:
        raise ValueError("must be the name of an environment variable: [A-Za-z_][A-Za-z0-9_]*")
    owned = next((prefix for prefix in _OWNED_PREFIXES if name.upper().startswith(prefix)), None)
    if name.upper() in _OWNED_VARIABLES or owned is not None:
        raise ValueError(
            f"{owned + '*' if owned else name.upper()} is set by the job itself and may not be declared;"
            " set it in the command"
        )
    return name


def _optional_variable(name: str) -> str:
    return _variable(name) if name else name


def _value_of_variable(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError('must be text: write it in quotes, "…"')
    if "\0" in value:
        raise ValueError("contains a null byte")
    return value


def _tree_path(text: str) -> str:
    """A path inside the tree, normalised; a trailing slash (a folder) stays."""
    if not text or not text.isprintable():
        raise ValueError("must be a path of printable characters")
    if text.startswith(("/", "~")):
        raise ValueError("must be relative to the top of the repository")
    if "*" in text or "?" in text:
        raise ValueError('patterns are not supported; a folder is written with a slash at its end: "src/"')
    parts = text.split("/")
    if ".." in parts:
        raise ValueError("must not contain ..")
    if any(part.lower() == ".git" for part in parts):
        raise ValueError("must not name git's own folder")
    normal = posixpath.normpath(text)
    if normal == ".":
        raise ValueError("is the whole repository, the benchmark itself included; name the folders that may change")
    if normal == CONTRACT_FILE:
        raise ValueError("is the contract, which a candidate may never change")
    return normal + "/" if text.endswith(("/", "/.")) else normal


def _input_path(text: str) -> str:
    if text.startswith("/"):
        if not text.isprintable() or ".." in text.split("/"):
            raise ValueError("must be a path of printable characters without ..")
        return posixpath.normpath(text)
    return _tree_path(text)


_DIGEST = re.compile(r"content|sha256:[0-9a-f]{64}")


def _digest(text: str) -> str:
    if _DIGEST.fullmatch(text) is None:
        raise ValueError('must be "content" (hashed when a climb is submitted) or "sha256:" and 64 hex digits')
    return text


def _positive(number: Decimal) -> Decimal:
    if number <= 0:
        raise ValueError("must be greater than 0")
    return number


def _not_negative(number: Decimal) -> Decimal:
    if number < 0:
        raise ValueError("must not be negative")
    return number


def _minutes(number: Decimal) -> Decimal:
    if number > _MAX_MINUTES:
        raise ValueError(f"must be at most {_MAX_MINUTES} (60 days)")
    return _positive(number)


Amount = Annotated[Decimal, BeforeValidator(_number), AfterValidator(_not_negative)]
"""A number that is zero or more, exactly as written."""
Positive = Annotated[Decimal, BeforeValidator(_number), AfterValidator(_positive)]
Minutes = Annotated[Decimal, BeforeValidator(_number), AfterValidator(_minutes)]
Name = Annotated[StrictStr, AfterValidator(_name)]
Line = Annotated[StrictStr, Field(max_length=256), AfterValidator(_line_of_text)]
OptionalLine = Annotated[StrictStr, Field(max_length=256), AfterValidator(_optional_line)]
Command = Annotated[StrictStr, Field(max_length=_MAX_TEXT), AfterValidator(_command)]
OptionalCommand = Annotated[StrictStr, Field(max_length=_MAX_TEXT), AfterValidator(_optional_command)]
Variable = Annotated[StrictStr, AfterValidator(_variable)]
TreePath = Annotated[StrictStr, Field(max_length=1024), AfterValidator(_tree_path)]
TreePaths = Annotated[tuple[TreePath, ...], BeforeValidator(_list)]
Direction = Literal["min", "max"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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

    path: Annotated[StrictStr, Field(max_length=1024), AfterValidator(_input_path)] = Field(
        description="Relative to the target's checkout, or absolute on shared storage (where the site allows it)."
    )
    digest: Annotated[StrictStr, AfterValidator(_digest)] = Field(
        default="content", description='"content", or the expected "sha256:…".'
    )
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
    seed_env: Annotated[StrictStr, AfterValidator(_optional_variable)] = Field(
        default="", description="Variable that carries the paired seed. Empty: the command takes no seed."
    )
    deterministic: StrictBool = Field(
        default=False, description="The same tree (and seed) always gives the same number, so it is measured once."
    )
    env: dict[Variable, Annotated[str, BeforeValidator(_value_of_variable)]] = Field(
        default_factory=dict, description="Further environment variables of the command."
    )
    minutes: Minutes = Field(default=Decimal(60), description="Limit of the command itself, setup not counted.")
    cpus: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(default=1, description="CPUs per node.")
    memory_gb: Positive | None = Field(default=None, description="Memory per node in GiB. Unset: the site's default.")
    gpus: Annotated[StrictInt, Field(ge=0, le=1024)] = Field(default=0, description="GPUs per node.")
    gpu_type: OptionalLine = Field(default="", description="GPU type; timings on different types don't compare.")
    nodes: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(default=1, description="Nodes.")
    lane: Annotated[StrictStr, AfterValidator(_lane)] = Field(
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
    suite: Annotated[tuple[StrictStr, ...], BeforeValidator(_list)] = Field(
        default=(), description='Siblings measured when the diff touches scope.shared. "*" is all others.'
    )
    regression: RegressionSpec | None = Field(default=None, description="How much this benchmark may lose as sibling.")
    guards: Annotated[tuple[GuardSpec, ...], BeforeValidator(_list)] = Field(
        default=(), description="Other metrics of the output line that must not get worse."
    )
    inputs: Annotated[tuple[InputSpec, ...], BeforeValidator(_list)] = Field(
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

    benchmarks: Annotated[tuple[Benchmark, ...], BeforeValidator(_list)] = Field(description="The benchmarks.")
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
                add(key, f'there is no benchmark "{sibling}"; {suggestion(sibling, others)}')
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


# writing


def _quoted(text: str) -> str:
    # JSON's escapes are a subset of TOML's, except that TOML wants DEL escaped too
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


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
    paths = ", ".join(_quoted(path) for path in allowed)
    lines = [
        "# What outerloop may measure here, and what a candidate may change.",
        "# Check it with: outerloop contract check",
        "",
        "[[benchmarks]]",
        f"name = {_quoted(name)}",
        f"command = {_quoted(command)}",
        f"metric = {_quoted(metric)}          # the command prints a JSON object with this key as its last line",
        f"direction = {_quoted(direction)}",
    ]
    if score:
        lines.append(f"score = {_quoted(score)}          # run from the base tree, after the candidate is dead")
    else:
        lines.append('#score = "python -m bench.score out/result.json"   # else the candidate prints its own number')
    lines.append(f"outputs = [{', '.join(_quoted(path) for path in outputs)}]" if outputs else "#outputs = []")
    lines += [
        f"seed_env = {_quoted(seed_env)}" if seed_env else '#seed_env = "SEED"          # a pair gets one seed',
        "#deterministic = true        # the same tree always gives the same number",
        f"minutes = {minutes}",
        f"cpus = {cpus}",
        f"memory_gb = {memory_gb}" if memory_gb is not None else "#memory_gb = 4",
        f"gpus = {gpus}",
        "min_delta = 0.0              # smallest gain that counts, in the metric's unit",
        "min_delta_rel = 0.0          # the same as a fraction of the baseline; measure your noise first",
        '#rule = { kind = "paired", pairs = 8 }   # several seeds instead of one pair',
        "",
        "[scope]",
        f"allowed = [{paths}]          # the only paths that a candidate may change",
        f"shared = [{', '.join(_quoted(path) for path in shared)}]          # changing these measures the suite too"
        if shared
        else "#shared = []",
        "",
        "#[budgets]",
        "#gpu_hours = 8",
        "#runs_per_week = 10",
    ]
    text = "\n".join(lines) + "\n"
    try:
        parse_contract(text, CONTRACT_FILE)
    except ContractError as error:
        raise ContractError([Problem(0, problem.key, problem.message) for problem in error.problems]) from None
    return text
