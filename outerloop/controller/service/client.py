"""A submitter's side of a service: submissions into the spool, answers out of it.

Covered: whether this process is a submitter, the secret that names its answers, bundles, reading answers. Not covered:
rendering (cli.service_client), the service's side (intake.py, replies.py). No database, no state folder.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outerloop.controller.deployment import account
from outerloop.controller.git import GitError, Repository, make_bundle
from outerloop.controller.service.spool import NoiseAsked, Spool, Submission, TrainingAsked, account_of
from outerloop.effects import effect
from outerloop.settings import Settings
from outerloop.settings_sections import home
from outerloop.slots.files import read_json

__all__ = ["Client", "NoService", "client_of", "service_account"]


class NoService(LookupError):
    """The service can't be asked; the text says why."""


def service_account(settings: Settings) -> str:
    """The account that dispatches: as set, else the owner of the spool. Raises NoService."""
    if settings.service.account:
        return settings.service.account
    assert settings.service.spool is not None, "settings check that a service has a spool"
    try:
        return account_of(settings.service.spool.stat().st_uid)
    except OSError as error:
        raise NoService(f"the spool {settings.service.spool} can't be reached: {error.strerror}") from error


def client_of(settings: Settings) -> Client | None:
    """This process as a submitter of a service; None in a personal deployment and for the service itself."""
    if settings.mode != "service" or settings.service.spool is None:
        return None
    serving = service_account(settings)
    return None if account() == serving else Client(Spool(settings.service.spool), serving)


@dataclass(frozen=True)
class Client:
    """One submitter of one service."""

    spool: Spool
    service: str

    # -- asking

    def public(self) -> dict[str, Any]:
        """What the service says of itself. Raises NoService before its first tick."""
        body = read_json(self.spool.public)
        if body is None:
            raise NoService(f"{self.spool.public} is not there yet: the service {self.service} has not run its tick")
        return body

    def target_of(self, repo: Repository) -> tuple[str, list[str]]:
        """(name of the registered target that this clone is of, commits that the service has). Raises NoService."""
        targets = self.public().get("targets") or {}
        root = repo.identity.rpartition("-")[2]
        found = {n: t for n, t in targets.items() if str(t.get("identity") or "").rpartition("-")[2] == root}
        if len(found) > 1:
            found = {n: t for n, t in found.items() if t["identity"] == repo.identity} or found
        if len(found) != 1:
            known = ", ".join(sorted(targets)) or "none yet"
            raise NoService(
                f"{repo.top} is no clone of a target of this service (registered: {known}); the history must begin"
                " with the same commit"
            )
        [(name, target)] = found.items()
        return name, [str(commit) for commit in (target.get("refs") or {}).values()]

    def climb(
        self, repository: Path, benchmark: str, *, base: str | None, candidate: str, again: bool, priority: int
    ) -> Submission:
        """Leave a climb in the spool. Raises NoService, GitError, ValueError (pydantic's), OSError."""
        repo = Repository.open(repository)
        name, known = self.target_of(repo)
        sealed = _sealed(repo, candidate)
        submission = Submission(
            kind="climb",
            nonce=secrets.token_hex(16),
            reply=reply_secret(),
            target=name,
            benchmark=benchmark,
            base=_base(repo, base),
            base_revision=(base or "")[:200],
            candidate=sealed,
            candidate_revision=candidate[:200],
            again=again,
            priority=priority,
        )
        self._leave(submission, repo, known)
        return submission

    def training(self, repository: Path, told: Mapping[str, Any], *, candidate: str, priority: int) -> Submission:
        """Leave a training in the spool; `told` are the fields of TrainingAsked. Raises as `climb`, SubmissionError."""
        repo = Repository.open(repository)
        name, known = self.target_of(repo)
        self._refuse_what_is_not_taken(name, "training", "trainings")
        sealed = _sealed(repo, candidate)
        submission = Submission(
            kind="training",
            nonce=secrets.token_hex(16),
            reply=reply_secret(),
            target=name,
            candidate=sealed,
            candidate_revision=candidate[:200],
            priority=priority,
            training=TrainingAsked.model_validate(told),
        )
        self._leave(submission, repo, known)
        return submission

    def noise(
        self, repository: Path, benchmark: str, *, base: str | None, repeats: int, nodes: int, gain: str
    ) -> Submission:
        """Ask for a noise study. Raises NoService, GitError, ValueError (pydantic's), OSError."""
        repo = Repository.open(repository)
        name, _known = self.target_of(repo)
        self._refuse_what_is_not_taken(name, "noise", "noise studies")
        submission = Submission(
            kind="noise",
            nonce=secrets.token_hex(16),
            reply=reply_secret(),
            target=name,
            benchmark=benchmark,
            base=_base(repo, base),
            base_revision=(base or "")[:200],
            noise=NoiseAsked(repeats=repeats, nodes=nodes, gain=gain),
        )
        self.spool.leave(submission, None)
        return submission

    def _refuse_what_is_not_taken(self, target: str, kind: str, called: str) -> None:
        accept = self.public()["targets"][target].get("accept") or ["climb"]
        if kind not in accept:
            raise NoService(
                f"{target} takes no {called} of submitters; its operator allows them (accept, in the config)"
            )

    def _leave(self, submission: Submission, repo: Repository, known: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="outerloop-submission-") as scratch:
            bundle = Path(scratch) / "bundle"
            make_bundle(repo, [submission.candidate], known, bundle)
            self.spool.leave(submission, bundle)

    def cancel(self, run_id: str) -> Submission:
        """Ask for the end of a run of one's own."""
        submission = Submission(kind="cancel", nonce=secrets.token_hex(16), reply=reply_secret(), run=run_id)
        self.spool.leave(submission, None)
        return submission

    def waiting(self, nonce: str) -> bool:
        """Whether a submission still lies in the spool."""
        return (self.spool.incoming / f"{nonce}.submission").exists()

    # -- answers

    def answer(self, nonce: str) -> dict[str, Any] | None:
        """What became of a submission; None while the service has not looked at it."""
        return read_json(self.spool.reply(reply_secret()) / f"{nonce}.json")

    def runs(self) -> list[dict[str, Any]]:
        """Everything that may be known of one's runs, newest first."""
        folder = self.spool.reply(reply_secret()) / "runs"
        try:
            paths = sorted(folder.glob("*.json"))
        except OSError:
            return []
        found = [body for path in paths if (body := read_json(path)) is not None]
        return sorted(found, key=lambda body: str(body.get("created_at")), reverse=True)

    def refusals(self) -> list[dict[str, Any]]:
        """Submissions that were refused, newest first."""
        return [body for body in self._answers() if body.get("state") == "refused"]

    def studies(self) -> list[dict[str, Any]]:
        """Noise studies, open and finished, newest first."""
        return [body for body in self._answers() if body.get("state") in {"measuring", "studied"}]

    def _answers(self) -> list[dict[str, Any]]:
        folder = self.spool.reply(reply_secret())
        try:
            paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        except OSError:
            return []
        return [body for path in paths if (body := read_json(path)) is not None]

    def run(self, name: str) -> dict[str, Any]:
        """One run by its id or the beginning of it. Raises LookupError."""
        found = [body for body in self.runs() if str(body["run"]).startswith(name)]
        exact = [body for body in found if body["run"] == name]
        if len(exact or found) == 1:
            return (exact or found)[0]
        if found:
            raise LookupError(f"{name} is the beginning of several runs: {', '.join(str(b['run']) for b in found)}")
        raise LookupError(f"there is no run {name} of yours; `outerloop status` lists them")


def _sealed(repo: Repository, candidate: str) -> str:
    return repo.seal_worktree() if candidate == "worktree" else repo.commit(candidate)


def _base(repo: Repository, base: str | None) -> str:
    if base is None:
        return ""
    try:
        return repo.commit(base)
    except GitError:
        if len(base) in {40, 64} and set(base) <= set("0123456789abcdef"):
            return base  # a champion's commit, which only the service may have
        raise


def reply_secret() -> str:
    """The name of this account's answers, 64 hex digits; made on first use, readable by the account alone.

    Raises PermissionError when others may read the file, OSError.
    """
    base = os.environ.get("XDG_CONFIG_HOME") or str(home() / ".config")
    path = Path(base) / "outerloop" / "reply-secret"
    try:
        facts = path.stat()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with effect("spool.secret"):
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as stream:
                stream.write(secrets.token_hex(32))
                stream.flush()
                os.fsync(stream.fileno())
            try:
                os.link(fresh, path)
            except FileExistsError:
                pass  # another command of this account was first
            finally:
                fresh.unlink()
        facts = path.stat()
    if facts.st_mode & 0o077:
        raise PermissionError(1, "others may read it; whoever does can read your answers: chmod 600", str(path))
    return path.read_text().strip()
