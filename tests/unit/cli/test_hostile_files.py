"""Attacks: files of users that no reader survives: every command that reads one ends in a sentence, not a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.compose.fragments import SHIPPED
from outerloop.settings import Settings, SettingsError

HOSTILE = {
    "deep.json": b'{"candidates": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "surrogate.json": rb'{"family": "local_process", "command": ["\ud800"]}',
    "latin1.json": b'{"family": "caf\xe9"}',
    "twice.json": b'{"family": "a", "family": "b"}',
    "nul.json": rb'{"family": "local_process", "command": ["a\u0000"]}',
    "huge.json": b'{"family": "local_process", "command": ["a"], "nodes": 1' + b"0" * 30 + b"}",
    "nan.json": b'{"family": "local_process", "command": ["a"], "parameters": {"x": NaN}}',
    "digits.json": b'{"nodes": ' + b"9" * 10_000 + b"}",
    "list.json": b"[[]]",
    "deep.toml": b"x = " + b"[" * 50_000 + b"]" * 50_000,
    "dots.toml": b"[" + b"a." * 20_000 + b"a]\n",
    "latin1.toml": b'x = "caf\xe9"\n',
    "huge.toml": b"hosts = 1" + b"0" * 30 + b"\n[resources]\nhosts = inf\n",
    "digits.toml": b"hosts = " + b"9" * 10_000 + b"\n",
    "exponent.toml": b"hosts = 1e99999999999999999999\n",
}
COMMANDS = [
    ["plan", "compile", "FILE", "--", "python", "x.py"],
    ["plan", "request", "FILE"],
    ["plan", "--model", "Llama-3.1-8B", "--gpus", "8xH100", "--ledger", "FILE"],
    ["submit", "training", "FILE", "--", "python", "x.py"],
    ["submit", "training", "--dry-run", "PLAN", "--tasks", "FILE", "--", "python", "x.py"],
    ["submit", "campaign", "FILE"],
    ["submit", "campaign", "CAMPAIGN", "--ledger", "FILE"],
    ["campaign", "plot", "--file", "FILE"],
    ["campaign", "events", "--file", "FILE"],
    ["contract", "check", "FILE"],
    ["compose", "show", "models", "hostile", "--configs", "FOLDER"],
    ["verify", "FILE"],
    ["simulate-verdicts", "--rule", "TEXT"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:3]))
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_in_a_sentence(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'state = "{tmp_path}/state"\nbackend = "local"\n')
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    plan = tmp_path / "plan.json"
    plan.write_text('{"family": "lease_tasks", "command": ["a"]}')
    campaign = tmp_path / "campaign.toml"
    campaign.write_bytes((SHIPPED / "campaigns" / "digits.toml").read_bytes())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "hostile.toml").write_bytes(HOSTILE[name])
    given = {
        "FILE": str(path),
        "PLAN": str(plan),
        "CAMPAIGN": str(campaign),
        "FOLDER": str(tmp_path),
        "TEXT": HOSTILE[name].decode("utf-8", "replace"),
    }
    told = CliRunner().invoke(app, [given.get(word, word) for word in words])
    assert told.exit_code not in (0, 1), told.output
    assert isinstance(told.exception, SystemExit), repr(told.exception)[:300]
    assert len(told.output) < 6000


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("words", [["status"], ["tick"], ["doctor", "--no-job"]], ids=" ".join)
def test_a_hostile_config_ends_in_a_sentence(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_bytes(HOSTILE[name])
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(tmp_path / "config.toml"))
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2, told.output
    assert isinstance(told.exception, SystemExit), repr(told.exception)[:300]
    assert "config.toml" in told.output


@pytest.mark.parametrize(
    "line",
    [
        "[wake]\ncadence_seconds = inf",
        "[wake]\nminutes = nan",
        "[dispatch]\nmargin_minutes = 1e300",
        "[dispatch]\nmax_attempts = 1000000000000000000000",
        "[lanes.default]\nmax_minutes = inf",
        "[budgets]\ngpu_hours = nan",
    ],
)
def test_a_number_in_the_config_is_finite_and_fits(line: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'state = "{tmp_path}/state"\n{line}\n')
    with pytest.raises(SettingsError, match=r"config.toml:3: .*(finite|at most 2147483647|greater than)"):
        Settings.load(path)
