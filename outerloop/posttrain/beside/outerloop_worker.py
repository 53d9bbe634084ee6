"""What a vLLM worker can be asked to do: take new weights from a folder, and say which it has.

Named to vLLM as `--worker-extension-cls outerloop_worker.Weights`; its methods become the worker's, and the server's
/collective_rpc calls them on every worker. Standard library only; it is imported by vLLM's environment.
"""

from __future__ import annotations

from typing import Any


class Weights:
    """Mixed into vLLM's worker."""

    reload_weights: Any

    def outerloop_load(self, folder: str, version: str) -> str:
        """Load the safetensors of `folder`; the version that is served from now on."""
        self._outerloop_version = "?"  # a load that fails halfway leaves weights of no version
        self.reload_weights(weights_path=folder)
        self._outerloop_version = version
        return version

    def outerloop_version(self) -> str:
        """The version that was loaded last; empty before the first."""
        return getattr(self, "_outerloop_version", "")
