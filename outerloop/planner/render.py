"""A report as text, for a terminal of any width from 60 columns up.

Covers the short form (the verdict, one line per candidate) and the explained one (every candidate with its reasons and
its arithmetic, aligned). Plain text: colours are the caller's.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence

from outerloop.planner.arithmetic import Estimate, Line
from outerloop.planner.checks import hours
from outerloop.planner.hint import hinted
from outerloop.planner.report import Candidate, PlanReport
from outerloop.planner.request import ClassicalML, IndependentTasks, PytorchTraining, TransformerFinetune

MINIMUM_WIDTH = 60
MOST_OTHERS = 4
"""Changes that are listed besides those that the hint names."""
_LABEL, _VALUE = 22, 16
_NONE = "–"
_UNITS = {"tokens/s/GPU": "tok/s/GPU"}
_QUANTITY = re.compile(r"(?<=\d) (?=(?:GB/s|GB|B|TFLOP/s|GFLOP|s|h|GPUs|hosts|layers|tokens)\b)")

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


def _column(text: str, width: int) -> list[str]:
    """`text` wrapped, with a number and its unit kept on one line."""
    tied = _QUANTITY.sub("\N{NO-BREAK SPACE}", text)
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in textwrap.wrap(tied, width, break_on_hyphens=False)]


def _arithmetic(lines: Iterable[Line], width: int) -> list[str]:
    """`label  formula  value`, label and formula each wrapped in its own column."""
    out = []
    room = width - 4 - _LABEL - _VALUE - 2
    for line in lines:
        mark = "" if line.basis in ("static", "given") else f" [{line.basis}]"
        labels, parts = _column(line.label + mark, _LABEL), _column(line.formula, room) or [""]
        value = _number(line.value, line.unit)
        out.append(f"    {labels[0]:<{_LABEL}} {parts[0]:<{room}} {value:>{_VALUE}}"[:width])
        rest = itertools.zip_longest(labels[1:], parts[1:], fillvalue="")
        out += [f"    {label:<{_LABEL}} {part}".rstrip() for label, part in rest]
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
    each = " per host" if resources.hosts > 1 else ""
    if resources.gpu is not None and resources.gpus_per_host:
        machine += f" × {resources.gpus_per_host} {resources.gpu.name}"
    if resources.cores_per_host:
        machine += f", {resources.cores_per_host} cores{each}"
    if resources.inter_host_gbit_per_s:
        machine += f", {resources.links_per_host} × {resources.inter_host_gbit_per_s:g} Gbit/s{each}"
    if resources.host_memory_gb:
        machine += f", {resources.host_memory_gb:g} GB of memory{each}"
    return [*_wrap(what, width, " " * 11, "Work       "), *_wrap(machine, width, " " * 11, "Machine    ")]


def _columns(candidate: Candidate, timed: bool) -> str:
    memory = _NONE if candidate.memory is None else f"{candidate.memory.central:.1f}"
    time = "unknown" if candidate.time_hours is None else hours(candidate.time_hours.central)
    cost = "unknown" if candidate.cost is None else f"{candidate.cost.central:,.2f}"
    share = _NONE if candidate.efficiency is None else f"{candidate.efficiency:.2f}"
    rate = candidate.tokens_per_second_per_gpu
    speed = f"{time:>9} {cost:>10}" if timed else f"{'unknown' if rate is None else f'{rate.central:,.0f}':>9}"
    return f"{_VERDICTS[candidate.status]:<10} {memory:>7} {speed} {share:>4}"


def _table(candidates: Sequence[Candidate], width: int) -> list[str]:
    """One line per candidate: name, verdict, memory, time and cost, efficiency; a long name has a line of its own.

    Where no candidate's time is known but speeds are, the speed of one GPU stands in place of time and cost.
    """
    rates = any(c.tokens_per_second_per_gpu is not None for c in candidates)
    timed = not rates or any(c.time_hours is not None for c in candidates)
    speed = f"{'time':>9} {'cost':>10}" if timed else f"{'tok/s/GPU':>9}"
    header = f"{'verdict':<10} {'GB/GPU':>7} {speed} {'eff.':>4}"
    widest = max([len("candidate"), *(len(c.name) for c in candidates)])
    room = min(widest, width - len(header) - 1)
    rows = [f"{'candidate':<{room}} {header}", "-" * (room + 1 + len(header))]
    for candidate in candidates:
        name = candidate.name
        if len(name) > room:
            rows.append(name[:width])
            name = ""
        rows.append(f"{name:<{room}} {_columns(candidate, timed)}"[:width])
    return rows


def _nearest_of_each_family(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of each family without a passing candidate, the one that fails on the least and lacks the least memory."""

    def lacks(candidate: Candidate) -> tuple[float, ...]:
        host = candidate.host_memory.central if candidate.host_memory else 0.0
        return (len(candidate.reasons), candidate.vram_deficit_gb or 0.0, host, -candidate.workers)

    passed = {c.family for c in candidates if c.status in ("selected", "feasible")}
    nearest: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.family in passed or not candidate.reasons:
            continue
        old = nearest.get(candidate.family)
        if old is None or lacks(candidate) < lacks(old):
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


def _extent(chosen: Candidate) -> str:
    """How wide the work is spread: workers or tasks at once, hosts, waves, shards."""
    one = chosen.workers == 1
    if chosen.waves is not None:
        said = "one task at a time" if one else f"{chosen.workers} tasks at once"
    else:
        said = "1 worker" if one else f"{chosen.workers} workers"
    if chosen.hosts > 1:
        said += f" on {chosen.hosts} hosts"
    if chosen.waves is not None and chosen.workers > 1:
        said += f", {chosen.waves:,} wave{'s' if chosen.waves > 1 else ''}"
    if chosen.family == "hsdp":
        said += f", shard groups of {chosen.shard_group}"
    if chosen.shards is not None:
        said += f", {chosen.shards} shards one after the other"
    return said


def _choice(report: PlanReport, width: int) -> list[str]:
    chosen = report.chosen
    if chosen is None:
        out = ["Plan       none: no candidate can be run"]
        if report.hint:
            out += _wrap(report.hint, width, " " * 11, "Hint       ")
        for unlock in [u for u in report.unlocks if u not in hinted(report.unlocks)][:MOST_OTHERS]:
            text = f"or {unlock.change} (then {unlock.candidate})"
            if not unlock.keeps_the_training:
                text += ", which alters the training"
            out += _wrap(text, width, " " * 13, " " * 11)
        return out
    out = _wrap(f"{chosen.name} ({report.mode}): {_extent(chosen)}", width, " " * 11, "Plan       ")
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
