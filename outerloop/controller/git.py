"""git, run so that nothing of the caller's surroundings leaks in: the researcher's clone and our bare mirror.

Covered: resolving revisions, sealing a working tree, pinning commits in the mirror, reading blobs, diffs between
trees, subset trees for environments. Not covered: what a diff means (scope.py). Only plumbing commands are used.
"""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from outerloop.effects import effect

__all__ = ["Change", "GitError", "Mirror", "Repository", "make_bundle", "unbundle"]

GIT_TIMEOUT_SECONDS = 600
GIT_FILES = 16
"""Inodes that a push needs at least: folders of new objects, a pack with its index, refs with their locks."""
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
PIN_TRIES = 10
PIN_PAUSE_SECONDS = 0.5
"""A push into the mirror that met another one is tried again, after a random pause of at most so long."""
LFS_POINTER = "version https://git-lfs.github.com/spec/"


class GitError(Exception):
    """git refused; the text says what was asked and what it answered."""


def _environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    keep = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    keep.update(
        {"LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_NOSYSTEM": "1"}
    )
    keep.update(extra or {})
    return keep


def _git(
    arguments: Sequence[str],
    *,
    folder: Path,
    extra: Mapping[str, str] | None = None,
    data: bytes | None = None,
    check: bool = True,
    into: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """git's answer. `into` is where it writes, if that is another place. Raises GitError, OSError for a full disk."""
    program = shutil.which("git")
    if program is None:
        raise GitError("git is not installed or not in PATH")
    # safe.directory: a shared mirror or a clone of another account is read on purpose, with hooks switched off.
    command = [program, "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(extra),
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            timeout=GIT_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} did not end within {GIT_TIMEOUT_SECONDS} s in {folder}") from error
    except OSError as error:
        raise GitError(f"git could not be run in {folder}: {error}") from error
    if check and done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        if os.strerror(errno.ENOSPC) in said or os.strerror(errno.EDQUOT) in said:
            raise OSError(errno.ENOSPC, f"no space for git {arguments[0]}", str(into or folder))
        if _is_out_of_files(into or folder):
            raise OSError(errno.ENOSPC, f"no space for git {arguments[0]}: no inodes are left", str(into or folder))
        raise GitError(f"git {arguments[0]} in {folder}: {said}")
    return done


def _is_out_of_files(folder: Path) -> bool:
    """Whether the disk has no room for the few files that git needs: then it often fails without saying why."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return False
    return facts.f_files > 0 and facts.f_favail < GIT_FILES


def _umask() -> int:
    """The mask of this process; there is no way to read it without setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _text(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stdout.decode(errors="surrogateescape").strip()


@dataclass(frozen=True)
class Change:
    """One path that differs between two trees. Modes are git's ("100644", "120000" link, "160000" gitlink)."""

    path: str
    old_mode: str
    new_mode: str
    status: str


@dataclass(frozen=True)
class Repository:
    """The researcher's clone. It is read; the only thing ever written are loose objects of a sealed working tree."""

    top: Path

    @classmethod
    def open(cls, path: Path) -> Repository:
        """The repository around `path`. Raises GitError when there is none, or when it is shallow."""
        if not path.is_dir():
            raise GitError(f"{path} is not a folder")
        done = _git(["rev-parse", "--show-toplevel", "--is-shallow-repository"], folder=path, check=False)
        if done.returncode != 0:
            raise GitError(f"{path} is not inside a git repository with a working tree")
        top, shallow = _text(done).splitlines()[:2]
        head = _git(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], folder=Path(top), check=False)
        if head.returncode != 0:
            branch = _text(_git(["symbolic-ref", "--quiet", "--short", "HEAD"], folder=Path(top), check=False))
            where = f"branch {branch} has" if branch else "HEAD names"
            raise GitError(f"{top}: {where} no commit yet, so there is nothing to measure: commit something first")
        if shallow == "true":
            raise GitError(
                f"{top} is a shallow clone, so its history cannot be identified: run `git fetch --unshallow`"
            )
        return cls(Path(top))

    def commit(self, revision: str) -> str:
        """Full id of the commit that `revision` names. Raises GitError with near names when there is none."""
        done = _git(
            ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"],
            folder=self.top,
            check=False,
        )
        found = _text(done)
        if done.returncode != 0 or not _OBJECT.fullmatch(found):
            raise GitError(f"{self.top} has no commit {revision!r}{self._near(revision)}")
        return found

    def _near(self, revision: str) -> str:
        import difflib

        refs = _text(_git(["for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags"], folder=self.top))
        near = difflib.get_close_matches(revision, refs.split(), n=1)
        return f"; did you mean {near[0]}?" if near else ""

    def references(self) -> list[str]:
        """Short names of branches, tags and remote branches, in git's order."""
        patterns = ["refs/heads", "refs/tags", "refs/remotes"]
        listed = _text(_git(["for-each-ref", "--format=%(refname:short)", *patterns], folder=self.top)).split()
        return [name for name in listed if not name.endswith("/HEAD")]

    def between(self, span: str, *, limit: int) -> list[str]:
        """Commits of a range such as main..feature, oldest first, at most `limit` + 1. Raises GitError."""
        done = _git(["rev-list", "--reverse", "--end-of-options", span, "--"], folder=self.top)
        return _text(done).split()[: limit + 1]

    def tree(self, commit: str) -> str:
        return _text(_git(["rev-parse", "--verify", f"{commit}^{{tree}}"], folder=self.top))

    def subject(self, commit: str) -> str:
        return _text(_git(["log", "-1", "--format=%s", "--end-of-options", commit], folder=self.top))

    @cached_property
    def identity(self) -> str:
        """Name of the target, the same in every clone: the folder's name and the oldest root commit."""
        roots = _text(_git(["rev-list", "--max-parents=0", "HEAD"], folder=self.top)).split()
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self._name()).strip("-.") or "target"
        return f"{name[:40]}-{min(roots)[:12]}"

    def _name(self) -> str:
        origin = _text(_git(["config", "--get", "remote.origin.url"], folder=self.top, check=False))
        tail = re.split(r"[/:]", origin.rstrip("/"))[-1] if origin else self.top.name
        return tail.removesuffix(".git") or self.top.name

    def default_branch(self) -> str:
        """The branch that a first climb starts from: origin's HEAD, else main, master, or the only one there is.

        Raises GitError where none of them is certain: HEAD itself may be the candidate.
        """
        done = _git(["symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD"], folder=self.top, check=False)
        if done.returncode == 0 and _text(done):
            return _text(done)
        names = _text(_git(["for-each-ref", "--format=%(refname:short)", "refs/heads"], folder=self.top)).split()
        for name in ("main", "master"):
            if name in names:
                return name
        if len(names) == 1:
            return names[0]
        there = f"branches: {', '.join(names[:8])}" if names else "there is no branch with a commit yet"
        raise GitError(
            f"{self.top} has no default branch (origin/HEAD, main or master); name one with --base ({there})"
        )

    def has_file(self, revision: str, path: str) -> bool:
        """Whether the revision's tree has this path."""
        return _git(["cat-file", "-e", f"{revision}:{path}"], folder=self.top, check=False).returncode == 0

    def seal_worktree(self) -> str:
        """A commit of the working tree as it is (ignored files left out); index, branch and HEAD stay untouched."""
        head = self.commit("HEAD")
        conflicts = self._conflicts()
        if conflicts:
            more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
            raise GitError(
                f"{self.top} has unresolved conflicts ({', '.join(conflicts[:3])}{more}): the working tree is no"
                " candidate before they are resolved and added (`git add`), or the merge is given up"
            )
        with tempfile.TemporaryDirectory(prefix="outerloop-seal-") as scratch:
            extra = {
                "GIT_INDEX_FILE": str(Path(scratch) / "index"),
                "GIT_AUTHOR_NAME": "outerloop",
                "GIT_AUTHOR_EMAIL": "outerloop@localhost",
                "GIT_COMMITTER_NAME": "outerloop",
                "GIT_COMMITTER_EMAIL": "outerloop@localhost",
                # One tree is one commit: sealing the same state twice gives the same id.
                "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
                "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
            }
            _git(["read-tree", head], folder=self.top, extra=extra)
            _git(["add", "--all", "--", "."], folder=self.top, extra=extra)
            tree = _text(_git(["write-tree"], folder=self.top, extra=extra))
            if tree == self.tree(head):
                return head
            message = f"working tree on top of {head[:12]}"
            return _text(_git(["commit-tree", tree, "-p", head, "-m", message], folder=self.top, extra=extra))

    def _conflicts(self) -> list[str]:
        """Paths that a merge, rebase or cherry-pick left unresolved."""
        done = _git(["diff", "--name-only", "--diff-filter=U", "-z"], folder=self.top)
        paths = done.stdout.decode(errors="surrogateescape").split("\0")
        return sorted({path for path in paths if path})


@dataclass(frozen=True)
class Mirror:
    """The bare repository that keeps the commits that runs name, pinned by refs, whatever becomes of the clone."""

    path: Path

    def ensure(self) -> None:
        """Create the mirror if there is none. Two processes at once are fine."""
        if (self.path / "HEAD").is_file():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with effect("mirror.fetch"):
            # Made aside and renamed: git's own files are locked by name, so two that make them at once would fail.
            aside = Path(tempfile.mkdtemp(prefix=f".{self.path.name}-", dir=self.path.parent))
            try:
                _git(["init", "--quiet", "--bare", str(aside)], folder=self.path.parent)
                for key, value in {"gc.auto": "0", "receive.autogc": "false", "core.sharedRepository": "false"}.items():
                    _git(["config", key, value], folder=aside)
                aside.chmod(0o777 & ~_umask())
                aside.rename(self.path)
            except OSError:
                if not (self.path / "HEAD").is_file():
                    raise
            finally:
                shutil.rmtree(aside, ignore_errors=True)

    def pin(self, repository: Repository, refs: Mapping[str, str]) -> None:
        """Bring commits over and pin them: `refs` maps a name below refs/outerloop/ to a commit.

        Others may pin the same commits at the same time: git refuses all but one of them, and the loser finds the
        work done.
        """
        self.ensure()
        with effect("mirror.pin"):
            for trial in range(PIN_TRIES):
                specs = [f"{refs[name]}:refs/outerloop/{name}" for name in sorted(self._unpinned(refs))]
                if not specs:
                    return
                try:
                    push = ["push", "--quiet", "--force", "--no-verify", str(self.path), *specs]
                    _git(push, folder=repository.top, into=self.path)
                    return
                except GitError:
                    if trial + 1 == PIN_TRIES and self._unpinned(refs):
                        raise
                    time.sleep(random.uniform(0, PIN_PAUSE_SECONDS))

    def _unpinned(self, refs: Mapping[str, str]) -> set[str]:
        done = _git(["for-each-ref", "--format=%(objectname) %(refname)", "refs/outerloop"], folder=self.path)
        there = set(_text(done).splitlines())
        return {name for name, commit in refs.items() if f"{commit} refs/outerloop/{name}" not in there}

    def has(self, commit: str) -> bool:
        return _git(["cat-file", "-e", f"{commit}^{{commit}}"], folder=self.path, check=False).returncode == 0

    def is_ancestor(self, commit: str, of: str) -> bool:
        """Whether `commit` lies in the history of `of`, or is it."""
        return _git(["merge-base", "--is-ancestor", commit, of], folder=self.path, check=False).returncode == 0

    def subject(self, commit: str) -> str:
        return _text(_git(["log", "-1", "--format=%s", "--end-of-options", commit], folder=self.path))

    def tree(self, commit: str) -> str:
        return _text(_git(["rev-parse", "--verify", f"{commit}^{{tree}}"], folder=self.path))

    def blob(self, tree: str, path: str, *, limit: int) -> bytes | None:
        """Content of a file in a tree; None when it is absent. Raises GitError above `limit` bytes."""
        entry = self._entry(tree, path)
        if entry is None:
            return None
        _mode, kind, name = entry
        if kind != "blob":
            raise GitError(f"{path} is a {kind}, not a file")
        size = int(_text(_git(["cat-file", "-s", name], folder=self.path)))
        if size > limit:
            raise GitError(f"{path} has {size} bytes; at most {limit} are read")
        return _git(["cat-file", "blob", name], folder=self.path).stdout

    def _entry(self, tree: str, path: str) -> tuple[str, str, str] | None:
        done = _git(["ls-tree", "-z", "--full-tree", tree, "--", path], folder=self.path)
        for record in done.stdout.split(b"\0"):
            if record:
                facts, _, name = record.partition(b"\t")
                if name.decode(errors="surrogateescape") == path:
                    mode, kind, oid = facts.decode().split()[:3]
                    return mode, kind, oid
        return None

    def changes(self, base_tree: str, candidate_tree: str) -> list[Change]:
        """Every path that differs, renames taken apart."""
        done = _git(["diff-tree", "-r", "-z", "--no-renames", base_tree, candidate_tree], folder=self.path)
        fields = done.stdout.decode(errors="surrogateescape").split("\0")
        found = []
        for facts, path in zip(fields[0::2], fields[1::2], strict=False):
            old_mode, new_mode, _old, _new, status = facts.lstrip(":").split(" ")
            found.append(Change(path, old_mode, new_mode, status))
        return found

    def unusable_entries(self, tree: str) -> list[str]:
        """What a job could not materialise: submodules and Git LFS pointers, each with its reason."""
        problems = []
        done = _git(["ls-tree", "-r", "-z", "--full-tree", tree], folder=self.path)
        for record in done.stdout.decode(errors="surrogateescape").split("\0"):
            facts, _, path = record.partition("\t")
            if facts.startswith("160000"):
                problems.append(f"{path} is a submodule")
        grep = _git(
            ["grep", "-l", "-z", "-I", "-F", "--max-depth=-1", "-e", LFS_POINTER, tree], folder=self.path, check=False
        )
        for name in grep.stdout.decode(errors="surrogateescape").split("\0"):
            path = name.partition(":")[2]
            if path and self._starts_with_pointer(tree, path):
                problems.append(f"{path} is a Git LFS pointer, its content is not in the repository")
        return problems

    def _starts_with_pointer(self, tree: str, path: str) -> bool:
        try:
            content = self.blob(tree, path, limit=1024)
        except GitError:
            return False
        return content is not None and content.startswith(LFS_POINTER.encode())

    def subset_tree(self, tree: str, paths: Sequence[str]) -> tuple[str, list[str]]:
        """(a tree with only these files, the paths that are missing). Its id is the hash of their content."""
        missing, lines = [], []
        for path in sorted(set(paths)):
            entry = self._entry(tree, path)
            if entry is None or entry[1] != "blob":
                missing.append(path)
            else:
                lines.append(f"{entry[0]} {entry[2]}\t{path}\0")
        with tempfile.TemporaryDirectory(prefix="outerloop-subset-") as scratch:
            extra = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
            data = "".join(lines).encode(errors="surrogateescape")
            _git(["update-index", "-z", "--index-info"], folder=self.path, extra=extra, data=data)
            return _text(_git(["write-tree"], folder=self.path, extra=extra)), missing

    def snapshot(self, commits: Sequence[str]) -> bytes:
        """A pack of these commits with their trees and files, without their history. Raises GitError."""
        listed = _git(["rev-list", "--objects", "--no-walk", *commits, "--"], folder=self.path).stdout
        # One thread: the same objects then give the same bytes.
        return _git(["pack-objects", "--quiet", "--threads=1", "--stdout"], folder=self.path, data=listed).stdout

    def restore(self, pack: Path, commits: Sequence[str]) -> None:
        """Take in a pack made by `snapshot`; its commits have no parents here. Raises GitError, OSError."""
        with effect("mirror.pin"):
            (self.path / "shallow").write_text("".join(f"{commit}\n" for commit in commits), encoding="ascii")
            _git(["index-pack", "--stdin"], folder=self.path, data=pack.read_bytes())
            for commit in commits:
                _git(["update-ref", f"refs/outerloop/archive/{commit}", commit], folder=self.path)


def make_bundle(repository: Repository, commits: Sequence[str], known: Sequence[str], bundle: Path) -> None:
    """Write the commits and what they need into `bundle`; history that ends in `known` commits is left out.

    Raises GitError. Made from a repository of its own beside the clone, which gets no ref from it.
    """
    there = [commit for commit in known if _has(repository.top, commit)]
    objects = _text(_git(["rev-parse", "--path-format=absolute", "--git-path", "objects"], folder=repository.top))
    with tempfile.TemporaryDirectory(prefix="outerloop-bundle-") as scratch:
        bare = Path(scratch) / "bare.git"
        _git(["init", "--quiet", "--bare", str(bare)], folder=Path(scratch))
        (bare / "objects" / "info" / "alternates").write_text(f"{objects}\n")
        names = []
        for number, commit in enumerate(dict.fromkeys(commits)):
            if any(_is_ancestor(bare, commit, old) for old in there):
                continue
            names.append(f"refs/heads/{number}")
            _git(["update-ref", names[-1], commit], folder=bare)
        if not names:
            bundle.write_bytes(b"")  # everything is known already
            return
        _git(["bundle", "create", "--quiet", str(bundle), *names, *(f"^{old}" for old in there)], folder=bare)


def unbundle(bundle: Path, quarantine: Path, mirror: Mirror, wanted: set[str]) -> None:
    """Bring the wanted commits of somebody's bundle into the mirror, every object checked before. Raises GitError.

    The bundle is unpacked in a quarantine that sees the mirror's objects and that the mirror does not see.
    """
    _git(["init", "--quiet", "--bare", str(quarantine)], folder=bundle.parent)
    (quarantine / "objects" / "info" / "alternates").write_text(f"{mirror.path / 'objects'}\n")
    strict = ["-c", "fetch.fsckObjects=true", "-c", "transfer.fsckObjects=true", "-c", "fetch.unpackLimit=1"]
    try:
        _git([*strict, "fetch", "--quiet", "--no-tags", str(bundle), "refs/*:refs/sent/*"], folder=quarantine)
    except GitError as error:
        raise GitError(f"the bundle is refused: {str(error).splitlines()[-1].removeprefix('fatal: ')}") from error
    brought = {commit for commit in wanted if _has(quarantine, commit)}
    mirror.pin(Repository(quarantine), {f"commits/{commit}": commit for commit in sorted(brought)})


def _has(folder: Path, commit: str) -> bool:
    return _git(["cat-file", "-e", f"{commit}^{{commit}}"], folder=folder, check=False).returncode == 0


def _is_ancestor(folder: Path, commit: str, of: str) -> bool:
    return _git(["merge-base", "--is-ancestor", commit, of], folder=folder, check=False).returncode == 0
