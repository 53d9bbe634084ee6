"""`outerloop noise`: how much a benchmark varies by itself, and what floor and rule follow from that.

Covered: measuring the base through the cluster, waiting, the study as text and JSON, writing the rule into the
contract. Not covered: which measures (controller.noise), the arithmetic (climb.noise).
"""

from __future__ import annotations

import time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, json_option, notes, opened, say, the_settings
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import Whole
from outerloop.cli.text import Columns, folded

if TYPE_CHECKING:
    from outerloop.climb.noise import NoiseStudy
    from outerloop.controller.noise import Series, SeriesRunner, SeriesState

__all__ = ["noise"]

WAIT_POLL_SECONDS = (0.5, 15.0)
"""First and longest pause between two looks; it grows while nothing changes."""
WIDTH = 80


class _Amount(click.ParamType):  # type: ignore[type-arg]
    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        try:
            amount = Decimal(str(value))
        except InvalidOperation:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not amount.is_finite() or amount <= 0:
            self.fail(f"{value} must be above zero", param, ctx)
        return amount


@click.command("noise", help="Measure the base of BENCHMARK many times; recommend a floor, a rule and pairs.")
@click.argument("benchmark")
@click.option("--repeats", type=Whole(3), default=20, show_default=True, help="Seeds to measure.")
@click.option("--gain", type=_Amount(), help="Smallest gain worth finding, in the metric's unit.")
@click.option(
    "--repo",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="The target's clone. Default: the current folder.",
)
@click.option("--base", help="Revision to measure. Default: the champion, else the default branch.")
@click.option("--nodes", type=Whole(1), default=4, show_default=True, help="Nodes to spread over.")
@click.option("--write", is_flag=True, help="Write the recommended floor and rule into the clone's contract.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Stay until everything is measured.")
@json_option
def noise(
    benchmark: str,
    repeats: int,
    gain: Decimal | None,
    repo: Path,
    base: str | None,
    nodes: int,
    write: bool,
    wait: bool,
    as_json: bool,
) -> None:
    settings = the_settings()
    with opened(settings) as deployment:
        from outerloop.controller.noise import NoSeries, SeriesRunner, prepare_series
        from outerloop.controller.plan import ContractGone, EnvironmentFilesMissing
        from outerloop.controller.submit import Refusal

        try:
            series = prepare_series(
                settings, deployment.root, repository=repo.absolute(), benchmark=benchmark, base=base, repeats=repeats
            )
            runner = SeriesRunner(deployment, series, nodes=nodes)
            runner.commit()
            state = _measure(runner, wait=wait, quiet=as_json)
        except (NoSeries, Refusal) as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        except (ContractGone, EnvironmentFilesMissing) as error:
            raise CliError(str(error)) from error
        notes(state.notes)
        if not state.rests:
            _not_yet(state, as_json)
            return
        study = _study(series, state, gain)
        kept = _keep(deployment.root, series, state, study)
        edited = _write(repo.absolute(), series, study) if write else None
    if as_json:
        emit_json({**kept, "contract": str(edited) if edited else None})
        return
    for line in _text(series, state, study):
        click.echo(line)
    if edited is not None:
        click.echo()
        say(f"Written into {edited}. It counts once it is committed on the base.")


def _measure(runner: SeriesRunner, *, wait: bool, quiet: bool) -> SeriesState:
    """Look and submit until the study rests, with progress on stderr where a line changes."""
    pause, longest = WAIT_POLL_SECONDS
    last = ""
    told: list[str] = []
    while True:
        state = runner.look()
        told += state.notes
        state.notes = list(dict.fromkeys(told))
        if state.rests or not wait:
            return state
        live = ", ".join(f"{count} {what}" for what, count in sorted(state.live.items()))
        line = f"{len(state.measured)} of {state.total} measured" + (f"; {live}" if live else "")
        if line != last and not quiet:
            click.echo(line, err=True)
        pause = WAIT_POLL_SECONDS[0] if line != last else min(pause * 1.5, longest)
        last = line
        time.sleep(pause)


def _not_yet(state: SeriesState, as_json: bool) -> None:
    live = sum(state.live.values())
    if as_json:
        emit_json({"state": "measuring", "measured": len(state.measured), "total": state.total, "jobs": live})
        return
    click.echo(f"{len(state.measured)} of {state.total} measured, {live} jobs in the queue.")
    click.echo("The same command goes on from here.")


def _study(series: Series, state: SeriesState, gain: Decimal | None) -> NoiseStudy:
    from outerloop.climb.noise import study_noise

    if state.exhausted:
        digest, why = state.exhausted[0]
        raise CliError(
            f"{len(state.exhausted)} of {state.total} measures used up their attempts; the first: {why}\n"
            f"Give them their attempts again with `outerloop retry {digest[:12]}`, then repeat this command.",
            ExitCode.REFUSED,
        )
    if state.failed:
        raise CliError(
            f"the base itself gives no value in {len(state.failed)} of {state.total} measures, so there is nothing to"
            f" recommend. The first: {state.failed[0]}",
            ExitCode.REFUSED,
        )
    alpha = getattr(series.benchmark.parsed_rule(), "alpha", Decimal("0.05"))
    beta = getattr(series.benchmark.parsed_rule(), "beta", Decimal("0.05"))
    try:
        return study_noise(state.noise_values(), wanted_gain=gain, alpha=alpha, beta=beta)
    except ValueError as error:
        raise CliError(str(error), ExitCode.REFUSED) from error


def _keep(root: Any, series: Series, state: SeriesState, study: NoiseStudy) -> dict[str, Any]:
    """Store the study: verdicts that are asked for from now on know this noise."""
    from datetime import UTC, datetime

    from pydantic import TypeAdapter

    from outerloop.climb.noise import NoiseStudy, contract_fragment
    from outerloop.controller.noise_store import keep_study

    body = {
        "schema": 1,
        "target": series.request.target,
        "benchmark": series.benchmark.name,
        "definition": series.request.definition,
        "base_commit": series.request.base_commit,
        "base_tree": series.request.base_tree,
        "values": [{**vars(item), "value": str(item.value)} for item in state.measured],
        "study": TypeAdapter(NoiseStudy).dump_python(study, mode="json"),
        "fragment": contract_fragment(study),
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    keep_study(root, series.request.target, series.benchmark, body)
    return body


def _write(repository: Path, series: Series, study: NoiseStudy) -> Path:
    from outerloop.climb.noise import contract_fragment
    from outerloop.contract import CONTRACT_FILE, parse_contract
    from outerloop.contract_edit import EditRefused, with_benchmark_keys
    from outerloop.controller.git import Repository

    path = Repository.open(repository).top / CONTRACT_FILE
    values = dict(line.split(" = ", 1) for line in contract_fragment(study).splitlines())
    lines = "\n".join(f"  {key} = {value}" for key, value in values.items())
    try:
        text = path.read_bytes().decode("utf-8")
        present = parse_contract(text, CONTRACT_FILE).benchmark(series.benchmark.name)
        if present.definition_hash() != series.request.definition:
            raise CliError(
                f"{path} defines {present.name} in another way than the base that was measured; nothing was written",
                ExitCode.REFUSED,
            )
        # noise may ask for a higher floor, never for a lower one: what is worth having is the target's own choice
        if Decimal(values["min_delta"]) <= present.min_delta:
            del values["min_delta"]
        path.write_bytes(with_benchmark_keys(text, present.name, values).encode("utf-8"))
    except EditRefused as error:
        raise CliError(f"{error}:\n{lines}", ExitCode.REFUSED) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: {error}") from error
    return path


# text


def _text(series: Series, state: SeriesState, study: NoiseStudy) -> list[str]:
    from outerloop.climb.noise import contract_fragment
    from outerloop.climb.text import number, percent

    benchmark = series.benchmark
    what = f"{study.seeds} seeds" if study.seeds else f"{study.values} repeats"
    lines = [
        f"{benchmark.metric} of {benchmark.name} at {series.request.base_commit[:12]}"
        f" ({series.request.base_revision}): {study.values} values, {what}",
        "",
    ]
    rows = [
        [str(item.seed) if item.seed else "-", number(item.value), item.node, item.job_id] for item in state.measured
    ]
    lines += [
        f"  {line}"
        for line in Columns(["SEED", "VALUE", "NODE", "JOB"], rows, right=["SEED", "VALUE"]).lines(WIDTH - 2)
    ]
    relative = f", {percent(study.relative_sd)} of it" if study.relative_sd is not None else ""
    low, high = study.sd_interval
    lines += [
        "",
        "Spread",
        f"  mean {number(study.mean)}; standard deviation of one value {study.sd:.6g}{relative}",
        f"  (95 % interval {low:.6g} to {high:.6g}); of a difference of two: {study.difference_sd:.6g}",
    ]
    if study.within_seed_sd is not None:
        lines.append(f"  repeating one seed: {study.within_seed_sd:.6g}")
    for node in study.nodes:
        spread = f", standard deviation {node.sd:.6g}" if node.sd is not None else ""
        lines.append(f"  {node.node or 'unknown node'}: {node.values} values, mean {number(node.mean)}{spread}")
    if study.node_p is not None:
        lines.append(f"  all nodes have one mean: p = {study.node_p:.3g}")
    lines += ["", "Recommended"]
    lines += [f"  {line}" for line in contract_fragment(study).splitlines() if line != "min_delta = 0.0"]
    lines += folded(
        f"One pair reaches {number(study.floor)} by noise alone with a probability of at most {number(study.alpha)}.",
        WIDTH,
        indent="  ",
    ).splitlines() if study.floor else ["  There was no noise: any gain above zero is real."]  # fmt: skip
    if study.pairs:
        lines += ["", f"Pairs that find a gain (alpha {number(study.alpha)}, all at once)"]
        for entry in study.pairs:
            needed = "more than anybody measures" if entry.fixed is None else str(entry.fixed)
            lines.append(f"  gain {number(entry.gain)} ({entry.effect_sd:.2g} sd of a pair): {needed}")
    if study.advice:
        lines += ["", "Mind"]
        for advice in study.advice:
            lines += folded(advice[0].upper() + advice[1:] + ".", WIDTH, indent="  ").splitlines()
    return lines
