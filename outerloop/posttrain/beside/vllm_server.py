"""vLLM's OpenAI-compatible server, run by the Python of vLLM's environment: vllm_server.py OPTIONS…

It is started as a file, so that its folder is on the path of vLLM's workers and nothing else of ours is. The console
script `vllm` is not used: it fails in the CPU build, whose distribution has another name.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

if __name__ == "__main__":
    # workers are spawned, and import outerloop_worker
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
