"""`outerloop plan`: which training strategy to run, why every other one lost, and the exact launch.

Covered: a request from a TOML file, from options, or from both (options win); resources from a lane; the report as text
or JSON; the launch of a plan. Not covered: submitting it (`outerloop submit training`).
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, json_option, json_text
from outerloop.cli.errors import CliError, ExitCode, explained
from outerloop.cli.numbers import Number, Whole

if TYPE_CHECKING:
    from outerloop.planner import MeasuredFigure, PlanReport, PlanRequest, Resources
    from outerloop.strategies import LaunchSpec, StrategyPlan

__all__ = ["plan", "strategy_of"]

RECORD = "record"
"""Instead of a file: the figures that this deployment's own trainings reported."""
_GPUS = re.compile(r"(?:(?P<hosts>\d+)x)?(?P<count>\d+)x(?P<gpu>[A-Za-z].*)")
_MODES = ("cheapest", "fastest", "balanced", "reliable")
_PRECISIONS = ("fp32", "bf16", "fp16", "bf16_pure")
_LOSSES = ("plain", "chunked", "fused")


class _RequestFirst(click.Group):
    """A group whose first word is a request unless it is a subcommand: `outerloop plan REQUEST.toml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["request", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_RequestFirst,
    no_args_is_help=True,
    help="Which training strategy to run, and why every other one lost.\n\n"
    "`outerloop plan REQUEST.toml` and `outerloop plan --model NAME --gpus 8xH100` mean `outerloop plan request …`.",
)
def plan() -> None:
    pass


def _read_toml(path: Path) -> tuple[dict[str, Any], Any]:
    """The file's content and the lines of its keys. Raises CliError with every problem."""
    from outerloop.toml_lines import read_toml

    try:
        parsed = read_toml((raw := path.read_bytes()).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CliError(f"{path}:{line}: not UTF-8 text ({error.reason})") from None
    if parsed.problems:
        raise CliError("\n".join(problem.text(str(path)) for problem in parsed.problems))
    return dict(parsed.data), parsed.lines


def _gpus(text: str) -> dict[str, Any]:
    match = _GPUS.fullmatch(text)
    if match is None:
        raise CliError(f"--gpus {text}: write COUNTxTYPE or HOSTSxCOUNTxTYPE, such as 8xH100 or 2x8xH100")
    given: dict[str, Any] = {"gpus_per_host": int(match["count"]), "gpu": match["gpu"]}
    if match["hosts"]:
        given["hosts"] = int(match["hosts"])
    return given


def _lane_resources(name: str, given: dict[str, Any]) -> Resources | dict[str, Any]:
    """The lane's settings, what Slurm says of its partition, and on top what the request gives itself."""
    from pydantic import ValidationError

    from outerloop.cli.common import the_settings
    from outerloop.planner import Resources, resources_from_lane
    from outerloop.settings import effective_backend

    if not set(given) <= set(Resources.model_fields):
        return given  # the request's reader refuses it with the line and the nearest key
    settings = the_settings()
    lane = settings.lane(name)
    described: dict[str, Any] = {"name": name, "gpu_type": lane.gpu_type, "max_minutes": lane.max_minutes}
    fields: dict[str, str] = {}
    if effective_backend(settings) == "slurm":
        from outerloop.compute.protocol import NoAnswer
        from outerloop.compute.walltime import parse_walltime
        from outerloop.controller.deployment import open_compute
        from outerloop.slots import StateRoot

        limits = open_compute(settings, StateRoot(settings.state)).limits()
        if isinstance(limits, NoAnswer):
            raise CliError(f"--lane {name}: the cluster does not say what it has ({limits.why})", ExitCode.NO_CLUSTER)
        partitions = {key: dict(value) for key, value in limits.partitions.items()}
        chosen = lane.partition or next((p for p, v in partitions.items() if v.get("Default") == "YES"), "")
        fields = partitions.get(chosen, {})
        try:
            seconds = parse_walltime(fields.get("MaxTime", "UNLIMITED"))
        except ValueError:
            seconds = None
        if seconds is not None:
            described["max_minutes"] = min(seconds / 60, lane.max_minutes or seconds / 60)
    try:
        return resources_from_lane({**described, "resources": given}, fields)
    except ValidationError as error:
        said = "; ".join(str(item["msg"]).removeprefix("Value error, ") for item in error.errors())
        raise CliError(f"--lane {name}: {said}") from None


def _read_ledger(source: str) -> list[MeasuredFigure]:
    from pydantic import TypeAdapter, ValidationError

    from outerloop.planner import MeasuredFigure

    if source == RECORD:
        from outerloop.cli.reading import reading
        from outerloop.controller.training_facts import measured_figures

        with reading() as reader:
            return measured_figures(reader.record)
    path = Path(source)
    if not path.is_file():
        raise CliError(f"--ledger {source}: there is no such file; `--ledger {RECORD}` reads this deployment's record")
    data = json_text(path)
    try:
        return TypeAdapter(list[MeasuredFigure]).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CliError(f"{path}: {where or 'the list'}: {first['msg']}") from None


def _request(data: dict[str, Any], source: str, lines: Any) -> PlanRequest:
    from outerloop.planner import PlanRequestError, parse_request

    try:
        return parse_request(data)
    except PlanRequestError as error:
        told = []
        for key, sentence in zip(error.keys, error.problems, strict=True):
            line = lines.line(key) if lines is not None else 0
            told.append(f"{source}:{line}: {sentence}" if line else f"{source}: {sentence}")
        raise CliError("\n".join(told)) from None


def _set(table: dict[str, Any], **values: Any) -> None:
    table.update({key: value for key, value in values.items() if value is not None})


@plan.command("request", help="Judge a request: REQUEST.toml, options, or both (options win).")
@click.argument(
    "path", metavar="[REQUEST.toml]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--model", help="Transformer to fine-tune, as hubs spell it.")
@click.option("--gpus", help="GPUs: COUNTxTYPE or HOSTSxCOUNTxTYPE, such as 8xH100 or 2x8xH100.")
@click.option("--lane", help="Take the resources from this lane and its partition.")
@click.option("--mode", type=click.Choice(_MODES), help="What the best plan is.  [default: cheapest]")
@click.option("--sequence", type=Whole(1), help="Tokens of one sequence.")
@click.option("--micro-batch", type=Whole(1), help="Sequences per GPU and micro-step.")
@click.option("--global-batch", type=Whole(1), help="Sequences per optimizer step.")
@click.option("--tokens", type=Number(0, above=True), help="Tokens to train on in all, such as 1e9.")
@click.option("--precision", type=click.Choice(_PRECISIONS), help="Number format.  [default: bf16]")
@click.option("--loss", type=click.Choice(_LOSSES), help="How the loss holds its logits.  [default: plain]")
@click.option("--lora/--no-lora", default=None, help="Train LoRA adapters over a frozen base.")
@click.option("--quantize/--no-quantize", default=None, help="Allow a 4-bit base under LoRA (QLoRA).")
@click.option(
    "--checkpointing/--no-checkpointing", default=None, help="Activation checkpointing.  [default: if needed]"
)
@click.option("--host-memory-gb", type=Number(0, above=True), help="Memory of one host.")
@click.option("--cores", type=Whole(1), help="CPU cores of one host.")
@click.option("--inter-host-gbit", type=Number(0, above=True), help="Rate of one link between hosts, Gbit/s.")
@click.option("--links-per-host", type=Whole(1), help="Links of that rate per host.")
@click.option("--price", type=Number(0), help="Price of a GPU hour.")
@click.option("--deadline-hours", type=Number(0, above=True), help="Refuse what takes longer.")
@click.option("--budget", type=Number(0, above=True), help="Refuse what costs more, in the price's currency.")
@click.option(
    "--ledger",
    metavar="FILE|record",
    help="Figures that real runs measured; they replace estimates. A JSON list of them, or `record`: what the trainings"
    " of this deployment reported.",
)
@click.option("--explain", is_flag=True, help="Show every candidate with its checks and its arithmetic.")
@json_option
def request(
    path: Path | None,
    model: str | None,
    gpus: str | None,
    lane: str | None,
    mode: str | None,
    sequence: int | None,
    micro_batch: int | None,
    global_batch: int | None,
    tokens: float | None,
    precision: str | None,
    loss: str | None,
    lora: bool | None,
    quantize: bool | None,
    checkpointing: bool | None,
    host_memory_gb: float | None,
    cores: int | None,
    inter_host_gbit: float | None,
    links_per_host: int | None,
    price: float | None,
    deadline_hours: float | None,
    budget: float | None,
    ledger: str | None,
    explain: bool,
    as_json: bool,
) -> None:
    with explained():
        from outerloop.planner import plan as make_plan
        from outerloop.planner import render_report

        data, lines = _read_toml(path) if path is not None else ({}, None)
        if path is None and model is None:
            raise CliError("nothing to plan: give REQUEST.toml, or --model and --gpus")
        workload = dict(_table(data, "workload", path))
        if not workload:
            workload["kind"] = "transformer_finetune"
        _set(
            workload,
            model=model,
            sequence=sequence,
            micro_batch=micro_batch,
            global_batch=global_batch,
            tokens=tokens,
            precision=precision,
            loss=loss,
            lora=lora,
            allow_quantization=quantize,
            activation_checkpointing=checkpointing,
        )
        resources = dict(_table(data, "resources", path))
        _set(
            resources,
            host_memory_gb=host_memory_gb,
            cores_per_host=cores,
            inter_host_gbit_per_s=inter_host_gbit,
            links_per_host=links_per_host,
            price_per_gpu_hour=price,
        )
        if gpus is not None:
            resources.update(_gpus(gpus))
        _set(data, mode=mode, deadline_hours=deadline_hours, budget=budget)
        shown: Any = _lane_resources(lane, resources) if lane is not None else resources
        source = str(path) if path is not None else "request"
        asked = _request({**data, "workload": workload, "resources": shown}, source, lines)
        report = make_plan(asked, ledger=_read_ledger(ledger) if ledger is not None else ())
        if as_json:
            emit_json(report.model_dump(mode="json"))
        else:
            click.echo(render_report(report, explain=explain), nl=False)
    if report.selected is None:
        raise click.exceptions.Exit(int(ExitCode.REFUSED))


def _table(data: dict[str, Any], name: str, path: Path | None) -> dict[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise CliError(f"{path}: {name}: must be a table, [{name}]")
    return found


@plan.command("compile", help="Print the launch of a plan: arguments, environment and files. Starts nothing.")
@click.argument("path", metavar="PLAN.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--candidate", help="Another candidate than the selected one.")
@click.option(
    "--framework",
    type=click.Choice(["torch", "accelerate"]),
    default="torch",
    show_default=True,
    help="What the script uses; accelerate sets what Accelerate and its Trainer read.",
)
@json_option
def compile_plan(path: Path, command: tuple[str, ...], candidate: str | None, framework: str, as_json: bool) -> None:
    with explained():
        from outerloop.strategies import CompileError
        from outerloop.strategies import compile_plan as compiled

        strategy = strategy_of(path, command, candidate, framework)
        try:
            specs = compiled(strategy)
        except (CompileError, LookupError) as error:
            raise CliError(str(error.args[0] if isinstance(error, LookupError) else error), ExitCode.REFUSED) from None
        if as_json:
            emit_json([spec.model_dump(mode="json") for spec in specs])
            return
        for index, spec in enumerate(specs):
            if len(specs) > 1:
                click.echo(f"{'' if index == 0 else chr(10)}task {index}")
            _show(spec)


@plan.command("calibrate", help="Compare the memory estimate with PyTorch's own account. Needs torch; takes minutes.")
@click.option("--case", "wanted", multiple=True, help="Only this case, as the table names it; repeatable.")
@json_option
def calibrate(wanted: tuple[str, ...], as_json: bool) -> None:
    with explained():
        from outerloop.planner.calibrate import compare, render, standard_cases

        cases = standard_cases()
        for name in wanted:
            if name not in cases:
                raise CliError(f"no case {name!r}; there are: {'; '.join(cases)}", ExitCode.NOT_FOUND)
        try:
            found = compare({name: cases[name] for name in wanted or cases})
        except ModuleNotFoundError as error:
            raise CliError(f"calibrating needs {error.name}: install outerloop-slurm[posttrain]") from None
        if as_json:
            emit_json([{**asdict(item), "difference": item.difference} for item in found])
        else:
            click.echo("Both columns are estimates: ours, and torch's fake-tensor memory tracker on a")
            click.echo("reference decoder.")
            click.echo(render(found), nl=False)


def strategy_of(path: Path, command: tuple[str, ...], candidate: str | None, framework: str) -> StrategyPlan:
    """A strategy plan from its own JSON, or from a report's selected candidate and the command given."""
    from pydantic import ValidationError

    from outerloop.planner import PlanReport
    from outerloop.problems import Problem, translate
    from outerloop.strategies import StrategyPlan

    data = json_text(path)
    if not isinstance(data, dict):
        raise CliError(f"{path}: must be a report of `outerloop plan --json` or a strategy plan")
    try:
        if "candidates" in data:
            fields = _fields_of_report(path, data, candidate)
            if not command:
                raise CliError("the report does not say what to run: add `-- python train.py …`")
            fields |= {"command": command, "framework": framework}
        else:
            _refuse_parts_of_reports(path, data)
            if candidate is not None:
                raise CliError(f"{path} is one strategy plan and has no candidates")
            fields = data | ({"command": command} if command else {})
        return StrategyPlan.model_validate(fields)
    except ValidationError as error:
        model = PlanReport if "candidates" in data else StrategyPlan
        told = [Problem(0, *translate(item, model)).text(str(path)) for item in error.errors(include_url=False)]
        raise CliError("\n".join(dict.fromkeys(told))) from None


def _refuse_parts_of_reports(path: Path, data: dict[str, Any]) -> None:
    """Raise CliError for a piece of a report: naming each of its keys as unknown would help nobody."""
    from outerloop.planner import PlanReport
    from outerloop.planner.report import Candidate
    from outerloop.strategies import StrategyPlan

    ours = set(StrategyPlan.model_fields)
    of_report = sorted(set(data) & (set(PlanReport.model_fields) - ours))
    of_candidate = sorted(set(data) & (set(Candidate.model_fields) - ours))
    if of_report and "family" not in data:
        raise CliError(
            f"{path}: it has {', '.join(of_report)} of a report of `outerloop plan --json`, but no candidates:"
            " hand over the report as it was printed"
        )
    if "status" in of_candidate or "name" in of_candidate:
        raise CliError(
            f"{path}: this is one candidate of a report of `outerloop plan --json` ({', '.join(of_candidate[:4])}, …):"
            " hand over the whole report, and name the candidate if it is not the selected one"
        )


def _fields_of_report(path: Path, data: dict[str, Any], candidate: str | None) -> dict[str, Any]:
    from outerloop.planner import PlanReport, strategy_fields

    report: PlanReport = PlanReport.model_validate(data)
    name = candidate or report.selected
    if name is None:
        raise CliError(f"{path}: no candidate was selected; {report.hint or ''}", ExitCode.REFUSED)
    try:
        chosen = report.candidate(name)
    except KeyError:
        known = ", ".join(c.name for c in report.candidates)
        raise CliError(f"{path}: no candidate {name!r}; there are: {known}", ExitCode.NOT_FOUND) from None
    if chosen.status not in ("selected", "feasible", "rejected_dominated"):
        raise CliError(f"{path}: {name} is {chosen.status}: {'; '.join(chosen.reasons)}", ExitCode.REFUSED)
    return strategy_fields(chosen, report.request)


def _show(spec: LaunchSpec) -> None:
    import shlex

    click.echo(shlex.join(spec.argv))
    for name, value in spec.env.items():
        click.echo(f"  {name}={value}")
    for name, text in spec.files.items():
        click.echo(f"  {name}:")
        for line in text.splitlines():
            click.echo(f"    {line}")
    for note in spec.notes:
        click.echo(f"  note: {note}")
