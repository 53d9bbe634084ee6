"""Attacked: trainings of a service's submitters, as the service takes them in, and their ends when a submitter says so.

Covered: the service's side and the client's, by this very account. Accounts of their own: tests/service.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from outerloop.cli import service_client
from outerloop.cli.errors import CliError, ExitCode
from outerloop.controller.deployment import Deployment, account
from outerloop.controller.service.client import Client, NoService
from outerloop.controller.service.intake import serve
from outerloop.controller.service.spool import MAX_HEADER_BYTES, Spool, SubmissionError
from outerloop.record.models import Run, Slot
from outerloop.settings import Settings
from outerloop.settings_sections import LaneSettings
from tests.controller_rig.kept import Kept
from tests.controller_rig.world import World
from tests.e2e.test_crash_points import points_of

PLAN = {"family": "own_command", "command": ["sh", "bench.sh"]}
SWEEP = {"family": "lease_tasks", "command": ["sh", "-c", "echo {n}"], "tasks": [{"n": n} for n in range(3)]}


class Service(World):
    """The rig as a service whose only submitter is this very account, through the spool."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder, database)
        self.spool = Spool(folder / "spool")
        self.spool.make()
        self.say()
        self.client = Client(self.spool, "svc")
        self.account = account()

    def say(self, isolation: str = "bwrap", limits: dict[str, Any] | None = None, **target: Any) -> None:
        """The operator's config."""
        target = {"repository": str(self.repo), "accept": ["climb", "noise", "training"], **target}
        targets = target.pop("targets", {"tsp": target})
        service = {"spool": str(self.spool.path), "targets": targets, **(limits or {})}
        given = self.settings.model_dump(exclude={"service", "mode", "isolation", "lanes", "backend", "local"})
        lanes = {"default": LaneSettings(max_minutes=600), "long": LaneSettings()}
        self.settings = Settings(
            **given,
            mode="service",
            service=service,
            isolation=isolation,
            lanes=lanes,
            backend="local",
            local={"gpus": 2},
        )

    def serve(self) -> list[str]:
        """One sweep of the spool: why what was refused was refused."""
        deployment: Deployment = self.open()
        try:
            serve(deployment)
        finally:
            deployment.close()
        return [str(body["why"]) for body in self.client.refusals()]

    def ask(self, plan: dict[str, Any] = PLAN, candidate: str = "better", **told: Any) -> str:
        return self.client.training(self.repo, {"plan": plan, **told}, candidate=candidate, priority=0).nonce


@pytest.fixture
def service(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    world = Service(tmp_path, database)
    assert world.serve() == []
    yield world


def test_a_training_becomes_a_run_of_its_submitter_once(service: Service) -> None:
    nonce = service.ask(minutes=30, cpus=2, memory_mb=512, name="fit")
    assert service.serve() == []
    answer = service.client.answer(nonce)
    assert answer is not None and answer["state"] == "taken"
    [run] = service.rows(Run)
    assert (run.id, run.kind, run.label) == (answer["run"], "training", "better")
    request = run.request
    assert (request["nonce"], request["cpus"], request["memory_mb"], request["minutes"]) == (nonce, 2, 512, 30)
    assert request["execution"]["isolation"] == "bwrap" and request["expected"] is None
    told = service.client.run(run.id)
    assert (told["kind"], told["state"], told["benchmark"]) == ("training", "queued", "fit")
    # The same question is the same run, whoever asks it how often.
    again = service.ask(minutes=30, cpus=2, memory_mb=512, name="fit")
    assert service.serve() == [] and service.client.answer(again)["run"] == run.id  # type: ignore[index]
    assert len(service.rows(Run)) == 1
    service.tick()
    assert [slot.submitter for slot in service.rows(Slot)] == [request["submitter"]]


def test_a_task_array_is_compiled_by_the_service(service: Service) -> None:
    service.ask(SWEEP)
    assert service.serve() == []
    [run] = service.rows(Run)
    assert [task["launch"]["argv"][-1] for task in run.request["tasks"]] == ["echo 0", "echo 1", "echo 2"]
    assert run.request["resumable"] is False


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"isolation": "none"}, {}, "without a sandbox"),
    ({"max_tasks": 2}, {"plan": SWEEP}, "has 3 tasks; this target takes at most 2"),
    ({}, {"lane": "long"}, "may not be named by trainings of this target (may be: none)"),
    ({}, {"minutes": 6000}, "lane default allows 600"),
    ({}, {"plan": {**PLAN, "env": {"LD_PRELOAD": "x.so"}}}, "LD_PRELOAD is set by the node"),
    ({}, {"plan": {**PLAN, "files": {"../../x": "y"}}}, "../../x"),
    ({}, {"plan": {"family": "witchcraft", "command": ["x"]}}, "no compiler for strategy family 'witchcraft'"),
    ({}, {"plan": {**PLAN, "argv": ["x"]}}, "the plan is not valid: argv"),
    ({"limits": {"open_runs": 0}}, {}, "open runs of"),
    ({"limits": {"runs_per_week": 0}}, {}, "this week: 0 of 0"),
    ({"limits": {"gpu_hours": 0}}, {"plan": {**PLAN, "gpus_per_process": 1}}, "0.00 used or reserved of 0, 0 remain"),
]


def test_what_may_not_be_asked_is_refused_with_its_reason(service: Service) -> None:
    for config, asked, why in REFUSED:
        service.say(**config)
        nonce = service.ask(**{"plan": PLAN, **asked})
        service.serve()
        answer = service.client.answer(nonce)
        assert answer is not None and answer["state"] == "refused" and why in answer["why"], (why, answer)
    assert service.rows(Run) == [] and service.spool.names() == []


def test_work_of_cpus_alone_needs_no_gpu_hours(service: Service) -> None:
    service.say(limits={"gpu_hours": 0})
    nonce = service.ask()
    assert service.serve() == [] and service.client.answer(nonce)["state"] == "taken"  # type: ignore[index]


def test_trainings_are_taken_only_where_the_operator_says_so(service: Service) -> None:
    nonce = service.ask()
    service.say(accept=["climb"])
    [told] = service.serve()
    assert "tsp takes no trainings of submitters (it takes: climb)" in told
    assert "service.targets.tsp.accept" in told and service.client.answer(nonce)["state"] == "refused"  # type: ignore[index]
    with pytest.raises(NoService, match="takes no trainings"):
        service.ask()  # now the command itself knows


def test_a_lane_that_the_operator_lists_may_be_named(service: Service) -> None:
    service.say(lanes=["long"])
    service.ask(lane="long", minutes=6000)
    assert service.serve() == []
    [run] = service.rows(Run)
    assert run.request["execution"]["lane"]["name"] == "long"


def test_a_request_too_large_for_the_spool_is_refused_before_it_is_left(service: Service) -> None:
    with pytest.raises(SubmissionError, match=f"a service takes {MAX_HEADER_BYTES}"):
        service.ask({**PLAN, "files": {"big.txt": "x" * MAX_HEADER_BYTES}})
    assert service.spool.names() == []


def test_a_training_that_failed_may_be_asked_again_and_one_submission_makes_one_run(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.ask()
    service.serve()
    [first] = service.rows(Run)
    service.cancel(first.id)
    nonce = service.ask()
    # The service is killed before it takes the file away: the next sweep meets the same submission.
    remove: Callable[..., None] = Spool.remove
    monkeypatch.setattr(Spool, "remove", lambda self, name: None)
    service.serve()
    monkeypatch.setattr(Spool, "remove", remove)
    service.serve()
    runs = sorted(service.rows(Run), key=lambda run: run.ask)
    assert [run.ask for run in runs] == [0, 1] and runs[1].request["nonce"] == nonce
    assert service.client.answer(nonce)["run"] == runs[1].id  # type: ignore[index]


def taken(run_id: str) -> dict[str, Any]:
    """The answer to a submission that was carried out."""
    return {"schema": 1, "state": "taken", "run": run_id}


def test_a_submitter_ends_runs_of_its_own_and_nobody_elses(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    for plan in (SWEEP, PLAN):
        service.ask(plan)
    assert service.serve() == []
    service.tick()
    swept, another = sorted(service.rows(Run), key=lambda run: len(run.request["tasks"]), reverse=True)
    deployment = service.open()
    with deployment.record.transaction("tx.operator") as session:
        session.execute(update(Run).where(Run.id == another.id).values(submitter="bob"))
    deployment.close()
    with pytest.raises(CliError) as unknown:
        service_client.cancel(service.client, "t-nothing", as_json=True)
    assert unknown.value.exit_code == ExitCode.NOT_FOUND and not service.spool.names()
    service_client.cancel(service.client, swept.id[:10], as_json=True)
    nonce = json.loads(capsys.readouterr().out)["submission"]
    assert service.client.waiting(nonce) and service.client.answer(nonce) is None
    past_the_command = service.client.cancel(another.id).nonce
    [refused] = service.serve()
    assert "there is no run" in refused and service.client.answer(past_the_command)["state"] == "refused"  # type: ignore[index]
    assert service.client.answer(nonce) == taken(swept.id) and not service.client.waiting(nonce)
    assert service.client.run(swept.id)["verdict"] == service.run(swept.id).verdict == "cancelled"
    jobs = {job: body["state"] for job, body in service.measuring_jobs().items()}
    assert sorted(jobs.values()) == ["cancelled"] * 3 + ["pending"], jobs
    assert service.run(another.id).state == "waiting"
    # What has ended stays as it ended, however often somebody asks.
    service.run_measures()
    service.tick()
    before = service.snapshot()
    again = [service.client.cancel(run).nonce for run in (swept.id, swept.id)]
    service.serve()
    assert [service.client.answer(each) for each in again] == [taken(swept.id)] * 2
    assert service.snapshot() == before


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="many worlds: set OUTERLOOP_NIGHTLY")
def test_a_cancel_whose_service_is_killed_anywhere_is_carried_out_once(service: Service) -> None:
    service.ask(SWEEP)
    service.serve()
    service.tick()
    [run] = service.rows(Run)
    nonce = service.client.cancel(run.id).nonce
    kept = Kept(service)
    assert kept.again().forked(service.serve, trace=True) == 0
    points = points_of(service)
    assert "after:spool.remove:kill:1" in points and "after:compute.cancel:kill:1" in points
    for fault in points:
        assert kept.again().forked(service.serve, fault=fault) == -signal.SIGKILL, fault
        service.expire_leases()
        service.serve()
        service.tick()
        assert service.client.answer(nonce) == taken(run.id), fault
        assert service.run(run.id).verdict == "cancelled" and service.spool.names() == [], fault
        assert {body["state"] for body in service.measuring_jobs().values()} == {"cancelled"}, fault
        assert service.client.run(run.id)["verdict"] == "cancelled", fault
