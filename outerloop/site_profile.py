"""Site profiles: what a site spells differently, as a file below config.toml.

Covered: the schema, reading (`site.toml` beside the config, or a shipped one by its name), the text that doctor writes.
Not covered: finding out (controller.doctor), and what a person decides in config.toml, which always wins.

A profile holds sections of config.toml that depend on the site alone, and [site], which nobody has to decide: what was
measured there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outerloop.problems import Problem, translate
from outerloop.settings_sections import LaneSettings, SlurmSettings, WakeSettings
from outerloop.settings_text import toml_value
from outerloop.toml_lines import read_toml

__all__ = ["PROFILE_FILE", "SHIPPED", "SiteFacts", "SiteProfile", "merged", "profile_path", "profile_text"]

PROFILE_FILE = "site.toml"
"""Beside config.toml; read without being named."""

_MAX_FILE_BYTES = 1 << 20


def _shipped() -> Path:
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "slurm" / "sites", package / "_shipped" / "slurm" / "sites"):
        if folder.is_dir():
            return folder
    return package / "_shipped" / "slurm" / "sites"


SHIPPED = _shipped()
"""Folder of the profiles that come with outerloop."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class SiteFacts(_Table):
    """What a site was seen to be. Nothing is decided by these alone."""

    name: str = Field(default="", description="What people call the site.")
    cluster: str = Field(default="", description="ClusterName.")
    slurm: str = Field(default="", description="Slurm's version.")
    max_array_size: int | None = Field(default=None, ge=0, description="MaxArraySize.")
    min_job_age_seconds: int | None = Field(default=None, ge=0, description="MinJobAge.")
    preempt_mode: str = Field(default="", description="PreemptMode of the cluster; partitions may have their own.")
    accounting: bool | None = Field(default=None, description="Whether sacct answers.")
    max_submit_jobs: int | None = Field(
        default=None, ge=0, description="Jobs that the account may have in the queue, by accounting."
    )
    tools_on_nodes: tuple[str, ...] = Field(default=(), description="Slurm's tools that a compute node has.")
    clock_difference_seconds: float | None = Field(
        default=None, description="Of a compute node's clock to the submitting host's."
    )


class SiteProfile(_Table):
    """A profile file. The sections are those of config.toml, and only what is written counts."""

    site: SiteFacts = Field(default_factory=SiteFacts, description="What the site was seen to be.")
    slurm: SlurmSettings = Field(default_factory=SlurmSettings, description="As in config.toml.")
    wake: WakeSettings = Field(default_factory=WakeSettings, description="As in config.toml.")
    lanes: dict[str, LaneSettings] = Field(default_factory=dict, description="As in config.toml.")

    @classmethod
    def read(cls, path: Path) -> tuple[dict[str, Any], list[Problem]]:
        """The settings in a profile, nested as in config.toml and without [site]; and what is wrong with the file."""
        try:
            raw = path.read_bytes()[: _MAX_FILE_BYTES + 1]
            parsed = read_toml(raw.decode("utf-8-sig"))
        except OSError as error:
            return {}, [Problem(0, (), f"can't be read: {error.strerror}")]
        except UnicodeDecodeError:
            return {}, [Problem(0, (), "is not UTF-8 text")]
        problems = list(parsed.problems)
        if len(raw) > _MAX_FILE_BYTES:
            problems.append(Problem(0, (), f"is larger than {_MAX_FILE_BYTES} bytes"))
        if problems or not parsed.complete:
            return {}, problems
        try:
            cls.model_validate(parsed.data)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                key, message = translate(detail, cls)
                problems.append(Problem(parsed.lines.line(key), key, message))
        return {name: table for name, table in parsed.data.items() if name != "site"}, problems


def profile_path(named: str, config: Path) -> Path | None:
    """The profile of a deployment: `named` is a path or the name of a shipped one, empty for the file beside the
    config. None when there is none. A named one may not exist: reading it says so."""
    if not named:
        beside = config.parent / PROFILE_FILE
        return beside if beside.is_file() else None
    shipped = SHIPPED / f"{named}.toml"
    if "/" not in named and shipped.is_file():
        return shipped
    path = Path(named).expanduser()
    return path if path.is_absolute() else config.parent / path


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one; where both say something else than a table, `above` wins."""
    result = dict(below)
    for key, value in above.items():
        here = result.get(key)
        both_tables = isinstance(here, Mapping) and isinstance(value, Mapping)
        result[key] = merged(here, value) if both_tables else value  # type: ignore[arg-type]
    return result


def profile_text(profile: Mapping[str, Any], tried: Mapping[tuple[str, ...], str], head: str) -> str:
    """A profile file. `tried` says, by the key that it led to, what was tried; `head` stands at the top.

    Raises ValueError for what `SiteProfile` would refuse.
    """
    lines = [f"# {line}" for line in head.splitlines()]
    for path, table in _tables(profile):
        lines += ["", f"[{'.'.join(path)}]"]
        for key, value in table.items():
            lines += [f"# {line}" for line in tried.get((*path, key), "").splitlines()]
            lines.append(f"{key} = {toml_value(value)}")
    text = "\n".join(lines) + "\n"
    SiteProfile.model_validate(tomllib.loads(text))
    return text


def _tables(profile: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    found: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for name in ("site", "slurm", "wake"):
        table = {key: value for key, value in (profile.get(name) or {}).items() if value is not None}
        if table:
            found.append(((name,), table))
    for lane, table in (profile.get("lanes") or {}).items():
        if table:
            found.append((("lanes", lane), dict(table)))
    return found
