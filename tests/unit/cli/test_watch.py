"""Attacks on --watch: a record that goes away must not end it, and what was seen last must stay on the screen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group
from rich.text import Text

from outerloop.cli.runs import _watch
from outerloop.record.store import RecordUnavailable


def test_an_outage_is_said_below_the_last_picture_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Group | Exception] = [
        Group(Text("first look")),
        RecordUnavailable("server closed the connection"),
        Group(Text("second look")),
        KeyboardInterrupt(),  # type: ignore[list-item]
    ]

    def picture() -> Group:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("outerloop.cli.runs.time.sleep", lambda _seconds: None)
    screen = io.StringIO()
    out = Console(file=screen, force_terminal=True, width=80, height=10, color_system=None)
    with pytest.raises(KeyboardInterrupt):
        _watch(picture, out)
    drawn = screen.getvalue()
    assert answers == []
    assert drawn.index("the record does not answer: server closed the connection") < drawn.index("second look")


def test_a_record_that_is_away_from_the_start_ends_it() -> None:
    def picture() -> Group:
        raise RecordUnavailable("no server")

    with pytest.raises(RecordUnavailable):
        _watch(picture, Console(file=io.StringIO(), force_terminal=True))
