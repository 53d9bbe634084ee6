"""Attacks: Ctrl-C while --wait waits must neither look like a defect nor leave anybody without the run's name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from outerloop.cli import app, submitted
from outerloop.cli.errors import CliError, ExitCode
from outerloop.slots import StateRoot


def test_ctrl_c_ends_the_waiting_and_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_deployment: object, _run_id: str) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(submitted, "the_run", interrupted)
    with pytest.raises(CliError) as caught:
        submitted.wait_for_end(SimpleNamespace(), "e-0123456789", quiet=True)  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.INTERRUPTED == 130
    assert "run e-0123456789 goes on without this command" in caught.value.message


@pytest.mark.parametrize(
    ("asked", "durable", "told"),
    [
        ([], [], "nothing was submitted; the same command submits it"),
        (["c-1"], [], "nothing was submitted"),
        (["c-1"], ["c-1"], "run c-1 was submitted and goes on without this command: `outerloop show c-1`"),
        (["c-1", "c-2", "c-3"], ["c-1", "c-2"], "2 runs were submitted and go on without this command: c-1, c-2;"),
    ],
)
def test_ctrl_c_in_a_submission_says_what_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], durable: list[str], told: str
) -> None:
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(f'state = "{tmp_path}"\n')

    @click.group(cls=submitted.Asking)
    def group() -> None: ...

    @group.command()
    def climb() -> None:
        for run in asked:
            submitted.asks(run)
            if run in durable:
                place = StateRoot(tmp_path).inbox_request(run)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text("{}")
        raise KeyboardInterrupt

    done = CliRunner().invoke(group, ["climb"])
    assert done.exit_code == ExitCode.INTERRUPTED, done.output
    assert told in done.output and "Aborted" not in done.output


@pytest.mark.parametrize("words", [("nofile.tgz",), (".",)])
def test_verify_of_a_file_that_is_not_there_says_that(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["verify", *words])
    assert done.exit_code == ExitCode.NOT_FOUND
    assert f"the file {words[0]} is" in done.output and "there is no run" not in done.output
