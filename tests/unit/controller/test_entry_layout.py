"""A challenge's layout in an entry's request: the trainer's processes, and that their number is another training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.compose import SHIPPED
from outerloop.posttrain.config import parse_config_text

ROW = {"prompt": "p", "completion": "c", "answer": "c"}
LAYOUT = '\n[compute.layout]\nflavor = "h200x2"\nvllm_gpus = "{gpus}"\ntensor_parallel = {count}\n'
LIMITS = "\n[meta.serving]\nmax_model_len = 76\nbridge_max_context = 76\nbridge_max_logprob_context = 76\n"


def asked(folder: Path, gpus: str) -> dict[str, Any]:
    """The request of an entry whose challenge gives the trainer these GPUs, "" for no layout."""
    configs = folder / f"configs-{len(gpus)}"
    shutil.copytree(SHIPPED, configs)
    method = configs / "methods" / "tiny-sft-grpo.toml"
    method.write_text(method.read_text().replace("generation_batch_size = 32", "generation_batch_size = 64") + LIMITS)
    if gpus:
        with (configs / "challenges" / "tiny-sums.toml").open("a") as challenge:
            challenge.write(LAYOUT.format(gpus=gpus, count=len(gpus.split(","))))
            challenge.write(f'trainer_gpus = "{gpus}"\nmode = "colocate"\n')
    (folder / "config.toml").write_text(f'state = "{folder}/state"\nbackend = "local"\n')
    (folder / "train.jsonl").write_text(json.dumps(ROW) + "\n")
    words = ["submit", "entry", "tiny-sums", "--train", str(folder / "train.jsonl"), "--configs", str(configs)]
    answer = CliRunner(env={"OUTERLOOP_CONFIG": str(folder / "config.toml")}).invoke(
        app, [*words, "--dry-run", "--json"]
    )
    assert answer.exit_code == 0, answer.output
    found: dict[str, Any] = json.loads(answer.output)["request"]
    return found


def test_each_trainer_gpu_is_a_process_and_their_number_is_part_of_a_trainings_identity(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    none, one, two = (asked(tmp_path, gpus) for gpus in ("", "0", "0, 1"))
    assert [parse_config_text(item["config"], "x").processes for item in (none, one, two)] == [1, 1, 2]
    assert [item["gpus"] for item in (none, one, two)] == [0, 2, 2], "those of the flavor are reserved"
    assert none["tables"] == one["tables"], "where one process trains is no matter"
    assert {stage: json.loads(text)["processes"] for stage, text in two["tables"].items()} == {"sft": 2, "grpo": 2}
    assert none["question"] == one["question"] != two["question"]
