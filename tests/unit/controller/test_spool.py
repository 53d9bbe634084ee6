"""The spool's files as somebody hostile may leave them. The accounts themselves: tests/service."""

from __future__ import annotations

import dataclasses
import os
import stat
import time
from pathlib import Path

import pytest

from outerloop.controller.service.intake import _check_submitter
from outerloop.controller.service.spool import (
    LEFT_SECONDS,
    MAX_HEADER_BYTES,
    Spool,
    Submission,
    SubmissionError,
    copy_bundle,
    read_request_of,
)
from outerloop.settings import Settings

ASKED = Submission(kind="climb", nonce="0" * 32, reply="f" * 64, target="tsp", benchmark="speed", candidate="a" * 40)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "spool")
    made.make()
    return made


def taken(spool: Spool, name: str, place: Path, *, most: int = 1000) -> tuple[Submission, bytes]:
    with spool.opened(name) as left:
        submission = read_request_of(left)
        copy_bundle(left, max_bytes=most, bundle=place)
    return submission, place.read_bytes()


def test_what_is_left_is_what_is_taken(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(b"# v2 git bundle\n\x00\xff\n")
    path = spool.leave(ASKED, tmp_path / "bundle")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert spool.names() == [path.name]
    assert taken(spool, path.name, tmp_path / "copy") == (ASKED, b"# v2 git bundle\n\x00\xff\n")
    spool.remove(path.name)
    assert spool.names() == [] and spool.problems() == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "first line"),
        (b"{}", "first line"),
        (b"{}\n", "not valid"),
        (b"\xff\xfe\n", "not valid"),
        (b'{"schema": 2}\n', "not valid"),
        (b"x" * (MAX_HEADER_BYTES + 10) + b"\n", "first line"),
        (ASKED.model_dump_json(by_alias=True).replace('"priority":0', '"priority":5').encode() + b"\n", "priority"),
        (ASKED.model_dump_json(by_alias=True).replace('"tsp"', '"../../etc"').encode() + b"\n", "target"),
        (ASKED.model_dump_json(by_alias=True).replace("f" * 64, "../" * 21 + "f").encode() + b"\n", "reply"),
        (ASKED.model_dump_json(by_alias=True)[:-1].encode() + b', "submitter": "ada"}\n', "submitter"),
    ],
)
def test_what_is_no_request_is_refused_in_words(spool: Spool, tmp_path: Path, content: bytes, why: str) -> None:
    (spool.incoming / "x.submission").write_bytes(content)
    with pytest.raises(SubmissionError, match=why):
        taken(spool, "x.submission", tmp_path / "copy")


def test_too_much_is_refused_also_when_it_grows_while_it_is_read(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(b"x" * 2000)
    path = spool.leave(ASKED, tmp_path / "bundle")
    with pytest.raises(SubmissionError, match="at most 1000"):
        taken(spool, path.name, tmp_path / "copy")
    path.write_bytes(ASKED.model_dump_json(by_alias=True).encode() + b"\n")
    with spool.opened(path.name) as left:
        read_request_of(left)
        with path.open("ab") as more:
            more.write(b"x" * 3000)
        with pytest.raises(SubmissionError, match="grew above 1000"):
            copy_bundle(left, max_bytes=1000, bundle=tmp_path / "other")


def test_links_fifos_folders_and_second_names_are_no_submissions(spool: Spool, tmp_path: Path) -> None:
    victim = spool.leave(ASKED, None)
    os.link(victim, spool.incoming / "second.submission")
    (spool.incoming / "link.submission").symlink_to("/etc/passwd")
    os.mkfifo(spool.incoming / "fifo.submission")
    (spool.incoming / "folder.submission").mkdir()
    for name, why in {
        "second.submission": "another name",
        "link.submission": "can't be opened",
        "fifo.submission": "no plain file",
        "folder.submission": "no plain file",
    }.items():
        with pytest.raises(SubmissionError, match=why):
            taken(spool, name, tmp_path / name)
        spool.remove(name)  # a folder is left to its owner, without an error


def test_what_a_killed_command_left_is_swept_and_nothing_else(spool: Spool) -> None:
    whole = spool.leave(ASKED, None)
    torn, young = spool.incoming / ".torn.submission.1a2b", spool.incoming / ".young.submission.1a2b"
    for path in (torn, young):
        path.write_text("half")
    before = time.time() - LEFT_SECONDS - 60
    for path in (whole, torn):
        os.utime(path, (before, before))
    assert spool.sweep() == 1
    assert whole.exists() and young.exists() and not torn.exists()


@pytest.mark.parametrize(
    ("submitters", "may"),
    [((), False), (("*",), True), (("uid-54321",), True), (("uid-5432", "root", "ada"), False)],
)
def test_who_left_a_file_may_submit_only_where_the_settings_say_so(
    spool: Spool, submitters: tuple[str, ...], may: bool
) -> None:
    """By the file's owner alone; the service's own account always may."""
    settings = Settings(mode="service", service={"spool": spool.path, "submitters": submitters})  # type: ignore[arg-type]
    path = spool.leave(ASKED, None)
    with spool.opened(path.name) as left:
        _check_submitter(settings, left)
        stranger = dataclasses.replace(left, uid=54321)
        if may:
            _check_submitter(settings, stranger)
        else:
            with pytest.raises(SubmissionError, match=r"uid-54321 is not among service\.submitters"):
                _check_submitter(settings, stranger)


def test_a_spool_that_others_could_tamper_with_is_told_of(spool: Spool) -> None:
    assert spool.problems() == []
    for folder, mode, right in ((spool.path, 0o775, 0o755), (spool.incoming, 0o1777, 0o3733), (spool.replies, 0o755,
                                0o711)):  # fmt: skip
        folder.chmod(mode)
        assert spool.problems() == [f"{folder} has mode {mode:04o}, not {right:04o}"]
        folder.chmod(right)
    spool.incoming.rmdir()
    assert spool.problems() == [f"{spool.incoming}: No such file or directory"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_spool_of_another_account_is_told_of(spool: Spool) -> None:
    os.chown(spool.incoming, 54321, -1)
    spool.incoming.chmod(0o3733)
    assert spool.problems() == [f"{spool.incoming} belongs to uid-54321, not to the service"]


def test_an_empty_folder_is_removed_and_one_that_holds_something_is_its_owners(spool: Spool) -> None:
    for name in ("a.submission", "b.submission"):
        (spool.incoming / name).mkdir()
        with pytest.raises(SubmissionError, match="no plain file"), spool.opened(name):
            pass
    (spool.incoming / "b.submission" / "kept").write_text("mine")
    spool.remove("a.submission")
    spool.remove("b.submission")
    assert spool.names() == ["b.submission"]
    assert (spool.incoming / "b.submission" / "kept").read_text() == "mine"
