"""`outerloop simulate-verdicts`: how often a rule is wrong, by simulation.

Covers: parsing the rule and rendering rows. Does not cover: the simulation (climb/simulate.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.numbers import MOST_SD, Number, Whole

if TYPE_CHECKING:
    from outerloop.climb.model import Rule
    from outerloop.climb.simulate import ErrorRow

_NOISES = ("normal", "t3", "skewed-left", "skewed-right", "discrete", "zero-variance")


@click.command("simulate-verdicts")
@click.option(
    "--rule",
    "rule_text",
    metavar="TABLE",
    help="A rule as the contract has it, e.g. '{ kind = \"sequential\", h1 = 0.25 }'. Default: the shipped table.",
)
@click.option(
    "--effect", "effects", type=Number(None, MOST_SD), multiple=True, help="True mean gain, in sd of one paired gain."
)
@click.option(
    "--floor", "floor_sd", type=Number(0, MOST_SD), default=0.0, help="A threshold's floor, in sd of the gain."
)
@click.option("--noise", "noises", type=click.Choice(_NOISES), multiple=True, help="Default: all.")
@click.option("--climbs", type=Whole(1, 1_000_000), help="Simulated climbs per row.")
@click.option("--seed", type=Whole(0), help="Seed of the generator.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--write",
    "target",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Simulate the shipped table anew and write it to this file.",
)
def simulate_verdicts(
    rule_text: str | None,
    effects: tuple[float, ...],
    floor_sd: float,
    noises: tuple[str, ...],
    climbs: int | None,
    seed: int | None,
    as_json: bool,
    target: Path | None,
) -> None:
    """Show how often a decision rule accepts noise and finds a real gain.

    Without options it prints the table that is shipped with this release. With --rule it simulates that rule,
    by default at effect 0 (its false acceptances) and at h1 (its power). Gains are measured in standard
    deviations of one paired gain.
    """
    import numpy as np

    from outerloop.climb.error_table import rows_to_json, shipped_rows
    from outerloop.climb.simulate import TABLE_CLIMBS, TABLE_SEED, error_rows

    if target is not None and (rule_text or effects or noises or floor_sd):
        raise click.UsageError("--write makes the whole shipped table; it takes --climbs and --seed only")
    if rule_text is None and (effects or floor_sd):
        raise click.UsageError("--effect and --floor need a --rule")
    used_seed = TABLE_SEED if seed is None else seed
    rng = np.random.default_rng(used_seed)
    if target is not None:
        table = rows_to_json(error_rows(climbs or TABLE_CLIMBS, rng), used_seed)
        target.write_text(_compact(table), encoding="utf-8")
        click.echo(f"{len(table['rows'])} rows written to {target}")
        return
    rows: Iterable[ErrorRow]
    chosen = noises or _NOISES
    if rule_text is None and climbs is None and seed is None:
        rows = [row for row in shipped_rows() if row.noise in chosen]
    else:
        rules = None if rule_text is None else [_entry(rule_text, floor_sd, effects)]
        rows = list(error_rows(climbs or TABLE_CLIMBS, rng, rules, chosen))
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _print_rows(list(rows))


def _entry(text: str, floor_sd: float, effects: Sequence[float]) -> tuple[Rule, float, tuple[float, ...]]:
    from outerloop.climb.model import RuleError, Sequential
    from outerloop.climb.rule import parse_rule
    from outerloop.toml_lines import read_toml

    parsed = read_toml(f"rule = {text}")
    if parsed.problems:
        told = "; ".join(problem.message for problem in parsed.problems)
        raise click.BadParameter(f"not a TOML inline table: {told}", param_hint="--rule")
    table = parsed.data["rule"]
    if not isinstance(table, dict):
        raise click.BadParameter('must be a table: { kind = "paired" }', param_hint="--rule")
    try:
        rule = parse_rule(table)
    except RuleError as error:
        raise click.BadParameter("\n".join(error.problems), param_hint="--rule") from None
    if floor_sd and rule.kind != "threshold":
        raise click.BadParameter("is simulated for threshold rules only", param_hint="--floor")
    if effects:
        return rule, floor_sd, tuple(effects)
    if isinstance(rule, Sequential):
        return rule, floor_sd, (0.0, float(rule.h1))
    return rule, floor_sd, (0.0, 0.5, 1.0)


def _print_rows(rows: Sequence[ErrorRow]) -> None:
    previous = None
    for row in rows:
        if row.rule != previous:
            previous = row.rule
            named = ", ".join(f"{key} = {value}" for key, value in row.rule.items() if key != "kind")
            click.echo(f"\n{row.rule['kind']}: {named}  ({row.climbs} climbs a row)")
            click.echo(f"  {'noise':<14}{'effect':>7}{'accepted':>10}{'undecided':>11}{'pairs':>8}{'/ fixed':>9}")
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        warning = ""
        if row.holds is False:
            what = "accepts more than" if row.effect == 0 else "finds less than"
            warning = f"  ! {what} the nominal {row.nominal:.3g}"
        click.echo(
            f"  {row.noise:<14}{row.effect:>7.2f}{row.accepted:>10.4f}{row.undecided:>11.4f}"
            f"{row.mean_pairs:>8.1f}{ratio:>9}{warning}"
        )


def _compact(table: dict[str, object]) -> str:
    """One row or rule a line, so that a change of the table can be read as a diff."""
    parts = []
    for key, value in table.items():
        if isinstance(value, list) and value and isinstance(value[0], list | dict):
            lines = ",\n".join(f"  {json.dumps(item)}" for item in value)
            parts.append(f' "{key}": [\n{lines}\n ]')
        else:
            parts.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
