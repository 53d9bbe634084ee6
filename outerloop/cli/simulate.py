"""`outerloop simulate`: how long many climbs would take on this site, and which limit makes them wait.

Covers: options, this deployment's own limits as their defaults, rendering. Does not cover: the simulation
(compute/simulation/capacity.py).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import emit_json, explained, json_option, the_settings
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import MOST_GIB, MOST_MINUTES, MOST_SECONDS, Number, Whole

if TYPE_CHECKING:
    from outerloop.compute.simulation.capacity import Forecast, Lifted, Limits, Load
    from outerloop.settings import LaneSettings, Settings

NEGLIGIBLE = 0.02
"""A limit that saves less when it is doubled is not what makes a load wait."""

_NAMES = {
    "nodes": "nodes",
    "submit_cap": "submit cap",
    "throttle": "running jobs",
    "array_throttle": "array throttle",
    "wake_cap": "wake cap",
    "cadence": "tick cadence",
}


@click.command("simulate")
@click.option("--climbs", type=Whole(1, 1_000_000), default=100, show_default=True, help="Climbs submitted.")
@click.option("--measures", type=Whole(1, 10_000), default=2, show_default=True, help="Measures of each climb.")
@click.option(
    "--minutes", type=Number(0, MOST_MINUTES, above=True), default=10.0, show_default=True, help="Mean of one measure."
)
@click.option(
    "--spread",
    type=Number(0, 5),
    default=0.2,
    show_default=True,
    help="Standard deviation of a measure's minutes, as a share of their mean.",
)
@click.option("--cpus", type=Whole(1), default=1, show_default=True, help="CPUs of a measure.")
@click.option("--gpus", type=Whole(0), default=0, show_default=True, help="GPUs of a measure.")
@click.option("--memory-gb", type=Number(0, MOST_GIB), default=0.0, show_default=True, help="Memory of a measure.")
@click.option("--nodes", type=Whole(1, 100_000), help="Nodes. Default: this machine, or the lane's partition.")
@click.option("--node-cpus", type=Whole(1), help="CPUs of a node.")
@click.option("--node-gpus", type=Whole(0), help="GPUs of a node. Default: none, or this machine's.")
@click.option("--node-memory-gb", type=Number(0, MOST_GIB, above=True), help="Memory of a node. Default: no limit.")
@click.option("--lane", "lane_name", default="", help="Lane of the measures. Default: as for a benchmark.")
@click.option("--submit-cap", type=Whole(1), help="Jobs that the site lets you have queued and running.")
@click.option("--throttle", type=Whole(1), help="Jobs that the site lets you have running.")
@click.option(
    "--array-throttle", type=Whole(1), help="Tasks of one array that run at once. Default: array_throttle of the lane."
)
@click.option("--wake-cap", type=Whole(0), help="Live wake jobs. Default: wake.cap of the settings.")
@click.option(
    "--cadence-seconds",
    type=Number(1, MOST_SECONDS),
    help="How often the tick runs. Default: wake.cadence_seconds of the settings.",
)
@click.option(
    "--failure-rate",
    type=Number(0, 0.9),
    default=0.0,
    show_default=True,
    help="Share of jobs that infrastructure ends; each is tried again.",
)
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Seed of the durations.")
@json_option
def simulate(
    climbs: int,
    measures: int,
    minutes: float,
    spread: float,
    cpus: int,
    gpus: int,
    memory_gb: float,
    nodes: int | None,
    node_cpus: int | None,
    node_gpus: int | None,
    node_memory_gb: float | None,
    lane_name: str,
    submit_cap: int | None,
    throttle: int | None,
    array_throttle: int | None,
    wake_cap: int | None,
    cadence_seconds: float | None,
    failure_rate: float,
    seed: int,
    as_json: bool,
) -> None:
    """How long would so many climbs take here, and which limit binds?

    All climbs are submitted at once to a simulated cluster that nobody else uses. Then every limit is doubled alone
    (the time between two ticks halved) and the same load is simulated again: what saves most is what binds. Limits
    that are not given are those of the settings; nothing is submitted.

    A training of many tasks is one climb of so many measures: --climbs 1 --measures 500.
    """
    from outerloop.compute.simulation.capacity import Habits, Hopeless, Limits, Load, forecast, lift_each

    with explained():
        settings = the_settings()
        count, each_cpus, each_gpus, lane = _site(settings, lane_name, gpus, nodes, node_cpus, node_gpus)
    load = Load(
        climbs=climbs,
        measures=measures,
        minutes=minutes,
        spread=spread,
        cpus=cpus,
        gpus=gpus,
        memory_mb=round(memory_gb * 1024),
        failure_rate=failure_rate,
    )
    limits = Limits(
        nodes=count,
        cpus=each_cpus,
        gpus=each_gpus,
        max_minutes=lane.max_minutes if lane else None,
        submit_cap=submit_cap,
        throttle=throttle,
        array_throttle=array_throttle or (lane.array_throttle if lane else None),
    )
    if node_memory_gb is not None:
        limits = _with_memory(limits, node_memory_gb)
    habits = Habits(
        wake_cap=settings.wake.cap if wake_cap is None else wake_cap,
        wake_mode="never" if wake_cap == 0 else settings.wake.mode,
        cadence_seconds=settings.wake.cadence_seconds if cadence_seconds is None else cadence_seconds,
        backoff_seconds=settings.dispatch.backoff_seconds,
    )
    try:
        found = forecast(load, limits, habits, seed=seed)
        lifted = lift_each(load, limits, habits, found, seed=seed)
    except Hopeless as error:
        raise CliError(str(error), ExitCode.REFUSED) from None
    if as_json:
        emit_json(
            {
                "load": asdict(load),
                "limits": asdict(limits),
                "habits": asdict(habits),
                "seed": seed,
                "forecast": asdict(found),
                "binds": _binding(lifted),
                "lifted": [asdict(item) for item in lifted],
            }
        )
        return
    _print(load, limits, found, lifted)


def _site(
    settings: Settings, lane_name: str, gpus: int, nodes: int | None, node_cpus: int | None, node_gpus: int | None
) -> tuple[int, int, int, LaneSettings | None]:
    """Nodes, CPUs and GPUs of each, and the lane if there is one: options first, then what the settings say."""
    from outerloop.settings import choose_lane, effective_backend

    if effective_backend(settings) == "local":
        own = (settings.local.cpus, settings.local.gpus)
        return nodes or 1, node_cpus or own[0], own[1] if node_gpus is None else node_gpus, None
    if nodes is not None and node_cpus is not None and not lane_name and not settings.lanes:
        return nodes, node_cpus, node_gpus or 0, None  # a site on paper, planned before there is a lane
    name, lane = choose_lane(settings, lane_name, gpus)
    if nodes is None or node_cpus is None:
        probed_nodes, probed_cpus = _probed(settings, lane.partition, name)
        nodes, node_cpus = nodes or probed_nodes, node_cpus or probed_cpus
    if node_gpus is None and gpus:
        raise CliError("say with --node-gpus how many GPUs a node has; scontrol's list of partitions does not")
    return nodes, node_cpus, node_gpus or 0, lane


def _probed(settings: Settings, partition: str, lane: str) -> tuple[int, int]:
    """Nodes of a partition and the CPUs of one, as `scontrol show partition` has them."""
    from outerloop.compute.protocol import NoAnswer
    from outerloop.controller.deployment import open_compute
    from outerloop.slots import StateRoot

    said = open_compute(settings, StateRoot(settings.state)).limits()
    if isinstance(said, NoAnswer):
        raise CliError(f"the cluster gave no answer ({said.why}); give --nodes and --node-cpus", ExitCode.NO_CLUSTER)
    known = dict(said.partitions)
    name = partition or next((n for n, keys in known.items() if keys.get("Default") == "YES"), "")
    keys = known.get(name, {})
    total, cpus = keys.get("TotalNodes", ""), keys.get("TotalCPUs", "")
    if not (total.isdigit() and cpus.isdigit() and int(total) and int(cpus)):
        raise CliError(
            f"the cluster does not say how large the partition of lane {lane} is ({name or 'no default partition'});"
            " give --nodes and --node-cpus"
        )
    return int(total), max(1, int(cpus) // int(total))


def _with_memory(limits: Limits, gigabytes: float) -> Limits:
    from dataclasses import replace

    return replace(limits, memory_mb=round(gigabytes * 1024))


def _binding(lifted: tuple[Lifted, ...]) -> str | None:
    """The limit that binds; None when doubling none of them alone saves anything to speak of."""
    return lifted[0].name if lifted and lifted[0].saved >= NEGLIGIBLE else None


def _print(load: Load, limits: Limits, found: Forecast, lifted: tuple[Lifted, ...]) -> None:
    gpus = f" and {limits.gpus} GPUs" if limits.gpus else ""
    what = "GPUs" if load.gpus else "CPUs"
    hours = f"{found.gpu_hours:,.0f} GPU-hours" if load.gpus else f"{found.core_hours:,.0f} core-hours"
    plural = "climbs" if load.climbs != 1 else "climb"
    click.echo(f"{load.climbs:,} {plural} of {load.measures} measures of about {load.minutes:g} minutes")
    click.echo(f"on {limits.nodes:,} nodes of {limits.cpus} CPUs{gpus}, used by nobody else (simulated)")
    click.echo()
    click.echo(f"  last verdict after    {_duration(found.seconds)}")
    click.echo(f"  half of them after    {_duration(found.median_verdict)}")
    click.echo(f"  nine in ten after     {_duration(found.p90_verdict)}")
    click.echo(f"  jobs                  {found.jobs:,}, at most {found.most_running:,} at once, {hours}")
    click.echo(f"  {what} measuring        {found.busy:.0%} of the time")
    click.echo(f"  decided by            a wake {found.by_wake:,}, a tick {found.by_tick:,}")
    if found.cap_met:
        click.echo(f"  submit cap met        {found.cap_met:,} times")
    click.echo()
    click.echo(f"  {'doubled alone':<16}{'from':>9}{'to':>9}{'last verdict':>16}{'saves':>8}{'median':>9}")
    for item in lifted:
        click.echo(
            f"  {_NAMES[item.name]:<16}{item.value:>9g}{item.changed:>9g}{_duration(item.seconds):>16}"
            f"{item.saved:>8.0%}{item.saved_median:>9.0%}"
        )
    click.echo()
    binds = _binding(lifted)
    if binds is None:
        click.echo("No limit binds alone: the measures themselves take that long, or two limits bind together.")
    else:
        click.echo(f"What binds: {_NAMES[binds]}.")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{seconds / 60:.1f} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes / 1440:.1f} days"
