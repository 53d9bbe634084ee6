"""The program on the node under a real Slurm: cancelled, suspended, requeued, on several nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from outerloop.job import launch, layout
from outerloop.job.script import job_script
from outerloop.strategies.torchrun import torchrun_argv
from tests.slurm.cluster import DevCluster
from tests.unit.job.rig import Rig, Slot

pytestmark = pytest.mark.slurm

SECONDS = 40.0


@pytest.fixture
def shared(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def submit(cluster: DevCluster, slot: Slot, *options: str, path: str = "/usr/bin:/bin") -> str:
    """Submit attempt 1 as the dispatcher would; returns the job id. `path` is what the prologue sets."""
    script = slot.attempt() / layout.SCRIPT
    tools = f"export PATH={cluster.bin}:{path} TMPDIR={slot.rig.scratch} SLURM_CONF={cluster.slurm_conf}"
    script.write_text(job_script(sys.executable, slot.path, 1, tools, ""))
    log = slot.attempt() / "r0" / layout.SLURM_LOG
    fixed = ["--parsable", "--open-mode=append", f"--output={log}", "--chdir=/"]
    return cluster.run("sbatch", *fixed, *(options or ("--no-requeue",)), str(script)).strip()


def ended(cluster: DevCluster, slot: Slot) -> dict[str, object]:
    """The result, once there is one."""
    path = slot.attempt() / layout.RESULT
    cluster.wait(path.exists, SECONDS, f"a result in {path}")
    return slot.result()


def test_a_job_claims_runs_and_reports_under_its_slurm_id(cluster: DevCluster, shared: Rig) -> None:
    slot = shared.slot('env | grep -c "^SLURM_"; echo m 3')
    job = submit(cluster, slot)
    result = ended(cluster, slot)
    assert (result["outcome"], result["job_id"]) == ("ok", job)
    assert slot.claim()["job_id"] == job
    assert str(slot.claim()["node"]).startswith("n")
    assert slot.stdout() == b"0\nm 3\n"


def test_a_cancelled_job_names_the_signal(cluster: DevCluster, shared: Rig) -> None:
    slot = shared.slot("echo ready; sleep 600")
    job = submit(cluster, slot)
    log = slot.attempt() / "r0" / layout.STDOUT
    cluster.wait(lambda: log.exists() and log.read_bytes() == b"ready\n", SECONDS, "the command runs")
    cluster.run("scancel", job)
    result = ended(cluster, slot)
    assert (result["reason"], result["signal"], result["phase"]) == ("CANCELLED", 15, "command")


def test_suspended_time_is_not_charged(cluster: DevCluster, shared: Rig) -> None:
    slot = shared.slot("echo ready; sleep 1; echo m 1", order={"minutes": 2.5 / 60})
    job = submit(cluster, slot)
    log = slot.attempt() / "r0" / layout.STDOUT
    cluster.wait(lambda: log.exists() and b"ready" in log.read_bytes(), SECONDS, "the command runs")
    cluster.run("scontrol", "suspend", job)
    probe = cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 3").strip()
    cluster.wait(
        lambda: "COMPLETED" in cluster.run("squeue", "-h", "-t", "all", "-j", probe, "-o", "%T"), SECONDS, "3 s went by"
    )
    assert not (slot.attempt() / layout.RESULT).exists()
    cluster.run("scontrol", "resume", job)
    result = ended(cluster, slot)
    assert result["outcome"] == "ok", result
    assert slot.result()["phases"]["command"]["seconds"] < 2.5


@pytest.mark.parametrize("resumable", [False, True])
def test_a_requeued_job_goes_on_only_if_it_can(cluster: DevCluster, shared: Rig, resumable: bool) -> None:
    command = 'echo x >> "$RUNS"; [ "$(wc -l < "$RUNS")" -ge 2 ] || sleep 600; echo m 2'
    slot = shared.slot(
        command, determinants={"env": {"RUNS": str(shared.root / "runs")}}, work={"resumable": resumable}
    )
    job = submit(cluster, slot, "--requeue")
    cluster.wait((shared.root / "runs").exists, SECONDS, "the command runs")
    cluster.run("scontrol", "requeue", job)
    # Slurm holds a requeued job back for minutes; that is cut short here, but not below cred_expire (three seconds on
    # this cluster): slurmd refuses the new start while it remembers the old one's credential as revoked.
    log = slot.attempt() / "r0" / layout.SLURM_LOG
    cluster.wait(lambda: "signal 15" in log.read_text(), SECONDS, "the first start ended")
    cluster.wait(
        lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T %r").split() == ["PENDING", "BeginTime"],
        SECONDS,
        "it is requeued",
    )
    cluster.run("scontrol", "update", f"job={job}", "StartTime=now+6")
    if resumable:
        cluster.wait(lambda: slot.claim()["restart"] == 1, SECONDS, "the restart took over")
        cluster.wait(
            lambda: (slot.attempt() / layout.RESULT).exists() and slot.result()["restart"] == 1, SECONDS, "its result"
        )
        assert slot.result()["metric"] == {"name": "m", "text": "2"}
        return
    cluster.wait(
        lambda: f"ExitCode={layout.EXIT_RESTARTED}:0" in cluster.run("scontrol", "show", "job", job),
        SECONDS,
        "the restart refused",
    )
    assert (shared.root / "runs").read_text() == "x\n"
    assert slot.result()["reason"] == "CANCELLED"


MEET = """
import json, os, socket, sys
host, port = sys.argv[1].rsplit(":", 1)
out = os.environ["OUTERLOOP_OUTPUT_DIR"]
server = socket.socket()
try:
    server.bind((host, int(port)))
    server.listen()
    first = True
except OSError:
    first = False
mine = {"first": first, "slurm": sorted(n for n in os.environ if n.startswith(("SLURM_", "PMI"))),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "home": os.environ["HOME"],
        "id": sys.argv[2], "readme": open("README").read()}
open(f"{out}/{'first' if first else 'second'}.json", "w").write(json.dumps(mine))
if first:
    peer, _ = server.accept()
    print(json.dumps({"m": int(peer.recv(10))}))
else:
    socket.create_connection((host, int(port)), 20).sendall(b"11")
"""


@pytest.mark.parametrize("isolation", ["none", "bwrap"])
def test_a_launch_on_two_nodes_meets_and_its_ranks_see_no_slurm(
    cluster: DevCluster, shared: Rig, isolation: str
) -> None:
    plan = {
        "argv": ["python3", "meet.py", launch.RDZV_ENDPOINT_TOKEN, launch.RDZV_ID_TOKEN],
        "env": {},
        "files": {},
    }
    slot = shared.slot(
        "",
        {"meet.py": MEET},
        determinants={"launch": plan, "nodes": 2, "cpus": 2, "gpus": 1},
        work={"network": True},
        order={"isolation": isolation, "gpu_form": ["--gpus-per-node=1"]},
    )
    submit(cluster, slot, "--no-requeue", "--nodes=2", "--cpus-per-task=2", "--gpus-per-node=1", "--partition=gpu")
    result = ended(cluster, slot)
    logs = [path.read_text() for path in (slot.attempt() / "r0").glob("*.log")]
    assert result["outcome"] == "ok", (result, logs)
    assert result["metric"] == {"name": "m", "text": "11"}
    out = slot.attempt() / "r0" / "out"
    ranks = [json.loads((out / f"{name}.json").read_text()) for name in ("first", "second")]
    assert [rank["first"] for rank in ranks] == [True, False]
    for rank in ranks:
        assert rank["slurm"] == []
        assert rank["gpus"] == "0"
        assert rank["id"] == f"{slot.digest[:16]}-1"
        assert rank["readme"] == "target\n"
    assert not (slot.attempt() / "r0" / "tree").exists(), "the shared tree is removed"
    cluster.wait(lambda: not list(shared.scratch.iterdir()), SECONDS, "each node's scratch is removed")


def test_one_failing_rank_ends_the_launch(cluster: DevCluster, shared: Rig) -> None:
    plan = {"argv": ["sh", "-c", 'mkdir "$OUTERLOOP_OUTPUT_DIR/x" && exit 9; sleep 600'], "env": {}, "files": {}}
    slot = shared.slot("", determinants={"launch": plan, "nodes": 2})
    submit(cluster, slot, "--no-requeue", "--nodes=2")
    result = ended(cluster, slot)
    assert (result["reason"], result["phase"]) == ("EXIT_9", "command")


SUM = """
import json, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(json.dumps({"m": total.item()}))
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_torchrun_meets_over_two_nodes(cluster: DevCluster, shared: Rig) -> None:
    """The launch line that the strategies compile, with the real torchrun: ranks 0 and 1 sum to 3."""
    pytest.importorskip("torch")
    plan = {"argv": list(torchrun_argv(["python3", "sum.py"], 2, 1)), "env": {"OMP_NUM_THREADS": "1"}, "files": {}}
    slot = shared.slot("", {"sum.py": SUM}, determinants={"launch": plan, "nodes": 2}, order={"minutes": 3})
    here = Path(sys.executable).parent
    submit(cluster, slot, "--no-requeue", "--nodes=2", path=f"{here}:/usr/bin:/bin")
    path = slot.attempt() / layout.RESULT
    cluster.wait(path.exists, 150, "a result")
    assert slot.result()["metric"] == {"name": "m", "text": "3.0"}, slot.result()
