"""Attacks: numbers that Python reads and nothing behind them survives, on every option of every command."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
import pytest
from click.testing import CliRunner

from outerloop.cli.numbers import MOST_DAYS, MOST_INTEGER, MOST_MINUTES, MOST_SECONDS, Number, Whole
from tests.unit.cli.test_commands import everything


def numbers() -> Iterator[tuple[str, click.Command, click.Option]]:
    for words, command in everything():
        for option in command.params:
            if isinstance(option, click.Option) and isinstance(option.type, Number | Whole):
                yield words, command, option


def test_no_option_has_a_number_without_our_bounds() -> None:
    raw = [
        f"{words} {parameter.name}"
        for words, command in everything()
        for parameter in command.params
        if isinstance(parameter.type, click.types.FloatParamType | click.types.IntParamType)
        and not isinstance(parameter.type, Number | Whole)
        and not (isinstance(parameter, click.Option) and parameter.count)
    ]
    assert not raw
    assert len(list(numbers())) > 40


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e309", "1" + "0" * 30, "-1e300", "x", "", "9" * 5000])
def test_every_number_option_refuses_what_is_no_sensible_number(text: str) -> None:
    for words, command, option in numbers():
        if text.startswith("1000") and isinstance(option.type, Number) and option.type.most >= float(text):
            continue
        told = CliRunner().invoke(command, [f"{option.opts[0]}={text}"])
        assert told.exit_code == 2, f"{words} {option.opts[0]} {text}: {told.output}"
        assert option.opts[0] in told.output
        assert isinstance(told.exception, SystemExit)
        assert len(told.output) < 1000


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Number(0, above=True), "0", "'0' is too small; more than 0 is needed."),
        (Number(0, 5), "5.5", "'5.5' is too large; 5 is the most."),
        (Number(1, 5), "0.5", "'0.5' is too small; 1 is the least."),
        (Number(1, 5), "nan", "'nan' is not a finite number; write one of at least 1."),
        (Number(), "ten", "'ten' is not a number; write one such as 0.5."),
        (Whole(1, 9), "10", "'10' is too large; 9 is the most."),
        (Whole(1), "0", "'0' is too small; 1 is the least."),
        (Whole(2), "2.5", "'2.5' is not a whole number; write one such as 2."),
    ],
)
def test_the_message_names_what_was_given_and_the_nearest(kind: click.ParamType, text: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    assert caught.value.message == said


def test_the_bounds_themselves_are_taken_and_fit_what_lies_behind_them() -> None:
    now = datetime.now(UTC)
    assert Number(0, MOST_MINUTES).convert(str(MOST_MINUTES), None, None) == MOST_MINUTES
    assert now + timedelta(minutes=MOST_MINUTES) > now + timedelta(seconds=MOST_SECONDS) > now
    assert now - timedelta(days=MOST_DAYS) < now
    assert Whole().convert(str(MOST_INTEGER), None, None) == MOST_INTEGER
    assert Whole().convert(str(-MOST_INTEGER), None, None) == -MOST_INTEGER
