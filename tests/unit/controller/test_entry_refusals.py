"""Where an entry can't be taken: in a service, on a lane that runs its jobs in an image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.compose import SHIPPED
from outerloop.controller.deployment import account

ROW = {"prompt": "p", "completion": "c", "answer": "c"}
SERVICE = """mode = "service"
state = "{folder}/state"
[service]
spool = "{folder}/spool"
account = "{account}"
"""
IMAGE = """state = "{folder}/state"
[lanes.default]
isolation = "apptainer"
image = "{folder}/image.sif"
"""


@pytest.mark.parametrize(
    ("config", "serving", "said"),
    [
        (SERVICE, account(), "a service takes no entries: give them to a personal one"),
        (SERVICE, "somebody-else", "as a submitter you have submit climb"),
        (IMAGE, "", "lane default runs its jobs in an image; the stages of an entry run with the libraries"),
    ],
)
def test_an_entry_is_refused_with_the_reason_before_anything_is_made(
    config: str, serving: str, said: str, tmp_path: Path
) -> None:
    pytest.importorskip("trl")
    (tmp_path / "config.toml").write_text(config.format(folder=tmp_path, account=serving))
    (tmp_path / "image.sif").write_bytes(b"")
    (tmp_path / "spool").mkdir()
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW) + "\n")
    env = {"OUTERLOOP_CONFIG": str(tmp_path / "config.toml"), "COLUMNS": "300"}
    words = ["submit", "entry", "tiny-sums", "--train", str(tmp_path / "train.jsonl"), "--dry-run"]
    answer = CliRunner(env=env).invoke(app, words, prog_name="outerloop")
    assert answer.exit_code == 3 and said in answer.output, answer.output
    assert not list((tmp_path / "spool").iterdir()) and not (tmp_path / "state" / "entries").exists()


def test_a_challenge_whose_reserve_decides_as_well_takes_no_entry(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    configs = tmp_path / "configs"
    shutil.copytree(SHIPPED, configs)
    fragment = configs / "challenges" / "tiny-sums.toml"
    fragment.write_text(fragment.read_text().replace('"tiny-sums-reserve"', '"tiny-sums"'))
    (tmp_path / "config.toml").write_text(f'state = "{tmp_path}/state"\n')
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW) + "\n")
    env = {"OUTERLOOP_CONFIG": str(tmp_path / "config.toml"), "COLUMNS": "300"}
    words = ["submit", "entry", "tiny-sums", "--train", str(tmp_path / "train.jsonl"), "--configs", str(configs)]
    answer = CliRunner(env=env).invoke(app, words, prog_name="outerloop")
    assert answer.exit_code == 2 and "a suite can't both decide and be the reserve: tiny-sums" in answer.output
