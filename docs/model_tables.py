"""Tables of a model's keys: type, default and meaning, read from the model itself.

Covered: pydantic models, nested ones below the first that names them. Not covered: which models make a page
(generate_reference.py). A field without a description raises KeyError, so that no key is left unexplained.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

__all__ = ["cell", "code", "model_tables"]

_PLAIN: dict[Any, str] = {
    bool: "yes or no",
    int: "whole number",
    float: "number",
    Decimal: "number",
    str: "text",
    SecretStr: "text",
    Path: "path",
    Any: "any value",
}
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
_LARGEST_SHOWN = 10**8
"""Bounds beyond it only keep sums finite; a reader learns nothing from them."""


def cell(text: str) -> str:
    """Text in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    """Code in a table's cell."""
    return f"`{text.replace('|', chr(92) + '|')}`"


def model_tables(
    model: type[BaseModel],
    title: str,
    *,
    level: int = 2,
    said: bool = True,
    defaults: Mapping[str, str] | None = None,
) -> str:
    """The model's table under a heading, and below it those of the models in it. `said` False leaves out what the
    model says of itself.

    `defaults` says what stands for a default that depends on the machine, by `key` or `table.key`. Raises KeyError
    for a field without a description, or for such a default that is not among them.
    """
    return "\n".join(_Writer(level, defaults or {}).tables(model, title, "", said=said))


class _Writer:
    def __init__(self, level: int, defaults: Mapping[str, str]) -> None:
        self.level = level
        self.defaults = defaults
        self.titles: dict[type[BaseModel], str] = {}

    def tables(self, model: type[BaseModel], title: str, prefix: str, *, said: bool = True) -> Iterator[str]:
        self.titles[model] = title
        yield f"{'#' * self.level} {title}"
        yield ""
        if said:
            yield from self._said(model)
        yield "| key | kind | default | meaning |"
        yield "|---|---|---|---|"
        below: list[tuple[type[BaseModel], str, str]] = []
        for name, field in model.model_fields.items():
            key = field.alias or name
            for inner in _models(field.annotation):
                if inner not in self.titles and inner not in [found for found, _, _ in below]:
                    below.append((inner, _title(key, inner, field.annotation, prefix), f"{prefix}{key}."))
            yield self._row(model, name, key, field, prefix)
        yield ""
        for inner, heading, inside in below:
            if inner not in self.titles:
                yield from self.tables(inner, heading, inside)

    def _said(self, model: type[BaseModel]) -> Iterator[str]:
        said = (model.__doc__ or "").strip() if "__doc__" in vars(model) else ""
        for paragraph in said.split("\n\n") if said else []:
            yield " ".join(paragraph.split()).replace("<", "&lt;")
            yield ""

    def _row(self, model: type[BaseModel], name: str, key: str, field: FieldInfo, prefix: str) -> str:
        if not field.description:
            raise KeyError(f"{model.__module__}.{model.__name__}.{name} has no description")
        kind = _kind(field.annotation) + _bounds(field.metadata)
        default = self.defaults.get(f"{prefix}{key}")
        if default is None:
            default = _default(model, name, field)
        return f"| {code(key)} | {cell(kind)} | {default} | {cell(field.description)} |"


def _title(key: str, model: type[BaseModel], annotation: Any, prefix: str) -> str:
    path = f"{prefix}{key}"
    origin = get_origin(_stripped(annotation))
    if len(list(_models(annotation))) > 1:
        kind = model.model_fields.get("kind")
        return f'`[{path}]`, `kind = "{kind.default}"`' if kind is not None else f"`{path}`: {model.__name__}"
    if origin is dict:
        return f"`[{path}.NAME]`"
    return f"`[[{path}]]`" if origin in (tuple, list) else f"`[{path}]`"


def _stripped(annotation: Any) -> Any:
    """Without Annotated, and without None beside one other kind."""
    if get_origin(annotation) is Annotated:
        return _stripped(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kept = [part for part in get_args(annotation) if part is not type(None)]
        if len(kept) == 1:
            return _stripped(kept[0])
    return annotation


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for part in get_args(annotation):
        yield from _models(part)


def _kind(annotation: Any) -> str:
    here = _stripped(annotation)
    origin, parts = get_origin(here), get_args(here)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in parts if part is not type(None)))
    if origin in (tuple, list):
        if (len(parts) == 2 and parts[1] is Ellipsis) or origin is list:
            return f"list of {_kind(parts[0])}"
        return " and ".join(_kind(part) for part in parts)
    if origin is dict:
        inner = _kind(parts[1])
        return "tables" if inner == "table" else f"table of {inner}"
    if isinstance(here, type) and issubclass(here, BaseModel):
        return "table"
    if getattr(here, "__name__", "") == "JsonValue":
        return "any value"
    return _PLAIN.get(here) or getattr(here, "__name__", str(here))


def _bounds(metadata: list[Any]) -> str:
    said = []
    for limit in metadata:
        for name, sign in _BOUNDS:
            value = getattr(limit, name, None)
            if value is not None and abs(value) < _LARGEST_SHOWN:
                said.append(f"{sign} {value}")
    return f" ({', '.join(said)})" if said else ""


def _default(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        value = field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel) or value in ((), {}, []):
            return ""
        raise KeyError(f"{model.__name__}.{name}: its default depends on the machine; say what stands for it")
    return _spelled(field.default)


def _spelled(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", (), {}) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        return ", ".join(_spelled(part) or f"`{getattr(part, 'name', part)}`" for part in value)
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(f'"{value}"' if isinstance(value, str) else f"{value}")
