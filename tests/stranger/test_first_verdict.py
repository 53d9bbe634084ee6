"""A README that a stranger cannot follow on a clean machine, or not in ten minutes."""

from __future__ import annotations

import os

import pytest

from tests.stranger.first_verdict import LIMIT_SECONDS, first_verdict, why_not


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="makes a Debian: set OUTERLOOP_NIGHTLY")
@pytest.mark.timeout(2700)
def test_a_stranger_has_a_verdict_within_ten_minutes() -> None:
    why = why_not()
    if why:
        pytest.skip(why)
    verdict = first_verdict()
    assert verdict.outcome == "accepted", verdict
    assert "bytes_per_word fell" in verdict.sentence, verdict
    assert verdict.seconds < LIMIT_SECONDS, verdict
