"""Folders of fragments for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outerloop.compose import toml_text

SERVING = {"flavor": "h200x8", "vllm_gpus": "6, 7", "tensor_parallel": 2, "trainer_gpus": "0,1,2,3"}
CONTEXT = {"max_model_len": 4096, "bridge_max_context": 2048, "bridge_max_logprob_context": 1024}


class Configs:
    """A folder that is written fragment by fragment."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, kind: str, fragment_id: str, tables: dict[str, Any]) -> None:
        folder = self.root / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{fragment_id}.toml").write_text(toml_text(tables), encoding="utf-8")

    def model(self, fragment_id: str = "m", **meta: Any) -> None:
        self.write("models", fragment_id, {"meta": meta, "model": {"id": f"org/{fragment_id}", "revision": "a" * 40}})

    def suite(self, fragment_id: str = "s", tasks: str = "t1\nt2\n", *, name: str = "", **meta: Any) -> None:
        suite = {
            "name": name or f"suite {fragment_id}",
            "repo_id": f"org/{fragment_id}",
            "revision": "b" * 40,
            "path": "data.jsonl",
            "task_list": f"{fragment_id}.txt",
        }
        self.write("suites", fragment_id, {"meta": meta, "suite": suite})
        self.listed(f"{fragment_id}.txt", tasks)

    def listed(self, name: str, text: str) -> None:
        folder = self.root / "task-lists"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8", newline="")

    def domains(self, name: str, found: Any) -> None:
        self.listed(name, json.dumps(found))

    def method(self, fragment_id: str = "x", tables: dict[str, Any] | None = None, **meta: Any) -> None:
        given = {"sft": {"max_steps": 5, "learning_rate": 0.5}} if tables is None else tables
        self.write("methods", fragment_id, {"meta": meta, **given})
