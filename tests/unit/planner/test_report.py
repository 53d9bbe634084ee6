"""Ranking, measured figures, digests and the rendered text."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.planner import (
    Candidate,
    MeasuredFigure,
    PlanReport,
    decide,
    parse_request,
    plan,
    plan_digest,
    render_report,
)
from outerloop.planner.arithmetic import Estimate
from outerloop.planner.rank import dominates, ranked, sort_key
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
    assert any(name in worse.reasons[0] for name in ("fast", "middle"))
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
    ],
)
def test_a_figure_of_another_layout_changes_nothing(change: dict[str, Any]) -> None:
    request = parse_request({"workload": SMALL, "resources": ONE_H100})
    other = figure(**({"peak_memory_gb": 79.0} | change))
    assert plan(request, ledger=[other]).candidates == plan(request).candidates


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
def test_no_value_is_cut_off(name: str) -> None:
    """Every line of arithmetic ends in a whole unit, at every width."""
    units = ("GB", "s", "h", "min", "GFLOP", "tok/s/GPU")
    for width in (60, 80, 120):
        for line in render_report(REPORTS[name], explain=True, width=width).splitlines():
            if line.startswith("    ") and line[4:5] not in ("", " ") and "  " in line[4:].rstrip():
                assert line.endswith(units) or line.split()[-1].replace(",", "").replace(".", "").isdigit(), line


def test_explain_aligns_the_values_of_the_arithmetic() -> None:
    lines = render_report(REPORTS["70b"], explain=True).splitlines()
    ends = {len(line) for line in lines if line.startswith("    ") and line.endswith(" GB")}
    assert len(ends) == 1


def test_the_short_text_names_the_plan_and_the_hint() -> None:
    assert "fsdp2_x32+ackpt (cheapest): 32 workers on 4 hosts" in render_report(REPORTS["70b"])
    text = render_report(REPORTS["none"])
    assert "Plan       none" in text and "Hint       cheapest change: LoRA" in text
