"""The variables of a measured command: an allow-list of the node's, the declared ones, and the wrapper's own.

Covered: what passes, what is set, what never passes. Not covered: files that a command may read. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.job.scratch import CACHES

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PASSED = frozenset(
    {"CPATH", "INFOPATH", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LIBRARY_PATH", "LOGNAME", "MANPATH", "PATH",
     "PKG_CONFIG_PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TZ", "TZDIR", "USER",
     "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
     "HIP_VISIBLE_DEVICES", "ROCM_PATH", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
     "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"}
)  # fmt: skip
"""What a lane's prologue (module loads) and the scheduler's device selection set. All of it is either a determinant
(the prologue's hash) or names the hardware that the job was given."""

PASSED_PREFIXES = ("FI_", "GLOO_", "GOMP_", "KMP_", "LC_", "NCCL_", "NVIDIA_", "OMP_", "RCCL_", "UCX_")

PROXIES = frozenset({"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
"""Passed only to work that may use the network."""

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"://[^/\s@]*@|\b(?:postgres|postgresql|mysql|mariadb|mongodb|redis)(?:\+\w+)?://")

GPU_SELECTORS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@dataclass(frozen=True)
class View:
    """Where the command finds its things: real paths, or those inside the sandbox. Empty: it gets none."""

    tree: str
    home: str
    tmp: str
    scratch: str
    checkpoints: str = ""
    output: str = ""
    environment: str = ""
    build: bool = False
    """The command builds `environment` instead of using it."""


def passed(env: Mapping[str, str], network: bool) -> dict[str, str]:
    """The part of the node's environment that a measured command may see."""
    kept = {}
    for name, value in env.items():
        allowed = name in PASSED or name.startswith(PASSED_PREFIXES) or (network and name in PROXIES)
        if allowed and not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value):
            kept[name] = value
    return kept


def command_environment(
    env: Mapping[str, str], declared: Mapping[str, str], view: View, *, network: bool, gpus: int
) -> dict[str, str]:
    """All variables of a command. Declared ones win over the node's, the wrapper's over both."""
    values = {**passed(env, network), **declared}
    values["PATH"] = values.get("PATH") or DEFAULT_PATH
    values.setdefault("LANG", "C.UTF-8")
    if gpus == 0:
        # Work that declares no GPU gets none, also where the node has one that nothing keeps from it.
        values.update(dict.fromkeys(GPU_SELECTORS, ""))
    values.update({name: f"{view.scratch}/{place}" for name, place in CACHES.items()})
    values.update({"HOME": view.home, "TMPDIR": view.tmp, "PWD": view.tree})
    if view.checkpoints:
        values["OUTERLOOP_CKPT_DIR"] = view.checkpoints
    if view.output:
        values["OUTERLOOP_OUTPUT_DIR"] = view.output
    if view.environment and view.build:
        values["OUTERLOOP_ENV"] = view.environment
        # An interpreter that uv downloads belongs to the environment, not to a scratch folder that goes away.
        values["UV_PYTHON_INSTALL_DIR"] = f"{view.environment}/.python"
    elif view.environment:
        values["PATH"] = f"{view.environment}/bin:{values['PATH']}"
        values["VIRTUAL_ENV"] = view.environment
    return values
