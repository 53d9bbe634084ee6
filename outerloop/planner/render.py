"""A report as text, for a terminal of any width from 60 columns up.

Covers the short form (the verdict, one line per candidate) and the explained one (every candidate with its reasons and
its arithmetic, aligned). Plain text: colours are the caller's.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from outerloop.planner.arithmetic import Estimate, Line
from outerloop.planner.checks import hours
from outerloop.planner.report import Candidate, PlanReport
from outerloop.planner.request import ClassicalML, IndependentTasks, PytorchTraining, TransformerFinetune

MINIMUM_WIDTH = 60
_LABEL, _VALUE = 22, 16
_NONE = "–"
_UNITS = {"tokens/s/GPU": "tok/s/GPU"}

_VERDICTS = {
    "selected": "selected",
    "feasible": "feasible",
    "infeasible": "infeasible",
    "rejected_policy": "policy",
    "rejected_dominated": "dominated",
}


def _number(value: float, unit: str) -> str:
    if unit == "h":
        return hours(value)
    if unit == "money":
        return f"{value:,.2f}"
    size = abs(value)
    if size >= 1000:
        shown = f"{value:,.0f}"
    elif size >= 100:
        shown = f"{value:.1f}"
    elif size >= 0.01 or value == 0:
        shown = f"{value:.2f}"
    else:
        shown = f"{value:.1e}"
    return f"{shown} {_UNITS.get(unit, unit)}"


def _wrap(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width=width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=True,
        break_on_hyphens=False,
    ) or [indent.rstrip()]


def _arithmetic(lines: Iterable[Line], width: int) -> list[str]:
    """`label  formula  value`, the formula wrapped in its own column."""
    out = []
    room = width - 4 - _LABEL - _VALUE - 2
    for line in lines:
        parts = textwrap.wrap(line.formula, width=room, break_on_hyphens=False) or [""]
        mark = "" if line.basis in ("static", "given") else f" [{line.basis}]"
        label = (line.label + mark)[:_LABEL]
        value = _number(line.value, line.unit)
        out.append(f"    {label:<{_LABEL}} {parts[0]:<{room}} {value:>{_VALUE}}"[:width])
        out += [f"    {'':<{_LABEL}} {part}" for part in parts[1:]]
    return out


def _sum_line(label: str, estimate: Estimate, width: int) -> list[str]:
    room = width - 4 - _LABEL - _VALUE - 2
    span = ""
    if estimate.high > estimate.low:
        low = _number(estimate.low, estimate.unit).removesuffix(f" {_UNITS.get(estimate.unit, estimate.unit)}")
        high = _number(estimate.high, estimate.unit)
        span = f"{low} to {high}"
    if estimate.basis not in ("static", "given"):
        span = f"{span} [{estimate.basis}]".strip()
    value = _number(estimate.central, estimate.unit)
    return [f"    {label[:_LABEL]:<{_LABEL}} {span[:room]:<{room}} {value:>{_VALUE}}"[:width]]


def _request_lines(report: PlanReport, width: int) -> list[str]:
    work, resources = report.request.workload, report.request.resources
    if isinstance(work, TransformerFinetune):
        how = "full" if work.lora is None else f"LoRA rank {work.lora.rank}"
        what = (
            f"{work.model.name}, {how}, {work.precision}, {work.sequence:,} tokens × micro-batch {work.micro_batch}, "
            f"loss {work.loss}"
        )
    elif isinstance(work, PytorchTraining):
        what = f"PyTorch model of {work.parameters / 1e6:,.1f} M parameters, {work.precision}"
    elif isinstance(work, ClassicalML):
        what = f"classical fit of {work.data_gb:g} GB"
    else:
        assert isinstance(work, IndependentTasks)
        what = f"{work.tasks:,} independent tasks"
    machine = f"{resources.hosts} host{'s' if resources.hosts > 1 else ''}"
    if resources.gpu is not None and resources.gpus_per_host:
        machine += f" × {resources.gpus_per_host} {resources.gpu.name}"
    if resources.inter_host_gbit_per_s:
        machine += f", {resources.links_per_host} × {resources.inter_host_gbit_per_s:g} Gbit/s per host"
    if resources.host_memory_gb:
        machine += f", {resources.host_memory_gb:g} GB of host memory"
    return [*_wrap(what, width, " " * 11, "Work       "), *_wrap(machine, width, " " * 11, "Machine    ")]


def _columns(candidate: Candidate) -> str:
    memory = _NONE if candidate.memory is None else f"{candidate.memory.central:.1f}"
    time = "unknown" if candidate.time_hours is None else hours(candidate.time_hours.central)
    cost = "unknown" if candidate.cost is None else f"{candidate.cost.central:,.2f}"
    share = _NONE if candidate.efficiency is None else f"{candidate.efficiency:.2f}"
    return f"{_VERDICTS[candidate.status]:<10} {memory:>7} {time:>9} {cost:>10} {share:>4}"


def _table(candidates: Sequence[Candidate], width: int) -> list[str]:
    """One line per candidate: name, verdict, memory, time, cost, efficiency; a long name has a line of its own."""
    header = f"{'verdict':<10} {'GB/GPU':>7} {'time':>9} {'cost':>10} {'eff.':>4}"
    widest = max([len("candidate"), *(len(c.name) for c in candidates)])
    room = min(widest, width - len(header) - 1)
    rows = [f"{'candidate':<{room}} {header}", "-" * (room + 1 + len(header))]
    for candidate in candidates:
        name = candidate.name
        if len(name) > room:
            rows.append(name[:width])
            name = ""
        rows.append(f"{name:<{room}} {_columns(candidate)}"[:width])
    return rows


def _nearest_of_each_family(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of each family without a passing candidate, the one that fails on the least."""
    passed = {c.family for c in candidates if c.status in ("selected", "feasible")}
    nearest: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.family in passed or not candidate.reasons:
            continue
        old = nearest.get(candidate.family)
        key = (len(candidate.reasons), candidate.vram_deficit_gb or 0.0, -candidate.workers)
        if old is None or key < (len(old.reasons), old.vram_deficit_gb or 0.0, -old.workers):
            nearest[candidate.family] = candidate
    return list(nearest.values())


def _explained(candidate: Candidate, width: int) -> list[str]:
    out = ["", f"{candidate.name}: {candidate.status}"[:width]]
    for check in candidate.checks:
        mark = {True: "!" if check.warning else "ok", False: "no", None: "??"}[check.ok]
        out += _wrap(f"{check.name}: {check.text}", width, " " * 5, f"  {mark:<2} ")
    shown = {check.text for check in candidate.checks}
    for text in (*candidate.warnings, *candidate.reasons):
        if text not in shown:
            mark = "no" if text in candidate.reasons else "!"
            out += _wrap(text, width, " " * 5, f"  {mark:<2} ")
    if candidate.memory is not None:
        out += ["  memory per GPU", *_arithmetic(candidate.memory.lines, width)]
        out += _sum_line("total", candidate.memory, width)
    if candidate.host_memory is not None:
        out += ["  host memory", *_arithmetic(candidate.host_memory.lines, width)]
        out += _sum_line("total per host", candidate.host_memory, width)
    if candidate.step_seconds is not None:
        out += ["  optimizer step", *_arithmetic(candidate.step_seconds.lines, width)]
        out += _sum_line("step", candidate.step_seconds, width)
        if candidate.tokens_per_second_per_gpu is not None:
            out += _sum_line("throughput", candidate.tokens_per_second_per_gpu, width)
    elif candidate.communication:
        out += ["  communication per step", *_arithmetic(candidate.communication, width)]
    if candidate.time_hours is not None:
        out += ["  time and cost", *_arithmetic(candidate.time_hours.lines, width)]
        if candidate.cost is not None:
            out += _arithmetic(candidate.cost.lines, width)
    return out


def _choice(report: PlanReport, width: int) -> list[str]:
    chosen = report.chosen
    if chosen is None:
        out = ["Plan       none: no candidate can be run"]
        if report.hint:
            out += _wrap(report.hint, width, " " * 11, "Hint       ")
        for unlock in report.unlocks[1:6]:
            text = f"or {unlock.change} (then {unlock.candidate})"
            if not unlock.keeps_the_training:
                text += ", which alters the training"
            out += _wrap(text, width, " " * 13, " " * 11)
        return out
    where = f"{chosen.workers} worker{'s' if chosen.workers > 1 else ''}"
    if chosen.hosts > 1:
        where += f" on {chosen.hosts} hosts"
    if chosen.family == "hsdp":
        where += f", shard groups of {chosen.shard_group}"
    out = _wrap(f"{chosen.name} ({report.mode}): {where}", width, " " * 11, "Plan       ")
    facts = []
    if chosen.memory is not None:
        facts.append(f"{chosen.memory.central:.1f} GB per GPU")
    if chosen.tokens_per_second_per_gpu is not None:
        rate = chosen.tokens_per_second_per_gpu
        facts.append(f"{rate.central:,.0f} tokens/s/GPU ({rate.low:,.0f} to {rate.high:,.0f})")
    facts.append("time unknown" if chosen.time_hours is None else hours(chosen.time_hours.central))
    facts.append("cost unknown" if chosen.cost is None else f"cost {chosen.cost.central:,.2f}")
    out += _wrap(", ".join(facts), width, " " * 11)
    for text in chosen.warnings:
        out += _wrap(text, width, " " * 13, " " * 11 + "! ")
    return out


def render_report(report: PlanReport, explain: bool = False, width: int = 80) -> str:
    """The report as text of at most `width` columns; `explain` adds every candidate's checks and arithmetic."""
    width = max(width, MINIMUM_WIDTH)
    out = [*_request_lines(report, width), *_choice(report, width)]
    for note in report.notes:
        out += _wrap(note, width, " " * 11, "Note       ")
    out.append(f"Digest     {report.digest[:16]} (planner {report.planner_version})")
    if report.candidates:
        out += ["", *_table(report.candidates, width)]
    if explain:
        for candidate in report.candidates:
            out += _explained(candidate, width)
    else:
        nearest = _nearest_of_each_family(report.candidates)
        out += [""] if nearest else []
        for candidate in nearest:
            out += _wrap(f"{candidate.name}: {'; '.join(candidate.reasons)}", width, "    ", "  ")
    return "\n".join(out) + "\n"
