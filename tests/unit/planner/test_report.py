"""Ranking, measured figures, digests and the rendered text."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.planner import (
    Candidate,
    MeasuredFigure,
    PlanReport,
    decide,
    figure_fields,
    parse_request,
    plan,
    plan_digest,
    render_report,
)
from outerloop.planner.arithmetic import Estimate
from outerloop.planner.hint import hinted
from outerloop.planner.rank import dominates, ranked, sort_key
from outerloop.planner.render import _number
from outerloop.planner.request import Mode
from tests.unit.planner.build import H100_RAILS, finetune, planned


def candidate(name: str, hours: float, cost: float, workers: int = 1, **fields: Any) -> Candidate:
    values = {
        "name": name,
        "family": "fsdp2",
        "workers": workers,
        "time_hours": Estimate(central=hours, low=hours, high=hours, unit="h"),
        "cost": Estimate(central=cost, low=cost, high=cost, unit="money"),
    }
    return Candidate.model_validate(values | fields)


FAST = candidate("fast", 1, 12, 8)
CHEAP = candidate("cheap", 8, 8, 1, headroom_gb=1.0, profiling_required=True)
MIDDLE = candidate("middle", 2, 9, 4, headroom_gb=20.0)
WORSE = candidate("worse", 2.5, 13, 4)


@pytest.mark.parametrize(
    ("mode", "best"), [("cheapest", "cheap"), ("fastest", "fast"), ("balanced", "fast"), ("reliable", "middle")]
)
def test_each_mode_has_its_own_best(mode: Mode, best: str) -> None:
    order, selected = ranked([FAST, CHEAP, MIDDLE, WORSE], mode)
    assert selected == best and order[0].status == "selected"


def test_a_dominated_candidate_says_by_whom() -> None:
    order, _ = ranked([FAST, CHEAP, MIDDLE, WORSE], "cheapest")
    worse = next(c for c in order if c.name == "worse")
    assert worse.status == "rejected_dominated"
    assert worse.reasons == ("dominated by middle, which is better in time and in cost",)
    assert {c.status for c in order if c.name in ("fast", "middle")} == {"feasible"}


def test_ranking_uses_unrounded_numbers() -> None:
    a, b = candidate("a", 1.00000001, 1, 2), candidate("b", 1.0, 1, 4)
    assert ranked([a, b], "fastest")[1] == "b"


def test_equal_candidates_do_not_dominate_one_another_and_the_smaller_world_wins() -> None:
    a, b = candidate("a", 1, 1, 4), candidate("b", 1, 1, 2)
    assert not dominates(a, b) and not dominates(b, a)
    assert sort_key(b, "cheapest") < sort_key(a, "cheapest")


def test_what_does_not_pass_is_never_selected() -> None:
    refused = candidate("refused", 0.1, 0.1, status="infeasible", reasons=("no",))
    order, selected = ranked([refused, FAST], "cheapest")
    assert selected == "fast" and order[-1].name == "refused"


SMALL = finetune("qwen2.5-0.5b", sequence=1024, tokens=1e8)
ONE_H100 = {"gpus_per_host": 1, "gpu": "H100", "price_per_gpu_hour": 2.0}


def figure(**fields: Any) -> MeasuredFigure:
    values = {
        "candidate": "single_gpu",
        "model": "qwen2.5-0.5b",
        "gpu": "H100",
        "sequence": 1024,
        "micro_batch": 1,
        "precision": "bf16",
        "basis": "ledger",
        "source": "run t-17",
    }
    return MeasuredFigure.model_validate(values | fields)


def test_ledger_figures_replace_static_ones_and_say_so() -> None:
    request = parse_request({"workload": SMALL, "resources": ONE_H100})
    report = plan(request, ledger=[figure(peak_memory_gb=12.5, tokens_per_second_per_gpu=20_000)])
    single = report.candidate("single_gpu")
    assert single.memory is not None and single.memory.basis == "ledger" and single.memory.central == 12.5
    assert single.time_hours is not None and single.time_hours.basis == "ledger"
    assert single.time_hours.central == pytest.approx(1e8 / 20_000 / 3600, rel=1e-3)
    assert single.cost is not None and single.cost.central == pytest.approx(2 * single.time_hours.central)
    assert "run t-17" in render_report(report, explain=True) and "[ledger]" in render_report(report, explain=True)


def test_a_measured_peak_that_does_not_fit_refuses_what_the_estimate_would_pass() -> None:
    ledger = [figure(peak_memory_gb=79.0)]
    asked = parse_request({"workload": SMALL | {"activation_checkpointing": False}, "resources": ONE_H100})
    assert plan(asked).selected == "single_gpu"
    assert plan(asked, ledger=ledger).candidate("single_gpu").status == "infeasible"
    left_open = parse_request({"workload": SMALL, "resources": ONE_H100})
    assert plan(left_open).selected == "single_gpu"
    assert plan(left_open, ledger=ledger).selected == "single_gpu+ackpt"


@pytest.mark.parametrize(
    "change",
    [
        {"candidate": "ddp_x2"},
        {"model": "qwen2.5-1.5b"},
        {"gpu": "H200"},
        {"sequence": 2048},
        {"micro_batch": 2},
        {"precision": "fp32"},
        {"lora_rank": 16},
        {"optimizer": "adamw_8bit"},
        {"loss": "chunked"},
        {"compile": True},
        {"gradient_as_bucket_view": True},
        {"accumulation": 4},
        {"hosts": 2},
        {"shard_group": 2},
    ],
)
def test_a_figure_of_another_layout_changes_nothing(change: dict[str, Any]) -> None:
    request = parse_request({"workload": SMALL, "resources": ONE_H100})
    other = figure(**({"peak_memory_gb": 79.0} | change))
    assert plan(request, ledger=[other]).candidates == plan(request).candidates


def test_a_lora_figure_counts_for_its_own_target_modules_in_any_order() -> None:
    targets = ("q_proj", "v_proj")
    asked = {"workload": SMALL | {"lora": {"rank": 16, "targets": list(targets)}}, "resources": ONE_H100}
    request = parse_request(asked)
    same = figure(peak_memory_gb=7.5, lora_rank=16, lora_targets=tuple(reversed(targets)))
    memory = plan(request, ledger=[same]).candidate("single_gpu").memory
    assert memory is not None and memory.central == 7.5
    every = figure(peak_memory_gb=7.5, lora_rank=16)
    assert plan(request, ledger=[every]).candidates == plan(request).candidates


def test_the_fields_that_name_a_candidates_layout_find_back_to_it_and_to_no_other() -> None:
    resources = {"hosts": 2, "gpus_per_host": 8, "gpu": "H100", "inter_host_gbit_per_s": 400, "links_per_host": 8}
    asked = {"workload": finetune("llama-3.1-8b", lora=True, global_batch=64, loss="chunked"), "resources": resources}
    request = parse_request(asked)
    report = plan(request)
    for candidate in report.candidates:
        fields = figure_fields(candidate, request)
        assert fields is not None
        measured = MeasuredFigure.model_validate({**fields, "peak_memory_gb": 33.25, "basis": "ledger"})
        again = plan(request, ledger=[measured])
        # Where the measured peak makes checkpointing unnecessary or necessary, the name changes with it.
        found = [c.name for c in again.candidates if c.memory is not None and c.memory.central == 33.25]
        assert found == [candidate.name]


def test_work_that_no_figure_describes_has_no_fields() -> None:
    report = planned({"kind": "independent_tasks", "tasks": 5}, {"cores_per_host": 16})
    assert figure_fields(report.candidates[0], report.request) is None


def test_a_figure_of_the_request_that_belongs_nowhere_is_said() -> None:
    strange = figure(candidate="ddp_x2", peak_memory_gb=30, basis="profiled").model_dump()
    right = figure(peak_memory_gb=30, basis="profiled").model_dump()
    report = plan(parse_request({"workload": SMALL, "resources": ONE_H100, "figures": [right, strange]}))
    said = [note for note in report.notes if "changes nothing" in note]
    assert len(said) == 1 and "ddp_x2 (qwen2.5-0.5b on H100)" in said[0]


def test_of_several_figures_the_largest_peak_and_the_mean_rate_count() -> None:
    request = parse_request({"workload": SMALL, "resources": ONE_H100})
    figures = [
        figure(peak_memory_gb=10, tokens_per_second_per_gpu=10_000, runs=3),
        figure(peak_memory_gb=11, tokens_per_second_per_gpu=20_000, runs=1),
    ]
    single = plan(request, ledger=figures).candidate("single_gpu")
    assert single.memory is not None and (single.memory.central, single.memory.low) == (11, 10)
    assert single.tokens_per_second_per_gpu is not None
    assert single.tokens_per_second_per_gpu.central == pytest.approx(12_500)


def test_ledger_figures_outrank_the_requests_own_profile() -> None:
    profiled = figure(peak_memory_gb=30, basis="profiled").model_dump()
    request = parse_request({"workload": SMALL, "resources": ONE_H100, "figures": [profiled]})
    alone = plan(request).candidate("single_gpu").memory
    both = plan(request, ledger=[figure(peak_memory_gb=20)]).candidate("single_gpu").memory
    assert alone is not None and (alone.basis, alone.central) == ("profiled", 30)
    assert both is not None and (both.basis, both.central) == ("ledger", 20)


def test_the_digest_names_request_ledger_version_and_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    request = parse_request({"workload": SMALL, "resources": ONE_H100})
    other = parse_request({"workload": SMALL | {"sequence": 512}, "resources": ONE_H100})
    digests = {plan_digest(request), plan_digest(other), plan_digest(request, [figure(peak_memory_gb=1)])}
    monkeypatch.setattr(decide, "PLANNER_VERSION", "another")
    digests.add(plan_digest(request))
    monkeypatch.undo()
    monkeypatch.setattr(decide, "GPUS", {})
    digests.add(plan_digest(request))
    assert len(digests) == 5


def test_the_digest_does_not_depend_on_the_order_of_ledger_figures() -> None:
    request = parse_request({"workload": SMALL, "resources": ONE_H100})
    a, b = figure(peak_memory_gb=1), figure(peak_memory_gb=2)
    assert plan_digest(request, [a, b]) == plan_digest(request, [b, a])


def test_a_report_survives_its_own_json() -> None:
    report = planned(SMALL, ONE_H100)
    assert PlanReport.model_validate_json(report.model_dump_json()) == report


REPORTS = {
    "70b": planned(finetune("llama-3.1-70b", sequence=4096, activation_checkpointing=True, tokens=1e9), H100_RAILS),
    "qlora": planned(
        finetune("llama-3.1-70b", lora=True, allow_quantization=True),
        {"gpus_per_host": 2, "gpu": "RTX4090", "host_memory_gb": 128},
    ),
    "none": planned(finetune("qwen2.5-7b"), {"gpus_per_host": 1, "gpu": "RTX4090", "host_memory_gb": 64}),
    "no gpu": planned(finetune("qwen2.5-7b"), {}),
    "tasks": planned(
        {"kind": "independent_tasks", "tasks": 500, "task_minutes": 10}, {"hosts": 4, "cores_per_host": 16}
    ),
}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_text_fits_its_width(name: str, explain: bool, width: int) -> None:
    text = render_report(REPORTS[name], explain, width)
    assert [line for line in text.splitlines() if len(line) > width] == []
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("name", REPORTS)
def test_explain_shows_every_candidate_with_its_reasons(name: str) -> None:
    report = REPORTS[name]
    text = " ".join(render_report(report, explain=True).split())
    for candidate in report.candidates:
        assert f"{candidate.name}: {candidate.status}" in text
        for reason in candidate.reasons:
            assert " ".join(reason.split()) in text


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_value_is_cut_off(name: str, width: int) -> None:
    """Every line of arithmetic begins with its label and ends in its whole value, at every width."""
    report = REPORTS[name]
    text = render_report(report, explain=True, width=width).splitlines()
    for candidate in report.candidates:
        estimates = (candidate.memory, candidate.host_memory, candidate.step_seconds, candidate.time_hours)
        for line in [line for estimate in estimates if estimate is not None for line in estimate.lines]:
            start, end = line.label.split()[0], _number(line.value, line.unit)
            assert [t for t in text if t.startswith(f"    {start}") and t.endswith(f" {end}")], (line.label, end)


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [60, 80])
def test_no_label_of_the_arithmetic_is_cut_off(name: str, width: int) -> None:
    report = REPORTS[name]
    text = render_report(report, explain=True, width=width).splitlines()
    left = " ".join(line[4:26].strip() for line in text if line.startswith("    ")).split()
    told = " ".join(left)
    for candidate in report.candidates:
        for line in candidate.memory.lines if candidate.memory else ():
            assert line.label in told
        for line in candidate.communication:
            assert line.label in told, line.label


def test_without_an_amount_of_work_the_table_compares_speeds() -> None:
    known = render_report(REPORTS["70b"])
    open_ended = render_report(REPORTS["qlora"])
    assert "tok/s/GPU eff." in open_ended and "cost eff." not in open_ended
    assert "tok/s/GPU eff." not in known and "cost eff." in known
    assert "time       cost" in render_report(REPORTS["tasks"])


def test_the_hints_changes_are_not_listed_again_and_the_others_are() -> None:
    report = REPORTS["none"]
    named = [unlock.change for unlock in hinted(report.unlocks)]
    assert named == ["LoRA instead of training all weights", "hosts with 256 GB of memory"]
    text = " ".join(render_report(report).split())
    assert "or QLoRA instead of training all weights" in text
    assert "or LoRA" not in text and "or hosts with 256 GB" not in text


def test_the_nearest_of_a_family_is_the_one_that_lacks_the_least() -> None:
    report = planned(finetune("llama-3.1-70b", lora=True, allow_quantization=True), {"gpus_per_host": 2, "gpu": "L4"})
    _, told = render_report(report).split("\n\n")[-2:]
    assert "  qlora_fsdp2_cpu_offload_x2+ackpt: offloading needs" in told
    assert "\n  fsdp2_cpu_offload_x2" not in told


@pytest.mark.parametrize(("gpus", "said"), [(16, False), (64, True)])
def test_more_gpus_than_hosts_have_is_said(gpus: int, said: bool) -> None:
    notes = planned(finetune("llama-3.1-8b"), {"gpus_per_host": gpus, "gpu": "H100"}).notes
    assert any("hosts of 8 are written 8x8xH100" in note for note in notes) is said


def test_explain_aligns_the_values_of_the_arithmetic() -> None:
    lines = render_report(REPORTS["70b"], explain=True).splitlines()
    ends = {len(line) for line in lines if line.startswith("    ") and line.endswith(" GB")}
    assert len(ends) == 1


def test_the_short_text_says_what_runs_at_once() -> None:
    tasks = " ".join(render_report(REPORTS["tasks"]).split())
    assert (
        "Machine 4 hosts, 16 cores per host Plan lease_tasks_x16 (cheapest): 16 tasks at once on 4 hosts, 32" in tasks
    )
    fit = planned({"kind": "classical_ml", "data_gb": 30}, {"host_memory_gb": 64})
    assert "sharded_partial_fit (cheapest): 1 worker, 16 shards one after the other" in " ".join(
        render_report(fit).split()
    )


def test_the_short_text_names_the_plan_and_the_hint() -> None:
    assert "fsdp2_x32+ackpt (cheapest): 32 workers on 4 hosts" in render_report(REPORTS["70b"])
    text = render_report(REPORTS["none"])
    assert "Plan       none" in text and "Hint       cheapest change: LoRA" in text
