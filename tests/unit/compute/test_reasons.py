"""What sbatch may say when it fails, sentence by sentence: whether the job may exist, and when to try again.

The sentences are those of slurm_errno.c and of sbatch itself, most of which no recording of a running site has.
"""

from __future__ import annotations

import pytest

from outerloop.compute.protocol import Refused, When
from outerloop.compute.reasons import classify_refusal

FAILED = "sbatch: error: Batch job submission failed: "

NO_CONFIGURATION = """\
sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
sbatch: error: fetch_config: DNS SRV lookup failed
sbatch: error: _establish_config_source: failed to fetch config
sbatch: fatal: Could not establish a configuration source
"""
"""sbatch 22.05 without slurm.conf, SLURM_CONF or a DNS record: nothing was submitted, and waiting may help."""


def test_a_host_that_cannot_find_its_cluster_is_tried_again_and_blocks_no_run() -> None:
    refused = classify_refusal(1, NO_CONFIGURATION)
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.when) == ("NoConfiguration", When.LATER)


@pytest.mark.parametrize(
    "sentence",
    [
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Unable to contact slurm controller (send failure)",
        "Unable to contact slurm controller (receive failure)",
        "Unable to contact slurm controller (shutdown failure)",
        "Communication receive failure",
        "Communication send failure",
        "Communication shutdown failure",
        "Message receive failure",
        "Message send failure",
        "Protocol authentication error",
        "Insane message length",
        "Incompatible versions of client and server code",
        "Header lengths are longer than data received",
        "Unexpected message received",
        "Unspecified error",
        "Connection reset by peer",
        "Connection timed out",
        "Broken pipe",
    ],
)
def test_row_01_a_conversation_that_broke_may_have_left_a_job(sentence: str) -> None:
    assert classify_refusal(1, FAILED + sentence + "\n") is None
    # Whatever else is complained about beside it.
    assert classify_refusal(1, f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED}{sentence}\n") is None
    assert classify_refusal(255, f"{FAILED}{sentence}\n") is None


LATER, NEVER, CONFIG = When.LATER, When.NEVER, When.CONFIG
SENTENCES: list[tuple[str, str, When]] = [
    ("Unable to contact slurm controller (connect failure)", "ControllerDown", LATER),
    ("Communication connection failure", "ControllerDown", LATER),
    ("Slurm backup controller in standby mode", "ControllerDown", LATER),
    ("Resource temporarily unavailable", "ControllerBusy", LATER),
    ("Slurm temporarily unable to accept job, sleeping and retrying", "ControllerBusy", LATER),
    ("Too many requests", "ControllerBusy", LATER),
    ("Munge encode failed: Failed to connect to munged", "AuthenticationDown", LATER),
    ("slurmdbd connection is down", "AccountingDown", LATER),
    ("I/O error writing script/environment to file", "ControllerDisk", LATER),
    ("Job dependency problem", "Dependency", LATER),
    ("Invalid job id specified", "Dependency", LATER),
    ("Requested reservation not usable now", "ReservationNotYet", LATER),
    ("Requested reservation is invalid", "InvalidReservation", NEVER),
    ("Access denied to requested reservation", "InvalidReservation", NEVER),
    ("Requested partition configuration not available now", "PartitionConfig", LATER),
    ("Required partition not available (inactive or drain)", "PartitionDown", LATER),
    ("Required node not available (down, drained or reserved)", "NodeDown", LATER),
    ("Requested nodes are busy", "NodesBusy", LATER),
    ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "AccountingPolicy",
     LATER),
    ("Invalid job array specification", "ArraySize", LATER),
    ("Slurm job queue full", "QueueFull", LATER),
    ("Pathname of a file, directory or other parameter too long", "SCRIPT_TOO_LARGE", NEVER),
    ("Requested time limit is invalid (missing or exceeds some limit)", "TimeLimit", NEVER),
    ("Time limit specification required, but not provided", "TimeLimit", NEVER),
    ("Invalid account or account/partition combination specified", "InvalidAccount", NEVER),
    ("User's group not permitted to use this partition", "PartitionAccess", NEVER),
    ("Job's account not permitted to use this partition (x allows y not z)", "PartitionAccess", NEVER),
    ("Job's QOS not permitted to use this partition (x allows y not z)", "PartitionAccess", NEVER),
    ("Invalid partition name specified", "InvalidPartition", NEVER),
    ("No partition specified or system default partition", "InvalidPartition", NEVER),
    ("Invalid qos specification", "InvalidQOS", NEVER),
    ("Invalid feature specification", "BadConstraints", NEVER),
    ("Invalid node name specified", "InvalidNode", NEVER),
    ("Invalid wckey specification", "InvalidWCKey", NEVER),
    ("Invalid license specification", "InvalidLicense", NEVER),
    ("Memory required by task is not available", "BadConstraints", NEVER),
    ("Memory specification can not be satisfied", "BadConstraints", NEVER),
    ("CPU count per node can not be satisfied", "BadConstraints", NEVER),
    ("Node count specification invalid", "BadConstraints", NEVER),
    ("More processors requested than permitted", "BadConstraints", NEVER),
    ("Requested node configuration is not available", "BadConstraints", NEVER),
    ("Invalid generic resource (gres) specification", "GPU_FLAG", CONFIG),
    ("Invalid Trackable RESource (TRES) specification", "GPU_FLAG", CONFIG),
    ("Access/permission denied", "PermissionDenied", CONFIG),
    ("User id is invalid", "InvalidUser", CONFIG),
    ("Invalid user id", "InvalidUser", CONFIG),
    ("A sentence from tomorrow", "Unrecognised", CONFIG),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "reason", "when"), SENTENCES, ids=[row[0][:40] for row in SENTENCES])
def test_what_the_controller_says_names_a_reason_and_a_time(sentence: str, reason: str, when: When) -> None:
    for spelled in (sentence, sentence.lower(), sentence.upper()):
        refused = classify_refusal(1, FAILED + spelled + "\n")
        assert isinstance(refused, Refused)
        assert (refused.reason, refused.when) == (reason, when)


@pytest.mark.parametrize(
    ("token", "when"),
    [
        ("AssocMaxSubmitJobLimit", LATER),
        ("AssocGrpSubmitJobsLimit", LATER),
        ("QOSMaxSubmitJobPerUserLimit", LATER),
        ("QOSGrpSubmitJobsLimit", LATER),
        ("MaxSubmitJobsPerAccountLimit", LATER),
        ("QOSMaxWallDurationPerJobLimit", NEVER),
        ("AssocMaxWallDurationPerJobLimit", NEVER),
        ("QOSMaxNodePerJobLimit", NEVER),
        ("QOSMaxCpuMinutesPerJobLimit", NEVER),
        ("QOSMinCpuNotSatisfied", NEVER),
        ("PartitionTimeLimit", NEVER),
    ],
)
def test_row_08_row_09_a_limit_is_read_from_the_first_line_alone(token: str, when: When) -> None:
    """The closing sentence is the same for all of them; what a site prints below must not be taken for a limit."""
    closing = f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"
    note = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    refused = classify_refusal(1, f"{note}sbatch: error: {token}\n{closing}")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.when) == (token, when)
    other = classify_refusal(1, f"sbatch: error: Invalid qos specification\n{closing}sbatch: see {token}\n")
    assert isinstance(other, Refused) and other.reason == "InvalidQOS"


@pytest.mark.parametrize(
    ("rc", "stderr"),
    [
        (255, ""),
        (255, "sbatch: error: what it says in other words\n"),
        (1, "sbatch: unrecognized option '--gpus-per-nod=1'\n"),
        (1, "sbatch: option requires an argument -- 'p'\n"),
        (1, "sbatch: fatal: --nodes: it is no number\n"),
    ],
)
def test_an_option_that_sbatch_does_not_take_is_a_mistake_of_the_settings(rc: int, stderr: str) -> None:
    refused = classify_refusal(rc, stderr)
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.when) == ("OptionError", CONFIG)


@pytest.mark.parametrize("stderr", ["", "wrapper: quota exceeded\n", "sbatch: error: plugin foo failed\n"])
def test_a_failure_in_which_nobody_says_no_is_no_refusal(stderr: str) -> None:
    assert classify_refusal(1, stderr) is None
