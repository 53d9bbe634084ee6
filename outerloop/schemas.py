"""PURE. JSON Schemas of the files that people write, for editors: `outerloop schema KIND`.

Covered: schemas made from the models that read the files, with what TOML has and JSON Schema lacks put right. Not
covered: what a schema cannot say (cross-references, paths, names of lanes); `outerloop contract check` says it.

Dialect: https://json-schema.org/draft/2020-12/schema
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

__all__ = ["KINDS", "schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _contract() -> dict[str, Any]:
    from pydantic import TypeAdapter

    from outerloop.climb.model import Paired, Sequential, Threshold
    from outerloop.contract import Contract

    made = Contract.model_json_schema()
    rules = []
    for rule in (Threshold, Paired, Sequential):
        table = TypeAdapter(rule).json_schema()
        table["additionalProperties"] = False
        table["properties"]["kind"] = {"const": rule.kind}
        table["required"] = [] if rule is Threshold else ["kind"]
        rules.append(table)
    place = made["$defs"]["Benchmark"]["properties"]["rule"]
    made["$defs"]["Benchmark"]["properties"]["rule"] = {
        "description": place["description"],
        "title": place["title"],
        "type": "object",
        "oneOf": rules,
    }
    return made


def _config() -> dict[str, Any]:
    from outerloop.settings import Settings

    return Settings.model_json_schema()


def _campaign() -> dict[str, Any]:
    from outerloop.champion.config import CampaignConfig

    return CampaignConfig.model_json_schema()


def _candidates() -> dict[str, Any]:
    from outerloop.champion.candidates import CandidatesFile

    return CandidatesFile.model_json_schema()


def _challenge() -> dict[str, Any]:
    from outerloop.compose.challenge import Challenge

    return Challenge.model_json_schema()


KINDS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "contract": (".outerloop.toml, a target's statement of its benchmarks and scope", _contract),
    "config": ("config.toml, the settings of a deployment", _config),
    "campaign": ("campaign.toml, what a campaign runs and how it compares", _campaign),
    "candidates": ("candidates.toml, what a campaign trains in each round", _candidates),
    "challenge": ("challenges/<id>.toml, what entries share and how one wins", _challenge),
}
"""Kind -> (which file it describes, what makes it)."""


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file. Raises KeyError for an unknown kind."""
    title, make = KINDS[kind]
    made: dict[str, Any] = _toml(make())
    return {"$schema": _DIALECT, **made, "title": title}


def _toml(node: Any) -> Any:
    """The same schema for a TOML file: numbers have no quotes, and what is absent is left out rather than null."""
    if isinstance(node, list):
        return [_toml(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _toml(value) for key, value in node.items()}
    choices = made.get("anyOf")
    if isinstance(choices, list):
        kept = [choice for choice in choices if choice.get("type") != "null"]
        if any(choice.get("type") == "number" for choice in kept):
            kept = [choice for choice in kept if choice.get("type") != "string"]
            made = _numeric_default(made)
        if "default" in made and made["default"] is None:
            del made["default"]
        if len(kept) == 1:
            del made["anyOf"]
            made = {**kept[0], **made}
        else:
            made["anyOf"] = kept
    return made


def _numeric_default(node: dict[str, Any]) -> dict[str, Any]:
    text = node.get("default")
    if not isinstance(text, str):
        return node
    number = Decimal(text)
    return {**node, "default": int(number) if number == number.to_integral_value() else float(number)}
