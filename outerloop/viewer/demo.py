"""`outerloop view --demo`: where the recording lies, and the source of its pages.

Covered: the recording that ships in the wheel, made by docs/tutorial/record_demo.py. Not covered: unpacking it
(controller.recording), pages.
"""

from __future__ import annotations

from pathlib import Path

from outerloop.controller.deployment import Deployment, account, database_url
from outerloop.viewer.source import Source

__all__ = ["RECORDING", "demo_source"]

RECORDING = Path(__file__).parent / "recorded" / "demo.tar.xz"


def demo_source(deployment: Deployment) -> Source:
    """The pages' source of a deployment that was opened for reading."""
    return Source(
        url=lambda: database_url(deployment.settings, deployment.root, start=False),
        owner=account(),
        root=deployment.root,
        cadence_seconds=deployment.settings.wake.cadence_seconds,
        note="recorded runs, shown as they ended",
    )
