"""The worked campaign, configs/campaigns/digits.toml: its real commands, driven by the pure core.

That a cluster's kills change nothing is the controller's affair. Here: the example does what its pages say.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.champion import EvalEvent, PackageEvent, ReserveCheckEvent, RunEvent, TeacherEvent
from tests.e2e.campaign_driver import Driver, Execute, preloaded

for needed in ("torch", "sklearn", "yaml"):
    if importlib.util.find_spec(needed) is None:  # torch is not to be imported here: its settings are a process's own
        pytest.skip(f"needs {needed}", allow_module_level=True)

TREE = Path(__file__).resolve().parents[2] / "configs" / "campaigns"
NIGHTLY = bool(os.environ.get("OUTERLOOP_NIGHTLY"))

# test_campaign_demo.py runs the example's first round through outerloop itself in every test run.
pytestmark = pytest.mark.skipif(not NIGHTLY, reason="a minute of training: set OUTERLOOP_NIGHTLY")


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Execute]:
    with preloaded(tmp_path_factory.mktemp("log") / "commands.log") as run:
        yield run


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory, execute: Execute) -> Driver:
    """The campaign as it stands, without its last rounds unless it is night."""
    changes = {} if NIGHTLY else {"max_rounds": 3}
    driver = Driver(TREE, tmp_path_factory.mktemp("campaign"), execute=execute, changes=changes)
    driver.run()
    return driver


def checks(driver: Driver) -> list[ReserveCheckEvent]:
    return [e for e in driver.ledger if isinstance(e, ReserveCheckEvent) and e.status != "started"]


@pytest.mark.slow
def test_the_first_champion_turns_out_to_be_luck(driven: Driver) -> None:
    first = checks(driven)[0]
    assert (first.status, first.ends) == ("luck", "reserve_failed")
    assert min(line.p for line in first.lines) < driven.config.alpha
    assert [event.reason for event in driven.state.generations][:2] == ["initial", "reserve_failed"]
    assert driven.state.anomalies == []


@pytest.mark.slow
def test_every_kind_of_work_is_done_and_scored(driven: Driver) -> None:
    runs = {event.run_id: event for event in driven.ledger if isinstance(event, RunEvent)}
    ended = {ident.rpartition("-")[2]: event.status for ident, event in runs.items() if ident.startswith("champ-g001")}
    assert ended["linear"] == "no_eligible_checkpoint"
    assert {ended[name] for name in ("plain", "reader", "wide", "filters")} == {"trained"}
    assert any(isinstance(e, TeacherEvent) and e.status == "finished" for e in driven.ledger)
    scored = [e for e in driven.ledger if isinstance(e, EvalEvent)]
    assert [e.detail for e in scored if e.status == "failed"] == []
    assert {e.role for e in scored} == {"test", "reserve", "validation"}
    assert any(e.run_id.endswith("-teacher") for e in scored)
    for event in scored:
        if event.role == "test":
            assert event.decided is not None and event.reject_band is not None
            assert event.gate_auc is not None and 0.6 < event.gate_auc <= 1.0
            assert event.gate_curve is not None and len(event.gate_curve) > 10


@pytest.mark.slow
def test_the_packaged_champion_checks_claims(driven: Driver) -> None:
    [*_, packaged] = [e for e in driven.ledger if isinstance(e, PackageEvent) and e.status == "finished"]
    champion = packaged.subject
    assert packaged.exit_code == 0
    package = driven.files[f"package/{champion}"]
    split = driven.files[f"split/{packaged.generation}"]
    said = subprocess.run(
        [sys.executable, str(package / "check.py"), str(split / "items.npz"), "17", "18", "19"],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout.splitlines()  # fmt: skip
    assert [line.split(":")[0] for line in said] == ["item 17", "item 18", "item 19"]
    assert {line.split()[4] for line in said} <= {"pass", "fail", "rejected"}
    # It is the champion that was scored: as many test items as its row says are decided and pass.
    row = next(e for e in driven.state.evaluations if e.subject == champion and e.role == "test")
    assert row.decided is not None
    roles = json.loads((split / "roles.json").read_text())
    decided = subprocess.run(
        [sys.executable, str(package / "check.py"), str(split / "items.npz"), *map(str, roles["test"])],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout.count(": rejected")  # fmt: skip
    assert decided == row.decided["rejected_total"]


@pytest.mark.slow
def test_no_item_has_two_roles(driven: Driver) -> None:
    for generation in driven.state.generations:
        roles = json.loads((driven.files[f"split/{generation.generation}"] / "roles.json").read_text())
        items = [item for role in roles.values() for item in role]
        assert len(items) == len(set(items)) == 1797
        assert set(roles) == {"development", "validation", "test", "reserve"}


@pytest.mark.skipif(not NIGHTLY, reason="takes minutes: set OUTERLOOP_NIGHTLY")
def test_the_luck_and_the_students_do_not_depend_on_who_ends_first(driven: Driver, execute: Execute) -> None:
    import random

    for seed in range(8):
        order = random.Random(seed)
        other = Driver(
            TREE,
            driven.folder,  # the same work is done once
            ends=lambda keys, order=order: order.sample(keys, order.randint(1, len(keys))),
            execute=execute,
        )
        other.run()
        assert [check.status for check in checks(other)].count("luck") >= 1
        assert checks(other)[0].status == "luck", (seed, checks(other)[0])
        assert any(isinstance(e, EvalEvent) and e.run_id.endswith("-student") for e in other.ledger)
