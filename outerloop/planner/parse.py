"""A request from a mapping, with errors that a person can act on.

Covers the shape of the mapping: limits and mode at the top, `[workload]`, `[resources]`, `[[figures]]`. Reading the
file is the caller's, since this room touches no disk.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from outerloop.planner.catalog import Gpu, Utilisation
from outerloop.planner.request import (
    ClassicalML,
    IndependentTasks,
    Lora,
    MeasuredFigure,
    PlanRequest,
    PytorchTraining,
    Resources,
    TransformerFinetune,
)
from outerloop.planner.shapes import ModelShape


class PlanRequestError(ValueError):
    """The request cannot be read. `problems` holds one sentence per wrong key, `keys` where each stands."""

    def __init__(self, problems: list[str], keys: list[tuple[str | int, ...]]) -> None:
        self.problems = problems
        self.keys = keys
        super().__init__("\n".join(problems))


_KINDS: dict[str, type[BaseModel]] = {
    "transformer_finetune": TransformerFinetune,
    "pytorch_training": PytorchTraining,
    "classical_ml": ClassicalML,
    "independent_tasks": IndependentTasks,
}


def _model_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The model whose keys stand at an error's location, so that a nearest key can be named."""
    parts = [part for part in location[:-1] if isinstance(part, str)]
    found: type[BaseModel] = PlanRequest
    for part in parts:
        nested: dict[str, type[BaseModel]] = {
            "resources": Resources,
            "figures": MeasuredFigure,
            "gpu": Gpu,
            "utilisation": Utilisation,
            "lora": Lora,
            "model": ModelShape,
            **_KINDS,
        }
        found = nested.get(part, found)
    return found


def _sentence(error: Mapping[str, Any]) -> str:
    location = tuple(part for part in error["loc"])
    shown = ".".join(str(part) for part in location if part not in _KINDS) or "request"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = sorted(_model_at(location).model_fields)
        close = difflib.get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        return f"{shown}: unknown key; {hint}"
    if error["type"] == "missing":
        return f"{shown}: missing"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"{shown}.kind: must be one of {', '.join(_KINDS)}"
    given = error.get("input")
    value = f" (got {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{shown}: {message}{value}"


def parse_request(data: Mapping[str, Any]) -> PlanRequest:
    """The request that `data` describes.

    Raises:
        PlanRequestError: with every wrong key and value at once.
    """
    try:
        return PlanRequest.model_validate(dict(data))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        keys = [tuple(part for part in item["loc"] if part not in _KINDS) for item in errors]
        raise PlanRequestError([_sentence(item) for item in errors], keys) from None
