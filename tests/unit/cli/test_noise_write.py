"""Attacks: `noise --write` must not cost a person's contract when the disk is full."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from outerloop.cli.noise import _replace


def test_a_contract_is_written_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contract = tmp_path / ".outerloop.toml"
    contract.write_text("old")
    contract.chmod(0o640)

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            _replace(contract, b"new")
    assert contract.read_text() == "old" and list(tmp_path.iterdir()) == [contract]
    _replace(contract, b"new")
    assert contract.read_text() == "new" and stat.S_IMODE(contract.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [contract]
