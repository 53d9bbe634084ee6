"""Attacked: noise studies of a service's submitters, from the spool to the answer, by ticks alone."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.contract import parse_contract
from outerloop.controller.noise_store import newest_study
from outerloop.controller.service import client as client_module
from outerloop.record.models import Slot
from tests.e2e.test_service_trainings import Service

noise_module = importlib.import_module("outerloop.cli.noise")
BENCH = """printf '{"cost": %s, "bytes": 1}\\n' "$(( $(cat src/cost) + BENCH_SEED % 7 ))"\n"""
HIDDEN = """
[[benchmarks]]
name = "secret"
command = "sh bench.sh"
metric = "cost"
direction = "min"
score = "sh bench.sh"
inputs = [{ path = "hidden", hidden = true }]
outputs = ["out/x"]
seed_env = "BENCH_SEED"
minutes = 1
rule = { kind = "threshold", ladder = true }
"""


@pytest.fixture
def service(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    world = Service(tmp_path, database)
    (world.repo / "bench.sh").write_text(BENCH)
    (world.repo / "hidden").write_text("x")
    contract = world.repo / ".outerloop.toml"
    text = contract.read_text().replace("minutes = 1\nmin_delta", "deterministic = true\nminutes = 1\nmin_delta")
    contract.write_text(text.replace("[scope]", HIDDEN + "[scope]"))
    world.git("commit", "-q", "-am", "noisy")
    world.serve()
    yield world


def ask(world: Service, repeats: int = 4, gain: str = "", base: str | None = None, benchmark: str = "speed") -> str:
    return world.client.noise(world.repo, benchmark, base=base, repeats=repeats, nodes=1, gain=gain).nonce


def answer(world: Service, nonce: str) -> dict[str, Any]:
    told = world.client.answer(nonce)
    assert told is not None
    return told


def until_answered(world: Service, nonce: str, most: int = 9) -> dict[str, Any]:
    for _ in range(most):
        told = answer(world, nonce)
        if told["state"] != "measuring":
            return told
        world.run_measures()
        world.tick()
    raise AssertionError(world.describe())


def measured(world: Service) -> int:
    """Jobs that ran to their end: a sandboxed benchmark can leave no mark outside."""
    return sum(body.get("exit") == 0 for body in world.measuring_jobs().values())


def test_a_study_is_brought_forward_by_ticks_and_known_to_later_verdicts(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonce = ask(service, gain="3")
    assert service.serve() == []
    assert answer(service, nonce) == {
        "schema": 1, "state": "measuring", "kind": "noise", "benchmark": "speed", "measured": 0, "total": 4,
    }  # fmt: skip
    service.tick()
    # Charged to who asked, and jobs of nobody's run.
    assert {slot.submitter for slot in service.rows(Slot)} == {service.account} and service.runs() == []
    told = until_answered(service, nonce)
    assert told["state"] == "studied", told
    body = told["study"]
    assert len(body["values"]) == 4 == measured(service)
    values = [Decimal(item["value"]) - 10 - item["seed"] % 7 for item in body["values"]]
    assert set(values) == {0}
    assert body["base_commit"] == service.git("rev-parse", "main") and body["base_revision"] == "main"
    assert list((service.state.path / "studies").iterdir()) == []
    benchmark = parse_contract((service.repo / ".outerloop.toml").read_text()).benchmark("speed")
    kept = newest_study(service.state, body["target"], benchmark)
    assert kept is not None and kept["study"] == body["study"]
    # Asked again, by anybody, it costs one more look and no job.
    again = ask(service)
    service.tick()
    assert answer(service, again)["state"] == "studied" and measured(service) == 4

    # What a submitter's command shows of it.
    service.client.spool.path.chmod(0o755)
    monkeypatch.setattr(client_module, "account", lambda: "ada")
    config = service.folder / "submitter.toml"
    config.write_text(f'mode = "service"\n[service]\naccount = "svc"\nspool = "{service.spool.path}"\n')
    asked = ("noise", "speed", "--repo", str(service.repo), "--repeats", "4")

    def sleep(_seconds: float) -> None:
        """It waits for the service, whose tick comes meanwhile and has all values."""
        assert service.tick().ran and service.spool.names() == []

    monkeypatch.setattr(noise_module, "time", SimpleNamespace(sleep=sleep))
    shown = run(config, *asked, "--write")
    assert "cost of speed at" in shown and "(main): 4 values, 4 seeds" in shown
    assert "Written into" in shown and all(len(line) <= 80 for line in shown.splitlines() if "/" not in line)
    assert 'kind = "threshold"' in (service.repo / ".outerloop.toml").read_text()
    assert json.loads(run(config, *asked, "--json"))["values"] == body["values"]
    assert "noise of speed: there" in run(config, "status") and measured(service) == 4


def run(config: Path, *arguments: str) -> str:
    env = {"OUTERLOOP_CONFIG": str(config), "NO_COLOR": "1"}
    result = CliRunner(env=env).invoke(app, list(arguments), prog_name="outerloop")
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_what_may_not_be_studied_is_refused_with_its_reason(service: Service) -> None:
    stranger = service.git("commit-tree", "main^{tree}", "-m", "mine")
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"benchmark": "size"}, "no noise"),
        ({}, {"benchmark": "secret"}, "has a ladder"),
        ({}, {"benchmark": "nothing"}, "nothing"),
        ({}, {"repeats": 2}, "at least 3"),
        ({}, {"base": stranger}, "neither the champion nor in the history of main"),
        ({"isolation": "none"}, {}, "without a sandbox"),
        ({"limits": {"open_runs": 0}}, {}, "open runs of"),
        ({"accept": ["climb"]}, {}, "takes no noise studies of submitters (it takes: climb)"),
    ]
    for config, asked, why in cases:
        nonce = ask(service, **asked)
        service.say(**{"accept": ["climb", "noise"], **config})
        service.serve()
        told = answer(service, nonce)
        assert told["state"] == "refused" and why in told["why"], (why, told)
        service.say(accept=["climb", "noise"])
        service.serve()
    assert service.rows(Slot) == [] and not list((service.state.path / "studies").glob("*"))


def test_an_open_study_counts_and_one_that_cannot_go_on_is_answered(service: Service) -> None:
    service.say(accept=["climb", "noise"], limits={"open_runs": 1})
    first = ask(service)
    service.tick()
    second = ask(service, repeats=5)
    service.serve()
    assert "open runs of" in answer(service, second)["why"]
    service.say(targets={})
    service.tick()
    told = answer(service, first)
    assert told["state"] == "refused" and "no target of this service any more" in told["why"]
    assert list((service.state.path / "studies").iterdir()) == []


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="half a minute: set OUTERLOOP_NIGHTLY")
def test_a_service_killed_anywhere_on_the_way_answers_once(service: Service) -> None:
    nonce = ask(service, repeats=3)
    for fault in (
        "after:study.asked:kill",
        "before:spool.remove:kill",
        "after:tx.plan:kill",
        "after:compute.submit:kill",
    ):
        assert service.forked(service.tick, fault=fault) == -9, (fault, (service.folder / "errors").read_text())
    service.tick()
    for fault in ("before:noise.study:kill", "after:noise.study:kill", "before:study.remove:kill"):
        service.run_measures()
        code = 0
        for _ in range(4):
            code = service.forked(service.tick, fault=fault)
            if code == -9:
                break
            service.run_measures()
        assert code == -9, fault
    service.tick()
    assert answer(service, nonce)["state"] == "studied"
    assert measured(service) == 3, "no value was measured twice"
    assert list((service.state.path / "studies").iterdir()) == []
    assert len(list((service.state.path / "noise").glob("*/*.json"))) == 1
