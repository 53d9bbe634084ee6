"""Attacks: that whatever stands in a contract or a settings file, the answer is an object or a located refusal."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outerloop.contract import Benchmark, Contract, ContractError, Scope, parse_contract
from outerloop.problems import Key
from outerloop.settings import Settings, SettingsError
from outerloop.toml_lines import read_toml, scan

FIELDS = [*Contract.model_fields, *Benchmark.model_fields, *Scope.model_fields, "kind", "path", "max", "free", "x"]

names = st.sampled_from(FIELDS) | st.text(min_size=0, max_size=8)
leaves = (
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["min", "max", "*", "src/", "paired", "threshold", "sequential", "cached", "HOME", "1e9"])
    | st.dates()
    | st.times()
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)


def text_of(value: Any) -> str:
    """`value` as TOML, tables written inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + ", ".join(text_of(part) for part in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {text_of(part)}" for key, part in value.items()) + "}"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def quoted(text: str) -> str:
    escaped = "".join(
        letter if letter.isprintable() and letter not in '"\\' else f"\\U{ord(letter):08x}"
        for letter in text
        if not 0xD800 <= ord(letter) <= 0xDFFF
    )
    return f'"{escaped}"'


def document(data: dict[str, Any]) -> str:
    return "".join(f"{quoted(key)} = {text_of(value)}\n" for key, value in data.items())


def answer(text: str | bytes) -> Contract | None:
    try:
        return parse_contract(text, "F")
    except ContractError as error:
        assert error.problems
        assert str(error)
        assert all(part.isprintable() for part in str(error).splitlines())
        return None


@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf")
@example(b"a = \x00")
@example(b'"' + b"\\" * 99)
def test_any_bytes_are_a_contract_or_refused(raw: bytes) -> None:
    answer(raw)


@given(st.text(alphabet="[]{}\"'=.,#\\\n \tabx1-+:_e", max_size=120))
def test_any_punctuation_is_a_contract_or_refused(text: str) -> None:
    answer(text)


@given(st.dictionaries(names, values, max_size=5))
@example({"[key]": 1})
def test_any_toml_is_a_contract_or_refused(data: dict[str, Any]) -> None:
    answer(document(data))


GOOD: dict[str, Any] = {"name": "b", "command": "run", "metric": "m", "direction": "min"}


@given(st.dictionaries(st.sampled_from(list(Benchmark.model_fields)), values, max_size=4))
def test_any_benchmark_is_a_contract_or_refused_and_a_contract_can_be_judged(fields: dict[str, Any]) -> None:
    found = answer(document({"benchmarks": [GOOD | fields], "scope": {"allowed": ["src/"]}}))
    if found is not None:
        benchmark = found.benchmarks[0]
        benchmark.judged_by()
        assert len(benchmark.definition_hash()) == 64
        assert found.siblings(benchmark.name) == ()


@given(st.text(min_size=1, max_size=30))
def test_no_scope_entry_ever_permits_a_path_outside_it(entry: str) -> None:
    found = answer(document({"benchmarks": [GOOD], "scope": {"allowed": [entry]}}))
    if found is not None:
        (kept,) = found.scope.allowed
        assert not kept.startswith("/")
        assert ".." not in kept.split("/")
        assert not found.scope.permits(".outerloop.toml")
        assert not found.scope.permits("elsewhere/" + kept)
        assert found.scope.permits(kept + "x" if kept.endswith("/") else kept)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(list(Settings.model_fields)) | names, values, max_size=4))
def test_any_settings_file_is_settings_or_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(document(data), encoding="utf-8")
    try:
        Settings.load(path)
    except SettingsError as error:
        assert error.problems


def keys_of(value: Any, here: Key = ()) -> set[Key]:
    found: set[Key] = {here} if here else set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= keys_of(inner, (*here, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found |= keys_of(inner, (*here, index))
    return found


@given(st.dictionaries(names, values, max_size=5))
def test_the_scan_finds_exactly_the_keys_that_the_parser_finds(data: dict[str, Any]) -> None:
    text = document(data)
    if scan(text).too_deep is None:
        assert set(scan(text).lines) == keys_of(tomllib.loads(text))


@given(st.text(alphabet="[]{}\"'=.,#\n abx1", max_size=60))
def test_whatever_the_parser_accepts_is_read_without_a_problem(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError):
        assert read_toml(text).problems
        return
    parsed = read_toml(text)
    assert parsed.problems == []
    assert parsed.data == data
    assert keys_of(data) <= set(parsed.lines.lines)
