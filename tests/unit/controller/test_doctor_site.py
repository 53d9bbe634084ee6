"""What doctor makes of a site: the answers of its test job one by one, spellings that are refused, and what it writes.

Attacked: a finding that is too mild or names the wrong setting, and a doctor that changes something unasked. Slurm is
the scripted fake; a real one answers in tests/slurm/test_doctor.py.
"""

from __future__ import annotations

import json
import os
import socket
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outerloop import __version__
from outerloop.cli import app
from outerloop.compute.protocol import JobSpec, Refused, SiteLimits, When
from outerloop.compute.slurm import TOOLS, SlurmCli
from outerloop.controller.doctor.access import access, admitted
from outerloop.controller.doctor.cluster import backend, lanes
from outerloop.controller.doctor.finding import FAIL, OK, WARN, Finding, Site
from outerloop.controller.doctor.job import _read_probe
from outerloop.controller.doctor.probe import ProbeAnswer
from outerloop.controller.doctor.profile import differences, facts, proposal
from outerloop.controller.doctor.spelling import _job, spellings
from outerloop.settings import Settings
from outerloop.slots import StateRoot
from tests.fake_slurm import FakeSlurm

CPU = {"Default": "YES", "MaxTime": "2-00:00:00", "State": "UP", "TRES": "cpu=8,mem=8G"}
GPU = {"MaxTime": "1-00:00:00", "State": "UP", "TRES": "cpu=8,mem=8G,gres/gpu=8"}


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path, tools=(*TOOLS, "sacctmgr", "sinfo"))


@pytest.fixture
def site(tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in list(os.environ):
        if name.startswith(("OUTERLOOP_", "SLURM_")):
            monkeypatch.delenv(name)
    made = Site(
        Settings(
            state=tmp_path / "state",
            backend="slurm",
            slurm={"bin_dir": fake.bin, "query_timeout_seconds": 20},  # type: ignore[arg-type]
            lanes={"default": {"partition": "cpu"}, "gpu": {"partition": "a100"}},  # type: ignore[dict-item]
        ),
        tmp_path / "config.toml",
        StateRoot(tmp_path / "state"),
        "slurm",
    )
    made.compute = SlurmCli(bin_dir=fake.bin)
    made.limits = SiteLimits(version="24.11.5", cluster="lab", accounting=True, partitions={"cpu": CPU, "a100": GPU})
    return made


def told(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.name, finding.level) for finding in found]


# -- the job's answer


def answer(**changed: Any) -> ProbeAnswer:
    seen: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": "3.11",
        "time": time.time(),
        "outerloop": __version__,
        "why_not": "",
        "link": True,
        "exclusive": True,
        "exclusive_here": True,
        "sandbox": "",
        "submit": "",
        "tools": dict.fromkeys(TOOLS, True),
    }
    return ProbeAnswer("77", facts={**seen, **changed}, seconds=0.5)


def test_a_node_that_sees_all_of_it_is_well(site: Site) -> None:
    assert told(list(_read_probe(site, answer()))) == [("job", OK), ("wake", OK)]
    assert site.proposed["slurm", "submit_from_jobs"] == "yes"
    assert site.proposed["site", "tools_on_nodes"] == tuple(sorted(TOOLS))
    assert abs(site.proposed["site", "clock_difference_seconds"]) < 5


@pytest.mark.parametrize(
    ("changed", "expected", "word"),
    [
        ({"outerloop": "0.0.1"}, [("job", FAIL)], "has outerloop 0.0.1"),
        ({"outerloop": "", "why_not": "ModuleNotFoundError: x"}, [("job", FAIL)], "ModuleNotFoundError"),
        ({"link": "Operation not permitted"}, [("job", FAIL)], "hard link"),
        ({"link": False}, [("job", FAIL)], "hard link"),
        ({"exclusive": "a name that was taken could be taken again"}, [("job", FAIL)], "do not exclude each other"),
        ({"exclusive_here": "a name could be taken again"}, [("job", FAIL)], "do not exclude each other"),
        ({"sandbox": "bwrap: No permissions"}, [("job", OK), ("sandbox", FAIL), ("wake", OK)], "No permissions"),
        ({"submit": "sbatch: error: login nodes only"}, [("job", OK), ("wake", WARN)], "login nodes only"),
        ({"tools": {"squeue": True}}, [("job", OK), ("wake", WARN)], "has no sbatch"),
        ({"tools": {**dict.fromkeys(TOOLS, True), "sacct": False}}, [("job", OK), ("wake", WARN)], "lacks sacct"),
        ({"time": time.time() - 3600}, [("job", OK), ("wake", OK), ("clock", WARN)], "follow NTP"),
        ({"time": time.time() + 60}, [("job", OK), ("wake", OK), ("clock", WARN)], "differs"),
        ({"host": "n7"}, [("job", OK), ("wake", OK), ("wake", WARN)], "leaves a mark for the tick"),
    ],
)
def test_what_a_node_lacks_is_said_and_how_bad_it_is(
    site: Site, changed: dict[str, Any], expected: list[tuple[str, str]], word: str
) -> None:
    found = list(_read_probe(site, answer(**changed)))
    assert told(found) == expected
    assert any(word in f"{finding.sentence} {finding.fix}" for finding in found)
    able = changed.get("submit") is None and changed.get("tools", {"sbatch": True}).get("sbatch", False)
    if found[0].level == OK:
        assert site.proposed["slurm", "submit_from_jobs"] == ("yes" if able else "no")
    else:
        assert not site.proposed, "nothing is concluded from a job that did not do its work"


def test_settings_that_say_nodes_may_submit_are_wrong_where_they_may_not(site: Site) -> None:
    site.settings = site.settings.model_copy(
        update={"slurm": site.settings.slurm.model_copy(update={"submit_from_jobs": "yes"})}
    )
    assert told(list(_read_probe(site, answer(submit="refused")))) == [("job", OK), ("wake", FAIL)]


@pytest.mark.parametrize(
    ("given", "level", "cluster"),
    [
        (ProbeAnswer(refused=Refused("AssocMaxSubmitJobLimit", When.LATER), trouble="full"), FAIL, True),
        (ProbeAnswer(refused=Refused("InvalidAccount", When.NEVER), trouble="no"), FAIL, False),
        (ProbeAnswer("77", trouble="it was still pending", pending="Priority"), WARN, False),
        (ProbeAnswer("77", trouble="it ended without an answer", log="a\nb"), FAIL, False),
        (ProbeAnswer(trouble="timed out"), FAIL, True),
    ],
)
def test_no_answer_is_the_clusters_trouble_or_the_lanes(
    site: Site, given: ProbeAnswer, level: str, cluster: bool
) -> None:
    [found] = _read_probe(site, given)
    assert (found.name, found.level, found.cluster) == ("job", level, cluster)
    assert given.trouble in found.sentence and not site.proposed


# -- how the site wants to be asked


def test_the_spelling_that_is_set_is_left_alone_where_it_is_taken(site: Site, fake: FakeSlurm) -> None:
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start\n")
    assert told(list(spellings(site))) == [("spelling", OK)]
    assert site.proposed == {
        ("lanes", "default", "memory_flag"): "mem",
        ("lanes", "gpu", "memory_flag"): "mem",
        ("lanes", "gpu", "gpu_flag"): "gpus-per-node",
    }
    assert differences(site) == {}
    assert all("--test-only" in call.argv for call in fake.calls("sbatch")), "doctor submits nothing"


@pytest.mark.parametrize(
    ("refused", "setting", "taken"),
    [
        ("--gpus-per-node=", "gpu_flag", "gres"),
        ("--gpus-per-node=|--gres=", "gpu_flag", "gpus"),
        ("--gpus-per-node=|--gres=|--gpus=", "gpu_flag", "none"),
        ("--mem=", "memory_flag", "mem-per-cpu"),
        ("--mem=|--mem-per-cpu=", "memory_flag", "none"),
    ],
)
def test_row_19_the_first_spelling_that_is_taken_is_proposed(
    site: Site, fake: FakeSlurm, refused: str, setting: str, taken: str
) -> None:
    fake.rule("sbatch", argv=f"({refused}).*", rc=1, stderr="sbatch: error: it is spelled otherwise here\n" * 2 + (
        "sbatch: error: Batch job submission failed: Unspecified policy\n"))  # fmt: skip
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start\n")
    found = [finding for finding in spellings(site) if finding.name == "lane gpu"]
    assert told(found) == [("lane gpu", FAIL)] and f'lanes.gpu.{setting} = "{taken}"' in found[0].fix
    assert site.proposed["lanes", "gpu", setting] == taken
    assert differences(site)[f"lanes.gpu.{setting}"][1] == taken
    assert site.tried["lanes", "gpu", setting].splitlines()[-1].endswith("taken")


def test_what_is_set_is_tried_first_and_kept_where_it_is_taken(site: Site, fake: FakeSlurm) -> None:
    set_ = {"gpu_flag": "gpus", "memory_flag": "mem-per-cpu"}
    lanes = {"gpu": site.settings.lanes["gpu"].model_copy(update=set_), "default": site.settings.lanes["default"]}
    site.settings = site.settings.model_copy(update={"lanes": lanes})
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start\n")
    assert told(list(spellings(site))) == [("spelling", OK)] and differences(site) == {}
    assert {path[2]: value for path, value in site.proposed.items() if path[1] == "gpu"} == set_


def test_a_controller_that_falls_silent_is_not_taken_for_a_refusal(site: Site, fake: FakeSlurm) -> None:
    silent = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    fake.rule("sbatch", argv="--mem=.*partition=a100", rc=1, stderr=silent)
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start\n")
    [finding] = [finding for finding in spellings(site) if finding.name == "lane gpu"]
    assert (finding.level, finding.cluster) == (WARN, True) and "memory_flag could not be tried" in finding.sentence
    assert ("lanes", "gpu", "memory_flag") not in site.proposed


def test_a_lane_of_a_partition_that_there_is_not_is_not_tried(site: Site, fake: FakeSlurm) -> None:
    lane = site.settings.lanes["gpu"].model_copy(update={"partition": "a1000"})
    site.settings = site.settings.model_copy(update={"lanes": {**site.settings.lanes, "gpu": lane}})
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start\n")
    assert told(list(spellings(site))) == [("spelling", OK)]
    assert all("--partition=a1000" not in call.argv for call in fake.calls("sbatch"))
    assert ("lane gpu", FAIL) in told(list(lanes(site)))


def test_an_account_that_opens_the_way_to_the_next_refusal_is_kept(site: Site, fake: FakeSlurm) -> None:
    """The site asks for an account and then for a QOS of it: each refusal is about the next setting."""
    failed = "sbatch: error: Batch job submission failed: "
    fake.rule("sacctmgr", argv="associations", stdout="lab|||\nlab-b||fast|fast\n")
    fake.rule("sbatch", argv="--account=lab-b .*--qos=fast", stderr="sbatch: Job 5 to start\n")
    fake.rule("sbatch", argv="--account=lab-b ", rc=1, stderr=f"{failed}Invalid qos specification\n")
    fake.rule("sbatch", argv="--test-only", rc=1, stderr=f"{failed}Invalid account or account/partition combination\n")
    job, found = tried(site, CPU)
    assert told(found) == [("lane default", FAIL), ("lane default", FAIL)]
    assert job is not None and (job.lane.account, job.lane.qos) == ("lab-b", "fast")
    assert site.proposed == {("lanes", "default", "account"): "lab-b", ("lanes", "default", "qos"): "fast"}


def test_a_partition_that_asks_for_a_reservation_is_given_ones_own(site: Site, fake: FakeSlurm) -> None:
    """It says only that access is denied."""
    denied = "sbatch: error: Batch job submission failed: Access/permission denied\n"
    fake.rule("sacctmgr", argv="associations", stdout="lab|||\n")
    rows = "ReservationName=others Users=nobody Accounts=(null) State=ACTIVE\n"
    fake.rule("scontrol", argv="reservation", stdout=f"{rows}ReservationName=friday Accounts=lab State=ACTIVE\n")
    fake.rule("sbatch", argv="--reservation=friday", stderr="sbatch: Job 5 to start\n")
    fake.rule("sbatch", argv="--test-only", rc=1, stderr=denied)
    job, found = tried(site, {**CPU, "ReqResv": "YES"})
    assert job is not None and site.proposed == {("lanes", "default", "reservation"): "friday"}
    site.proposed.clear()
    job, found = tried(site, CPU)
    assert job is None and told(found) == [("lane default", FAIL)] and site.proposed == {}


def tried(site: Site, partition: dict[str, str]) -> tuple[JobSpec | None, list[Finding]]:
    """The default lane's job, as `admitted` would have it let in."""
    cli = site.compute
    assert isinstance(cli, SlurmCli)
    script = site.config.with_name("true.sh")
    script.write_text("#!/bin/sh\n")
    return admitted(site, cli, "default", _job(site, script, site.settings.lane("default")), partition)


def test_a_lane_that_takes_no_spelling_and_a_silent_controller_propose_nothing(site: Site, fake: FakeSlurm) -> None:
    no = "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification\n"
    fake.rule("sbatch", argv="--mem", rc=1, stderr=no)
    fake.rule("sbatch", argv="partition=a100", rc=1, stderr="sbatch: error: Socket timed out on send/recv operation\n")
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start\n")
    found = list(spellings(site))
    assert ("lane gpu", WARN) in told(found) and any(finding.cluster for finding in found)
    assert [path for path in site.proposed if path[1] == "gpu"] == []


@pytest.mark.parametrize(
    ("setting", "refusal", "answers", "taken"),
    [
        ("account", "Invalid account or account/partition combination specified", "lab|77|normal|normal\nother|||\n",
         "lab"),
        ("qos", "Invalid qos specification", "lab|77|long,normal|long\n", "long"),
    ],
)  # fmt: skip
def test_an_account_or_qos_is_looked_up_tried_and_proposed(
    site: Site, fake: FakeSlurm, setting: str, refusal: str, answers: str, taken: str
) -> None:
    fake.rule("sacctmgr", argv="associations", stdout=answers)
    fake.rule("sbatch", argv=f"--{setting}={taken} ", stderr="sbatch: Job 5 to start\n")
    fake.rule("sbatch", argv="--test-only", rc=1, stderr=f"sbatch: error: Batch job submission failed: {refusal}\n")
    job, found = tried(site, CPU)
    assert job is not None and getattr(job.lane, setting) == taken
    assert told(found) == [("lane default", FAIL)] and site.proposed == {("lanes", "default", setting): taken}
    assert refusal in site.tried["lanes", "default", setting]


def test_a_lane_that_names_somebody_elses_account_is_told_of_and_the_cap_is_proposed(
    site: Site, fake: FakeSlurm
) -> None:
    fake.rule("sacctmgr", argv="associations", stdout="lab|77|normal|normal\nlab-b|50|normal|normal\n")
    fake.rule("scontrol", argv="reservation", stdout="No reservations in the system\n")
    lane = site.settings.lanes["default"].model_copy(update={"account": "theirs"})
    site.settings = site.settings.model_copy(update={"lanes": {**site.settings.lanes, "default": lane}})
    cli = site.compute
    assert isinstance(cli, SlurmCli)
    found = list(access(site, cli))
    assert ("lane default", WARN) in told(found) and ("accounts", OK) in told(found)
    assert site.proposed["site", "max_submit_jobs"] == 50


# -- the controller's own words


def test_what_the_controller_says_becomes_the_profile(site: Site) -> None:
    site.limits = SiteLimits(
        version="24.11.5", cluster="lab", max_array_size=1001, min_job_age_seconds=300, preempt_mode="REQUEUE",
        max_script_bytes=8192, accounting=False, partitions={"cpu": CPU},
    )  # fmt: skip
    assert told(list(facts(site))) == [("scripts", WARN)]
    assert proposal(site) == {
        "site": {
            "cluster": "lab", "slurm": "24.11.5", "max_array_size": 1001, "min_job_age_seconds": 300,
            "preempt_mode": "REQUEUE", "accounting": False,
        },
        "slurm": {"max_script_bytes": 8192, "accounting": "off"},
    }  # fmt: skip
    assert differences(site) == {"slurm.max_script_bytes": (4 << 20, 8192)}, "auto finds out about accounting itself"


CONFIG = """\
AccountingStorageType   = {accounting}
ClusterName             = fake
MaxArraySize            = 1001
MessageTimeout          = {timeout} sec
MinJobAge               = {age} sec
PreemptMode             = REQUEUE
SLURM_VERSION           = {version}
"""
PARTITIONS = """\
PartitionName=cpu Default=YES MaxTime=2-00:00:00 State=UP TRES=cpu=800,mem=800G
PartitionName=a100 Default=NO MaxTime=1-00:00:00 State=UP TRES=cpu=80,mem=80G,gres/gpu=8
"""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [("tools", OK), ("backend", OK), ("accounting", OK)]),
        ({"version": "21.08.8"}, [("tools", OK), ("backend", WARN), ("accounting", OK)]),
        ({"timeout": "20"}, [("tools", OK), ("backend", OK), ("timeouts", WARN), ("accounting", OK)]),
        ({"accounting": "accounting_storage/none"}, [("tools", OK), ("backend", OK), ("accounting", OK)]),
        ({"accounting": "(null)", "age": "2"}, [("tools", OK), ("backend", OK), ("accounting", WARN)]),
    ],
)
def test_a_controllers_settings_are_held_against_ours(
    site: Site, fake: FakeSlurm, changed: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    values = {"accounting": "accounting_storage/slurmdbd", "timeout": "10", "age": "300", "version": "22.05.8"}
    fake.rule("scontrol", argv="show config", stdout=CONFIG.format(**{**values, **changed}))
    fake.rule("scontrol", argv="show partition", stdout=PARTITIONS)
    assert told(list(backend(site))) == expected
    assert site.limits is not None and site.limits.cluster == "fake"


@pytest.mark.parametrize(
    ("partition", "lane", "expected", "proposed"),
    [
        ({}, {}, WARN, 2880.0),
        ({}, {"max_minutes": 2880}, OK, 2880.0),
        ({}, {"max_minutes": 60}, OK, 60.0),
        ({}, {"max_minutes": 2881}, FAIL, None),
        ({"MaxTime": "UNLIMITED"}, {}, OK, None),
        ({"MaxTime": "nonsense"}, {}, OK, None),
        ({"State": "DOWN"}, {}, WARN, None),
    ],
)
def test_a_lane_is_held_against_its_partition(
    site: Site, partition: dict[str, str], lane: dict[str, Any], expected: str, proposed: float | None
) -> None:
    changed = site.settings.lanes["default"].model_copy(update=lane)
    site.settings = site.settings.model_copy(update={"lanes": {"default": changed}})
    site.limits = SiteLimits(partitions={"cpu": {**CPU, **partition}})
    assert told(list(lanes(site))) == [("lane default", expected)]
    assert site.proposed.get(("lanes", "default", "max_minutes")) == proposed


def test_a_site_without_a_default_lane_and_wakes_that_their_lane_does_not_grant_are_told(site: Site) -> None:
    gpu = site.settings.lanes["gpu"].model_copy(update={"max_minutes": 1440})
    site.settings = site.settings.model_copy(update={"lanes": {"gpu": gpu}})
    assert ("lanes", FAIL) in told(list(lanes(site)))
    default = site.settings.lanes["gpu"].model_copy(update={"partition": "cpu", "max_minutes": 5})
    wake = site.settings.wake.model_copy(update={"minutes": 6})
    site.settings = site.settings.model_copy(update={"lanes": {"default": default}, "wake": wake})
    assert told(list(lanes(site))) == [("lane default", OK), ("wake", FAIL)]
    site.settings = site.settings.model_copy(update={"wake": wake.model_copy(update={"minutes": 5})})
    assert told(list(lanes(site))) == [("lane default", OK)]


@pytest.mark.parametrize("partition", ["", "a1000"])
def test_a_lane_without_a_partition_that_there_is_is_told(site: Site, partition: str) -> None:
    lane = site.settings.lanes["default"].model_copy(update={"partition": partition})
    site.settings = site.settings.model_copy(update={"lanes": {"default": lane}})
    site.limits = SiteLimits(partitions={"a100": GPU})
    assert told(list(lanes(site))) == [("lane default", FAIL)]


def test_a_gpu_lane_on_nodes_without_gpus_is_told_of(site: Site, fake: FakeSlurm) -> None:
    fake.rule("sinfo", stdout="a100|(null)\n")
    site.limits = SiteLimits(partitions={"cpu": CPU, "a100": {**CPU, "Default": "NO"}})
    lane = site.settings.lanes["gpu"].model_copy(update={"max_minutes": 60})
    site.settings = site.settings.model_copy(update={"lanes": {**site.settings.lanes, "gpu": lane}})
    assert ("lane gpu", WARN) in told(list(lanes(site)))


def test_a_silent_controller_is_the_clusters_trouble_and_nothing_is_concluded(site: Site, fake: FakeSlurm) -> None:
    fake.rule("scontrol", rc=1, stderr="Unable to contact slurm controller (connect failure)\n")
    site.limits = None
    found = list(backend(site))
    assert told(found) == [("tools", OK), ("backend", FAIL)] and found[1].cluster
    assert site.limits is None and not site.proposed and list(facts(site)) == [] and list(spellings(site)) == []


# -- what it writes


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def test_doctor_changes_nothing_without_write_and_site_toml_alone_with_it(
    site: Site, fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`site` has cleared the environment. Everything is tried that a job is not needed for."""
    config, state = tmp_path / "etc" / "config.toml", tmp_path / "shared"
    for folder in (config.parent, state):
        folder.mkdir()
    config.write_text(
        f'state = "{state}"\nbackend = "slurm"\n[slurm]\nbin_dir = "{fake.bin}"\nquery_timeout_seconds = 20\n'
        '[lanes.default]\npartition = "cpu"\n[lanes.gpu]\npartition = "a100"\n'
    )
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))
    monkeypatch.setattr("outerloop.controller.doctor.host.NODE_LOCAL", ())
    values = {"accounting": "accounting_storage/slurmdbd", "timeout": "10", "age": "300", "version": "22.05.8"}
    fake.rule("scontrol", argv="show config", stdout=CONFIG.format(**values))
    fake.rule("scontrol", argv="show partition", stdout=PARTITIONS)
    fake.rule("scontrol", argv="reservation", stdout="No reservations in the system\n")
    fake.rule("sacctmgr", argv="associations", stdout="lab|77|normal|normal\n")
    fake.rule("sbatch", argv="--gpus-per-node=", rc=1, stderr="sbatch: error: this would be a CPU job\n")
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start\n")
    before = everything(config.parent), everything(state)

    done = CliRunner().invoke(app, ["doctor", "--no-job", "--json"])
    profile = json.loads(done.stdout)["profile"]
    assert profile["changes"]["lanes.gpu.gpu_flag"] == {"set": "gpus-per-node", "taken": "gres"}
    assert profile["written"] is None and (everything(config.parent), everything(state)) == before
    done = CliRunner().invoke(app, ["doctor", "--no-job"])
    assert "nothing was changed" in done.stdout and (everything(config.parent), everything(state)) == before

    done = CliRunner().invoke(app, ["doctor", "--no-job", "--write"])
    after = everything(config.parent)
    assert set(after) == {"config.toml", "site.toml"} and after["config.toml"] == before[0]["config.toml"]
    assert everything(state) == before[1]
    written = tomllib.loads((config.parent / "site.toml").read_text())
    assert written["lanes"]["gpu"]["gpu_flag"] == "gres" and written["site"]["max_submit_jobs"] == 77
    assert Settings.load(config).lanes["gpu"].gpu_flag == "gres"
    config.write_text(config.read_text() + 'gpu_flag = "gpus-per-node"\n')
    done = CliRunner().invoke(app, ["doctor", "--no-job", "--write"])
    assert "the config or the environment says so, and wins" in done.stdout
    assert all("--test-only" in call.argv for call in fake.calls("sbatch")), "doctor submits nothing"
