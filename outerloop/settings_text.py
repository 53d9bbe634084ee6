"""A commented config.toml, generated from the models so that it can't drift from them.

Covered: spelling values as TOML. Not covered: whether they are good ones (settings.py checks what is written here).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, SecretStr

__all__ = ["settings_text", "toml_value"]


def toml_value(value: Any) -> str:
    """A plain value (text, number, yes or no, list of them) as TOML spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(toml_value(part) for part in value) + "]"
    if isinstance(value, SecretStr):
        return toml_value(value.get_secret_value())
    text = "" if value is None else str(value)
    # JSON's escapes are a subset of TOML's, except that TOML also wants DEL escaped
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _choices(annotation: Any) -> str:
    found = [part for part in get_args(annotation) if isinstance(part, str)]
    return " (" + " | ".join(found) + ")" if found else ""


_UNSET_EXAMPLES = {
    "max_minutes": "1440",
    "array_throttle": "50",
    "gpu_hours": "100",
    "runs_per_week": "50",
    "open_runs": "4",
    "isolation": '"bwrap"',
}
"""Shown, commented out, for settings whose default is "not set", which TOML can't write."""


_TABLES = {
    "limits": ["#   [service.limits.ada]", "#   runs_per_week = 200"],
    "targets": ["#   [service.targets.tsp]", '#   repository = "/srv/targets/tsp"', '#   refs = ["main"]'],
}
"""Settings that are tables of their own, with what shows how they are written."""


def _entries(model: type[BaseModel], values: Mapping[str, Any]) -> list[str]:
    written: list[str] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        if name == "lanes":
            continue
        if name in _TABLES:
            written += [f"# {field.description} For example:", *_TABLES[name]]
            continue
        written.append(f"# {field.description}{_choices(field.annotation)}")
        if name in values:
            written.append(f"{name} = {toml_value(values[name])}")
        else:
            default = field.get_default(call_default_factory=True)
            example = _UNSET_EXAMPLES.get(name) if default is None else None
            written.append(f"#{name} = {example if example is not None else toml_value(default)}")
    return written


def settings_text(whole: type[BaseModel], section: type[BaseModel], values: Mapping[str, Any]) -> str:
    """The file for the model `whole`, whose lanes are `section`s: `values` are set, the rest is commented out."""
    text = [
        "# outerloop's settings for this account. Every line can also be an environment variable:",
        "# OUTERLOOP_STATE, OUTERLOOP_SLURM__BIN_DIR, OUTERLOOP_LANES__GPU__PARTITION, …",
        "",
    ]
    text += _entries(whole, values)
    for name, field in whole.model_fields.items():
        kind = field.annotation
        if name == "lanes":
            lanes: Mapping[str, Any] = values.get("lanes") or {}
            for lane in lanes or ["default"]:
                text += ["", f"# {field.description}", f"[lanes.{lane}]" if lanes else "#[lanes.default]"]
                text += _entries(section, lanes[lane] if lanes else {})
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            text += ["", f"# {field.description}", f"[{name}]"]
            text += _entries(kind, values.get(name) or {})
    return "\n".join(text) + "\n"
