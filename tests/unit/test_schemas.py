"""Schemas for editors: they take what the readers take, and refuse misspelt keys and quoted numbers."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from outerloop.champion import config as campaign
from outerloop.cli import app
from outerloop.contract import parse_contract
from outerloop.schemas import KINDS, schema
from outerloop.settings import Settings, default_config

TOP = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"```toml\n(.*?)```", re.DOTALL)


def valid(kind: str, document: dict[str, Any]) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema(kind)).iter_errors(document)]


def contracts() -> list[str]:
    """Every whole contract of the repository: the targets' own and those on documentation pages."""
    found = [path.read_text(encoding="utf-8") for path in (TOP / "docs").rglob(".outerloop.toml")]
    for page in (TOP / "docs").rglob("*.md"):
        found += [block for block in _BLOCK.findall(page.read_text(encoding="utf-8")) if "[[benchmarks]]" in block]
    return [text for text in found if "[scope]" in text]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_schema_and_describes_every_key(kind: str) -> None:
    made = schema(kind)
    jsonschema.Draft202012Validator.check_schema(made)
    bare: list[str] = []
    for name, table in {"": made, **made.get("$defs", {})}.items():
        for key, value in table.get("properties", {}).items():
            referred = made["$defs"][value["$ref"].rpartition("/")[2]] if "$ref" in value else {}
            if not (value.get("description") or referred.get("description")):
                bare.append(f"{name}.{key}")
    assert not bare, "keys without a description"


def test_contracts_that_are_read_are_valid_and_what_is_refused_for_its_keys_is_not() -> None:
    texts = contracts()
    assert len(texts) >= 1
    for text in texts:
        parse_contract(text)
        document = tomllib.loads(text)
        assert valid("contract", document) == [], text
        first = document["benchmarks"][0]
        for wrong in ({"comand": "x"}, {"minutes": "5"}, {"rule": {"kind": "paired", "h1": 1}}, {"direction": "down"}):
            assert valid("contract", {**document, "benchmarks": [{**first, **wrong}]}), wrong
        assert valid("contract", {key: value for key, value in document.items() if key != "scope"})


@pytest.mark.parametrize("rule", [{}, {"kind": "threshold"}, {"kind": "paired", "pairs": 9}, {"kind": "sequential"}])
def test_every_rule_is_exactly_one_kind(rule: dict[str, Any]) -> None:
    document = tomllib.loads(contracts()[0])
    document["benchmarks"][0]["rule"] = rule
    assert valid("contract", document) == []


def test_the_config_that_init_writes_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(tmp_path / "config.toml"))
    text = default_config({"state": str(tmp_path), "backend": "local", "lanes": {"default": {"partition": "cpu"}}})
    assert valid("config", tomllib.loads(text)) == []
    assert valid("config", {"lanes": {"gpu": {"partitoin": "a"}}})
    assert set(schema("config")["properties"]) == set(Settings.model_fields)


def test_campaigns_have_one() -> None:
    assert set(schema("campaign")["properties"]) == set(campaign.CampaignConfig.model_fields)


def test_campaigns_and_candidates_that_are_shipped_are_valid() -> None:
    folder = TOP / "configs" / "campaigns"
    document = tomllib.loads((folder / "digits.toml").read_text(encoding="utf-8"))
    assert valid("campaign", document) == []
    assert valid("campaign", {**document, "max_round": 3})
    listed = tomllib.loads((folder / "digits" / "candidates.toml").read_text(encoding="utf-8"))
    assert valid("candidates", listed) == []
    first = listed["candidates"][0]
    for wrong in ({"name": "two words"}, {"bse": "x"}, {"active": "no"}):
        assert valid("candidates", {"candidates": [{**first, **wrong}]}), wrong


def test_challenges_that_are_shipped_are_valid() -> None:
    paths = sorted((TOP / "configs" / "challenges").glob("*.toml"))
    assert len(paths) >= 4
    for path in paths:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        assert valid("challenge", document) == [], path
        for wrong in (
            {"decision": {"alfa": 0.05}},
            {"decision": {"alpha": "0.05"}},
            {"decision": {"train_seeds": 0}},
            {"challenge": {**document["challenge"], "suites": []}},
            {"rules": {}},
        ):
            assert valid("challenge", {**document, **wrong}), wrong


def test_the_command_prints_it_and_knows_near_names() -> None:
    result = CliRunner().invoke(app, ["schema", "contract"])
    assert result.exit_code == 0 and json.loads(result.output) == schema("contract")
    result = CliRunner().invoke(app, ["schema", "contrac"])
    assert result.exit_code == 2 and "did you mean contract?" in result.output
