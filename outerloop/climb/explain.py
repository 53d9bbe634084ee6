"""A verdict told as an argument, in plain text.

Covers: what was asked, what was measured (pair by pair, with seed, node and job), the rule with its numbers,
the path of a sequential test, siblings and guards, how often such a rule is wrong, what would have changed the
verdict. Does not cover: colours, HTML, or the JSON form (`Verdict.to_json`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from outerloop.climb.argument import failure_sentence, floor_phrase, gain_phrase, loss_sentence, test_phrase
from outerloop.climb.error_table import nearest_rows
from outerloop.climb.findings import ClimbedFinding, Failure, Look, LossFinding, PairFinding, TestFinding, Verdict
from outerloop.climb.model import ClimbPlan, Paired, Reading, Rule, Threshold
from outerloop.climb.text import number, percent, plural, signed

# A longer path is thinned; first and last look always stay.
MOST_LOOKS_DRAWN = 30
# From here on a reader is told what would make a sibling's judgement less of a coin flip.
OFTEN_REFUSED = 0.1
_NARROWEST = 60
_INDENT = "  "
# Columns of the table of pairs: number, seed, both values and the gain; behind them stands where each side ran.
_VALUE_COLUMNS = 5


def render(verdict: Verdict, plan: ClimbPlan, readings: Mapping[str, Reading], width: int = 80) -> str:
    """The whole argument as text without trailing newline, no line longer than `width` (at least 60).

    Reads the verdict only; the readings add where each number was measured, and may be partial or empty.
    """
    width = max(width, _NARROWEST)
    told = [_section(title, lines, width) for title, lines in sections(verdict, plan, readings, width)]
    return "\n\n".join([_wrap(verdict.sentence, width), *told])


def sections(
    verdict: Verdict, plan: ClimbPlan, readings: Mapping[str, Reading], width: int = 80
) -> list[tuple[str, list[str]]]:
    """The argument below the verdict's sentence: (title, lines), drawn for this width and otherwise not folded."""
    found = verdict.findings
    parts = [("Asked", _asked(verdict, plan))]
    if found.climbed is not None:
        parts.append(("Measured", _measured(found.climbed, readings, width)))
        parts.append(("Decided", _decided(found.climbed, width)))
    for loss in found.losses:
        title = f"Sibling {loss.benchmark}" if loss.kind == "sibling" else f"Guard {loss.metric} ({loss.benchmark})"
        parts.append((title, _loss(loss, readings, width)))
    if found.failures:
        parts.append(("Failed", _failures(found.failures, readings)))
    if found.climbed is not None:
        parts.append(("How often this rule is wrong", _error_rates(found.climbed)))
    if found.notes:
        parts.append(("Note", _bullets(found.notes)))
    if found.would_have_changed:
        parts.append(("What would have changed it", _bullets(found.would_have_changed)))
    return parts


def rule_phrase(rule: Rule) -> str:
    """The rule in words, with its parameters."""
    if isinstance(rule, Threshold):
        return "threshold: one pair, its gain above zero and at least the floor"
    if isinstance(rule, Paired):
        extra = ", and no pair that got worse" if rule.all_pairs else ""
        return (
            f"paired: {rule.pairs} pairs, a mean gain of at least the floor and a one-sided sign-flip test at"
            f" alpha = {number(rule.alpha)}{extra}"
        )
    unit = "standard deviations of a pair's gain" if rule.units == "sd" else "units of the metric"
    name = "sequential t-test" if rule.test == "t" else "generalised sequential probability ratio test"
    return (
        f"{name}: H0 {number(rule.h0)} against H1 {number(rule.h1)} {unit}, alpha = {number(rule.alpha)},"
        f" beta = {number(rule.beta)}; {rule.min_pairs} pairs, then {plural(rule.batch, 'pair')} at a time, at"
        f" most {rule.max_pairs}"
    )


def _asked(verdict: Verdict, plan: ClimbPlan) -> list[str]:
    climbed = plan.climbed
    better = "lower" if climbed.direction == "min" else "higher"
    floors = []
    if climbed.min_delta:
        floors.append(f"{number(climbed.min_delta)}")
    if climbed.min_delta_rel:
        floors.append(f"{percent(climbed.min_delta_rel)} of the base")
    floor = f" by at least {' and '.join(floors)}" if floors else ""
    lines = [f"Does the candidate make {climbed.metric} of {climbed.name} {better}{floor}?"]
    if verdict.reason == "scope":
        return lines
    lines.append(f"Rule: {rule_phrase(climbed.rule)}.")
    if plan.siblings:
        named = ", ".join(sibling.name for sibling in plan.siblings)
        lines.append(f"Siblings that the diff may touch: {named}.")
    if climbed.guards:
        lines.append(f"Guards: {', '.join(guard.metric for guard in climbed.guards)}.")
    if climbed.seeded:
        lines.append("Each pair has one seed, drawn after the candidate was fixed and given to both sides.")
    elif climbed.deterministic:
        lines.append("The benchmark is declared deterministic: each tree was measured once.")
    else:
        lines.append("The benchmark takes no seed: every measurement is a fresh one.")
    return lines


def _measured(finding: ClimbedFinding, readings: Mapping[str, Reading], width: int) -> list[str]:
    lines = []
    if finding.baselines:
        lines.append("cached base values: " + ", ".join(number(value) for value in finding.baselines))
    lines += _pair_table(finding.pairs, readings, width)
    what = "Means" if len(finding.pairs) > 1 or finding.baselines else "So"
    lines.append(f"{what}: {gain_phrase(finding)}.")
    if finding.gain_sd is not None:
        lines.append(f"Standard deviation of the gains: {number(finding.gain_sd)}.")
    return lines


def _pair_table(pairs: Sequence[PairFinding], readings: Mapping[str, Reading], width: int) -> list[str]:
    heads = ["pair", "seed", "base", "candidate", "gain", "base ran", "candidate ran"]
    rows = [
        [
            str(pair.pair),
            str(pair.seed) if pair.seed else "-",
            "" if pair.base is None else number(pair.base),
            number(pair.candidate),
            "" if pair.gain is None else signed(pair.gain),
            _where(readings.get(pair.base_role)),
            _where(readings.get(pair.candidate_role)),
        ]
        for pair in pairs
    ]
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    sizes = {i: max(len(row[i]) for row in [heads, *rows]) for i in kept}
    # Where a side ran gives way first: the caller's list of jobs has it too.
    while len(kept) > _VALUE_COLUMNS and sum(sizes[i] + 2 for i in kept) - 2 > width - len(_INDENT):
        kept.pop()
    table = [[row[i] for i in kept] for row in [heads, *rows]]
    widths = [sizes[i] for i in kept]
    right = {i for i, column in enumerate(kept) if column < _VALUE_COLUMNS}
    lines = []
    for row in table:
        cells = [
            cell.rjust(size) if i in right else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells))
    return [_cut(line.rstrip(), width - len(_INDENT)) for line in lines]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def _where(reading: Reading | None) -> str:
    if reading is None:
        return ""
    facts = reading.facts
    parts = [facts.node, f"job {facts.job_id}" if facts.job_id else ""]
    if facts.attempt > 1:
        parts.append(f"attempt {facts.attempt}")
    return " ".join(part for part in parts if part)


def _decided(finding: ClimbedFinding, width: int) -> list[str]:
    floor = finding.floor
    lines = [
        f"Floor: the larger of {number(floor.absolute)} (min_delta) and {number(floor.relative)} (min_delta_rel of"
        f" the mean base)"
        + (f", plus {number(floor.cached_error)} for the error of the cached base" if floor.cached_error else "")
        + f": {floor_phrase(finding)}."
    ]
    verb = "clears" if finding.clears_floor else "does not clear"
    lines.append(f"The gain of {number(finding.gain)} {verb} it.")
    test = finding.test
    if test.test == "point":
        lines.append("One pair was measured, so nothing was tested: the point estimate decides.")
    elif test.p_value is not None:
        how = "all sign patterns counted" if test.resamples is None else f"{test.resamples} random sign patterns"
        lines.append(
            f"Test: {test_phrase(finding)} ({how}). It assumes that without an effect gains are as often and as"
            " far above zero as below."
        )
    else:
        lines.append(f"Test: {test_phrase(finding)}.")
        lines += draw_path(test, width - len(_INDENT))
    if finding.why == "worse-pairs":
        lines.append(f"Pairs that got worse: {', '.join(map(str, finding.worse_pairs))}.")
    return lines


def draw_path(test: TestFinding, width: int) -> list[str]:
    """The log-likelihood ratio after each look, one line a look, between the bounds of H0 and H1.

    Ratios beyond a bound are drawn just outside it. Empty for a test without looks.
    """
    if not test.looks or test.lower is None or test.upper is None:
        return []
    looks = _thinned(test.looks)
    label = max(len(str(look.pairs)) for look in looks)
    span = max(20, width - label - 12)
    column = {
        "H0": 1,
        "0": _position(0.0, test.lower, test.upper, span),
        "H1": span - 2,
    }
    head = [" "] * span
    for mark, at in (("H0", column["H0"]), ("0", column["0"]), ("H1", column["H1"])):
        start = min(at, span - len(mark))
        head[start : start + len(mark)] = mark
    lines = [f"{'pairs':>{max(label, 5)}}  {'LLR':>6} {''.join(head)}".rstrip()]
    for look in looks:
        row = [" "] * span
        for at, mark in ((column["H0"], "|"), (column["0"], ":"), (column["H1"], "|")):
            row[at] = mark
        row[_position(look.llr, test.lower, test.upper, span)] = "*"
        lines.append(f"{look.pairs:>{max(label, 5)}}  {look.llr:>6.2f} {''.join(row)}".rstrip())
    hidden = len(test.looks) - len(looks)
    if hidden:
        lines.append(f"({hidden} looks between these are not drawn)")
    return lines


def _position(llr: float, lower: float, upper: float, span: int) -> int:
    if llr <= lower:
        return 0
    if llr >= upper:
        return span - 1
    return min(span - 3, 2 + int((llr - lower) / (upper - lower) * (span - 4)))


def _thinned(looks: Sequence[Look]) -> list[Look]:
    if len(looks) <= MOST_LOOKS_DRAWN:
        return list(looks)
    last = len(looks) - 1
    kept = {round(i * last / (MOST_LOOKS_DRAWN - 1)) for i in range(MOST_LOOKS_DRAWN)}
    return [look for i, look in enumerate(looks) if i in kept]


def _loss(loss: LossFinding, readings: Mapping[str, Reading], width: int) -> list[str]:
    lines = _pair_table(loss.pairs, readings, width) if loss.pairs else []
    lines.append(f"{'Passed' if loss.passed else 'Refused'}: {loss_sentence(loss)}.")
    if loss.why == "unusable":
        return lines
    if loss.confidence is None:
        reason = "one pair has no confidence bound" if len(loss.pairs) == 1 else "no allowance was declared"
        lines.append(f"The point estimate stands in for a confidence bound: {reason}.")
    if loss.false_refusal is None:
        lines.append("How often noise alone would refuse it is not known; `outerloop noise` measures that.")
    else:
        lines.append(
            f"An unchanged {'sibling' if loss.kind == 'sibling' else 'metric'} would be refused by noise alone in"
            f" {percent(loss.false_refusal)} of climbs."
        )
        if loss.kind == "sibling" and loss.false_refusal > OFTEN_REFUSED:
            lines.append("An allowance that its noise fits in (regression = { free, max }) would change that.")
    return lines


def _failures(failures: Iterable[Failure], readings: Mapping[str, Reading]) -> list[str]:
    lines = []
    for failure in failures:
        where = _where(readings.get(failure.role))
        lines.append(failure_sentence(failure) + (f" ({where})" if where else "") + ".")
    return lines


def _error_rates(finding: ClimbedFinding) -> list[str]:
    rule = finding.rule
    lines = []
    if isinstance(rule, Threshold) and finding.noise_acceptance is not None:
        lines.append(
            f"With the noise of the study, an unchanged candidate clears this floor in"
            f" {percent(finding.noise_acceptance)} of climbs."
        )
    rows, same = nearest_rows(rule, finding.gain_sd, finding.floor.required)
    if not rows:
        if finding.noise_acceptance is None:
            lines.append(
                "Not known: one pair does not show the noise. `outerloop noise` measures it, and rules with"
                " several pairs state their error rates."
            )
        return lines
    if not same:
        known = ", ".join(f"{key} = {value}" for key, value in rows[0].rule.items() if key not in ("kind", "all_pairs"))
        lines.append(f"Nearest simulated rule: {known}.")
    noise_only = [row for row in rows if row.effect == 0]
    real = {row.noise: row for row in rows if row.nominal is not None and row.effect > 0}
    lines.append(f"Simulated, {noise_only[0].climbs} climbs each; accepted without any effect:")
    for row in noise_only:
        power = f", with H1 true {percent(real[row.noise].accepted)}" if row.noise in real else ""
        lines.append(f"  {row.noise:<14}{percent(row.accepted):>8}{power}")
    broken = [row.noise for row in noise_only if row.holds is False]
    if broken:
        alpha = Decimal(str(noise_only[0].nominal))
        lines.append(f"Warning: this rule does not hold its alpha of {number(alpha)} for {', '.join(broken)} noise.")
    weak = [noise for noise, row in real.items() if row.holds is False]
    if weak:
        lines.append(f"Warning: this rule finds an effect of H1 less often than it states for {', '.join(weak)} noise.")
    return lines


def _bullets(texts: Iterable[str]) -> list[str]:
    return [text[0].upper() + text[1:] + ("" if text.endswith(".") else ".") for text in texts]


def _section(title: str, lines: Sequence[str], width: int) -> str:
    return "\n".join([title, *(_wrap(line, width, _INDENT) for line in lines)])


def _wrap(text: str, width: int, indent: str = "") -> str:
    if len(text) + len(indent) <= width:
        return indent + text
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
