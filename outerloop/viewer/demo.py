"""`outerloop view --demo`: where the recording lies, and the source of its pages.

Covered: the recording that ships in the wheel, made by docs/tutorial/record_demo.py. Not covered: unpacking it
(controller.recording), pages.
"""

from __future__ import annotations

from pathlib import Path

from outerloop.controller.deployment import account
from outerloop.controller.recording import Recorded
from outerloop.viewer.source import Source

__all__ = ["RECORDING", "demo_source"]

RECORDING = Path(__file__).parent / "recorded" / "demo.tar.xz"


def demo_source(recorded: Recorded) -> Source:
    """The pages' source of an opened recording."""
    deployment = recorded.deployment
    return Source(
        url=lambda: recorded.url,
        owner=account(),
        root=deployment.root,
        cadence_seconds=deployment.settings.wake.cadence_seconds,
        note=f"recorded runs; the clock of these pages stands at {recorded.now:%Y-%m-%d %H:%M} UTC, as they ended",
    )
