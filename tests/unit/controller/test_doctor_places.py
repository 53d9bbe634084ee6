"""What doctor says of this host's folders and of a service: file systems that break what is built on them, who may
enter, who may submit, and repositories that others may write.

Attacked: a finding that is too mild. The file system is the real one; what none here does is put in its place.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outerloop.controller.doctor import host
from outerloop.controller.doctor.finding import FAIL, OK, WARN, Finding, Site
from outerloop.controller.doctor.service import service
from outerloop.controller.service.spool import Spool
from outerloop.settings import Settings
from outerloop.slots import StateRoot


def told(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.name, finding.level) for finding in found]


def site_of(state: Path, backend: str = "local", **settings: Any) -> Site:
    return Site(Settings(state=state, **settings), state / "config.toml", StateRoot(state), backend)


# -- the state folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def test_a_good_folder_is_well_and_nothing_is_left_in_it(state: Path) -> None:
    assert told(list(host.state(site_of(state)))) == [("state", OK), ("space", OK)]
    assert list(state.iterdir()) == []


def replacing(source: Path, target: Path) -> None:
    Path(target).unlink(missing_ok=True)
    REAL_LINK(source, target)


def failing(*_given: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def copying(source: Path, target: Path) -> None:
    if Path(target).exists():
        raise FileExistsError
    Path(target).write_bytes(Path(source).read_bytes())


REAL_LINK = os.link


@pytest.mark.parametrize(
    ("name", "broken", "word"),
    [
        ("link", replacing, "replaces an existing file"),
        ("link", failing, "a hard link fails"),
        ("link", copying, "another file"),
        ("fsync", failing, "fsync fails"),
    ],
)
def test_a_file_system_on_which_nobody_can_win_a_race_is_refused(
    state: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any, word: str
) -> None:
    monkeypatch.setattr(os, name, broken)
    [first, *_] = host.state(site_of(state))
    monkeypatch.undo()
    assert (first.name, first.level) == ("state", FAIL) and word in first.sentence
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_is_told_of(state: Path, mode: int) -> None:
    state.chmod(mode)
    assert ("state", WARN) in told(list(host.state(site_of(state))))


@pytest.mark.parametrize(
    ("free_mb", "files", "level"), [(10, 10**6, FAIL), (300, 10**6, WARN), (10**4, 100, WARN), (10**4, 10**6, OK)]
)
def test_a_disk_that_is_nearly_full_is_told_of(
    state: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, files: int, level: str
) -> None:
    real = os.statvfs(state)
    facts = os.statvfs_result((4096, 4096, real.f_blocks, free_mb * 256, free_mb * 256, 10**7, files, files, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: facts)
    assert ("space", level) in told(list(host.state(site_of(state))))


@pytest.mark.parametrize(
    ("places", "kind", "level"),
    [
        (("/",), "ext4", FAIL),  # every node's own
        ((), "tmpfs", FAIL),
        ((), "nfs4", OK),
        ((), "ext4", OK),  # the test job shows who sees it
    ],
)
def test_a_folder_that_nodes_cannot_see_is_refused_with_slurm_alone(
    state: Path, monkeypatch: pytest.MonkeyPatch, places: tuple[str, ...], kind: str, level: str
) -> None:
    monkeypatch.setattr(host, "NODE_LOCAL", places)
    monkeypatch.setattr(host, "_file_system", lambda path: kind)
    assert ("shared", level) in told(list(host.state(site_of(state, "slurm"))))
    assert not [name for name, _ in told(list(host.state(site_of(state)))) if name == "shared"]


# -- a service


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir(mode=0o755)
    for words in (("init", "-q", "-b", "main"), ("-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q",
                  "--allow-empty", "-m", "base")):  # fmt: skip
        subprocess.run(["git", *words], cwd=folder, check=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    return folder


def service_site(state: Path, repository: Path | None, *submitters: str, isolation: str = "bwrap") -> Site:
    spool = Spool(state.parent / "spool")
    spool.make()
    targets = {} if repository is None else {"tsp": {"repository": repository}}
    offered = {"spool": spool.path, "submitters": submitters, "targets": targets}
    return site_of(state, mode="service", isolation=isolation, service=offered)


def test_a_service_that_is_set_up_is_well(state: Path, repository: Path) -> None:
    site = service_site(state, repository, "root", "*")
    assert told(list(service(site))) == [("spool", OK), ("sealing", OK), ("submitters", OK), ("targets", OK)]
    assert list(service(site_of(state))) == [], "nothing is said of a personal deployment"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("isolation", ("service", FAIL)),
        ("spool", ("spool", FAIL)),
        ("entered", ("sealing", FAIL)),
        ("nobody", ("submitters", WARN)),
        ("stranger", ("submitters", WARN)),
        ("no target", ("targets", WARN)),
        ("written", ("targets", FAIL)),
        ("no branch", ("targets", FAIL)),
    ],
)
def test_what_a_service_promises_and_cannot_keep_is_told(
    state: Path, repository: Path, change: str, expected: tuple[str, str]
) -> None:
    submitters = {"nobody": (), "stranger": ("root", "no-such-account-here")}.get(change, ("root",))
    isolation = "none" if change == "isolation" else "bwrap"
    site = service_site(state, None if change == "no target" else repository, *submitters, isolation=isolation)
    if change == "spool":
        (state.parent / "spool" / "incoming").chmod(0o777)
    if change == "entered":
        state.chmod(0o750)
    if change == "written":
        repository.chmod(0o775)
    if change == "no branch":
        (repository / ".git" / "HEAD").write_text("ref: refs/heads/other\n")
        (repository / ".git" / "refs" / "heads" / "main").unlink()
    found = list(service(site))
    assert expected in told(found)
    assert [item for item in told(found) if item[1] != OK] == [expected], "and nothing else is wrong"
