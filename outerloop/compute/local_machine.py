"""What a machine says of its GPUs and processes: nvidia-smi, /proc and the control groups (v1 and v2).

Covered: reading them, and parsing what they print; texts come in, so that a site's output can be a test's fixture.
Not covered: what follows from it (local_admission.py). Linux only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from outerloop.compute.local_admission import Gpu
from outerloop.compute.tools import clean_environment, run_tool

__all__ = ["descendants", "parse_gpus", "pids_of_cgroup", "read_gpus"]

# nvidia-smi takes seconds on a machine without the persistence daemon, and hangs when a driver is stuck.
NVIDIA_SMI_SECONDS = 20.0
_GPUS = ("--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")

# proc(5), mountinfo: root and mount point are the fourth and fifth field; after a lone dash come type and options.
_ROOT, _POINT = 3, 4


def read_gpus(ours: Iterable[int], program: str = "nvidia-smi") -> tuple[dict[int, Gpu] | None, str]:
    """(index -> figures, why there are none). (None, "") without nvidia-smi: nobody can tell. `ours` are the
    processes of local jobs; what others hold is foreign."""
    place = shutil.which(program)
    if place is None:
        return None, ""
    said = []
    for arguments in (_GPUS, _PROCESSES):
        result = run_tool([place, *arguments], timeout=NVIDIA_SMI_SECONDS, env=clean_environment(os.environ))
        if not result.succeeded:
            # It complains on stdout.
            lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
            return None, f"nvidia-smi: {result.what_happened()}" + (f": {lines[0][:100]}" if lines else "")
        said.append(result.stdout)
    return parse_gpus(said[0], said[1], set(ours)), ""


def parse_gpus(gpus: str, processes: str, ours: set[int]) -> dict[int, Gpu]:
    """The figures of each GPU that has any. Fields in brackets ([N/A], [Not Supported]) are none: a GPU without a
    total or a free figure is left out, a process without one counts nothing."""
    foreign: dict[str, float] = {}
    for uuid, pid, used in _rows(processes, 3):
        if pid.isdigit() and int(pid) not in ours and (amount := _mebibytes(used)) is not None:
            foreign[uuid] = foreign.get(uuid, 0.0) + amount
    found = {}
    for index, uuid, total_text, free_text in _rows(gpus, 4):
        total, free = _mebibytes(total_text), _mebibytes(free_text)
        if index.isdigit() and total is not None and free is not None:
            found[int(index)] = Gpu(total, free, foreign.get(uuid, 0.0))
    return found


def _rows(text: str, fields: int) -> list[list[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == fields]


def _mebibytes(text: str) -> float | None:
    word = text.removesuffix("MiB").strip()
    return float(word) if word.isdigit() else None


def descendants(roots: Iterable[int], proc: Path = Path("/proc")) -> dict[int, set[int]]:
    """Each root with every process below it that still runs."""
    children: dict[int, list[int]] = {}
    there = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            there.add(int(entry.name))
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, set[int]] = {}
    for root in roots:
        seen, fresh = set(), [root]
        while fresh:
            seen.update(fresh)
            fresh = [child for pid in fresh for child in children.get(pid, []) if child not in seen]
        found[root] = seen & there
    return found


def pids_of_cgroup(proc: Path = Path("/proc/self"), top: Path = Path("/")) -> tuple[int, int] | None:
    """(processes and threads, their limit) of the control group that is nearest to its limit, of this process's own
    and all above it; None when none has a limit.

    The pids controller counts threads too (cgroup-v2.rst, "PID"; v1 pids.rst). `top` stands for / in a test.
    """
    try:
        groups, mounts = (proc / "cgroup").read_text(), (proc / "mountinfo").read_text()
    except OSError:
        return None
    tightest: tuple[int, int] | None = None
    for folder, point in _cgroup_folders(_memberships(groups), mounts, top):
        for place in [folder, *folder.parents]:
            found = _limit(place)
            if found is not None and (tightest is None or found[1] - found[0] < tightest[1] - tightest[0]):
                tightest = found
            if place == point:
                break
    return tightest


def _memberships(text: str) -> dict[str, str]:
    """Controller -> path in its hierarchy; "" is the controller of v2's only hierarchy."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _cgroup_folders(member: Mapping[str, str], mounts: str, top: Path) -> list[tuple[Path, Path]]:
    """(folder of this process's group, mount point) in the hierarchies that may limit pids."""
    found = []
    for line in mounts.splitlines():
        fields, _, after = line.partition(" - ")
        words, kind = fields.split(), after.split()
        if len(words) <= _POINT or len(kind) < 3:
            continue
        controller = {"cgroup2": "", "cgroup": "pids"}.get(kind[0])
        if controller is None or controller not in member or (controller and "pids" not in kind[2].split(",")):
            continue
        point = top / words[_POINT].lstrip("/")
        root, path = words[_ROOT].rstrip("/"), member[controller]
        # In a container without a namespace of its own, the path is the host's, and the mount shows our part of it.
        below = path[len(root) :] if path == root or path.startswith(root + "/") else ""
        folder = point / below.strip("/")
        found.append((folder if folder.is_dir() and ".." not in folder.parts else point, point))
    return found


def _limit(folder: Path) -> tuple[int, int] | None:
    try:
        current, most = (folder / "pids.current").read_text().strip(), (folder / "pids.max").read_text().strip()
    except OSError:
        return None
    return (int(current), int(most)) if current.isdigit() and most.isdigit() else None
