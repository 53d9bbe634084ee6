"""A model behind an OpenAI-compatible server: started, watched, and ended together with this process.

Covered: vLLM (any environment that has it), its port, key, health and end. Nothing of it outlives this process, kill -9
included (kept.py). Not covered: several nodes, and what is asked of the server (engine.py, rollouts.py).

The server listens on loopback, which everybody on the machine shares. So every path but /health needs a random key
(beside/outerloop_gate.py), the key travels in the environment, which only the owner can read, and a server counts as
ours only when it knows the random name under which it was told to serve the model.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from outerloop.posttrain.client import Client, Unavailable
from outerloop.posttrain.kept import BESIDE, Kept, said

__all__ = ["HOST", "UNAVAILABLE", "Server", "ServerError", "ServerOptions", "stop_token_ids", "visible_gpus"]

HOST = "127.0.0.1"
UNAVAILABLE = 69
"""Exit code after a ServerError, EX_UNAVAILABLE of sysexits.h: nothing is wrong with the entry."""
PORTS_TRIED = 5
GRACE_SECONDS = 15.0
"""From SIGTERM to SIGKILL. vLLM on a CPU took 0.3 s."""
_HEALTH_SECONDS = 30.0
"""A server that generates answers this between two tokens."""
_LOOK_SECONDS = 0.1
_TAIL_BYTES = 65536
_PORT_TAKEN = ("address already in use", "eaddrinuse", "errno 98")
"""How uvicorn, torch's rendezvous and the kernel say it; the log is searched in lower case."""
_SOCKET_PATH_LIMIT = 60
"""A Unix socket's path has 107 bytes at most; vLLM adds a UUID to the folder's name."""


class ServerError(Exception):
    """The server did not start or is gone: infrastructure. The text names its log."""


@dataclass(frozen=True)
class ServerOptions:
    """How a model is served. `command` is run by the Python of the server's environment."""

    python: Path
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    tensor_parallel: int = 1
    gpus: str = ""
    """Indices among the visible ones, "0,1"; empty: all of them."""
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    cpu_kv_cache_gb: int = 4
    cpu_kv_cache_blocks: int | None = None
    tool_call_parser: str = ""
    start_timeout_sec: float = 900.0
    request_timeout_sec: float = 600.0
    updatable: bool = False
    """Whether weights can be replaced while it runs (weights.py)."""
    script: Path = BESIDE / "vllm_server.py"
    environment: Mapping[str, str] = field(default_factory=dict)


def visible_gpus(indices: str, environment: Mapping[str, str]) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES for some of the GPUs that are visible now; None leaves it alone.

    Raises ServerError for an index that is not there.
    """
    if not indices:
        return None
    wanted = [int(part) for part in indices.split(",")]
    already = environment.get("CUDA_VISIBLE_DEVICES", "")
    if not already:
        return ",".join(map(str, wanted))
    present = already.split(",")
    beyond = [index for index in wanted if index >= len(present)]
    if beyond:
        raise ServerError(
            f"the layout asks for GPU {', '.join(map(str, beyond))}, but CUDA_VISIBLE_DEVICES has {len(present)}"
        )
    return ",".join(present[index] for index in wanted)


def stop_token_ids(model: Path) -> list[int]:
    """The tokens that end an answer, from the model's own files: what transformers' generation stops at."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        try:
            value = json.loads((model / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found |= {value} if isinstance(value, int) else set(value) if isinstance(value, list) else set()
        if found:
            break
    return sorted(found)


class Server:
    """One model served on this machine. Use it as a context, or call `start` and `stop`."""

    def __init__(self, model: Path, options: ServerOptions, *, log: Path) -> None:
        self.model, self.options, self.log = model, options, log
        self._kept: Kept | None = None
        self._client: Client | None = None
        self.name = ""
        """What it calls the model: random, so that nothing else on the machine answers in its place."""

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.stop()
        return False

    @property
    def client(self) -> Client:
        """Raises ServerError before `start` and after `stop`."""
        if self._client is None:
            raise ServerError("the server is not running")
        return self._client

    @property
    def pid(self) -> int | None:
        """Process id of the keeper, which is also the id of the server's session."""
        return None if self._kept is None else self._kept.pid

    def alive(self) -> bool:
        return self._kept is not None and self._kept.ended() is None

    def start(self) -> None:
        """Start it and wait until it answers. Raises ServerError."""
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for tried in range(1, PORTS_TRIED + 1):
            begun = self._log_size()
            port = self._launch()
            try:
                self._wait_until_ready(port, begun)
                return
            except _PortTakenError:
                self.stop()
                if tried == PORTS_TRIED:
                    raise ServerError(f"no port could be had in {PORTS_TRIED} tries; its log: {self.log}") from None
            except BaseException:
                self.stop()
                raise

    def ensure(self) -> None:
        """Start it again unless it is well. Raises ServerError."""
        if not self.healthy():
            self.stop()
            self.start()

    def healthy(self) -> bool:
        """Whether it answers. A process that is there says little: one that crashed is collected a moment later."""
        if not self.alive():
            return False
        try:
            self.client.get("/health", timeout_sec=_HEALTH_SECONDS)
        except Unavailable:
            return False
        return True

    def check(self) -> None:
        """Raises ServerError when it is gone."""
        if not self.alive():
            code = None if self._kept is None else self._kept.ended()
            raise ServerError(f"the server ended{said(code)}; its log: {self.log}")

    def stop(self) -> None:
        """End it: the group gets SIGTERM, then SIGKILL. Returns when nothing of it is left."""
        kept, self._kept, self._client = self._kept, None, None
        if kept is not None:
            kept.stop()

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _launch(self) -> int:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        self.name = f"model-{secrets.token_hex(8)}"
        key = secrets.token_urlsafe(32)
        scratch = tempfile.mkdtemp(prefix="ol-serve-", dir=_short_folder())
        self._kept = Kept(
            self._command(port), self._environment(key, scratch), log=self.log, scratch=scratch, grace=GRACE_SECONDS
        )
        self._client = Client(HOST, port, key, timeout_sec=self.options.request_timeout_sec)
        return port

    def _command(self, port: int) -> list[str]:
        options = self.options
        words = [str(options.python), str(options.script), "--model", str(self.model), "--served-model-name", self.name]
        words += ["--host", HOST, "--port", str(port), "--dtype", options.dtype]
        words += ["--max-num-seqs", str(options.max_num_seqs), "--tensor-parallel-size", str(options.tensor_parallel)]
        # sampling is what the request says: not what a model's author thinks is pleasant
        words += ["--generation-config", "vllm", "--middleware", "outerloop_gate.Gate"]
        words += ["--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
        if options.max_model_len is not None:
            words += ["--max-model-len", str(options.max_model_len)]
        if options.enforce_eager:
            words += ["--enforce-eager"]
        if options.cpu_kv_cache_blocks is not None:
            words += ["--num-gpu-blocks-override", str(options.cpu_kv_cache_blocks)]
        words += ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
        if options.tool_call_parser:
            words += ["--enable-auto-tool-choice", "--tool-call-parser", options.tool_call_parser]
        if options.updatable:
            words += ["--worker-extension-cls", "outerloop_worker.Weights", "--logprobs-mode", "processed_logprobs"]
        return words

    def _environment(self, key: str, scratch: str) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "PYTHONPATH")}
        gpus = visible_gpus(self.options.gpus, given)
        return {
            **given,
            **({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": HOST,
            "VLLM_API_KEY": key,
            "VLLM_RPC_BASE_PATH": scratch,
            "VLLM_CACHE_ROOT": given.get("VLLM_CACHE_ROOT", f"{scratch}/cache"),
            "VLLM_CPU_KVCACHE_SPACE": str(self.options.cpu_kv_cache_gb),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            **({"VLLM_SERVER_DEV_MODE": "1"} if self.options.updatable else {}),
            **self.options.environment,
        }

    def _wait_until_ready(self, port: int, begun: int) -> None:
        client = self.client
        deadline = time.monotonic() + self.options.start_timeout_sec
        while time.monotonic() < deadline:
            code = None if self._kept is None else self._kept.ended()
            if code is not None:
                if any(word in self._tail(begun) for word in _PORT_TAKEN):
                    raise _PortTakenError
                raise ServerError(f"the server ended{said(code)} before it was ready; its log: {self.log}")
            try:
                client.get("/health", timeout_sec=5)
                served = client.get("/v1/models", timeout_sec=5)
                if any(entry.get("id") == self.name for entry in served["data"]):
                    return
            except (Unavailable, AttributeError, KeyError, TypeError):
                pass  # not yet, or another one's server, which took the port: ours will say so and end
            time.sleep(_LOOK_SECONDS)
        raise ServerError(f"the server was not ready within {self.options.start_timeout_sec:g} s; its log: {self.log}")

    def _tail(self, begun: int) -> str:
        stream: IO[bytes]
        with self.log.open("rb") as stream:
            stream.seek(max(begun, self._log_size() - _TAIL_BYTES))
            return stream.read().decode(errors="replace").lower()


class _PortTakenError(Exception):
    pass


def _short_folder() -> str | None:
    given = tempfile.gettempdir()
    return given if len(given) <= _SOCKET_PATH_LIMIT else "/tmp"
