"""The spool: the one folder that submitters and the service share.

Covered: its places and modes, the file of one submission, leaving it, taking it safely from somebody who may be
hostile. Not covered: what a submission asks for (intake.py), what is answered (replies.py).

    <spool>/                 0755, the service's
      service.json           0644, who serves, which targets, which commits are known: made anew by every tick
      incoming/              3733: everybody may leave a file, nobody but the service may list them (sticky, and files
                             get the service's group)
      replies/               0711: nobody but the service may list it
        <reply>/             0755, named by a secret of the submitter, 256 bits
          <nonce>.json       0644, what became of one submission
          runs/<run>.json    0644, what its submitter may know of a run

A submission is one file, since two are never there at one instant: a line of JSON, then a git bundle. It is linked
into place whole. Its owner, as the file system has it, is who asks; nothing in the file says so.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from outerloop.effects import effect

__all__ = [
    "Left",
    "NoiseAsked",
    "Spool",
    "Submission",
    "SubmissionError",
    "TrainingAsked",
    "account_of",
    "copy_bundle",
    "read_request_of",
]

MAX_HEADER_BYTES = 1 << 20
"""A request names commits and a benchmark, or brings a training's plan with the parameters of its tasks; more is
somebody's accident or malice."""
SUFFIX = ".submission"
LEFT_SECONDS = 24 * 3600.0
"""Writing a submission takes minutes at most; what is a day old and not whole will never be."""
_COPY_BYTES = 1 << 20

MOST_MINUTES = 10 * 366 * 24 * 60.0
"""Ten years; what bounds a training is its lane."""
MOST_REPEATS = 1000
"""Values of one study; what bounds a study before is its submitter's budget."""
MOST_CPUS = 65_536
MOST_MEMORY_MB = 2**31 - 1

Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
Secret = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Nonce = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Text = Annotated[str, StringConstraints(max_length=200)]


class SubmissionError(Exception):
    """A submission can't be taken; the text says why, for its submitter."""


class TrainingAsked(BaseModel):
    """A training: what `submit training` was told. GPUs and processes stand in the plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plan: dict[str, Any]
    """A StrategyPlan as JSON; the service validates and compiles it."""
    name: Name | Literal[""] = ""
    lane: Name | Literal[""] = ""
    minutes: Annotated[float, Field(gt=0, le=MOST_MINUTES)] | None = None
    cpus: Annotated[int, Field(ge=1, le=MOST_CPUS)] | None = None
    """Per node, like the next."""
    memory_mb: Annotated[int, Field(ge=1, le=MOST_MEMORY_MB)] | None = None
    resumable: bool | None = None


class NoiseAsked(BaseModel):
    """A noise study: what `noise` was told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repeats: Annotated[int, Field(ge=1, le=MOST_REPEATS)]
    nodes: Annotated[int, Field(ge=1, le=MOST_REPEATS)] = 1
    gain: Annotated[str, StringConstraints(pattern=r"^(|[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?)$")] = ""

    @property
    def smallest_gain(self) -> Decimal | None:
        """The smallest gain worth finding, in the metric's unit; None where none was named."""
        gain = Decimal(self.gain or "0")
        return gain if gain > 0 else None


class Submission(BaseModel):
    """What a submitter asks for. Everything in it is a claim, checked by the service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["climb", "training", "noise", "cancel"]
    nonce: Nonce
    """Names this submission: taken twice after a crash, it makes one run."""
    reply: Secret
    """Name of the folder for answers; whoever knows it may read them."""
    target: Name | Literal[""] = ""
    benchmark: Name | Literal[""] = ""
    base: Hex | Literal[""] = ""
    base_revision: Text = ""
    candidate: Hex | Literal[""] = ""
    candidate_revision: Text = ""
    again: bool = False
    priority: Annotated[int, Field(ge=-1000, le=0)] = 0
    """Submitters may step back, not ahead of each other."""
    run: Name | Literal[""] = ""
    """For kind cancel."""
    training: TrainingAsked | None = None
    """For kind training."""
    noise: NoiseAsked | None = None
    """For kind noise."""

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def account_of(uid: int) -> str:
    """The account's name, or `uid-N` for one that the password database does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


@dataclass(frozen=True)
class Left:
    """A file that lies in the spool, opened: its name and its owner can't change under the reader any more."""

    name: str
    uid: int
    size: int
    stream: IO[bytes]

    @property
    def owner(self) -> str:
        return account_of(self.uid)


@dataclass(frozen=True)
class Spool:
    """Paths of the spool and what is done with them."""

    path: Path

    @property
    def incoming(self) -> Path:
        return self.path / "incoming"

    @property
    def replies(self) -> Path:
        return self.path / "replies"

    @property
    def public(self) -> Path:
        return self.path / "service.json"

    def reply(self, secret: str) -> Path:
        return self.replies / secret

    def make(self) -> None:
        """Create the spool with its modes, or set them right. Raises OSError."""
        for folder, mode in ((self.path, 0o755), (self.incoming, 0o3733), (self.replies, 0o711)):
            with effect("spool.make"):
                folder.mkdir(exist_ok=True, parents=True)
                folder.chmod(mode)

    def problems(self) -> list[str]:
        """What is wrong with the spool's owner and modes, a sentence each."""
        told = []
        for folder, mode in ((self.path, 0o755), (self.incoming, 0o3733), (self.replies, 0o711)):
            try:
                facts = folder.stat()
            except OSError as error:
                told.append(f"{folder}: {error.strerror}")
                continue
            if facts.st_uid != os.geteuid():
                told.append(f"{folder} belongs to {account_of(facts.st_uid)}, not to the service")
            if stat.S_IMODE(facts.st_mode) != mode:
                told.append(f"{folder} has mode {stat.S_IMODE(facts.st_mode):04o}, not {mode:04o}")
        return told

    # -- the submitter's side

    def leave(self, submission: Submission, bundle: Path | None) -> Path:
        """Put a submission into the spool, whole or not at all. Raises OSError, SubmissionError when too large."""
        header = json.dumps(submission.to_json()).encode() + b"\n"
        if len(header) > MAX_HEADER_BYTES:
            raise SubmissionError(
                f"the request has {len(header)} bytes, a service takes {MAX_HEADER_BYTES}: send fewer or shorter tasks"
            )
        name = f"{submission.nonce}{SUFFIX}"
        path = self.incoming / name
        aside = self.incoming / f".{name}.{secrets.token_hex(4)}"
        with effect("spool.leave"):
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(header)
                    if bundle is not None:
                        with bundle.open("rb") as source:
                            while block := source.read(_COPY_BYTES):
                                stream.write(block)
                    stream.flush()
                    # The service's group reads it, which the folder's set-group-id bit gave to the file.
                    os.fchmod(stream.fileno(), 0o640)
                    os.fsync(stream.fileno())
                aside.rename(path)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
        return path

    # -- the service's side

    def names(self) -> list[str]:
        """Names of the submissions that are whole, in no order that a submitter could choose."""
        try:
            return sorted(entry.name for entry in os.scandir(self.incoming) if entry.name.endswith(SUFFIX))
        except FileNotFoundError:
            return []

    def sweep(self) -> int:
        """Remove what commands that were killed left behind, a day after; returns how many files that were."""
        removed = 0
        try:
            entries = list(os.scandir(self.incoming))
        except OSError:
            return 0
        for entry in entries:
            try:
                if (
                    entry.name.endswith(SUFFIX)
                    or time.time() - entry.stat(follow_symlinks=False).st_mtime < LEFT_SECONDS
                ):
                    continue
            except OSError:
                continue
            self.remove(entry.name)
            removed += 1
        return removed

    @contextmanager
    def opened(self, name: str) -> Iterator[Left]:
        """Open one file. Raises SubmissionError for what is no plain file of one name, OSError when it is gone."""
        try:
            # Without O_NONBLOCK a fifo of that name would stop the service.
            handle = os.open(self.incoming / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EACCES, errno.ENXIO}:
                raise SubmissionError(f"it can't be opened: {error.strerror}") from error
            raise
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            os.close(handle)
            raise SubmissionError("it is no plain file")
        with os.fdopen(handle, "rb") as stream:
            if facts.st_nlink != 1:
                # A link to somebody else's file would ask in that person's name.
                raise SubmissionError("it has another name: a hard link says nothing of who left it")
            yield Left(name, facts.st_uid, facts.st_size, stream)

    def remove(self, name: str) -> None:
        """Take a submission out of the spool; a folder too where it is empty, else it is left to its owner."""
        path = self.incoming / name
        with effect("spool.remove"):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                if error.errno not in {errno.EISDIR, errno.EPERM}:
                    raise
                # Not followed and not emptied: what lies in a folder of somebody else's is not the service's to delete.
                with suppress(OSError):
                    path.rmdir()


def read_request_of(left: Left) -> Submission:
    """Read the first line, and nothing more yet. Raises SubmissionError."""
    line = left.stream.readline(MAX_HEADER_BYTES + 1)
    if len(line) > MAX_HEADER_BYTES or not line.endswith(b"\n"):
        raise SubmissionError("its first line is no request")
    try:
        return Submission.model_validate_json(line)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in detail["loc"])
        raise SubmissionError(f"its request is not valid: {where or 'JSON'}: {detail['msg']}") from error


def copy_bundle(left: Left, *, max_bytes: int, bundle: Path) -> None:
    """Copy what follows the request to `bundle`, a private file. Raises SubmissionError.

    Everything is decided on the copy: its submitter may write to the original while it is read.
    """
    if left.size > max_bytes:
        raise SubmissionError(f"it has {left.size} bytes; at most {max_bytes} are taken")
    taken = 0
    with bundle.open("xb") as copy:
        while block := left.stream.read(_COPY_BYTES):
            taken += len(block)
            if taken > max_bytes:
                raise SubmissionError(f"it grew above {max_bytes} bytes while it was read")
            copy.write(block)
