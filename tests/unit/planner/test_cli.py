"""`outerloop plan` as a person types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outerloop.cli.plan import plan
from outerloop.planner import PlanReport

EXAMPLES = sorted((Path(__file__).parents[3] / "configs" / "plans").glob("*.toml"))
SEVENTY = next(path for path in EXAMPLES if path.name == "llama-70b-64-h100.toml")


def run(*words: Any) -> Result:
    result = CliRunner().invoke(plan, [str(word) for word in words])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_gets_a_plan(path: Path) -> None:
    result = run(path, "--explain")
    assert result.exit_code == 0, result.output
    assert "Plan       " in result.output and "selected" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_there_is_an_example_of_every_kind() -> None:
    kinds = {json.loads(run(path, "--json").output)["request"]["workload"]["kind"] for path in EXAMPLES}
    assert kinds == {"transformer_finetune", "pytorch_training", "classical_ml", "independent_tasks"}


def test_a_request_from_options_alone() -> None:
    result = run("--model", "llama-3.1-8b", "--gpus", "8xH100", "--tokens", "1e9", "--price", "2")
    assert result.exit_code == 0 and "fsdp2_x4 (cheapest)" in result.output


def test_options_win_over_the_file() -> None:
    report = PlanReport.model_validate_json(run(SEVENTY, "--mode", "fastest", "--sequence", 8192, "--json").output)
    assert report.mode == "fastest" and report.request.workload.model_dump()["sequence"] == 8192
    assert report.request.resources.links_per_host == 8


def test_no_plan_exits_3_and_still_shows_why() -> None:
    result = run("--model", "qwen2.5-7b", "--gpus", "1xRTX4090", "--host-memory-gb", 64)
    assert result.exit_code == 3
    assert "Hint       cheapest change: LoRA" in result.output


def test_a_wrong_key_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    path = tmp_path / "ask.toml"
    path.write_text(
        '[workload]\nkind = "transformer_finetune"\nmodel = "gpt2"\nsequnce = 4\n\n[resources]\nhosts = 0\n'
    )
    result = run(path)
    assert result.exit_code == 2
    assert f"{path}:4: workload.sequnce: unknown key; did you mean 'sequence'?" in result.output
    assert f"{path}:7: resources.hosts" in result.output


@pytest.mark.parametrize("text", ["[workload", "a = 1\na = 2\n", "\udcff"])
def test_a_file_that_is_no_toml_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ask.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    result = run(path)
    assert result.exit_code == 2 and str(path) in result.output


@pytest.mark.parametrize("words", [["--gpus", "8"], ["--gpus", "H100"], ["--mode", "slow"], ["nothing.toml"], []])
def test_wrong_usage_exits_2(words: list[str]) -> None:
    assert run(*(words and ["request", *words] if words else ["request"])).exit_code == 2


def test_a_lane_without_a_cluster_gives_its_gpu_type_and_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text('backend = "local"\n[lanes.gpu]\ngpu_type = "h100"\nmax_minutes = 60\n')
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))
    ask = tmp_path / "ask.toml"
    ask.write_text('[workload]\nkind="transformer_finetune"\nmodel="gpt2"\ntokens=1e9\n[resources]\ngpus_per_host=2\n')
    report = PlanReport.model_validate_json(run(ask, "--lane", "gpu", "--json").output)
    resources = report.request.resources
    assert resources.gpu is not None and resources.gpu.name == "H100"
    assert (resources.gpus_per_host, resources.time_limit_hours, resources.source) == (2, 1.0, "lane gpu")
    assert any(check.name == "time_limit" for c in report.candidates for check in c.checks)


def test_a_misspelt_resource_beside_a_lane_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text('backend = "local"\n[lanes.gpu]\ngpu_type = "h100"\n')
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))
    ask = tmp_path / "ask.toml"
    ask.write_text('[workload]\nkind="transformer_finetune"\nmodel="gpt2"\n[resources]\ngpu_per_host=2\n')
    result = run(ask, "--lane", "gpu")
    assert result.exit_code == 2 and "did you mean 'gpus_per_host'" in result.output


def test_an_unknown_lane_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text('backend = "slurm"\n[lanes.gpu]\n')
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))
    result = run("--model", "gpt2", "--gpus", "1xH100", "--lane", "gup")
    assert result.exit_code == 3 and "gup" in result.output


def test_ledger_figures_from_a_file_replace_estimates(tmp_path: Path) -> None:
    figure = {
        "candidate": "single_gpu", "model": "gpt2", "gpu": "H100", "sequence": 1024, "micro_batch": 1,
        "precision": "bf16", "peak_memory_gb": 6.25, "basis": "ledger",
    }  # fmt: skip
    ledger = tmp_path / "ledger.json"
    ledger.write_text(json.dumps([figure]))
    words = ["--model", "gpt2", "--gpus", "1xH100", "--sequence", 1024, "--ledger", ledger]
    assert "6.2 GB per GPU" in run(*words).output
    ledger.write_text(json.dumps([figure | {"peak": 1}]))
    assert run(*words).exit_code == 2


def saved(tmp_path: Path, *words: Any) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(run(*words, "--json").output)
    return path


def test_compile_prints_the_launch_of_the_selected_candidate(tmp_path: Path) -> None:
    path = saved(tmp_path, SEVENTY)
    result = run("compile", path, "--", "python", "train.py", "--lr", "1e-5")
    assert result.exit_code == 0, result.output
    assert (
        "torchrun" in result.output and "--nproc-per-node=8" in result.output and "train.py --lr 1e-5" in result.output
    )
    assert "strategy.json" in result.output


def test_compile_is_the_same_in_a_poisoned_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, SEVENTY)
    before = run("compile", path, "--json", "--", "python", "train.py").output
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "SLURM_NNODES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "77")
    assert run("compile", path, "--json", "--", "python", "train.py").output == before


def test_compile_takes_another_feasible_candidate_and_refuses_an_infeasible_one(tmp_path: Path) -> None:
    path = saved(tmp_path, SEVENTY)
    report = PlanReport.model_validate_json(path.read_text())
    other = next(c.name for c in report.candidates if c.status == "feasible")
    assert run("compile", path, "--candidate", other, "--", "python", "t.py").exit_code == 0
    refused = run("compile", path, "--candidate", "single_gpu+ackpt", "--", "python", "t.py")
    assert refused.exit_code == 3 and "GB more than" in refused.output
    assert run("compile", path, "--candidate", "nothing", "--", "python", "t.py").exit_code == 7


def test_compile_without_a_command_and_of_other_files_is_a_sentence(tmp_path: Path) -> None:
    path = saved(tmp_path, SEVENTY)
    assert "add `-- python train.py" in run("compile", path).output
    for text in ("", "[]", '{"family": 5}', '{"candidates": []}'):
        path.write_text(text)
        assert run("compile", path, "--", "python", "t.py").exit_code == 2


def test_compile_names_every_wrong_key_of_a_strategy_plan_with_the_nearest_right_one(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    path.write_text('{"famly": "ddp", "command": ["x"], "framework": "torc"}')
    result = run("compile", path)
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        f"Error: {path}: family: is missing",
        f'{path}: framework: must be one of "torch", "accelerate"; did you mean "torch"? (it is \'torc\')',
        f'{path}: famly: unknown key; did you mean "family"?',
    ]


def test_compile_accepts_a_strategy_plan_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(
        json.dumps(
            {
                "family": "lease_tasks",
                "command": ["python", "eval.py", "--seed", "{seed}"],
                "tasks": [{"seed": 1}, {"seed": 2}],
            }
        )
    )
    result = run("compile", path)
    assert result.exit_code == 0, result.output
    assert "task 0" in result.output and "--seed 2" in result.output


@pytest.mark.torch
def test_calibrate_says_that_both_columns_are_estimates() -> None:
    pytest.importorskip("torch")
    result = run("calibrate", "--case", "tiny, single_gpu, fp32, SGD")
    assert result.exit_code == 0, result.output
    assert "Both columns are estimates" in result.output and "| tiny, single_gpu, fp32, SGD | " in result.output


def test_calibrate_names_the_cases_that_there_are() -> None:
    result = run("calibrate", "--case", "nothing")
    assert result.exit_code == 7 and "gpt2, single_gpu, bf16_pure" in result.output


def test_calibrate_without_torch_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("calibrate")
    assert result.exit_code == 2 and "calibrating needs torch" in result.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"request": {}, "selected": "ddp_x8", "mode": "cheapest"}', "but no candidates: hand over the report"),
        ('{"name": "ddp_x8", "status": "selected", "family": "ddp", "hosts": 1}', "this is one candidate of a report"),
        ('{"family": "ddp", "command": ["a"], "noeds": 2}', 'noeds: unknown key; did you mean "nodes"?'),
    ],
)
def test_what_is_no_strategy_plan_is_told_for_what_it_looks_like(given: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(given)
    told = CliRunner().invoke(plan, ["compile", str(path)])
    assert told.exit_code == 2 and said in told.output, told.output
    assert len(told.output.splitlines()) == 1
