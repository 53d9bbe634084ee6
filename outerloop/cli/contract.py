"""`outerloop contract`: write a first contract, and read one as the dispatcher would."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import notes, say
from outerloop.cli.errors import CliError, ExitCode, explained
from outerloop.cli.numbers import MOST_GIB, Whole

if TYPE_CHECKING:
    from outerloop.contract import Benchmark

__all__ = ["contract"]


@click.group(help="The target's own statement of its benchmarks and scope, .outerloop.toml.")
def contract() -> None:
    pass


def _repository(start: Path) -> Path:
    """The top of the git working tree around `start`, or `start` itself."""
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            return folder
    return start


@contract.command("init", help="Write a commented .outerloop.toml with one benchmark.")
@click.option("--command", required=True, help="Shell command to measure, run at the top of the repository.")
@click.option("--metric", required=True, help="Key of the number in the JSON object that the command prints last.")
@click.option("--direction", required=True, type=click.Choice(["min", "max"]), help="Whether less or more is better.")
@click.option("--name", help="Name of the benchmark.  [default: the metric]")
@click.option(
    "--allow", "allowed", multiple=True, help="Path that a candidate may change; repeatable.  [default: src/]"
)
@click.option("--shared", multiple=True, help="Path whose change concerns every benchmark; repeatable.")
@click.option("--minutes", type=Whole(1, 86_400), default=10, show_default=True, help="Limit of the command.")
@click.option("--cpus", type=Whole(1, 4096), default=1, show_default=True, help="CPUs of the command.")
@click.option("--memory-gb", type=Whole(1, MOST_GIB), help="Memory of the command.  [default: the site's]")
@click.option("--gpus", type=Whole(0, 1024), default=0, show_default=True, help="GPUs of the command.")
@click.option("--seed-env", default="", help="Variable that carries the paired seed, if the command takes one.")
@click.option("--score", default="", help="Command that scores the outputs, run from the base tree.")
@click.option("--output", "outputs", multiple=True, help="File or folder that the command leaves; repeatable.")
@click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Where to write.  [default: this repository]",
)
@click.option("--force", is_flag=True, help="Replace a contract that is there.")
def init(
    command: str,
    metric: str,
    direction: str,
    name: str | None,
    allowed: tuple[str, ...],
    shared: tuple[str, ...],
    minutes: int,
    cpus: int,
    memory_gb: int | None,
    gpus: int,
    seed_env: str,
    score: str,
    outputs: tuple[str, ...],
    repo: Path,
    force: bool,
) -> None:
    with explained():
        from outerloop.contract import CONTRACT_FILE, render_contract

        folder = _repository(repo.absolute())
        path = folder / CONTRACT_FILE
        text = render_contract(
            command=command,
            metric=metric,
            direction=direction,
            name=name or re.sub(r"[^A-Za-z0-9._-]+", "-", metric).strip("-._")[:40] or "benchmark",
            allowed=allowed or ("src/",),
            shared=shared,
            minutes=minutes,
            cpus=cpus,
            memory_gb=memory_gb,
            gpus=gpus,
            seed_env=seed_env,
            score=score,
            outputs=outputs,
        )
        try:
            with path.open("w" if force else "x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            raise CliError(f"{path} exists; --force replaces it") from None
        click.echo(f"wrote {path}")
        missing = [entry for entry in allowed or ("src/",) if not (folder / entry).exists()]
        if missing:
            notes([f"{', '.join(missing)} is not there yet; adjust scope.allowed"])
        say("next: edit it, then `outerloop contract check` and `git commit`: it is read from the base commit")


def _warnings(benchmark: Benchmark) -> list[str]:
    """What a contract may say and its author should know."""
    told = []
    if benchmark.parsed_rule().kind == "threshold" and not benchmark.min_delta and not benchmark.min_delta_rel:
        if benchmark.deterministic:
            told.append("min_delta and min_delta_rel are 0: any gain above zero is accepted, however small")
        else:
            told.append(
                "min_delta and min_delta_rel are 0 with one pair: noise alone is accepted half of the time;"
                f" `outerloop noise {benchmark.name}` measures the spread and suggests a floor, or take a paired rule"
            )
    return told


@contract.command("check", help="Read a contract as the dispatcher would, and say all that is wrong.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the contract, or the problems, as JSON.")
def check(file: Path | None, as_json: bool) -> None:
    with explained():
        from outerloop.cli.text import folded
        from outerloop.contract import CONTRACT_FILE, MAX_BYTES, ContractError, parse_contract

        path = file if file is not None else _repository(Path().absolute()) / CONTRACT_FILE
        if path.is_dir():
            path = path / CONTRACT_FILE
        if path.exists() and not path.is_file():
            raise CliError(f"{path} is not a file")
        try:
            with path.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
        except FileNotFoundError:
            raise CliError(
                f"{path}: there is no such file; write one with: outerloop contract init", ExitCode.NOT_FOUND
            ) from None
        try:
            found = parse_contract(raw, str(path))
        except ContractError as error:
            if as_json:
                problems = [
                    {"line": problem.line or None, "key": problem.name, "message": problem.message}
                    for problem in error.problems
                ]
                click.echo(json.dumps({"ok": False, "source": str(path), "problems": problems}, indent=2))
                raise click.exceptions.Exit(int(ExitCode.BAD_INPUT)) from None
            raise
        if as_json:
            shown = found.model_dump(mode="json")
            for written, benchmark in zip(shown["benchmarks"], found.benchmarks, strict=True):
                written["definition"] = benchmark.definition_hash()
            told = [{"benchmark": b.name, "message": text} for b in found.benchmarks for text in _warnings(b)]
            click.echo(json.dumps({"ok": True, "source": str(path), "contract": shown, "warnings": told}, indent=2))
            return
        click.echo(f"{path}: good")
        for benchmark in found.benchmarks:
            rule = benchmark.parsed_rule().kind
            siblings = ", ".join(other.name for other in found.siblings(benchmark.name)) or "none"
            click.echo(
                f"  {benchmark.name}: {benchmark.direction} {benchmark.metric}, {rule} rule,"
                f" {benchmark.minutes.normalize():f} minutes, suite: {siblings}"
            )
            if not benchmark.score:
                click.echo("    without score, its verdicts are as honest as what the candidate prints")
            if not benchmark.seed_env and not benchmark.deterministic:
                click.echo("    no seed_env and not deterministic: each run measures both sides afresh")
            for text in _warnings(benchmark):
                click.echo(folded(f"warning: {text}", 80, "    "))


@contract.command("try", help="Run BENCHMARK in the real wrapper, and suggest minutes and a floor.")
@click.argument("benchmark")
@click.option("--runs", type=Whole(2), default=2, show_default=True, help="How often.")
@click.option(
    "--isolation",
    type=click.Choice(["none", "bwrap"]),
    default="none",
    show_default=True,
    help="Sandbox around the command.",
)
@click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The target's clone.  [default: this repository]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the runs and suggestions as JSON.")
def try_(benchmark: str, runs: int, isolation: str, repo: Path, as_json: bool) -> None:
    with explained():
        import sys

        from outerloop.controller.trial import TrialError, try_benchmark

        try:
            trial = try_benchmark(
                repo.absolute(),
                benchmark,
                python=sys.executable,
                isolation=isolation,
                runs=runs,
                progress=lambda line: click.echo(f"{line} …", err=True),
            )
        except TrialError as error:
            raise CliError(str(error)) from error
        if as_json:
            from dataclasses import asdict

            click.echo(json.dumps(asdict(trial), indent=2, default=str))
            return
        for turn in trial.turns:
            seed = f"  seed {turn.seed}" if turn.seed else ""
            click.echo(f"  {trial.metric} = {turn.value}   {turn.seconds:.1f} s, {turn.max_rss_mb:.0f} MB{seed}")
        say(f"{trial.spread}: {trial.sentence}", prefix="spread     ")
        click.echo(f"suggested  minutes = {trial.suggested_minutes}")
        click.echo(f"suggested  memory_gb = {trial.suggested_memory_gb}")
        if trial.suggested_floor:
            click.echo(f"suggested  min_delta = {trial.suggested_floor}")
