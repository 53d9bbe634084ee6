"""vLLM's OpenAI-compatible server, run by the Python of vLLM's environment: vllm_server.py OPTIONS…

It is started as a file, so that its folder is on the path of vLLM's processes and nothing else of ours is. The console
script `vllm` is not used: it fails in the CPU build, whose distribution has another name.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # what is spawned imports outerloop_worker, and our sitecustomize, which ties it to its parent
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    sys.modules.pop("sitecustomize", None)  # the environment's own, if it has one, did its work at the start
    importlib.import_module("sitecustomize").watched_forks()
    os.environ["OUTERLOOP_TIED"] = "1"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
