"""Changing one benchmark's floor and rule in a contract's text, line by line.

Covered: replacing or adding `key = value` lines of one [[benchmarks]] table while every other character stays, comments
and line ends included. Not covered: rules that are tables of their own, or benchmarks inside an inline list: those are
refused with their line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from outerloop.contract import CONTRACT_FILE, parse_contract
from outerloop.toml_lines import read_toml

__all__ = ["EditRefused", "with_benchmark_keys"]

_STATEMENT = re.compile(r"(?P<head>\s*(?P<key>[A-Za-z0-9_-]+)\s*=[ \t]*)(?P<rest>.*)")
_ANCHOR = "direction"
"""New keys go below this one, which every benchmark has, on one line."""


class EditRefused(Exception):
    """The text is written in a way that is not edited line by line; the text says where, and what to do."""


def with_benchmark_keys(text: str, benchmark: str, values: Mapping[str, str], source: str = CONTRACT_FILE) -> str:
    """The contract with these keys (TOML values as text) in that benchmark's table; all else unchanged.

    Raises EditRefused, ContractError for a text that is no contract, and UnknownBenchmarkError.
    """
    before = parse_contract(text, source)
    before.benchmark(benchmark)
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(ending)
    parsed = read_toml(text)
    index = [table.get("name") for table in parsed.data["benchmarks"]].index(benchmark)
    at = parsed.lines.lines
    if not re.match(r"\s*\[\[", lines[at["benchmarks", index] - 1]):
        raise EditRefused(
            f"{source}, line {at['benchmarks', index]}: the benchmarks are an inline list, which is not edited by line"
        )
    added: list[str] = []
    for key, value in values.items():
        number = at.get(("benchmarks", index, key))
        if number is None:
            added.append(f"{key} = {value}")
            continue
        lines[number - 1] = _replaced(lines[number - 1], key, value, f"{source}, line {number}")
    if added:
        number = at["benchmarks", index, _ANCHOR]
        anchor = _STATEMENT.fullmatch(lines[number - 1])
        if anchor is None or anchor.group("key") != _ANCHOR:
            raise EditRefused(f"{source}, line {number}: {_ANCHOR} does not stand on a line of its own")
        indent = lines[number - 1][: len(lines[number - 1]) - len(lines[number - 1].lstrip())]
        lines[number:number] = [indent + line for line in added]
    edited = ending.join(lines)
    wanted = before.model_dump()
    for table in wanted["benchmarks"]:
        if table["name"] == benchmark:
            table.update(_values(values))
    if parse_contract(edited, source).model_dump() != wanted:
        raise EditRefused(f"{source}: the edited text does not read back as meant; write the lines in by hand")
    return edited


def _replaced(line: str, key: str, value: str, where: str) -> str:
    found = _STATEMENT.fullmatch(line)
    if found is None or found.group("key") != key:
        raise EditRefused(f"{where}: {key} is a table of its own (or dotted); write the new one in by hand")
    rest = found.group("rest")
    # a comment begins at the first # before which the value is whole
    cuts = [*(mark.start() for mark in re.finditer("#", rest)), len(rest)]
    for cut in cuts:
        try:
            tomllib.loads(f"value = {rest[:cut]}")
        except tomllib.TOMLDecodeError:
            continue
        kept = rest[:cut].rstrip()
        return found.group("head") + value + rest[len(kept) :]
    raise EditRefused(f"{where}: the value of {key} goes over several lines; write the new one in by hand")


def _values(values: Mapping[str, str]) -> dict[str, Any]:
    """The keys as the contract's model dumps them."""
    from decimal import Decimal

    text = "".join(f"{key} = {value}\n" for key, value in values.items())
    return tomllib.loads(text, parse_float=Decimal)
