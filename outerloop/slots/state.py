"""The state folder: one class owns every path below it.

Covered: where slots, runs, mirrors, champions, inbox and trash lie. Not covered: what is in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ARRAY_LOG", "ARRAY_MAP", "StateRoot"]

ARRAY_MAP = "map.json"
ARRAY_LOG = "slurm.log"
"""Of a whole array; the log of its task K has ".K" at its end."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def _checked(name: str) -> str:
    if not StateRoot.takes(name):
        raise ValueError(f"{name!r} cannot be a file name here (letters, digits, '.', '_', '-')")
    return name


@dataclass(frozen=True)
class StateRoot:
    """Paths of one deployment's state folder. It must lie on a file system that the compute nodes see."""

    path: Path

    @staticmethod
    def takes(name: str) -> bool:
        """Whether a name can be a run's, a slot's or a target's here. Names that can't raise ValueError below."""
        return _NAME.fullmatch(name) is not None and name not in {".", ".."}

    @property
    def slots(self) -> Path:
        return self.path / "slots"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def mirrors(self) -> Path:
        return self.path / "mirrors"

    @property
    def champions(self) -> Path:
        return self.path / "champions"

    @property
    def inbox(self) -> Path:
        return self.path / "inbox"

    @property
    def trash(self) -> Path:
        return self.path / "trash"

    @property
    def database(self) -> Path:
        return self.path / "db"

    @property
    def local_spool(self) -> Path:
        return self.path / "local"

    def slot(self, digest: str) -> Path:
        return self.slots / _checked(digest)[:2] / digest

    def mirror(self, target: str) -> Path:
        return self.mirrors / f"{_checked(target)}.git"

    def array(self, name: str) -> Path:
        """The task map, the script and the logs of one job array."""
        return self.path / "arrays" / _checked(name)

    @property
    def arrays(self) -> Path:
        return self.path / "arrays"

    def run(self, run_id: str) -> Path:
        return self.runs / _checked(run_id)

    def request(self, run_id: str) -> Path:
        return self.run(run_id) / "request.json"

    def events(self, run_id: str) -> Path:
        return self.run(run_id) / "events"

    def event(self, run_id: str, seq: int) -> Path:
        return self.events(run_id) / f"{seq:06d}.json"

    def campaign(self, run_id: str) -> Path:
        """A campaign's own folder: its ledger, the configs of its trainings, and links to what they left."""
        return self.run(run_id) / "campaign"

    def campaign_events(self, run_id: str) -> Path:
        return self.campaign(run_id) / "events"

    def campaign_event(self, run_id: str, seq: int) -> Path:
        """Thousand events share a folder, so that listing one stays quick."""
        return self.campaign_events(run_id) / f"{seq // 1000:04d}" / f"{seq:07d}.json"

    def wake_script(self, run_id: str, number: int) -> Path:
        return self.run(run_id) / "wakes" / f"{number:04d}.sh"

    def doorbell(self, run_id: str) -> Path:
        """Touched by a wake that cannot reach the record."""
        return self.path / "doorbells" / _checked(run_id)

    def idle(self, run_id: str) -> Path:
        """What a campaign without work waits for."""
        return self.path / "idle" / _checked(run_id)

    def champion_folder(self, key: str) -> Path:
        return self.champions / _checked(key)

    def champion(self, key: str, seq: int) -> Path:
        return self.champion_folder(key) / f"{seq:06d}.json"

    def ladder_folder(self, key: str) -> Path:
        """The rungs of one ladder."""
        return self.path / "ladders" / _checked(key)

    def noise_folder(self, key: str) -> Path:
        """The noise studies of one benchmark."""
        return self.path / "noise" / _checked(key)

    def study(self, nonce: str) -> Path:
        """A noise study that a service's submitter asked for and that is not there yet."""
        return self.path / "studies" / f"{_checked(nonce)}.json"

    def inbox_request(self, run_id: str) -> Path:
        return self.inbox / f"{_checked(run_id)}.json"
