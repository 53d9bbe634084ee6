"""How a command is wrapped so that it sees its tree, its scratch and its declared inputs only.

Covered: the argument lists of bwrap and apptainer, and telling a refused sandbox from a failed command.
Not covered: running them (process.py). `none` runs the command as it is. Nothing here ever falls back to `none`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INSIDE = "/outerloop"
"""Where a sandboxed command finds its things. A fixed place: a random one could leak into results."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")

ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "gai.conf", "group", "host.conf", "hosts",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "mime.types", "nsswitch.conf", "OpenCL",
    "passwd", "pki", "protocols", "resolv.conf", "services", "ssl", "timezone", "vulkan",
)  # fmt: skip
"""Named one by one: /etc also holds munge's key and slurmdbd's password."""

SYSFS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""How libraries count processors. With GPUs all of /sys is needed (topology of NCCL)."""

CARRIERS = {"none": 0, "bwrap": 2, "apptainer": 0}
"""Processes above the command: bwrap's monitor and its init. Apptainer's starter passes signals on itself."""


class SandboxError(Exception):
    """There is no such sandbox on this node, or the kernel refuses it."""


@dataclass(frozen=True)
class Room:
    """What a sandboxed command sees. Binds are (outside, inside); later ones lie over earlier ones."""

    readable: Sequence[tuple[str, str]] = ()
    writable: Sequence[tuple[str, str]] = ()
    over: Sequence[tuple[str, str]] = ()
    """Read-only binds laid over the others: declared inputs."""
    hidden: Sequence[str] = ()
    """Folders of the record, masked wherever a bind would show them."""
    home: str = ""
    """The folder outside that is the home inside; it is among the writable binds too."""
    cwd: str = INSIDE
    network: bool = False
    gpus: int = 0
    path: str = ""
    """The search path: prefixes of programs on it are shown too."""
    library_path: str = ""
    devices: Sequence[str] = field(default=())


def within(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def shown_prefixes(path: str, library_path: str, hidden: Sequence[str]) -> list[str]:
    """Folders outside the system's that the search paths need: whole prefixes of interpreters, else the folder alone.

    A prefix is shown whole when it is a virtual, conda or Python prefix, and never when it holds anything hidden.
    """
    shown: list[str] = []

    def show(folder: str) -> None:
        folder = os.path.realpath(folder)
        known = any(within(folder, other) for other in (*SYSTEM, *shown))
        unsafe = folder == "/" or any(within(secret, folder) or within(folder, secret) for secret in hidden)
        if not known and not unsafe and os.path.isdir(folder):
            shown.append(folder)

    for entry in path.split(os.pathsep):
        if not os.path.isabs(entry) or not os.path.isdir(entry):
            continue
        prefix = os.path.dirname(entry.rstrip("/"))
        show(prefix if _is_prefix(prefix) else entry)
        if entry != os.path.realpath(entry):
            show(os.path.realpath(entry))
        base = _base_of(prefix)
        if base:
            show(base)
    for entry in library_path.split(os.pathsep):
        if os.path.isabs(entry):
            show(entry)
    return shown


def _is_prefix(folder: str) -> bool:
    if any(os.path.exists(os.path.join(folder, name)) for name in ("pyvenv.cfg", "conda-meta")):
        return True
    try:
        return any(name.startswith("python3") for name in os.listdir(os.path.join(folder, "lib")))
    except OSError:
        return False


def _base_of(prefix: str) -> str:
    """Prefix of the interpreter that a virtual environment was made from, or an empty text."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            lines = [line.partition("=") for line in file]
    except (OSError, UnicodeDecodeError):
        return ""
    homes = [value.strip() for key, _, value in lines if key.strip() == "home"]
    return os.path.dirname(os.path.realpath(homes[0])) if homes and os.path.isabs(homes[0]) else ""


def interpreter_prefixes(environment: str) -> list[str]:
    """What an environment slot needs besides itself: its base interpreter's prefix, unless the system has it."""
    base = _base_of(environment)
    return [base] if base and not any(within(base, other) for other in (*SYSTEM, environment)) else []


def gpu_devices() -> list[str]:
    """Device files of the GPUs of this node."""
    names = sorted(os.listdir("/dev"))
    return [f"/dev/{name}" for name in names if name.startswith("nvidia") or name in ("dri", "kfd", "infiniband")]


def bwrap_argv(bwrap: str, room: Room, command: Sequence[str], status_fd: int) -> list[str]:
    """The command inside bubblewrap; the state of the set-up is reported on `status_fd`."""
    argv = [bwrap, "--die-with-parent", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--hostname", "outerloop", "--cap-drop", "ALL"]
    argv += [] if room.network else ["--unshare-net"]
    argv += ["--json-status-fd", str(status_fd)]
    shown: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
            shown.append(path)
    for name in ETC:
        real = os.path.realpath(f"/etc/{name}")
        if os.path.exists(real):
            argv += ["--ro-bind", real, f"/etc/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/sys",) if room.gpus else SYSFS:
        if os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    for path in room.devices:
        argv += ["--dev-bind", path, path]
    for path in shown_prefixes(room.path, room.library_path, room.hidden):
        argv += ["--ro-bind", path, path]
        shown.append(path)
    for secret in room.hidden:
        if any(within(secret, folder) for folder in shown):
            argv += ["--tmpfs", secret]
    for flag, binds in (("--ro-bind", room.readable), ("--bind", room.writable), ("--ro-bind", room.over)):
        for outside, inside in binds:
            argv += [flag, outside, inside]
    argv += ["--remount-ro", "/", "--chdir", room.cwd, "--"]
    return [*argv, *command]


def bwrap_started(status: bytes) -> bool:
    """Whether bwrap had finished its set-up and executed the command, from what it wrote to the status descriptor.

    It reports the exit code only of a command that was executed (bwrap(1), --json-status-fd).
    """
    for line in status.splitlines():
        try:
            if "exit-code" in json.loads(line):
                return True
        except (ValueError, TypeError, RecursionError):
            continue
    return False


STARTED_MARK = "started"


def apptainer_argv(apptainer: str, room: Room, image: str, command: Sequence[str], mark: str) -> list[str]:
    """The command inside an image. `mark` is a folder that the first shell inside leaves a file in."""
    argv = [apptainer, "--silent", "exec", "--containall", "--cleanenv", "--no-privs", "--writable-tmpfs"]
    argv += [] if room.network else ["--net", "--network", "none"]
    argv += ["--home", f"{room.home}:{INSIDE}/home"]
    argv += ["--nv"] if room.gpus and any(path.startswith("/dev/nvidia") for path in room.devices) else []
    argv += ["--rocm"] if room.gpus and "/dev/kfd" in room.devices else []
    binds = [(*bind, "ro") for bind in room.readable]
    binds += [(*bind, "rw") for bind in (*room.writable, (mark, f"{INSIDE}/mark")) if bind[0] != room.home]
    binds += [(*bind, "ro") for bind in room.over]
    for outside, inside, mode in binds:
        if any(character in outside + inside for character in ":,"):
            raise SandboxError(f"apptainer cannot bind a path with a colon or a comma: {outside}")
        argv += ["--bind", f"{outside}:{inside}:{mode}"]
    shell = f': > {INSIDE}/mark/{STARTED_MARK} && exec "$@"'
    return [*argv, "--pwd", room.cwd, image, "/bin/sh", "-c", shell, "sh", *command]


def apptainer_environment(env: Mapping[str, str], node_env: Mapping[str, str]) -> dict[str, str]:
    """Variables for apptainer itself, which hands on those with its prefix. The image's own PATH stays."""
    kept = {name: node_env[name] for name in ("PATH", "LD_LIBRARY_PATH", "USER") if name in node_env}
    own = ("HOME", "LD_LIBRARY_PATH", "PATH", "PWD")
    given = {f"APPTAINERENV_{name}": value for name, value in env.items() if name not in own}
    slot = env.get("VIRTUAL_ENV", "")
    if slot:
        given["APPTAINERENV_PREPEND_PATH"] = f"{slot}/bin"
    return {**kept, "HOME": "/nonexistent", **given}
