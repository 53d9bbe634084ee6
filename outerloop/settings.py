"""config.toml and OUTERLOOP_* -> Settings: what this deployment is and where it may run.

Covered: the schema with a description per field, the file and environment sources, the choice of a lane, and the
commented file that `outerloop init` writes. Not covered: whether the site agrees (doctor), and anything a target
says about itself (contract.py).

Precedence: arguments of `Settings(...)`, then environment variables (`OUTERLOOP_STATE`,
`OUTERLOOP_SLURM__BIN_DIR`, `OUTERLOOP_LANES__GPU__PARTITION`), then the file, then the site's profile
(site_profile.py), then the defaults.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from outerloop.compute.protocol import Lane
from outerloop.problems import Problem, nearest, render, suggestion, translate
from outerloop.settings_sections import (
    BudgetSettings,
    DispatchSettings,
    Isolation,
    LaneSettings,
    LocalPath,
    LocalSettings,
    NotifySettings,
    ServiceSettings,
    SlurmSettings,
    WakeSettings,
    asks_for_gpus,
    home,
)
from outerloop.settings_text import settings_text
from outerloop.site_profile import SiteProfile, merged, profile_path
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

CONFIG_VARIABLE = "OUTERLOOP_CONFIG"
_PREFIX = "OUTERLOOP_"
_MAX_FILE_BYTES = 1 << 20


class SettingsError(Exception):
    """The settings can't be used. The text names every problem, with its line or environment variable."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        super().__init__(render(source, problems))


class LaneError(SettingsError):
    """There is no lane for the work, or the one that it asks for is too small. The text names the setting."""


_file: ContextVar[Mapping[str, Any] | None] = ContextVar("outerloop_settings_file", default=None)


@contextmanager
def _reading(data: Mapping[str, Any]) -> Iterator[None]:
    token = _file.set(data)
    try:
        yield
    finally:
        _file.reset(token)


def _environment(known: Container[str]) -> dict[str, Any]:
    """OUTERLOOP_A__B=text -> {"a": {"b": "text"}}; pydantic turns the text into what the field is.

    A value is never JSON here: a list of options is what a shell would make of the text.
    """
    data: dict[str, Any] = {}
    for variable, value in sorted(os.environ.items()):
        if not variable.startswith(_PREFIX) or not value or variable == CONFIG_VARIABLE:
            continue
        *tables, last = variable.removeprefix(_PREFIX).lower().split("__")
        if (tables or [last])[0] not in known:
            continue
        here = data
        for table in tables:
            inner = here.setdefault(table, {})
            if not isinstance(inner, dict):  # OUTERLOOP_SLURM=x beside OUTERLOOP_SLURM__USER=y
                inner = here[table] = {}
            here = inner
        here[last] = value
    return data


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


class Settings(BaseModel):
    """Everything that a deployment decides. Build it with `Settings.load()`; frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    state: LocalPath = Field(
        default_factory=lambda: home() / "outerloop",
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
    site: str = Field(
        default="",
        description="Site profile below this file: a path, or a shipped one's name. Empty: site.toml beside this file.",
    )
    isolation: Isolation = Field(
        default="none", description="Sandbox around measured commands. none contains accidents, not malice."
    )
    python: str = Field(
        default_factory=lambda: sys.executable,
        description="Interpreter that starts jobs; must exist on compute nodes and see the outerloop package.",
    )
    mode: Literal["personal", "service"] = Field(
        default="personal", description="personal: each account dispatches its own runs. service: see [service]."
    )
    slurm: SlurmSettings = Field(default_factory=SlurmSettings, description="How the Slurm command line is reached.")
    local: LocalSettings = Field(default_factory=LocalSettings, description="The local backend.")
    lanes: dict[Annotated[str, AfterValidator(_lane_name)], LaneSettings] = Field(
        default_factory=dict, description="Named places to run; default, gpu and wake are chosen by themselves."
    )
    wake: WakeSettings = Field(default_factory=WakeSettings, description="Jobs that resume parked runs.")
    dispatch: DispatchSettings = Field(default_factory=DispatchSettings, description="Patience and number of tries.")
    notify: NotifySettings = Field(default_factory=NotifySettings, description="Who is told of what happened.")
    budgets: BudgetSettings = Field(default_factory=BudgetSettings, description="Limits on top of each target's own.")
    service: ServiceSettings = Field(
        default_factory=ServiceSettings, description='Who may submit to this service, and what (mode = "service").'
    )

    def __init__(self, **values: Any) -> None:
        """`values` on top of the environment, on top of the file that `load` is reading. Raises ValidationError."""
        # pydantic-settings does this, too; importing it costs a wake job a tenth of its time.
        super().__init__(**merged(merged(_file.get() or {}, _environment(type(self).model_fields)), values))

    @model_validator(mode="after")
    def _check(self) -> Self:
        complaint = _wake_lane_problem(self.wake.lane, self.lanes)
        if complaint is not None:
            raise ValueError(f"wake.lane: {complaint}")
        if self.mode == "service" and self.service.spool is None:
            raise ValueError('service.spool: is missing: mode = "service" needs the folder that submitters share')
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
        below = _profile(file, parsed)
        loaded: Settings | None = None
        if parsed.complete:
            try:
                with _reading(merged(below, parsed.data)):
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
            array_throttle=found.array_throttle,
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
    base = os.environ.get("XDG_CONFIG_HOME") or str(home() / ".config")
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


def _profile(config: Path, parsed: ParsedToml) -> dict[str, Any]:
    """What the site's profile says. Raises SettingsError, naming the profile's file, for a bad one."""
    said = os.environ.get(f"{_PREFIX}SITE") or parsed.data.get("site") or ""
    path = profile_path(said, config) if isinstance(said, str) else None
    if path is None:
        return {}
    below, problems = SiteProfile.read(path)
    if problems:
        raise SettingsError(str(path), problems)
    return below


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


def _stray_variables(model: type[BaseModel]) -> list[Problem]:
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
    if gpus > 0 and found.gpu_flag == "none" and not asks_for_gpus(found.extra):
        raise LaneError(
            "settings",
            [Problem(0, ("lanes", name, "gpu_flag"), 'is "none", but the work needs GPUs')],
        )
    if not found.account and "default" in settings.lanes:
        found = found.model_copy(update={"account": settings.lanes["default"].account})
    return name, found


def default_config(values: Mapping[str, Any] | None = None) -> str:
    """A commented config.toml. `values` (nested like the file) are written; all else stands there commented out.

    `default_config({"state": "/scratch/me/outerloop", "lanes": {"default": {"partition": "cpu"}}})`. Raises
    SettingsError for values that the settings would refuse.
    """
    written = settings_text(Settings, LaneSettings, values or {})
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
