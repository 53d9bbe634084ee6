"""Archives: a verdict whose state folder, database and site are gone can still be recomputed, and not be forged."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import signal
import tarfile
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.controller.archive import MANIFEST, ArchiveError, StateFolder, pack, unpack
from outerloop.controller.evidence import verify
from tests.controller_rig.world import World


def accepted(world: World) -> str:
    run = world.submit("better")
    world.ticks_until_rest()
    assert world.run(run).verdict == "accepted"
    return run


def packed(world: World, run: str, name: str = "one.tar.gz") -> Path:
    out = world.state.path.parent / name
    pack(StateFolder(world.state), run, out)
    return out


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        found = {}
        for entry in tar:
            stream = tar.extractfile(entry)
            assert stream is not None
            found[entry.name] = stream.read()
    return found


def repacked(path: Path, content: dict[str, bytes], *, manifest_too: bool) -> Path:
    """The archive with other bytes in it; with `manifest_too` by somebody who also mends the digests."""
    if manifest_too:
        head = json.loads(content[MANIFEST])
        head["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in content.items() if name != MANIFEST}
        content = {**content, MANIFEST: json.dumps(head).encode()}
    with tarfile.open(path, "w:gz") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_a_verdict_is_recomputed_from_the_archive_alone(world: World, tmp_path: Path) -> None:
    run = accepted(world)
    one, two = packed(world, run), packed(world, run, "two.tar.gz")
    assert one.read_bytes() == two.read_bytes(), "the same evidence gives the same bytes"
    told = {name for name in members(one) if name.startswith("state/champions/")}
    assert len(told) == 1, "the champion that it made"

    again = world.submit("bigger", benchmark="size")
    world.ticks_until_rest()
    assert world.run(again).verdict == "rejected"
    rejected = packed(world, again, "rejected.tar.gz")

    shutil.rmtree(world.state.path)
    shutil.rmtree(world.repo)
    for archive, outcome in ((one, "accepted"), (rejected, "rejected")):
        result = CliRunner().invoke(app, ["verify", str(archive), "--json"])
        assert result.exit_code == 0, result.output
        body = json.loads(result.output)
        assert body["agrees"] and outcome in body["recomputed"], body
    unpacked = unpack(one, tmp_path / "there")
    assert verify(unpacked, run).verdict is not None


def test_changed_values_are_told_even_when_the_digests_were_mended(world: World) -> None:
    run = accepted(world)
    content = members(packed(world, run))
    results = [name for name in content if name.endswith("/result.json")]
    assert len(results) >= 2
    for name in results:
        body = json.loads(content[name])
        body["metric"]["text"] = str(float(body["metric"]["text"]) + 1)
        forged = {**content, name: json.dumps(body).encode()}
        path = repacked(world.state.path.parent / "forged.tar.gz", forged, manifest_too=False)
        with pytest.raises(ArchiveError, match="is not what was packed"):
            unpack(path, world.state.path.parent / hashlib.sha256(name.encode()).hexdigest())
        repacked(path, forged, manifest_too=True)
        result = CliRunner().invoke(app, ["verify", str(path)])
        assert result.exit_code == 1 and "DISAGREE" in result.output, result.output


def test_damaged_and_hostile_files_are_refused_with_a_sentence(world: World, tmp_path: Path) -> None:
    content = members(good := packed(world, accepted(world)))
    whole = good.read_bytes()
    head = json.loads(content[MANIFEST])

    def changed(**values: object) -> dict[str, bytes]:
        return {**content, MANIFEST: json.dumps({**head, **values}).encode()}

    cases: dict[str, bytes | dict[str, bytes]] = {
        "empty": b"",
        "text": b"no archive at all\n" * 99,
        "cut in the middle": whole[: len(whole) // 2],
        "cut at the end": whole[:-6],
        "no manifest": {name: data for name, data in content.items() if name != MANIFEST},
        "manifest is a list": {**content, MANIFEST: b"[]"},
        "manifest is torn": {**content, MANIFEST: content[MANIFEST][:40]},
        "newer schema": changed(schema=99),
        "commit is an option": changed(commits=["--upload-pack=touch /tmp/x"]),
        "target leads out": changed(target="../../etc"),
        "a file too many": {**content, "state/extra": b"x"},
        "a file that leads out": {**content, "../evil": b"x"},
        "a file is missing": {name: data for name, data in content.items() if not name.endswith("request.json")},
        "no pack": {**content, "target.pack": b"PACK"},
    }
    for name, data in cases.items():
        path = tmp_path / f"{name}.tar.gz"
        if isinstance(data, bytes):
            path.write_bytes(data)
        else:
            mend = name in {"a file that leads out", "no pack"}
            repacked(path, data, manifest_too=mend)
        result = CliRunner().invoke(app, ["verify", str(path)])
        assert result.exit_code == 2 and path.name in result.output, (name, result.output, result.exception)
    assert not (tmp_path.parent / "evil").exists() and not (tmp_path / "evil").exists()
    bomb = tmp_path / "bomb.tar.gz"
    with gzip.open(bomb, "wb") as stream:
        stream.write(b"\0" * 1024 * 1024)
    assert CliRunner().invoke(app, ["verify", str(bomb)]).exit_code == 2


def test_an_open_run_and_a_name_that_is_taken_are_refused_and_a_kill_leaves_none_or_all(world: World) -> None:
    run = world.submit("better")
    out = world.state.path.parent / "a.tar.gz"
    with pytest.raises(ValueError, match="has not ended"):
        pack(StateFolder(world.state), run, out)
    assert not out.exists()
    world.ticks_until_rest()
    for point in ("before", "after"):
        body = partial(pack, StateFolder(world.state), run, out)
        assert world.forked(body, fault=f"{point}:archive.write:kill") == -signal.SIGKILL
        assert out.exists() == (point == "after")
    with pytest.raises(FileExistsError):
        pack(StateFolder(world.state), run, out)
    assert unpack(out, world.state.path.parent / "unpacked").run == run


def test_large_files_are_left_out_and_named(world: World) -> None:
    run = accepted(world)
    slot = next(path for path in world.state.slots.glob("*/*/attempts/1/r0/stdout.log"))
    slot.write_bytes(b"x" * 5000)
    done = pack(StateFolder(world.state), run, world.state.path.parent / "b.tar.gz", max_file_bytes=4096)
    assert [size for name, size in done.left_out.items() if name.endswith("stdout.log")] == [5000]
    unpacked = unpack(done.path, world.state.path.parent / "unpacked")
    assert unpacked.left_out == done.left_out and verify(unpacked, run).agrees
