"""A state folder that belongs to somebody else, or that is read-only: said in words, with exit code 8."""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.cli.errors import ExitCode
from tests.service.accounts import needs_root, nightly
from tests.service.world import ServiceWorld

pytestmark = needs_root


@nightly
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_state_folder_of_another_account(service: ServiceWorld, mode: int) -> None:
    world = service
    state = world.folder / "others"
    (state / "db").mkdir(parents=True)
    (state / "db/server.json").write_text("{}")
    (state / "db").chmod(0o700)
    world.svc.own(state)
    state.chmod(mode)
    config = world.eve.home / ".config/outerloop/config.toml"
    config.write_text(f'state = "{state}"\nbackend = "local"\n')
    world.eve.own(config.parent)
    clone = world.clone(world.eve, {"mine": {"src/cost": "1\n"}})
    for words in (("status",), ("submit", "climb", "speed", "--candidate", "mine"), ("tick",)):
        done = world.eve.outerloop(*words, cwd=clone, codes=None)
        told = " ".join(done.stderr.split())
        assert done.returncode == ExitCode.NO_ACCESS, (words, done.returncode, done.stdout, done.stderr)
        assert f"belongs to {world.svc.unix.replace('uid-', 'uid ')}" in told, told
        assert f"this is uid {world.eve.uid}" in told, told
        assert "Traceback" not in done.stderr


def test_a_read_only_state_folder(service: ServiceWorld) -> None:
    world = service
    state = world.eve.home / "state"
    state.mkdir()
    world.eve.own(state)
    state.chmod(0o555)
    config = world.eve.home / ".config/outerloop/config.toml"
    config.write_text(f'state = "{state}"\nbackend = "local"\n')
    world.eve.own(config.parent)
    clone: Path = world.clone(world.eve, {"mine": {"src/cost": "1\n"}})
    done = world.eve.outerloop("submit", "climb", "speed", "--candidate", "mine", cwd=clone, codes=None)
    assert done.returncode == ExitCode.NO_ACCESS
    assert "mode 0555" in done.stderr and "nothing can be submitted" in done.stderr
    assert not list(state.iterdir())
