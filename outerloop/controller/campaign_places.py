"""A campaign's folder and what its jobs left in their slots, found by the names that the ledger uses.

Covered: the paths below runs/<id>/campaign, links to results, and finding a file again by its recorded digest. Not
covered: what the files mean. Paths in this folder are what commands see and what people look at:

    events/<thousands>/<seq>.json   the ledger
    configs/<run id>.yaml           the config that a training has, written once
    runs/<run id>                   link to what the training left
    splits/g<generation>            link to the split
    packages/<run id>-<checkpoint>  link to what the package command left
    cache/g<generation>/            the score cache, the evaluator's own business
    (teacher_file)                  where campaign.toml says, relative to this folder
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outerloop.champion import EvalEvent, Job, Member
from outerloop.controller.campaign_ledger import Books
from outerloop.controller.campaign_request import Setting
from outerloop.controller.campaign_slots import report_path, scores_path, slot_of
from outerloop.controller.content import content_digest
from outerloop.effects import effect
from outerloop.slots import StateRoot
from outerloop.slots.files import make_folder, publish, sync_folder

__all__ = ["Lost", "Places", "epoch_digits", "margins_digest"]


class Lost(Exception):
    """A file that the ledger speaks of is gone or is another one now; the text says which."""


def epoch_digits(checkpoint: str) -> str:
    """The epoch at the end of a checkpoint's name, as it is written there."""
    return checkpoint.rpartition("-")[2]


def margins_digest(scores: Iterable[str]) -> str:
    """One digest for the margins of a group of members, from the digests of their files in the members' order."""
    return hashlib.sha256("\n".join(scores).encode()).hexdigest()


@dataclass(frozen=True)
class Places:
    """Where things of one campaign lie. `open`: its jobs run without a sandbox and may write into its folder."""

    root: StateRoot
    run_id: str
    settings: Sequence[Setting]

    @property
    def folder(self) -> Path:
        return self.root.campaign(self.run_id)

    @property
    def open(self) -> bool:
        return all(execution.isolation == "none" for execution in self.settings[-1].executions.values())

    def config(self, run_id: str) -> Path:
        return self.folder / "configs" / f"{run_id}.yaml"

    def run_folder(self, run_id: str) -> Path:
        return self.folder / "runs" / run_id

    def split_link(self, generation: int) -> Path:
        return self.folder / "splits" / f"g{generation:03d}"

    def package_link(self, subject: str) -> Path:
        return self.folder / "packages" / subject.replace("/", "-")

    def cache(self, generation: int) -> Path:
        """The score cache of a generation, made when it is first asked for."""
        folder = self.folder / "cache" / f"g{generation:03d}"
        make_folder(folder)
        return folder

    # -- finding what the ledger speaks of

    def split(self, generation: int) -> Path:
        """The split of a generation. Raises Lost."""
        return _there(self.split_link(generation), f"the split of generation {generation}")

    def checkpoint(self, run_id: str, name: str) -> Path:
        """A checkpoint's file or folder. Raises Lost."""
        return _there(self.run_folder(run_id) / name, f"checkpoint {name} of {run_id}")

    def band_scores(self, books: Books, run_id: str, checkpoint: str, digest: str) -> Path:
        """The validation scores with this digest: the run's own, or an evaluator's. Raises Lost."""
        own = self.run_folder(run_id) / f"validation-epoch-{epoch_digits(checkpoint)}.scores.jsonl"
        return _found([own, *self._scores(books, f"evaluate/validation/{run_id}", checkpoint)], digest, "band scores")

    def margins(self, books: Books, job: Job, member: Member) -> Path:
        """The development scores of a teacher's member, of the group and attempt that the job reads. Raises Lost."""
        prefix = f"margins/g{job.generation:03d}/a{job.key.rpartition('/a')[2]}/"
        for key, launches in books.launches.items():
            if not key.startswith(prefix):
                continue
            launch = launches[-1]
            for position, other in enumerate(launch.job.members):
                if (other.run_id, other.checkpoint) == (member.run_id, member.checkpoint):
                    group = key.removeprefix(prefix)
                    slot = slot_of(self.root, self.settings, launch)
                    paths = [scores_path(slot, n) for n in range(len(launch.job.members))]
                    if group_digest(paths) != job.reads.get(f"margins/{group}"):
                        raise Lost(f"the development margins of {member.run_id} are not those that were recorded")
                    return paths[position]
        raise Lost(f"there are no development margins of {member.run_id}")

    def report(self, books: Books, job: Job, digest: str) -> Path:
        """The test report with this digest of the champion that a job packages. Raises Lost."""
        run_id, _, checkpoint = job.awaits[0].removeprefix("package:").partition("/")
        return self._report(
            books, f"evaluate/test/{run_id}", checkpoint, digest, f"test report of {run_id}/{checkpoint}"
        )

    def evaluated(self, books: Books, event: EvalEvent) -> Path:
        """The report that an evaluation was recorded from. Raises Lost."""
        suffix = f"/{event.checkpoint}" if event.role == "reserve" else ""
        what = f"{event.role} report of {event.subject}"
        key = f"evaluate/{event.role}/{event.run_id}{suffix}"
        return self._report(books, key, event.checkpoint, event.report_sha256, what)

    def _report(self, books: Books, key: str, checkpoint: str, digest: str, what: str) -> Path:
        paths = []
        for launch in reversed(books.launches.get(key, ())):
            slot = slot_of(self.root, self.settings, launch)
            paths += [report_path(slot, n) for n in positions(launch.job, checkpoint)]
        return _found(paths, digest, what)

    def test_scores(self, books: Books, run_id: str, checkpoint: str, digest: str) -> Path:
        """The test scores with this digest. Raises Lost."""
        return _found(self._scores(books, f"evaluate/test/{run_id}", checkpoint), digest, "test scores")

    def _scores(self, books: Books, key: str, checkpoint: str) -> list[Path]:
        paths = []
        for launch in reversed(books.launches.get(key, ())):
            slot = slot_of(self.root, self.settings, launch)
            paths += [scores_path(slot, n) for n in positions(launch.job, checkpoint)]
        return paths

    # -- writing

    def write_config(self, run_id: str, text: str) -> None:
        """A training's config, once; another one that lies there already is moved aside."""
        path = self.config(run_id)
        if publish(path, text, name="campaign.config"):
            return
        if path.read_bytes() == text.encode():
            return
        self.move_aside(path)
        publish(path, text, name="campaign.config")

    def lead(self, link: Path, target: Path) -> None:
        """Let `link` lead to `target`; what else lies there is moved aside."""
        if os.path.lexists(link):
            if link.is_symlink() and link.readlink() == target:
                return
            self.move_aside(link)
        make_folder(link.parent)
        with effect("campaign.link"):
            link.symlink_to(target)
            sync_folder(link.parent)

    def move_aside(self, path: Path) -> Path:
        """Rename something that should not be there; nothing is deleted."""
        number = 1
        while os.path.lexists(aside := path.with_name(f"{path.name}.aside-{number}")):
            number += 1
        with effect("campaign.aside"):
            path.rename(aside)
            sync_folder(path.parent)
        return aside


def positions(job: Job, checkpoint: str) -> list[int]:
    """Where in a job's members a checkpoint of its run stands; an ensemble's job has one report."""
    if job.ensemble:
        return [0]
    return [n for n, member in enumerate(job.members) if member.checkpoint == checkpoint]


def group_digest(paths: Sequence[Path]) -> str:
    """The digest of a group's margins as they lie on disk, "" when one of them can't be read."""
    try:
        return margins_digest(content_digest(path) for path in paths)
    except OSError:
        return ""


def _there(path: Path, what: str) -> Path:
    if not path.exists():
        raise Lost(f"{what} is gone: {path}")
    return path


def _found(paths: Sequence[Path], digest: str, what: str) -> Path:
    for path in paths:
        try:
            if content_digest(path) == digest:
                return path
        except OSError:
            continue
    raise Lost(f"{what}: nothing with the SHA-256 {digest[:12]}… is where it was recorded")
