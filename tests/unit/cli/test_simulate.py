"""Attacked: figures that do not follow from the load, limits that are named although they do not bind, odd input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outerloop.cli.simulate import simulate
from outerloop.compute.simulation.capacity import Habits, Limits, Load, forecast

SITE = ("--nodes", "10", "--node-cpus", "4")


@pytest.fixture(autouse=True)
def personal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'state = "{tmp_path / "state"}"\nbackend = "local"\n')
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))


def run(*words: str) -> Result:
    return CliRunner().invoke(simulate, [*SITE, *words], catch_exceptions=False)


def answer(*words: str) -> dict[str, object]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.output))


def test_the_nodes_bind_where_the_work_exceeds_them_and_the_time_is_the_works() -> None:
    found = answer("--climbs", "400", "--measures", "2", "--minutes", "10", "--spread", "0")
    forecast = found["forecast"]
    assert isinstance(forecast, dict)
    assert found["binds"] == "nodes"
    # 800 jobs of 10 minutes on 40 CPUs are 200 minutes, and a tick at most later.
    assert 200 * 60 <= forecast["seconds"] <= 200 * 60 + 600
    assert forecast["core_hours"] == pytest.approx(800 / 6)
    assert forecast["most_running"] == 40
    assert forecast["jobs"] == 800


@pytest.mark.parametrize(("option", "binds"), [("--submit-cap", "submit_cap"), ("--throttle", "throttle")])
def test_a_site_limit_far_below_the_nodes_binds(option: str, binds: str) -> None:
    found = answer("--climbs", "100", option, "10")
    assert found["binds"] == binds
    forecast = found["forecast"]
    assert isinstance(forecast, dict)
    assert forecast["most_running"] <= 10


def test_wakes_bind_where_ticks_are_rare() -> None:
    found = answer("--climbs", "10", "--minutes", "1", "--wake-cap", "6", "--cadence-seconds", "86400")
    lifted = {item["name"]: item for item in found["lifted"]}  # type: ignore[attr-defined]
    assert found["binds"] == "cadence"
    assert answer("--climbs", "10", "--minutes", "1", "--wake-cap", "10", "--cadence-seconds", "86400")["binds"] == (
        "wake_cap"
    )
    assert lifted["nodes"]["saved"] == 0


def test_failures_are_tried_again_and_counted() -> None:
    forecast = answer("--climbs", "100", "--failure-rate", "0.3")["forecast"]
    assert isinstance(forecast, dict)
    assert forecast["jobs"] > 230
    assert run("--failure-rate", "1").exit_code != 0


def test_the_quantiles_are_those_of_climbs_that_come_one_after_another() -> None:
    load = ("--climbs", "10", "--measures", "1", "--minutes", "60", "--spread", "0", "--cadence-seconds", "60")
    done = CliRunner().invoke(simulate, ["--nodes", "1", "--node-cpus", "1", *load, "--json"], catch_exceptions=False)
    forecast = json.loads(done.output)["forecast"]
    for name, hours in (("seconds", 10), ("median_verdict", 5), ("p90_verdict", 9)):
        assert hours * 3600 <= forecast[name] <= hours * 3600 + 150, name
    assert forecast["busy"] == pytest.approx(1.0, abs=0.01)


def test_the_mean_of_a_measure_is_what_was_said_however_wide_they_spread() -> None:
    """Some take many times the mean. That one of them met its walltime used to keep the command busy for ever."""
    load = Load(climbs=250, measures=4, minutes=10.0, spread=0.8)
    found = forecast(load, Limits(nodes=10, cpus=4), Habits(), seed=1)
    assert found.core_hours == pytest.approx(1000 / 6, rel=0.1)


def test_a_measure_takes_no_longer_than_its_walltime() -> None:
    load = Load(climbs=50, measures=2, minutes=10.0, spread=0.8, walltime_minutes=10.0)
    found = forecast(load, Limits(nodes=25, cpus=4), Habits(cadence_seconds=60.0), seed=1)
    assert 600 <= found.seconds <= 600 + 150
    assert found.core_hours < 100 / 6


def test_gpus_are_what_is_busy_where_they_are_asked_for() -> None:
    load = ("--climbs", "40", "--measures", "1", "--minutes", "60", "--spread", "0", "--gpus", "2", "--node-gpus", "4")
    forecast = answer(*load)["forecast"]
    assert isinstance(forecast, dict)
    # 40 jobs of two GPUs on 40 GPUs are two hours of all of them.
    assert 2 * 3600 <= forecast["seconds"] <= 2 * 3600 + 600
    assert forecast["busy"] == pytest.approx(1.0, abs=0.1) and forecast["gpu_hours"] == pytest.approx(80.0)


@pytest.mark.parametrize(("mode", "wakes"), [("never", 0), ("auto", 2), ("always", 4)])
def test_so_many_climbs_are_decided_by_a_wake_as_the_settings_let(tmp_path: Path, mode: str, wakes: int) -> None:
    (tmp_path / "config.toml").write_text(
        f'state = "{tmp_path / "state"}"\nbackend = "local"\n[wake]\nmode = "{mode}"\ncap = 4\n'
    )
    load = ("--climbs", "10", "--measures", "1", "--minutes", "60", "--spread", "0", "--cadence-seconds", "86400")
    forecast = answer(*load)["forecast"]
    assert isinstance(forecast, dict)
    assert (forecast["by_wake"], forecast["by_tick"]) == (wakes, 10 - wakes)


def test_work_that_the_lane_does_not_grant_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        f'state = "{tmp_path / "state"}"\nbackend = "slurm"\n[lanes.default]\nmax_minutes = 30\n'
    )
    assert run("--minutes", "10").exit_code == 0
    refused = run("--minutes", "31")
    assert refused.exit_code == 3 and "the lane allows 30" in refused.output


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    assert answer("--seed", "7") == answer("--seed", "7")
    assert answer("--seed", "7")["forecast"] != answer("--seed", "8")["forecast"]


def test_the_text_fits_eighty_columns_and_says_what_binds() -> None:
    done = run("--climbs", "300", "--submit-cap", "20")
    assert max(len(line) for line in done.output.splitlines()) <= 80
    assert "What binds: submit cap." in done.output


def test_what_can_never_run_is_refused_by_name() -> None:
    done = run("--cpus", "64")
    assert done.exit_code == 3
    assert "fits no node of 4 CPUs" in done.output


def test_an_array_throttle_binds_where_it_lets_fewer_tasks_run_than_the_nodes() -> None:
    load = ("--climbs", "1", "--measures", "40", "--minutes", "10", "--spread", "0")
    found = answer(*load, "--array-throttle", "4")
    forecast = found["forecast"]
    assert isinstance(forecast, dict)
    assert (found["binds"], forecast["most_running"], forecast["jobs"]) == ("array_throttle", 4, 40)
    # 40 tasks of 10 minutes, four at a time, are 100 minutes; without a throttle all have a CPU.
    assert 100 * 60 <= forecast["seconds"] <= 100 * 60 + 600
    free = answer(*load)["forecast"]
    assert isinstance(free, dict)
    assert free["seconds"] < 20 * 60


def test_a_lanes_array_throttle_is_the_default(tmp_path: Path) -> None:
    lane = "[lanes.default]\narray_throttle = 3\n"
    (tmp_path / "config.toml").write_text(f'state = "{tmp_path / "state"}"\nbackend = "slurm"\n{lane}')
    limits = answer("--climbs", "1", "--measures", "9")["limits"]
    assert isinstance(limits, dict)
    assert limits["array_throttle"] == 3


def test_a_throttled_array_that_meets_the_submit_cap_is_cut_and_lost_tasks_are_tried_again() -> None:
    load = ("--climbs", "3", "--measures", "30", "--minutes", "5", "--failure-rate", "0.2")
    forecast = answer(*load, "--array-throttle", "10", "--submit-cap", "20")["forecast"]
    assert isinstance(forecast, dict)
    assert forecast["cap_met"] > 0
    assert forecast["jobs"] > 90
    assert forecast["most_running"] <= 20
