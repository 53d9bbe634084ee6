"""The metric line: which one counts, what is refused and by which name, and that no output can hurt the scanner."""

from __future__ import annotations

import json
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outerloop.job.metric import LINE_CAP, MetricScanner, Unusable, parse_line


def scan(*lines: str | bytes, metric: str = "m", guards: tuple[str, ...] = ()) -> MetricScanner:
    scanner = MetricScanner(metric, guards)
    for line in lines:
        scanner.feed((line if isinstance(line, bytes) else line.encode()) + b"\n")
    return scanner


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"m": 7542.0}', "7542.0"),
        ('  {"m": 7542.00, "x": [1, {"y": 2}]}  \r', "7542.00"),
        ('{"m": -0.1e-5}', "-0.1e-5"),
        ('{"m": 0}', "0"),
        ("m 1.50", "1.50"),
        ("m\t+12", "+12"),
        ("  m   .5  ", ".5"),
        ('{"m": 123456789012345678901234567890}', "123456789012345678901234567890"),
    ],
)
def test_the_number_is_kept_as_it_was_printed(line: str, text: str) -> None:
    assert scan(line).measured().text == text


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"m": NaN}', "NaN"),
        ('{"m": Infinity}', "Infinity"),
        ('{"m": -Infinity}', "-Infinity"),
        ('{"m": true}', "boolean"),
        ('{"m": false}', "boolean"),
        ('{"m": "3.5"}', "string"),
        ('{"m": null}', "null"),
        ('{"m": [1]}', "array"),
        ('{"m": {"m": 1}}', "object"),
        ('{"m": 1' + "0" * 400 + "}", "integer"),
        ('{"m": 1' + "0" * 320 + "}", "overflows a float"),
        ('{"m": 1e400}', "overflows"),
        ('{"m": 1e-400}', "underflows"),
        ('{"m": 0e99999999999}', "exponent"),
        ('{"m": 1, "m": 2}', "2 times"),
        ("m nan", "nan"),
        ("m -inf", "-inf"),
        ("m True", "True"),
        ("m '3'", "'3'"),
    ],
)
def test_what_is_no_finite_number_is_refused_by_name(line: str, named: str) -> None:
    with pytest.raises(Unusable, match=named):
        scan('{"m": 1}', line).measured()


@pytest.mark.parametrize(
    "line",
    ["m", "m is 3", "m improved", "mm 3", "m 1_000", "m ٣", '{"n": 1}', '[{"m": 1}]', '{"m": 1', 'x {"m": 1}',
     "{'m': 1}", '{"x": {"m": 1}}', "m=3"],
)  # fmt: skip
def test_other_lines_do_not_count(line: str) -> None:
    assert scan('{"m": 1}', line).measured().text == "1"
    with pytest.raises(Unusable, match="no line"):
        scan(line).measured()


def test_the_last_line_that_counts_decides() -> None:
    assert scan('{"m": 1}', '{"m": 2}', "m 3", "done").measured().text == "3"
    with pytest.raises(Unusable, match="NaN"):
        scan('{"m": 1}', '{"m": NaN}', "log about m").measured()


def test_a_last_line_without_newline_counts() -> None:
    scanner = MetricScanner("m")
    scanner.feed(b'x\n{"m": ')
    scanner.feed(b"4}")
    assert scanner.measured().text == "4"


def test_guards_come_from_the_same_line() -> None:
    both = scan('{"m": 1, "peak": 9}', '{"m": 2, "peak": 7.5}', metric="m", guards=("peak",)).measured()
    assert (both.text, both.guards) == ("2", {"peak": "7.5"})
    with pytest.raises(Unusable, match="lacks the guard peak"):
        scan('{"m": 1, "peak": 9}', '{"m": 2}', guards=("peak",)).measured()
    with pytest.raises(Unusable, match="peak is a boolean"):
        scan('{"m": 2, "peak": true}', guards=("peak",)).measured()
    with pytest.raises(Unusable, match="cannot carry the guard"):
        scan("m 2", guards=("peak",)).measured()


def test_names_beyond_ascii_are_found_in_both_spellings() -> None:
    for ensure_ascii in (True, False):
        line = json.dumps({'länge "x"': 2.5}, ensure_ascii=ensure_ascii)
        assert scan(line, metric='länge "x"').measured().text == "2.5"


@pytest.mark.parametrize("bomb", ["[" * 60000, '{"m":' * 10000, '{"m": ' + "[" * 50000 + "]" * 50000 + "}"])
def test_nesting_bombs_are_harmless(bomb: str) -> None:
    assert scan('{"m": 1}', bomb).measured().text == "1"


def test_lines_above_the_cap_are_skipped_and_memory_stays_bounded() -> None:
    scanner = scan('{"m": 1}')
    for _ in range(50):
        scanner.feed(b'{"m": 2, "x": "' + b"m" * 1_000_000)
        assert len(scanner._rest) <= LINE_CAP
    scanner.feed(b'"}\n')
    assert scanner.measured().text == "1"
    scanner.feed(b'{"m": 3}\n')
    assert scanner.measured().text == "3"


def test_endless_lines_with_the_name_cost_linear_time() -> None:
    scanner = MetricScanner("m")
    block = b"m is not it\n" * 80_000
    started = time.process_time()
    for _ in range(4):
        scanner.feed(block)
    assert time.process_time() - started < 5


@given(st.data(), st.lists(st.sampled_from(['{"m": 1}', '{"m": NaN}', "m 2", "noise m", "", "é", '{"m": 1.0e3}'])))
def test_pieces_of_any_size_give_what_whole_lines_give(data: st.DataObject, lines: list[str]) -> None:
    output = "\n".join(lines).encode()
    expected = None
    for line in lines:
        try:
            found = parse_line(line, "m")
        except Unusable as error:
            found = None
            expected = str(error)
        expected = found.text if found else expected
    scanner = MetricScanner("m")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)))))
    for start, stop in zip([0, *cuts], [*cuts, len(output)], strict=True):
        scanner.feed(output[start:stop])
    try:
        got = scanner.measured().text
    except Unusable as error:
        got = str(error)
    assert got == (expected or "no line of the output is a JSON object with 'm' or exactly `m value`")


@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**300), 10**300)))
def test_every_finite_number_python_prints_is_read_exactly(value: float) -> None:
    text = scan(json.dumps({"m": value})).measured().text
    assert Decimal(text) == Decimal(json.dumps(value))
