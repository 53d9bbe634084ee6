"""Attacks what `make test-pyslurm` says on machines that lack something: one line for each thing, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm import pyslurm_ready


def slurm(folder: Path, version: str = "slurm 25.11.2", *programs: str) -> Path:
    """A folder that looks like an installed Slurm: client tools, and of the daemons those that are named."""
    for name in ("bin/sbatch", "bin/scontrol", *programs):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {version}\n")
        path.chmod(0o755)
    return folder


def a_pyslurm(folder: Path, text: str) -> Path:
    (folder / "pyslurm").mkdir(parents=True)
    (folder / "pyslurm" / "__init__.py").write_text(text)
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: object, rc: int = 2) -> list[str]:
    assert pyslurm_ready.main([str(argument) for argument in arguments]) == rc
    out, err = capsys.readouterr()
    lines = (err if rc else out).splitlines()
    assert lines and all(line.startswith("test-pyslurm: ") for line in lines)
    return lines


def test_no_slurm_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, "--slurm", tmp_path)
    assert f"no sbatch in {tmp_path}/bin" in line and "SLURM=/opt/slurm" in line


@pytest.mark.parametrize("version", ["slurm-wlm 22.05.8", "slurm 24.11.5", "slurm 26.05.5", "nonsense"])
def test_another_release(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, "--slurm", slurm(tmp_path, version))
    assert version in line and "25.11" in line


def test_a_client_that_finds_no_configuration_is_given_one_to_say_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    folder = slurm(tmp_path)
    (folder / "bin/sbatch").write_text('#!/bin/sh\n[ -s "$SLURM_CONF" ] && echo slurm-wlm 25.11.1-1\n')
    assert pyslurm_ready.slurm_version(folder) == "slurm-wlm 25.11.1-1"


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "--slurm", slurm(tmp_path))
    told = "\n".join(lines)
    assert "libslurmfull.so" in told and "slurm_version.h" in told and "slurmctld, slurmd, slurmstepd" in told
    assert "SITE=FOLDER" in told


@pytest.mark.parametrize("where", ["lib64/slurm", "lib/slurm", "lib/slurm-wlm", "lib64", "lib"])
def test_the_library_of_rpms_debian_packages_and_source_builds_is_found(where: str, tmp_path: Path) -> None:
    (tmp_path / where).mkdir(parents=True)
    (tmp_path / where / "libslurmfull.so").touch()
    found = pyslurm_ready.find_library(tmp_path)
    assert found is not None and found[1] == tmp_path / where
    assert found[1] in (found[0], found[0] / "slurm", found[0] / "slurm-wlm"), "where pyslurm's setup.py looks"


def test_a_site_needs_no_daemons_but_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, library = slurm(tmp_path / "slurm"), a_pyslurm(tmp_path / "library", "__version__ = '25.11.2'")
    (line,) = said(capsys, "--slurm", folder, "--pyslurm", library, "--site", "shared")
    assert "SITE=shared" in line
    (line,) = said(capsys, "--slurm", folder, "--pyslurm", library, "--site", tmp_path, "--check", rc=0)
    assert f"slurm 25.11.2 in {folder}" in line and str(library) in line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise ImportError('libslurmfull.so: cannot open shared object file')", "libslurmfull.so: cannot open"),
        ("import os; os._exit(1)", "pyslurm does not load"),
        ("__version__ = '24.11.0'", "pyslurm 24.11.0 does not fit slurm 25.11.2"),
    ],
)
def test_a_pyslurm_that_does_not_load_or_fit(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--slurm", slurm(tmp_path / "slurm"), "--site", tmp_path, "--pyslurm")
    (line,) = said(capsys, *arguments, a_pyslurm(tmp_path / "library", text))
    assert why in line


def test_a_slurm_without_accounting_skips_its_tests_and_says_so(tmp_path: Path) -> None:
    daemons = ("sbin/slurmctld", "sbin/slurmd", "sbin/slurmstepd")
    clients = ("bin/squeue", "bin/sacct", "bin/scancel", "bin/sinfo", "bin/sacctmgr", "sbin/munged")
    folder = slurm(tmp_path, "slurm 25.11.2", *daemons, *clients)
    assert pyslurm_ready.what_a_cluster_needs(folder) == ([], f"no slurmdbd in {folder}")
    slurm(tmp_path, "slurm 25.11.2", "sbin/slurmdbd")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libslurmfull.so").touch()
    (lacking,), why = pyslurm_ready.what_a_cluster_needs(folder)
    assert "auth_munge.so" in lacking and why == ""
    (tmp_path / "lib" / "auth_munge.so").touch()
    none, why = pyslurm_ready.what_a_cluster_needs(folder)
    assert none == [] and "accounting_storage_mysql.so" in why
