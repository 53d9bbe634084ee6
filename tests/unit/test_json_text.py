"""Attacks: JSON that Python's reader takes, or dies of, and that nothing behind it survives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outerloop.json_text import MAX_DEPTH, JsonError, parse_json, parse_json_lines

DEEP = b"[" * 100_000 + b"]" * 100_000
BAD = {
    "empty": (b"", "not JSON", 1),
    "cut": (b'{"a":\n1', "not JSON", 2),
    "no UTF-8": (b'{\n"a": "\xff"}', "not UTF-8 text", 2),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8 text", 1),
    "deep": (DEEP, "nested more than", 1),
    "a little too deep": (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), "nested more than", 1),
    "half a pair": (rb'{"a": "\ud800"}', "half of a surrogate pair", 1),
    "half a pair in a key": (rb'{"\udfff": 1}', "half of a surrogate pair", 1),
    "NUL": (rb'{"a": "b\u0000"}', "NUL", 1),
    "twice": (b'{"a": 1, "a": 2}', "the key 'a' stands twice", 1),
    "twice, somewhere": (b'{"a": 1,\n "a": 2}', "the key 'a' stands twice", 0),
    "NaN": (b"[NaN]", "NaN is no number", 1),
    "infinite": (b"[-Infinity]", "-Infinity is no number", 1),
    "infinite by size": (b"[1e999]", "out of range", 1),
    "many digits": (b"9" * 10_000, "too many digits", 1),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_one_short_line(name: str) -> None:
    raw, said, line = BAD[name]
    with pytest.raises(JsonError) as caught:
        parse_json(raw)
    told = caught.value.text("x.json")
    assert said in told
    assert caught.value.line == line
    assert "\n" not in told and len(told) < 300 and told.isprintable()


def test_lines_are_numbered_as_in_the_file() -> None:
    assert parse_json_lines(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"b": "\xe2\x80\xa8"}\n') == [
        (1, {"a": 1}),
        (4, {"b": "\u2028"}),
    ]
    with pytest.raises(JsonError) as caught:
        parse_json_lines(b'{"a": 1}\n\n{"a": 1, "a": 2}\n')
    assert caught.value.line == 3


_text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
        lambda inner: st.lists(inner) | st.dictionaries(_text, inner),
        max_leaves=12,
    )
)
def test_what_json_writes_is_read_as_it_was(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary())
def test_whatever_comes_is_read_or_refused(raw: bytes) -> None:
    try:
        parse_json(raw)
        parse_json_lines(raw)
    except JsonError as error:
        assert "\n" not in error.text("x")
