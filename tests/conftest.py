"""What every test starts from."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def the_real_backend() -> Iterator[None]:
    """The controller's rig puts a cluster of files in the backend's place; the test after it meets the real one, and
    no connection that the rig kept."""
    yield
    rig = sys.modules.get("tests.controller_rig.world")
    if rig is not None:
        rig.deployment_module.open_compute = rig.REAL_OPEN_COMPUTE
        rig.engines.forget()
