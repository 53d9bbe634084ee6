"""`outerloop noise`: how much a benchmark varies by itself, and what floor and rule follow from that.

Covered: measuring the base through the cluster, waiting, the study as text and JSON, writing the rule into the
contract. Not covered: which measures (controller.noise), the arithmetic (climb.noise).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, explained, json_option, notes, opened, say, the_settings
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import Whole
from outerloop.cli.service_client import left_in_spool, the_client
from outerloop.cli.text import Columns, folded, harmless, one_line

if TYPE_CHECKING:
    from outerloop.climb.noise import NoiseStudy
    from outerloop.controller.noise import SeriesRunner, SeriesState
    from outerloop.controller.service.client import Client

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
    client = the_client(settings)
    if client is not None:
        with explained():
            nonce = _of_service(client, benchmark, repeats, gain, repo, base, nodes)
            if wait:
                _report(_told(client, nonce, quiet=as_json), repo, write=write, as_json=as_json)
            else:
                left_in_spool(client, nonce, as_json=as_json)
        return
    with opened(settings) as deployment:
        from outerloop.controller.noise import NoSeries, SeriesRunner, prepare_series
        from outerloop.controller.noise_study import kept, studied
        from outerloop.controller.plan import ContractGone, EnvironmentFilesMissing
        from outerloop.controller.submit import Refusal

        try:
            series = prepare_series(
                settings, deployment.root, repository=repo.absolute(), benchmark=benchmark, base=base, repeats=repeats
            )
            runner = SeriesRunner(deployment, series, nodes=nodes)
            runner.enter()
            state = _measure(runner, wait=wait, quiet=as_json)
            notes(state.notes)
            if not state.rests:
                _not_yet(len(state.measured), state.total, sum(state.live.values()), as_json)
                return
            body = kept(deployment.root, series, state, studied(series, state, gain))
        except (NoSeries, Refusal) as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        except (ContractGone, EnvironmentFilesMissing) as error:
            raise CliError(str(error)) from error
        _report(body, repo, write=write, as_json=as_json)


def _of_service(
    client: Client, benchmark: str, repeats: int, gain: Decimal | None, repo: Path, base: str | None, nodes: int
) -> str:
    """Leave the study in the spool; returns the name of the submission."""
    from pydantic import ValidationError

    from outerloop.controller.service.client import NoService

    try:
        return client.noise(
            repo.absolute(),
            benchmark,
            base=base,
            repeats=repeats,
            nodes=nodes,
            gain="" if gain is None else str(gain),
        ).nonce
    except NoService as error:
        raise CliError(str(error), ExitCode.NOT_FOUND) from error
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise CliError(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error


def _told(client: Client, nonce: str, *, quiet: bool) -> dict[str, Any]:
    """Wait until the service has answered with the study; its body."""
    pause, longest = WAIT_POLL_SECONDS
    last = ""
    while True:
        told = client.answer(nonce) or {}
        if told.get("state") == "refused":
            raise CliError(f"{client.service} refused it: {harmless(str(told.get('why')))}", ExitCode.REFUSED)
        if told.get("state") == "studied":
            return dict(told["study"])
        line = f"{told['measured']} of {told['total']} measured" if told else "in the spool"
        if line != last and not quiet:
            click.echo(line, err=True)
        pause = WAIT_POLL_SECONDS[0] if line != last else min(pause * 1.5, longest)
        last = line
        time.sleep(pause)


def _report(body: Mapping[str, Any], repo: Path, *, write: bool, as_json: bool) -> None:
    from pydantic import TypeAdapter

    from outerloop.climb.noise import NoiseStudy

    study: NoiseStudy = TypeAdapter(NoiseStudy).validate_python(body["study"])
    edited = _write(repo.absolute(), body, study) if write else None
    if as_json:
        emit_json({**body, "contract": str(edited) if edited else None})
        return
    for line in _text(body, study):
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


def _not_yet(measured: int, total: int, live: int, as_json: bool) -> None:
    if as_json:
        emit_json({"state": "measuring", "measured": measured, "total": total, "jobs": live})
        return
    click.echo(f"{measured} of {total} measured, {live} jobs in the queue.")
    click.echo("The same command goes on from here.")


def _write(repository: Path, body: Mapping[str, Any], study: NoiseStudy) -> Path:
    from outerloop.climb.noise import contract_fragment
    from outerloop.contract import CONTRACT_FILE, parse_contract
    from outerloop.contract_edit import EditRefused, with_benchmark_keys
    from outerloop.controller.git import Repository

    path = Repository.open(repository).top / CONTRACT_FILE
    values = dict(line.split(" = ", 1) for line in contract_fragment(study).splitlines())
    lines = "\n".join(f"  {key} = {value}" for key, value in values.items())
    try:
        text = path.read_bytes().decode("utf-8")
        present = parse_contract(text, CONTRACT_FILE).benchmark(str(body["benchmark"]))
        if present.definition_hash() != body["definition"]:
            raise CliError(
                f"{path} defines {present.name} in another way than the base that was measured; nothing was written",
                ExitCode.REFUSED,
            )
        # noise may ask for a higher floor, never for a lower one: what is worth having is the target's own choice
        if Decimal(values["min_delta"]) <= present.min_delta:
            del values["min_delta"]
        _replace(path.resolve(), with_benchmark_keys(text, present.name, values).encode("utf-8"))
    except EditRefused as error:
        raise CliError(f"{error}:\n{lines}", ExitCode.REFUSED) from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path}: {error}") from error
    return path


def _replace(path: Path, content: bytes) -> None:
    """Write a person's file anew, whole or not at all: a full disk must not cost the contract. Raises OSError."""
    handle, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(path, fresh)
        os.replace(fresh, path)  # noqa: PTH105 - fresh is a name
    except BaseException:
        os.unlink(fresh)  # noqa: PTH108
        raise


# text


def _text(body: Mapping[str, Any], study: NoiseStudy) -> list[str]:
    from outerloop.climb.noise import contract_fragment
    from outerloop.climb.text import number, percent

    what = f"{study.seeds} seeds" if study.seeds else f"{study.values} repeats"
    lines = [
        one_line(
            f"{body['metric']} of {body['benchmark']} at {body['base_commit'][:12]} ({body['base_revision']}):"
            f" {study.values} values, {what}"
        ),
        "",
    ]
    rows = [
        [str(item["seed"] or "-"), number(Decimal(item["value"])), str(item["node"]), str(item["job_id"])]
        for item in body["values"]
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
