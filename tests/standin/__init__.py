"""Placing the stand-in for pyslurm where a child process finds it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

__all__ = ["place"]


def place(folder: Path, **said: Any) -> Path:
    """A copy of the stand-in in `folder`, which does what `said` says (see its own docstring); `folder` itself."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(Path(__file__).parent / "pyslurm", folder / "pyslurm", dirs_exist_ok=True)
    (folder / "standin.json").write_text(json.dumps(said, default=str))
    return folder
