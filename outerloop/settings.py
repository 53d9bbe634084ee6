"""config.toml and OUTERLOOP_* -> Settings: what this deployment is and where it may run.

Covered: the schema with a description per field, the file and environment sources, the choice of a lane, and the
commented file that `outerloop init` writes. Not covered: whether the site agrees (doctor), and anything a target
says about itself (contract.py).

Precedence: arguments of `Settings(...)`, then environment variables (`OUTERLOOP_STATE`,
`OUTERLOOP_SLURM__BIN_DIR`, `OUTERLOOP_LANES__GPU__PARTITION`), then the file, then the defaults.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from outerloop.compute.protocol import Lane
from outerloop.problems import Problem, nearest, render, suggestion, translate
from outerloop.toml_lines import ParsedToml, read_toml

__all__ = [
    "BudgetSettings",
    "DispatchSettings",
    "Isolation",
    "LaneError",
    "LaneSettings",
    "LocalSettings",
    "Settings",
    "SettingsError",
    "SlurmSettings",
    "WakeSettings",
    "choose_lane",
    "config_path",
    "default_config",
    "derive_deployment",
    "effective_backend",
]

Isolation = Literal["none", "bwrap", "apptainer"]

CONFIG_VARIABLE = "OUTERLOOP_CONFIG"
_PREFIX = "OUTERLOOP_"
_MAX_FILE_BYTES = 1 << 20

_MEMORY_OPTIONS = frozenset({"--mem", "--mem-per-cpu", "--mem-per-gpu"})
_GPU_OPTIONS = frozenset(
    {"--gres", "--gpus", "-G", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "--tres-per-node"}
)
_FIELD_OF_OPTION = {
    "--partition": "partition",
    "-p": "partition",
    "--account": "account",
    "-A": "account",
    "--qos": "qos",
    "-q": "qos",
    "--reservation": "reservation",
}
_OURS = frozenset(
    {
        "--job-name",
        "-J",
        "--output",
        "-o",
        "--error",
        "-e",
        "--dependency",
        "-d",
        "--array",
        "-a",
        "--time",
        "-t",
        "--export",
        "--export-file",
        "--parsable",
        "--wrap",
        "--requeue",
        "--no-requeue",
        "--open-mode",
        "--chdir",
        "-D",
        "--begin",
        "-b",
        "--nodes",
        "-N",
        "--ntasks",
        "-n",
        "--cpus-per-task",
        "-c",
        "--exclude",
        "-x",
        "--test-only",
        "--wait",
        "-W",
        "--hold",
        "-H",
    }
)
"""sbatch options that the job builder sets itself, per job; a lane that sets them too would break exactly-once."""


_SHORTEST_ABBREVIATION = len("--no")


def _meant(name: str, known: Iterable[str]) -> str | None:
    """The option of `known` that sbatch would take `name` for, or None."""
    for option in known:
        abbreviated = name.startswith("--") and len(name) >= _SHORTEST_ABBREVIATION and option.startswith(name)
        if name == option or abbreviated:
            return option
    return None


class SettingsError(Exception):
    """The settings can't be used. The text names every problem, with its line or environment variable."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        super().__init__(render(source, problems))


class LaneError(SettingsError):
    """There is no lane for the work, or the one that it asks for is too small. The text names the setting."""


def _home() -> Path:
    # HOME may be unset or unwritable in a job; the account's own folder is then in the password database
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")  # an account without a password entry; nothing is written there, `state` must be set


def _default_state() -> Path:
    return _home() / "outerloop"


def _local_path(value: Any) -> Any:
    """`~` is the account's home. Relative paths are refused: cron, a shell and a job start in different folders."""
    if isinstance(value, (str, Path)) and str(value):
        if "\0" in str(value):
            raise ValueError("contains a null byte")
        try:
            expanded = Path(value).expanduser()
        except RuntimeError:
            raise ValueError("~ can't be expanded: there is no such account or it has no home folder") from None
        if not expanded.is_absolute():
            raise ValueError("must be an absolute path (or begin with ~/)")
        return expanded
    if value == "":
        raise ValueError("must not be empty")
    return value


def _optional_path(value: Any) -> Any:
    return None if value == "" else _local_path(value)


def _options(value: Any) -> Any:
    # an environment variable holds one string
    if isinstance(value, str):
        try:
            return json.loads(value) if value.lstrip().startswith("[") else shlex.split(value)
        except ValueError as error:
            raise ValueError(f"can't be split into options: {error}") from None
    return value


LocalPath = Annotated[Path, BeforeValidator(_local_path)]
OptionalPath = Annotated[Path | None, BeforeValidator(_optional_path)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class SlurmSettings(_Section):
    """How the Slurm command line is reached."""

    bin_dir: OptionalPath = Field(
        default=None, description="Folder of sbatch, squeue, sacct and scancel. Empty: looked up in PATH."
    )
    conf: OptionalPath = Field(
        default=None, description="slurm.conf, given to the tools as SLURM_CONF. Empty: the site's own default."
    )
    user: str = Field(default="", description="Account whose jobs are listed. Empty: the one that runs outerloop.")
    sbatch_timeout_seconds: float = Field(
        default=60.0, gt=0, description="A submission without an answer for so long has an unknown outcome."
    )
    query_timeout_seconds: float = Field(
        default=60.0, gt=0, description="squeue, sacct and scontrol count as not answering after so long."
    )
    accounting: Literal["auto", "on", "off"] = Field(
        default="auto", description="Whether sacct is asked. auto: unless the site turned out to have none."
    )
    api: Literal["auto", "cli", "pyslurm"] = Field(
        default="auto", description="Command line or pyslurm. auto: pyslurm where it loads and fits the cluster."
    )
    submit_from_jobs: Literal["auto", "yes", "no"] = Field(
        default="auto", description="Whether compute nodes may run sbatch and reach the record (wake jobs need both)."
    )


class LocalSettings(_Section):
    """The local backend: jobs as processes of this machine."""

    cpus: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, description="CPUs that local jobs may use together."
    )
    gpus: int = Field(default=0, ge=0, description="GPUs that local jobs may use together.")


class LaneSettings(_Section):
    """One named place to run. Empty text says nothing to Slurm about it."""

    partition: str = Field(default="", description="Slurm partition. Empty: the cluster's default.")
    account: str = Field(default="", description="Slurm account. Empty: the default lane's.")
    qos: str = Field(default="", description="Quality of service.")
    reservation: str = Field(default="", description="Reservation to run in.")
    gpu_flag: Literal["gpus-per-node", "gres", "gpus", "none"] = Field(
        default="gpus-per-node", description="How this site wants GPUs to be asked for."
    )
    gpu_type: str = Field(default="", description="GPU type, as the site spells it, for work that names none.")
    memory_flag: Literal["mem", "mem-per-cpu", "none"] = Field(
        default="mem", description="The one form in which memory is asked for. none: the site refuses memory requests."
    )
    max_minutes: float | None = Field(
        default=None, gt=0, description="Longest walltime of this lane. Longer work is refused before it is submitted."
    )
    prologue: str = Field(
        default="", description="Shell lines before the work: module loads, extra PATH. Part of a result's identity."
    )
    cache_seed: OptionalPath = Field(
        default=None, description="Folder copied into each job's scratch caches: warmed kernels, wheels."
    )
    extra: Annotated[tuple[str, ...], BeforeValidator(_options)] = Field(
        default=(), description='Further sbatch options, such as ["--constraint=a100"].'
    )
    isolation: Isolation | None = Field(default=None, description="Overrides the deployment's isolation in this lane.")
    image: OptionalPath = Field(
        default=None, description="Container image for apptainer, unless the benchmark names one."
    )

    @field_validator("extra")
    @classmethod
    def _options_fit(cls, options: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for option in options:
            if not option.strip() or "\0" in option or "\n" in option:
                raise ValueError("an option must be one non-empty line")
            # getopt takes -pgpu for -p gpu, and any unique beginning of a long option
            name = option.split("=", 1)[0].split()[0] if option.startswith("--") else option[:2]
            owned = _meant(name, _FIELD_OF_OPTION)
            if owned:
                raise ValueError(f"{option} has a setting of its own: {_FIELD_OF_OPTION[owned]}")
            memory_flag = info.data.get("memory_flag", "none")
            if _meant(name, _MEMORY_OPTIONS) and memory_flag != "none":
                raise ValueError(
                    f'{option} asks for memory a second time beside memory_flag = "{memory_flag}";'
                    ' Slurm refuses that. Remove it, or set memory_flag = "none"'
                )
            gpu_flag = info.data.get("gpu_flag", "none")
            if _meant(name, _GPU_OPTIONS) and gpu_flag != "none":
                raise ValueError(
                    f'{option} asks for GPUs a second time beside gpu_flag = "{gpu_flag}";'
                    ' remove it, or set gpu_flag = "none"'
                )
            if _meant(name, _OURS):
                raise ValueError(f"{option} is set by outerloop for each job and can't be set for a lane")
        return options


class WakeSettings(_Section):
    """Jobs that resume a parked run when what it waits for has ended."""

    mode: Literal["auto", "always", "never"] = Field(
        default="auto", description="auto: a wake job unless the tick's heartbeat is fresh enough to rely on."
    )
    lane: str = Field(default="", description='Lane of wake jobs. Empty: "wake" if there is such a lane, else default.')
    minutes: float = Field(default=10.0, gt=0, description="Walltime of a wake job.")
    cap: int = Field(default=20, ge=0, description="Live wake jobs per owner; runs beyond it wait for the tick.")
    cadence_seconds: float = Field(default=300.0, gt=0, description="How often the tick runs (cron, or tick --loop).")


class DispatchSettings(_Section):
    """Patience, in seconds by the database's clock, and the number of tries."""

    grace_seconds: float = Field(
        default=60.0, ge=0, description="How long files may lag behind the queue before their absence means anything."
    )
    intent_patience_seconds: float = Field(
        default=180.0, ge=0, description="Age at which an unanswered submission is looked for in queue and history."
    )
    max_attempts: int = Field(
        default=3, ge=1, description="Attempts of a slot that infrastructure may use up before its runs are blocked."
    )
    backoff_seconds: float = Field(default=60.0, ge=0, description="Wait before the second attempt; then doubled.")
    lease_seconds: float = Field(
        default=300.0, gt=0, description="How long a process may work on a run before another may take over."
    )
    margin_minutes: float = Field(
        default=5.0, ge=0, description="Walltime beyond a benchmark's minutes, for setup, scoring and our own stop."
    )
    gone_grace_seconds: float = Field(
        default=120.0,
        ge=0,
        description="How long a job is absent from queue and history before it counts as lost.",
    )
    preempt_grace_seconds: float = Field(
        default=300.0, ge=0, description="How long a preempted job may be unlisted before a new attempt is made."
    )


class BudgetSettings(_Section):
    """Limits of this deployment, on top of each target's own."""

    gpu_hours: float | None = Field(default=None, ge=0, description="GPU-hours per target. Unset: no limit.")
    runs_per_week: int | None = Field(default=None, ge=0, description="Runs per target and week. Unset: no limit.")


_file: ContextVar[Mapping[str, Any] | None] = ContextVar("outerloop_settings_file", default=None)


@contextmanager
def _reading(data: Mapping[str, Any]) -> Iterator[None]:
    token = _file.set(data)
    try:
        yield
    finally:
        _file.reset(token)


class _EnvironmentSource(PydanticBaseSettingsSource):
    """OUTERLOOP_A__B=text -> {"a": {"b": "text"}}; pydantic turns the text into what the field is.

    Our own because a value is never JSON here: a list of options is what a shell would make of the text.
    """

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for variable, value in sorted(os.environ.items()):
            if not variable.startswith(_PREFIX) or not value or variable == CONFIG_VARIABLE:
                continue
            *tables, last = variable.removeprefix(_PREFIX).lower().split("__")
            if (tables or [last])[0] not in self.settings_cls.model_fields:
                continue
            here = data
            for table in tables:
                inner = here.setdefault(table, {})
                if not isinstance(inner, dict):  # OUTERLOOP_SLURM=x beside OUTERLOOP_SLURM__USER=y
                    inner = here[table] = {}
                here = inner
            here[last] = value
        return data


class _FileSource(PydanticBaseSettingsSource):
    """The parsed file, below the environment. Empty when Settings is built without `load`."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(_file.get() or {})


_LANE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_DEPLOYMENT = re.compile(r"[a-z0-9]{1,8}")
_DRIVER = "postgresql+psycopg"


def _with_driver(given: SecretStr) -> SecretStr:
    url = given.get_secret_value()
    if not url:
        return given
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.split("+")[0] not in ("postgresql", "postgres"):
        raise ValueError("must begin with postgresql://; no other database is supported")
    if "+" in scheme and scheme != _DRIVER:
        raise ValueError("write postgresql://… without another driver; psycopg is used")
    return SecretStr(f"{_DRIVER}://{rest}")


def _deployment(name: str) -> str:
    if name and _DEPLOYMENT.fullmatch(name) is None:
        raise ValueError("must be 1 to 8 of [a-z0-9]: it stands in every job name")
    return name


def _lane_name(name: str) -> str:
    if _LANE_NAME.fullmatch(name) is None:
        raise ValueError("a lane's name must be lower case: a letter, then [a-z0-9_-], at most 32")
    return name


def _wake_lane_problem(name: Any, lanes: Any) -> str | None:
    if not isinstance(name, str) or not isinstance(lanes, Mapping) or not name or not lanes or name in lanes:
        return None
    return f'there is no lane "{name}"; {suggestion(name, lanes)}'


class Settings(BaseSettings):
    """Everything that a deployment decides. Build it with `Settings.load()`; frozen."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    state: LocalPath = Field(
        default_factory=_default_state,
        description="State folder, on a file system that compute nodes share: slots, runs, mirrors, champions, inbox.",
    )
    database_url: Annotated[SecretStr, AfterValidator(_with_driver)] = Field(
        default=SecretStr(""),
        description="Postgres URL: postgresql://user:password@host/name. Empty: embedded server in the state folder.",
    )
    deployment: Annotated[str, AfterValidator(_deployment)] = Field(
        default="",
        description="Short id in every job name: 1 to 8 of [a-z0-9]. Empty: derived from account and state folder.",
    )
    backend: Literal["slurm", "local", "auto"] = Field(
        default="auto",
        description="Where jobs run. auto: slurm where sbatch and sinfo are found, else this machine.",
    )
    isolation: Isolation = Field(
        default="none", description="Sandbox around measured commands. none contains accidents, not malice."
    )
    python: str = Field(
        default_factory=lambda: sys.executable,
        description="Interpreter that starts jobs; must exist on compute nodes and see the outerloop package.",
    )
    slurm: SlurmSettings = Field(default_factory=SlurmSettings, description="How the Slurm command line is reached.")
    local: LocalSettings = Field(default_factory=LocalSettings, description="The local backend.")
    lanes: dict[Annotated[str, AfterValidator(_lane_name)], LaneSettings] = Field(
        default_factory=dict, description="Named places to run; default, gpu and wake are chosen by themselves."
    )
    wake: WakeSettings = Field(default_factory=WakeSettings, description="Jobs that resume parked runs.")
    dispatch: DispatchSettings = Field(default_factory=DispatchSettings, description="Patience and number of tries.")
    budgets: BudgetSettings = Field(default_factory=BudgetSettings, description="Limits on top of each target's own.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _EnvironmentSource(settings_cls), _FileSource(settings_cls)

    @model_validator(mode="after")
    def _check(self) -> Self:
        complaint = _wake_lane_problem(self.wake.lane, self.lanes)
        if complaint is not None:
            raise ValueError(f"wake.lane: {complaint}")
        if not self.deployment:
            object.__setattr__(self, "deployment", derive_deployment(self.state))
        return self

    @classmethod
    def load(cls, path: Path | str | None = None) -> Settings:
        """Read the file (`path`, else OUTERLOOP_CONFIG, else ~/.config/outerloop/config.toml) and the environment.

        A missing file is an error only where it was named. Raises SettingsError with all problems at once.
        """
        named = path is not None or bool(os.environ.get(CONFIG_VARIABLE))
        file = Path(path) if path is not None else config_path()
        source = str(file)
        parsed = _read(file, required=named)
        problems = list(parsed.problems)
        problems += _stray_variables(cls)
        loaded: Settings | None = None
        if parsed.complete:
            try:
                with _reading(parsed.data):
                    loaded = cls()
            except ValidationError as error:
                problems += [_located(detail, parsed, cls) for detail in error.errors(include_url=False)]
                # pydantic leaves the checks between fields out once a field is wrong
                complaint = _wake_lane_problem(_at(parsed.data, "wake", "lane"), parsed.data.get("lanes"))
                if complaint is not None and not any(problem.key == ("wake", "lane") for problem in problems):
                    problems.append(Problem(parsed.lines.line(("wake", "lane")), ("wake", "lane"), complaint))
        if problems or loaded is None:
            raise SettingsError(source, problems)
        return loaded

    def lane(self, name: str) -> Lane:
        """The lane as the compute backends take it; an empty account is the default lane's.

        Raises SettingsError (LaneError) for a name that has no section.
        """
        found = self.lanes.get(name)
        if found is None:
            if effective_backend(self) == "local":
                return Lane(name=name)
            raise _no_lane(self, name)
        default = self.lanes.get("default")
        return Lane(
            name=name,
            partition=found.partition,
            account=found.account or (default.account if default is not None else ""),
            qos=found.qos,
            reservation=found.reservation,
            gpu_flag=found.gpu_flag,
            gpu_type=found.gpu_type,
            memory_flag=found.memory_flag,
            max_minutes=found.max_minutes,
            extra=found.extra,
        )

    def wake_lane(self) -> tuple[str, LaneSettings]:
        """The lane of wake jobs: `wake.lane`, else "wake" where it exists, else the default lane."""
        name = self.wake.lane or ("wake" if "wake" in self.lanes else "")
        return choose_lane(self, name, 0)


def config_path() -> Path:
    """The file that `load` reads: OUTERLOOP_CONFIG, else ~/.config/outerloop/config.toml (XDG_CONFIG_HOME honoured)."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or str(_home() / ".config")
    return Path(base) / "outerloop" / "config.toml"


def derive_deployment(state: Path) -> str:
    """Six characters that differ between accounts and state folders, and are the same on every node."""
    return hashlib.sha256(f"{os.getuid()}:{Path(state).absolute()}".encode()).hexdigest()[:6]


def _at(data: Mapping[str, Any], table: str, key: str) -> Any:
    found = data.get(table)
    return found.get(key) if isinstance(found, Mapping) else None


def _read(file: Path, *, required: bool) -> ParsedToml:
    source = str(file)

    def refuse(message: str) -> SettingsError:
        return SettingsError(source, [Problem(0, (), message)])

    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if required:
            raise refuse("there is no such file; write one with: outerloop init") from None
        return read_toml("")
    except (OSError, ValueError) as error:
        raise refuse(f"can't be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise refuse(f"is larger than {_MAX_FILE_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(source, [Problem(raw.count(b"\n", 0, error.start) + 1, (), "is not UTF-8 text")]) from None
    return read_toml(text)


_PREFIXED = re.compile(r"(?P<key>[a-z_]+(?:\.[a-z0-9_-]+)*): (?P<rest>.*)", re.DOTALL)


def _located(detail: Any, parsed: ParsedToml, model: type[BaseModel]) -> Problem:
    key, message = translate(detail, model, secret=lambda at: "database_url" in at or not at)
    # a model's own check names the key first: "extra: …", "wake.lane: …"
    inner = _PREFIXED.fullmatch(message) if detail["type"] == "value_error" else None
    if inner is not None:
        key = (*key, *inner.group("key").split("."))
        message = inner.group("rest")
    variable = _PREFIX + "__".join(str(part) for part in key).upper()
    if variable in os.environ:
        return Problem(0, key, f"{message} [environment variable {variable}]")
    return Problem(parsed.lines.line(key), key, message)


def _stray_variables(model: type[BaseSettings]) -> list[Problem]:
    """OUTERLOOP_* variables that nearly name a setting. Others are left alone: jobs and tests have their own."""
    problems = []
    for variable in sorted(os.environ):
        if not variable.startswith(_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        first = variable.removeprefix(_PREFIX).lower().split("__")[0]
        if first in model.model_fields:
            continue
        close = nearest(first, model.model_fields)
        if close is not None and _distance_is_small(first, close):
            problems.append(
                Problem(0, (), f"variable {variable} names no setting; did you mean {_PREFIX}{close.upper()}?")
            )
    return problems


def _distance_is_small(name: str, close: str) -> bool:
    import difflib

    return difflib.SequenceMatcher(None, name, close).ratio() >= 0.85


def effective_backend(settings: Settings) -> Literal["slurm", "local"]:
    """`backend`, with auto resolved by what is installed: slurm when both sbatch and sinfo are, else local."""
    if settings.backend != "auto":
        return settings.backend
    folder = settings.slurm.bin_dir
    where = None if folder is None else str(folder)
    return "slurm" if all(shutil.which(tool, path=where) for tool in ("sbatch", "sinfo")) else "local"


def _no_lane(settings: Settings, name: str, why: str = "") -> LaneError:
    close = nearest(name, settings.lanes)
    hint = f'; did you mean "{close}"?' if close is not None else ""
    have = "lanes: " + ", ".join(settings.lanes) if settings.lanes else "there are no lanes"
    return LaneError(
        "settings",
        [Problem(0, ("lanes", name), f"is not set{why}; add a section [lanes.{name}] ({have}){hint}")],
    )


def choose_lane(settings: Settings, benchmark_lane: str, gpus: int) -> tuple[str, LaneSettings]:
    """The lane of a piece of work: what its benchmark asks for, else "gpu" when it needs GPUs, else "default".

    The local backend needs no lanes: one that has no section there is an empty one. Raises LaneError, naming the
    missing setting.
    """
    name = benchmark_lane or ("gpu" if gpus > 0 else "default")
    found = settings.lanes.get(name)
    if found is None:
        if effective_backend(settings) == "local":
            return name, LaneSettings()
        why = " and the benchmark asks for it" if benchmark_lane else " and the work needs GPUs" if gpus > 0 else ""
        raise _no_lane(settings, name, why)
    if gpus > 0 and found.gpu_flag == "none" and not any(o.split("=")[0] in _GPU_OPTIONS for o in found.extra):
        raise LaneError(
            "settings",
            [Problem(0, ("lanes", name, "gpu_flag"), 'is "none", but the work needs GPUs')],
        )
    if not found.account and "default" in settings.lanes:
        found = found.model_copy(update={"account": settings.lanes["default"].account})
    return name, found


# the file that init writes


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, SecretStr):
        return _toml(value.get_secret_value())
    text = "" if value is None else str(value)
    # JSON's escapes are a subset of TOML's, except that TOML also wants DEL escaped
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _choices(annotation: Any) -> str:
    found = [part for part in get_args(annotation) if isinstance(part, str)]
    return " (" + " | ".join(found) + ")" if found else ""


_UNSET_EXAMPLES = {"max_minutes": "1440", "gpu_hours": "100", "runs_per_week": "50", "isolation": '"bwrap"'}
"""Shown, commented out, for settings whose default is "not set", which TOML can't write."""


def _entries(model: type[BaseModel], values: Mapping[str, Any], defaults: BaseModel | None) -> list[str]:
    written: list[str] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        if name == "lanes":
            continue
        written.append(f"# {field.description}{_choices(field.annotation)}")
        if name in values:
            written.append(f"{name} = {_toml(values[name])}")
        else:
            default = getattr(defaults, name) if defaults is not None else field.get_default(call_default_factory=True)
            example = _UNSET_EXAMPLES.get(name) if default is None else None
            written.append(f"#{name} = {example if example is not None else _toml(default)}")
    return written


def default_config(values: Mapping[str, Any] | None = None) -> str:
    """A commented config.toml. `values` (nested like the file) are written; all else stands there commented out.

    `default_config({"state": "/scratch/me/outerloop", "lanes": {"default": {"partition": "cpu"}}})`. Raises
    SettingsError for values that the settings would refuse.
    """
    given = dict(values or {})
    text = [
        "# outerloop's settings for this account. Every line can also be an environment variable:",
        "# OUTERLOOP_STATE, OUTERLOOP_SLURM__BIN_DIR, OUTERLOOP_LANES__GPU__PARTITION, …",
        "",
    ]
    text += _entries(Settings, given, None)
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if name == "lanes":
            lanes: Mapping[str, Any] = given.get("lanes") or {}
            for lane in lanes or ["default"]:
                text += ["", f"# {field.description}", f"[lanes.{lane}]" if lanes else "#[lanes.default]"]
                text += _entries(LaneSettings, lanes[lane] if lanes else {}, None)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            text += ["", f"# {field.description}", f"[{name}]"]
            text += _entries(kind, given.get(name) or {}, None)
    written = "\n".join(text) + "\n"
    _refuse_bad(written)
    return written


def _refuse_bad(text: str) -> None:
    parsed = read_toml(text)
    problems = list(parsed.problems)
    try:
        with _reading(parsed.data):
            Settings()
    except ValidationError as error:
        problems += [_located(detail, parsed, Settings) for detail in error.errors(include_url=False)]
    if problems:
        raise SettingsError("the new config.toml", problems)
