"""Attacks on a stage's inputs between submission and run, and a full disk: nothing of it is the entry's fault."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.compose import SHIPPED, compose, toml_text
from outerloop.posttrain.data import read_table
from outerloop.posttrain.serve import UNAVAILABLE
from outerloop.posttrain.stage import _full, _no_room, main
from outerloop.posttrain.store import digest_of_folder

ROWS = [{"prompt": f"p{n}", "completion": "c", "answer": "c"} for n in range(3)]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with config.toml, train.jsonl and a model in base/."""
    for name in ("HF_HUB_OFFLINE", "OUTERLOOP_VLLM_PYTHON"):
        monkeypatch.setenv(name, "1")  # what the stage sets is taken back after the test
    config = compose("tiny-llama", "tiny-sft-grpo", ["tiny-sums"], "train.jsonl", project="t", configs=SHIPPED)
    config["model"] = {"id": f"file:{tmp_path}/base", "revision": "1"}
    (tmp_path / "config.toml").write_text(toml_text(config))
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def train(folder: Path, *, data: str = "", model: str = "") -> int:
    words = ["train", str(folder / "config.toml"), "--stage", "sft", "--seed", "1", "--state", str(folder / "state")]
    words += ["--data", str(folder / "train.jsonl"), "--data-sha256", data, "--model-sha256", model]
    return main(words)


def test_data_that_changed_are_not_trained_on_and_are_nobodys_fault(
    stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stage / "train.jsonl"
    digest = read_table(path, ("sft", "grpo"), source="x").digest
    path.write_text(json.dumps(ROWS[0]) + "\n")
    assert train(stage, data=digest) == UNAVAILABLE
    assert "its content has changed" in capsys.readouterr().err
    path.write_text('{"prompt": "torn')
    assert train(stage, data=digest) == UNAVAILABLE
    path.unlink()
    assert train(stage, data=digest) == UNAVAILABLE
    assert f"infrastructure: {path} is not the training data that was submitted" in capsys.readouterr().err
    assert not (stage / "state" / "sft").exists()


def test_a_model_that_changed_is_not_trained_and_is_nobodys_fault(
    stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = digest_of_folder(stage / "base")
    (stage / "base" / "model.safetensors").write_bytes(b"Weights")
    assert train(stage, model=digest) == UNAVAILABLE
    assert f"{stage}/base is not the model that was submitted for" in capsys.readouterr().err
    (stage / "base" / "config.json").unlink()
    assert train(stage, model=digest) == UNAVAILABLE
    assert train(stage) == 2, "who runs a stage by hand is told about the model"
    assert capsys.readouterr().err.count("holds no model") == 2


def test_a_full_disk_is_told_from_other_troubles() -> None:
    with pytest.raises(OSError) as found, Path("/dev/full").open("w") as stream:
        stream.write("x")
        stream.flush()
    wrapped = RuntimeError("could not save")
    wrapped.__cause__ = found.value
    for error in (found.value, wrapped, Exception("I/O error: No space left on device (os error 28)")):
        assert _full(error).startswith("No space left on device")
    assert _full(ValueError("loss is nan")) == "" and _full(FileNotFoundError(2, "no", "x")) == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB, where this account may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("this account may not mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_what_a_library_does_not_say_the_disk_does(small_disk: Path, tmp_path: Path) -> None:
    """torch's own words: RuntimeError, "unexpected pos 3101120 vs 3101014"."""
    assert _no_room(small_disk) and list(small_disk.iterdir()) == []
    assert not _no_room(tmp_path) and not _no_room(tmp_path / "absent")
