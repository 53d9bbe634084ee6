"""Editing a contract by line: only what was asked for changes, and what can't be edited is refused with its line."""

from __future__ import annotations

import pytest

from outerloop.contract import parse_contract
from outerloop.contract_edit import EditRefused, with_benchmark_keys

TEXT = """\
# a contract
[[benchmarks]]
name = "first"   # not this one
command = "x"
metric = "m"
direction = "min"
rule = { kind = "threshold" }

[[benchmarks]]
  name = "second"
  command = "echo 'rule = 1' # no comment"
  metric = "m"
  direction = "max" # up
  min_delta = 0.25 # "guess" # twice
  rule = { kind = "paired", pairs = 9 }   # because

[scope]
allowed = ["src/"]
"""
NEW = {"min_delta": "1.5", "rule": '{ kind = "sequential", h1 = 0.5 }'}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_only_the_named_values_change(ending: str) -> None:
    text = TEXT.replace("\n", ending)
    edited = with_benchmark_keys(text, "second", NEW)
    expected = text.replace("min_delta = 0.25 #", "min_delta = 1.5 #").replace(
        '{ kind = "paired", pairs = 9 }   #', '{ kind = "sequential", h1 = 0.5 }   #'
    )
    assert edited == expected
    assert parse_contract(edited).benchmark("second").parsed_rule().kind == "sequential"


def test_missing_keys_go_below_direction_with_its_indent() -> None:
    edited = with_benchmark_keys(TEXT.replace('  min_delta = 0.25 # "guess" # twice\n', ""), "second", NEW)
    assert '  direction = "max" # up\n  min_delta = 1.5\n  rule = { kind = "sequential"' in edited
    first = with_benchmark_keys(TEXT, "first", {"min_delta": "2.0"})
    assert 'direction = "min"\nmin_delta = 2.0\nrule = { kind = "threshold" }\n' in first


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            TEXT.replace('rule = { kind = "paired", pairs = 9 }   # because', '[benchmarks.rule]\nkind = "paired"'),
            "line",
        ),
        (TEXT.replace('rule = { kind = "paired", pairs = 9 }', 'rule.kind = "paired"'), "rule is a table of its own"),
        (
            'benchmarks = [ { name = "second", command = "x", metric = "m", direction = "max" } ]\n'
            '[scope]\nallowed = ["src/"]\n',
            "inline list",
        ),
    ],
)
def test_other_spellings_are_refused_with_their_line(text: str, what: str) -> None:
    parse_contract(text)
    with pytest.raises(EditRefused, match=what):
        with_benchmark_keys(text, "second", NEW)
