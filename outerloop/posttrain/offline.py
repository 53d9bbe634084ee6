"""What must stand in the environment before torch's companions are imported: no network, no telemetry, no token."""

from __future__ import annotations

import os

__all__ = ["offline"]


def offline() -> None:
    """Turn the hub, its token, telemetry and forking tokenizers off for this process and its children."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        os.environ.pop(name, None)
