from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.compose.folders import Configs


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    return Configs(tmp_path / "configs")
