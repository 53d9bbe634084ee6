"""Property attacked: the command simulates the rule it was given and explains a rule that it can't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli.simulate_verdicts import _NOISES, simulate_verdicts
from outerloop.climb.error_table import rows_from_json
from outerloop.climb.simulate import NOISES


def run(*arguments: str):
    return CliRunner().invoke(simulate_verdicts, arguments)


def test_without_options_the_shipped_table_is_printed_with_its_warnings() -> None:
    result = run("--noise", "skewed-left")
    assert result.exit_code == 0
    assert "sequential: test = t, h0 = 0.0, h1 = 0.25" in result.output
    assert "! accepts more than the nominal 0.05" in result.output
    assert "normal " not in result.output


def test_a_rule_is_simulated_at_no_effect_and_at_h1() -> None:
    rule = '{ kind = "sequential", h1 = 0.8, min_pairs = 8 }'
    arguments = ("--rule", rule, "--climbs", "2000", "--seed", "3", "--noise", "normal", "--json")
    first, second = run(*arguments), run(*arguments)
    assert first.output == second.output
    null, real = json.loads(first.output)
    assert (null["effect"], real["effect"]) == (0.0, 0.8)
    assert null["accepted"] < 0.06
    assert real["accepted"] > 0.93
    assert null["rule"]["min_pairs"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rule", "{ kind = }"), "not a TOML inline table"),
        (("--rule", "3"), "must be a table"),
        (("--rule", '{ kind = "paired", pairs = 2 }'), "use pairs >= 5"),
        (("--rule", '{ kind = "paired" }', "--floor", "1"), "threshold rules only"),
        (("--effect", "1"), "need a --rule"),
        (("--write", "x.json", "--noise", "t3"), "--write makes the whole shipped table"),
    ],
)
def test_unusable_options_are_explained(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_the_table_can_be_written_anew(tmp_path: Path) -> None:
    target = tmp_path / "table.json"
    result = run("--write", str(target), "--climbs", "10")
    assert result.exit_code == 0, result.output
    rows = rows_from_json(json.loads(target.read_text()))
    assert f"{len(rows)} rows" in result.output
    assert {row.noise for row in rows} == set(NOISES) == set(_NOISES)
