"""A run's evidence in one file that `verify` can read when the state folder, the scratch disk or the site is gone.

Covered: packing request, ledger, slots, champion entries and the two trees that were compared; unpacking them with
every byte checked; a state folder made from an archive. Not covered: judging (evidence.py).

An archive is a gzipped tar whose members are, in this order:

    archive.json     {"schema": 1, "outerloop": version, "run", "target", "verdict": sentence, "commits": [hex],
                      "files": {member: sha256 of the content}, "left_out": {member: bytes}}
    state/…          the files as they lie in the state folder, below runs/, slots/ and champions/
    target.pack      git objects of the commits and their trees, without history

The same evidence gives the same bytes: members are sorted and carry no owner and no time. Left out, and named in
`left_out`: what an environment slot built, state of resumable work, and files larger than `max_file_bytes`.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from outerloop import __version__
from outerloop.climb import Verdict
from outerloop.controller.campaign_request import CampaignRequest
from outerloop.controller.campaign_slots import REPORT_NAME
from outerloop.controller.entry_request import EntryRequest
from outerloop.controller.evidence import Disk, OnDisk, read_run
from outerloop.controller.git import GitError, Mirror
from outerloop.controller.ledger import effective_cancel
from outerloop.controller.training_request import TrainingRequest
from outerloop.effects import effect
from outerloop.json_text import JsonError, parse_json
from outerloop.slots import SlotDirectory, StateRoot
from outerloop.slots.files import read_json

__all__ = ["Archive", "ArchiveError", "StateFolder", "Unpacked", "find_on_disk", "pack", "unpack"]

SCHEMA = 1
MANIFEST = "archive.json"
PACK = "target.pack"
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
"""Refuse to parse more: a manifest has one line per file."""
_BLOCK = 1024 * 1024
_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class ArchiveError(ValueError):
    """The file is no archive, or not the one that was written; the text says where."""


@dataclass(frozen=True)
class Archive:
    """What was packed."""

    path: Path
    run: str
    files: int
    bytes: int
    """Of the archive itself."""
    left_out: dict[str, int]


@dataclass(frozen=True)
class StateFolder:
    """A state folder to be read, without a record."""

    root: StateRoot

    def slot(self, digest: str) -> SlotDirectory:
        return SlotDirectory(self.root.slot(digest), digest)


@dataclass(frozen=True)
class Unpacked(StateFolder):
    """A state folder made from an archive. It serves `evidence.verify`."""

    run: str
    verdict: str
    left_out: dict[str, int] = field(default_factory=dict)
    unpacked: bool = True
    """There are no sealed rows here."""


def find_on_disk(root: StateRoot, name: str) -> str:
    """The id of the run that is or begins with `name`. Raises LookupError."""
    found = sorted(path.name for path in root.runs.glob("*") if path.name.startswith(name)) if name else []
    if name in found:
        return name
    if len(found) == 1:
        return found[0]
    if found:
        raise LookupError(f"{name} is the beginning of several runs: {', '.join(found[:5])}")
    raise LookupError(f"there is no run {name} in {root.runs}; `outerloop status --all` lists them")


def pack(context: OnDisk, run_id: str, target: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> Archive:
    """Write the archive of an ended run to `target`, whole or not at all.

    Raises LookupError for no such run, ValueError for one that has not ended or is torn, FileExistsError when `target`
    is there, OSError for a file that cannot be read or written.
    """
    if target.exists():
        raise FileExistsError(errno.EEXIST, "is there already; name another file with --out", str(target))
    disk = read_run(context, run_id)
    sentence = _ending(disk)
    if sentence is None:
        raise ValueError(f"run {run_id} has not ended; its evidence is not complete")
    members: dict[str, Path] = {}
    left_out: dict[str, int] = {}
    for folder in _folders(context, disk, run_id):
        for path in _files(folder):
            name = f"state/{path.relative_to(context.root.path).as_posix()}"
            size = path.stat().st_size
            if size > max_file_bytes or _rebuildable(name):
                left_out[name] = size
            else:
                members[name] = path
    members |= {f"state/{path.relative_to(context.root.path).as_posix()}": path for path in _crowns(context, run_id)}
    # an entry has no commits; its sealed rows are nobody's but the evaluator's and stay where they are
    entry = isinstance(disk.request, EntryRequest)
    commits = (
        []
        if entry
        else sorted({disk.request.base_commit, disk.request.candidate_commit, *(r.base_commit for r in disk.rounds)})
    )
    objects = Mirror(context.root.mirror(disk.request.target)).snapshot(commits)
    manifest = {
        "schema": SCHEMA,
        "outerloop": __version__,
        "run": run_id,
        "target": disk.request.target,
        "verdict": sentence,
        "commits": commits,
        "files": {name: _digest(path) for name, path in members.items()} | {PACK: hashlib.sha256(objects).hexdigest()},
        "left_out": left_out,
    }
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with effect("archive.write"):
            _write(temporary, manifest, members, objects)
            temporary.replace(target)
    finally:
        with effect("archive.write"):
            temporary.unlink(missing_ok=True)
    return Archive(target, run_id, len(members), target.stat().st_size, left_out)


def _ending(disk: Disk) -> str | None:
    told = next((event.body["verdict"] for event in disk.events if event.kind == "verdict"), None)
    if told is not None:
        # the ending of a training, campaign or entry is a sentence in itself, a climb's follows from its numbers
        own = isinstance(disk.request, TrainingRequest | CampaignRequest | EntryRequest)
        return str(told["sentence"]) if own else _verdict(disk).sentence
    return "cancelled" if effective_cancel(disk.events) is not None else None


def _verdict(disk: Disk) -> Verdict:
    assert disk.verdict is not None
    return disk.verdict


def _folders(context: OnDisk, disk: Disk, run_id: str) -> Iterator[Path]:
    root = context.root
    yield root.run(run_id)
    digests = {item.work.digest for planned in disk.planned.values() for item in planned}
    yield from (root.slot(digest) for digest in sorted(digests))


def _files(folder: Path) -> Iterator[Path]:
    """Regular files below, sorted; links are not followed and temporary files are left alone."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place) / name
            if not path.is_symlink() and path.is_file() and not name.endswith(".tmp"):
                yield path


def _rebuildable(member: str) -> bool:
    """state/slots/xx/<digest>/attempts/<n>/env, what was built; state/slots/xx/<digest>/state, of resumable work, but
    not the reports of a campaign's evaluator in it."""
    parts = PurePosixPath(member).parts
    if parts[1] != "slots":
        return False
    if parts[4] == "state":
        return not re.fullmatch(REPORT_NAME, parts[-1])
    return len(parts) > 6 and parts[4] == "attempts" and parts[6] == "env"


def _crowns(context: OnDisk, run_id: str) -> Iterator[Path]:
    for path in sorted(context.root.champions.glob("*/*.json")):
        if (read_json(path) or {}).get("run") == run_id:
            yield path


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write(path: Path, manifest: dict[str, Any], members: dict[str, Path], objects: bytes) -> None:
    with (
        path.open("xb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as tar,
    ):
        head = json.dumps(manifest, indent=1, sort_keys=True).encode()
        tar.addfile(_entry(MANIFEST, len(head)), io.BytesIO(head))
        for name in sorted(members):
            with members[name].open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                tar.addfile(_entry(name, size), stream)
        tar.addfile(_entry(PACK, len(objects)), io.BytesIO(objects))
        tar.close()
        packed.close()
        raw.flush()
        os.fsync(raw.fileno())


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def unpack(path: Path, folder: Path) -> Unpacked:
    """Make a state folder below `folder` from an archive; every member must be in its manifest with its digest.

    Raises ArchiveError for anything else, OSError when the file cannot be read.
    """
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            manifest = _manifest(tar, path)
            _members(tar, manifest["files"], folder, path)
            if len(stream.read(_BLOCK)) == _BLOCK:  # the padding; reading it also checks the stream's own sum
                raise ArchiveError(f"{path} goes on after its end")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ArchiveError(f"{path} is no archive, or is cut short: {error}") from error
    root = StateRoot(folder / "state")
    try:
        mirror = Mirror(root.mirror(manifest["target"]))
        mirror.ensure()
        mirror.restore(folder / PACK, manifest["commits"])
    except (GitError, ValueError) as error:
        raise ArchiveError(f"{path}: its copy of the target cannot be read: {error}") from error
    return Unpacked(root, manifest["run"], manifest["verdict"], manifest["left_out"])


def _manifest(tar: tarfile.TarFile, path: Path) -> dict[str, Any]:
    entry = tar.next()
    if entry is None or entry.name != MANIFEST or not entry.isreg() or entry.size > MAX_MANIFEST_BYTES:
        raise ArchiveError(f"{path} is no archive of ours: it does not begin with {MANIFEST}")
    stream = tar.extractfile(entry)
    assert stream is not None
    try:
        body = parse_json(stream.read())
    except JsonError as error:
        raise ArchiveError(f"{path}: {MANIFEST}: {error}") from error
    shape = {"run": str, "target": str, "verdict": str, "commits": list, "files": dict, "left_out": dict}
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema") if isinstance(body, dict) else None
        raise ArchiveError(f"{path} has schema {found!r}; this outerloop reads {SCHEMA}")
    wrong = [key for key, kind in shape.items() if not isinstance(body.get(key), kind)]
    wrong += ["commits"] if not all(_HEX.fullmatch(str(commit)) for commit in body.get("commits") or ()) else []
    if wrong:
        raise ArchiveError(f"{path}: {MANIFEST} has no proper {', '.join(wrong)}")
    return body


def _members(tar: tarfile.TarFile, files: dict[str, Any], folder: Path, path: Path) -> None:
    missing = dict(files)
    while (entry := tar.next()) is not None:
        parts = PurePosixPath(entry.name).parts
        if entry.name not in missing or not entry.isreg() or ".." in parts or PurePosixPath(entry.name).is_absolute():
            raise ArchiveError(f"{path}: {entry.name} is not in its manifest, is there twice, or is no plain file")
        place = folder / entry.name
        place.parent.mkdir(parents=True, exist_ok=True)
        stream = tar.extractfile(entry)
        assert stream is not None
        digest = hashlib.sha256()
        with place.open("xb") as out:
            while block := stream.read(_BLOCK):
                digest.update(block)
                out.write(block)
        if digest.hexdigest() != missing.pop(entry.name):
            raise ArchiveError(f"{path}: {entry.name} is not what was packed (its SHA-256 differs)")
    if missing:
        raise ArchiveError(f"{path} lacks {len(missing)} of its files, {min(missing)} among them")
