"""Attacks: Ctrl-C while --wait waits must neither look like a defect nor leave anybody without the run's name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from outerloop.cli import submitted
from outerloop.cli.errors import CliError, ExitCode


def test_ctrl_c_ends_the_waiting_and_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_deployment: object, _run_id: str) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(submitted, "the_run", interrupted)
    with pytest.raises(CliError) as caught:
        submitted.wait_for_end(SimpleNamespace(), "e-0123456789", quiet=True)  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.INTERRUPTED == 130
    assert "run e-0123456789 goes on without this command" in caught.value.message
