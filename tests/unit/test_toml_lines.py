"""Attacks: that every key is found on its line, whatever way TOML allows to write it, and nothing is read too deep."""

from __future__ import annotations

import time

import pytest

from outerloop.problems import Key
from outerloop.toml_lines import MAX_DEPTH, read_toml, scan

TEXT = '''\
top = 1
list = [
  "a", # ] not the end
  "b]",

  """c
  still c""", "d",
]
inline = { x = 1, y = { z = [10, 20] } }
"quoted key".'single' = 3
multi = """
[not.a.table]
x = 1 \\"""
"""
lit = \'\'\'
top = 2
\'\'\'
[table]
a.b.c = 1
[table.sub]
k = 2
[[things]]
name = "one"
nested = [
  { a = 1 },
  # between
  { a = 2, b = 3 },
]
[[things.parts]]
p = 1
[things.parts.deep]
q = 1
[[things.parts]]
p = 2
[[things]]
name = "two"
[things.sub]
r = 1
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("top",), 1),
        (("list",), 2),
        (("list", 0), 3),
        (("list", 1), 4),
        (("list", 2), 6),
        (("list", 3), 7),
        (("inline",), 9),
        (("inline", "y", "z", 1), 9),
        (("quoted key",), 10),
        (("quoted key", "single"), 10),
        (("multi",), 11),
        (("lit",), 15),
        (("table",), 18),
        (("table", "a", "b", "c"), 19),
        (("table", "sub"), 20),
        (("table", "sub", "k"), 21),
        (("things", 0), 22),
        (("things", 0, "name"), 23),
        (("things", 0, "nested", 0, "a"), 25),
        (("things", 0, "nested", 1, "a"), 27),
        (("things", 0, "nested", 1, "b"), 27),
        (("things", 0, "parts", 0), 29),
        (("things", 0, "parts", 0, "p"), 30),
        (("things", 0, "parts", 0, "deep", "q"), 32),
        (("things", 0, "parts", 1, "p"), 34),
        (("things", 1), 35),
        (("things", 1, "name"), 36),
        (("things", 1, "sub", "r"), 38),
        (("things", 1, "absent"), 35),  # the nearest table that is there
        (("absent",), 0),
    ],
)
def test_each_key_is_found_on_its_line(key: Key, line: int) -> None:
    assert scan(TEXT).line(key) == line


def test_the_example_is_toml_and_windows_line_ends_change_no_line() -> None:
    parsed = read_toml(TEXT)
    assert parsed.problems == []
    assert parsed.data["things"][0]["nested"][1] == {"a": 2, "b": 3}
    assert read_toml(TEXT.replace("\n", "\r\n")).lines.lines == parsed.lines.lines


def test_all_repeated_keys_are_reported_and_the_first_ones_are_kept() -> None:
    parsed = read_toml('a = 1\na = [\n 2,\n]\n[t]\nb = 1\nb = { c = 1 }\n"b" = 3\n')
    assert [(problem.line, problem.name) for problem in parsed.problems] == [(2, "a"), (7, "t.b"), (8, "t.b")]
    assert all("first on line" in problem.message for problem in parsed.problems)
    assert parsed.data == {"a": 1, "t": {"b": 1}}
    assert parsed.complete


def test_a_repeated_table_is_reported_once_with_both_lines() -> None:
    parsed = read_toml("[t]\na = 1\n[u]\n[t]\nb = 1\n")
    assert [(problem.line, problem.message) for problem in parsed.problems] == [
        (4, "given twice (first on line 1); remove one")
    ]
    assert not parsed.complete


def test_the_same_name_in_two_tables_is_no_repetition() -> None:
    assert read_toml("[[a]]\nx = 1\n[[a]]\nx = 1\n[b]\nx = 1\n[c]\nt = [{ x = 1 }, { x = 2 }]\n").problems == []


def test_broken_lines_are_reported_together_and_the_rest_is_read() -> None:
    parsed = read_toml("a = yes\nb = 2\nc = 1 2\nd = 'x'\n")
    assert [problem.line for problem in parsed.problems] == [1, 3]
    assert "text needs quotes" in parsed.problems[0].message
    assert parsed.data == {"b": 2, "d": "x"}
    assert parsed.broken == {"a", "c"}


def test_a_file_that_is_no_toml_at_all_is_given_up_after_some_lines() -> None:
    parsed = read_toml("".join(f"a{i} = x y\n" for i in range(100)))
    assert len(parsed.problems) == 21
    assert "the rest was not read" in parsed.problems[-1].message
    assert not parsed.complete


def test_an_inline_table_over_several_lines_gets_a_hint() -> None:
    parsed = read_toml("a = [\n  { b = 1,\n    c = 2 },\n]\n")
    if parsed.problems:  # TOML 1.1 allows it, and Python's parser will
        assert "must stand on one line" in parsed.problems[0].message
    assert parsed.lines.line(("a", 0, "c")) == 3


def test_an_unclosed_bracket_is_reported_where_the_file_ends() -> None:
    parsed = read_toml("a = [1,\n2\n")
    assert not parsed.complete
    assert "not closed" in parsed.problems[0].message or "Unclosed" in parsed.problems[0].message


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "{b=" * 5000,
        ".".join("a" * 5000) + " = 1",
        "[" + ".".join("a" * 5000) + "]",
        "a = " + "[" * (2 * MAX_DEPTH + 2) + "]" * (2 * MAX_DEPTH + 2),
    ],
)
def test_nesting_is_bounded(text: str) -> None:
    parsed = read_toml(text)
    assert [problem.message for problem in parsed.problems] == [f"nested more than {MAX_DEPTH} deep"]


@pytest.mark.parametrize(
    "text",
    [
        "[" + ".".join("a" * 16000) + "]\n" + "".join(f"k{i}=1\n" for i in range(4000)),
        "".join(f"k{i % 50}=1\n" for i in range(9000)),
        'a = "' + "\\\\" * 32000 + '"',
        'a = """' + '\\"""' * 12000,
        "a = [" + "1," * 32000 + "]",
        "[[a]]\n" * 10000,
        "= 1\n" * 16000,
        "a = x\n" * 10000,
    ],
)
def test_hostile_texts_of_64_kib_take_no_time(text: str) -> None:
    started = time.process_time()
    read_toml(text)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("number", ["9" * 5000, "1e99999999999999999999"])
def test_numbers_out_of_all_bounds_are_a_problem_not_an_exception(number: str) -> None:
    parsed = read_toml(f"a = {number}\n")
    assert not parsed.complete
    assert "can't be read" in parsed.problems[0].message


def test_names_that_would_steer_a_terminal_are_shown_escaped() -> None:
    parsed = read_toml('"\\u001b[31m" = 1\n"\\u001b[31m" = 2\n')
    assert "\x1b" not in parsed.problems[0].text("f")
    assert "\\x1b[31m" in parsed.problems[0].text("f")
