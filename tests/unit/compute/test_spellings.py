"""Attacks the tables: states, pending reasons, names, job ids and times as Slurm and people spell them."""

from __future__ import annotations

import logging

import pytest

from outerloop.compute import states
from outerloop.compute.jobids import expand_ids, is_job_id
from outerloop.compute.names import ARRAY, PACK, check_name, check_template, clean_label, is_pack, job_name
from outerloop.compute.protocol import JobState
from outerloop.compute.reasons import Clears, pending_reason
from outerloop.compute.states import SPELLINGS, parse_state
from outerloop.compute.walltime import format_minutes, parse_walltime


def test_row_80_every_spelling_has_a_state_and_every_state_a_spelling() -> None:
    assert set(SPELLINGS.values()) == set(JobState)
    for spelling, state in SPELLINGS.items():
        assert parse_state(spelling).state is state
        assert parse_state(f" {spelling.lower()} ").state is state


MEANINGS = {
    JobState.PENDING: "PENDING PD EXPEDITING EG REQUEUED REQUEUE RQ REQUEUE_FED RF REQUEUE_HOLD RH RESV_DEL_HOLD RD"
    " SPECIAL_EXIT SE",
    JobState.RUNNING: "RUNNING R CONFIGURING CF RESIZING RS SIGNALING SI POWER_UP_NODE PU",
    JobState.COMPLETING: "COMPLETING CG STAGE_OUT SO UPDATE_DB UD",
    JobState.SUSPENDED: "SUSPENDED S STOPPED ST",
    JobState.UNKNOWN: "REVOKED RV",
    JobState.COMPLETED: "COMPLETED CD",
    JobState.FAILED: "FAILED F",
    JobState.TIMEOUT: "TIMEOUT TO",
    JobState.OUT_OF_MEMORY: "OUT_OF_MEMORY OOM",
    JobState.NODE_FAIL: "NODE_FAIL NF",
    JobState.BOOT_FAIL: "BOOT_FAIL BF",
    JobState.LAUNCH_FAILED: "LAUNCH_FAILED LF RECONFIG_FAIL RC",
    JobState.DEADLINE: "DEADLINE DL",
    JobState.CANCELLED: "CANCELLED CA",
    JobState.PREEMPTED: "PREEMPTED PR",
}
"""A second copy of the table, the other way round: a spelling that moves is a job that is believed over, or never."""


def test_every_spelling_means_what_it_meant() -> None:
    told = {spelling: state for state, spellings in MEANINGS.items() for spelling in spellings.split()}
    assert told == SPELLINGS
    active = {state for state in JobState if not state.final}
    assert active == set(list(MEANINGS)[:5]), "a job in any other state is over"


@pytest.mark.parametrize(
    ("text", "state", "by"),
    [
        ("CANCELLED by 1234", JobState.CANCELLED, "1234"),
        ("CANCELLED by alice", JobState.CANCELLED, "alice"),
        ("CANCELLED by 12+", JobState.CANCELLED, "12"),
        ("CANCELLED b+", JobState.CANCELLED, ""),
        ("CANCELLED+", JobState.CANCELLED, ""),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY, ""),
        ("COMPLETED+", JobState.COMPLETED, ""),
        ("NODE_FAIL+", JobState.NODE_FAIL, ""),
        ("REQUEUE_H+", JobState.PENDING, ""),
    ],
)
def test_states_that_sacct_cuts_or_adorns(text: str, state: JobState, by: str) -> None:
    seen = parse_state(text)
    assert (seen.state, seen.cancelled_by) == (state, by)


@pytest.mark.parametrize("text", ["", "+", "C+", "COMPLET+", "RE+", "DONE", "RUNNING by 12", "PENDING,RUNNING", "0"])
def test_what_nobody_knows_is_still_active_and_is_logged_once(text: str, caplog: pytest.LogCaptureFixture) -> None:
    states._warned.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            seen = parse_state(text)
            assert seen.state is JobState.UNKNOWN and not seen.state.final
    assert len(caplog.records) == 1


def test_row_57_completing_is_active_and_preempted_is_final() -> None:
    assert not parse_state("CG").state.final
    assert not parse_state("REQUEUED").state.final
    assert parse_state("PR").state.final


@pytest.mark.parametrize(
    ("reason", "clears"),
    [
        ("Priority", Clears.WILL),
        ("Resources", Clears.WILL),
        ("(Dependency)", Clears.WILL),
        ("BeginTime", Clears.WILL),
        ("None", Clears.WILL),
        ("ReqNodeNotAvail, UnavailableNodes:n1,n2", Clears.MAY),
        ("QOSMaxJobsPerUserLimit", Clears.MAY),
        ("AssocGrpCpuLimit", Clears.MAY),
        ("AssocGrpGRESMinutes", Clears.MAY),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", Clears.MAY),
        ("PartitionTimeLimit", Clears.NEVER),
        ("AssocMaxWallDurationPerJobLimit", Clears.NEVER),
        ("QOSMaxWallDurationPerJobLimit", Clears.NEVER),
        ("QOSMaxGRESPerJob", Clears.NEVER),
        ("AssocMaxCpuPerJobLimit", Clears.NEVER),
        ("QOSMinGRES", Clears.NEVER),
        ("BadConstraints", Clears.NEVER),
        ("DependencyNeverSatisfied", Clears.NEVER),
        ("ReasonFromTomorrow", Clears.MAY),
        ("", Clears.MAY),
    ],
)
def test_row_29_a_pending_reason_says_whether_it_clears(reason: str, clears: Clears) -> None:
    meaning = pending_reason(reason)
    assert (meaning.clears, meaning.held) == (clears, False)
    assert meaning.sentence.endswith(".") and meaning.sentence[0].isupper()


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldUser",
        "JobHeldAdmin",
        "launch failed requeued held",
        "(launch failed requeued held)",
        "launch_failed_requeued_held",
        "job requeued in held state",
        "JobHoldMaxRequeue",
        "ReservationDeletedHold",
        "held for reasons of tomorrow",
    ],
)
def test_row_62_held_is_not_waiting(reason: str) -> None:
    assert pending_reason(reason).held


SITE_LIMITS = {
    Clears.NEVER: "AssocMaxBillingPerJob AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerNode AssocMaxGRESMinutesPerJob"
    " AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxMemPerNode AssocMaxNodeMinutesPerJob QOSMaxCpuMinutesPerJobLimit"
    " QOSMaxCpuPerNode QOSMaxGRESPerNode QOSMaxLicensePerJob QOSMaxMemoryPerNode QOSMinCpuNotSatisfied QOSMinMemory"
    " QOSMinNode QOSMinBilling ReservationDeleted",
    Clears.MAY: "AccountingPolicy AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeRunMinutes AssocGrpSubmitJobsLimit"
    " AssocGrpWallLimit AssocMaxJobsLimit AssocMaxSubmitJobLimit AssociationJobLimit AssociationResourceLimit"
    " AssociationTimeLimit MaxCpuPerAccount MaxGRESPerAccount MaxJobsPerAccount MaxMemPerLimit MaxNodePerAccount"
    " PartitionNodeLimit QOSGrpCpuLimit QOSGrpGRES QOSGrpNodeLimit QOSGrpWallLimit QOSJobLimit QOSMaxCpuPerUserLimit"
    " QOSMaxGRESPerUser QOSMaxMemoryPerUser QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit QOSResourceLimit"
    " QOSTimeLimit QOSUsageThreshold Licenses PartitionDown PartitionInactive Reservation SystemFailure",
    Clears.WILL: "BeginTime Cleaning JobArrayTaskLimit NodeDown Prolog",
}
"""Reasons of Slurm 22.05 (job_reason_string) that are easily taken for one another."""


@pytest.mark.parametrize(("clears", "reasons"), SITE_LIMITS.items())
def test_row_29_a_limit_of_one_job_never_clears_and_a_cap_on_many_may(clears: Clears, reasons: str) -> None:
    wrong = {reason: pending_reason(reason).clears for reason in reasons.split()}
    assert {reason: said for reason, said in wrong.items() if said is not clears} == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("30:00", 1800),
        ("1:30:00", 5400),
        ("1-12", 129600),
        ("2-12:30", 217800),
        ("2-12:30:15", 217815),
        ("00:30:00", 1800),
        ("0:05", 5),
        ("0", 0),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_row_26_times_as_slurm_spells_them(text: str, seconds: int | None) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "1:2:3:4", "1-", "-12", "1-2-3", "NONE", "NOT_SET", "INVALID", "N/A", "1h", "١", "1 2"]
)
def test_row_26_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Slurm time"):
        parse_walltime(text)


@pytest.mark.parametrize("minutes", [0, -0.1, float("nan"), float("inf")])
def test_row_28_no_limit_is_never_asked_for_by_accident(minutes: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        format_minutes(minutes)


def test_limits_are_rounded_up() -> None:
    assert format_minutes(0.001) == "0-00:00:01"
    assert format_minutes(1440) == "1-00:00:00"


def test_row_22_labels_are_cleaned_and_names_are_short_enough() -> None:
    assert clean_label("speed (run 1)") == "speed-run-1"
    assert clean_label("///") == "x"
    assert job_name("d1", "speed (run 1)", "0123456789abcdef0123", 2) == "ol-d1-speed-run-1-0123456789abcdef-2"
    longest = job_name("d" * 16, "l" * 500, "f" * 64, 999999)
    assert len(longest) == 64 and longest.endswith("-" + "f" * 16 + "-999999")


@pytest.mark.parametrize("name", ["", "a b", "a|b", "a,b", "é", "x" * 65, "batch", "EXTERN", "hetjob", "-a", "a\n"])
def test_names_that_some_tool_stumbles_over_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="job name"):
        check_name(name)


@pytest.mark.parametrize("deployment", ["", "a-b", "x" * 17, "a b"])
def test_a_deployment_id_cannot_run_into_the_label(deployment: str) -> None:
    with pytest.raises(ValueError, match="deployment id"):
        job_name(deployment, "label", "key", 1)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("123", ("123",)),
        ("123_4", ("123_4",)),
        ("123_[0-2,7%4]", ("123_0", "123_1", "123_2", "123_7")),
        ("123_[0-10:5]", ("123_0", "123_5", "123_10")),
        ("123+1", ("123+1",)),
    ],
)
def test_ids_are_expanded(text: str, ids: tuple[str, ...]) -> None:
    assert expand_ids(text) == ids


@pytest.mark.parametrize(
    "text", ["", "x", "123.batch", "123_", "123_[1-5,...]", "123_[5-1]", "123_[0-9999999999]", "1 2", "-1"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    assert not is_job_id(text)
    with pytest.raises(ValueError, match="not a job id"):
        expand_ids(text)


@pytest.mark.parametrize(
    "template", ["{name}", "proj123-{name}", "{name}.batch", "lab_a-{name}-x", "a" * 20 + "{name}"]
)
def test_a_sites_template_frames_a_name_that_still_fits(template: str) -> None:
    check_template(template)
    name = job_name(
        "d1234567", "a label that is far too long for any of this" * 2, "f" * 64, 999_999, template=template
    )
    before, after = template.split("{name}")
    assert name.startswith(f"{before}ol-d1234567-") and name.endswith(f"-{'f' * 16}-999999{after}")
    assert len(name) <= 64 and check_name(name)
    assert is_pack(job_name("d1", PACK, "0" * 64, 3, template=template))
    assert not is_pack(job_name("d1", ARRAY, "0" * 64, 3, template=template))


@pytest.mark.parametrize(
    "template",
    ["", "proj", "{name}{name}", "-{name}", "a b {name}", "{Name}", "a" * 21 + "{name}", "é{name}", "{name}|"],
)
def test_a_template_that_makes_bad_names_is_refused(template: str) -> None:
    with pytest.raises(ValueError):
        check_template(template)
