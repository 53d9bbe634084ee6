"""`make test-pyslurm`: looks for what it needs, says what is missing, and runs the tests on the real pyslurm.

Covered: finding Slurm 25.11 (SLURM=DIR or the machine's own), a pyslurm that loads (in the virtual environment, in
PYSLURM=DIR, beside the interpreter that made the environment, or built now), and either what a throw-away cluster needs
or, with SITE=FOLDER, the site's own cluster. Exit codes: 2 with one line for each thing that is missing, otherwise
pytest's. Not covered: installing Slurm.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outerloop.compute.pyslurm_words import PYSLURM_RELEASE, fits

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "slurm" / "devcluster" / "install.sh"
CONTRACT = "tests/slurm/test_backend_contract.py"
WHOLE_RUNS = "tests/slurm/test_climbs.py"
LIBRARY = "libslurmfull.so"
HEADERS = ("slurm.h", "slurm_version.h", "slurm_errno.h", "slurmdb.h")
_LOAD_SECONDS = 60.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make test-pyslurm", description=__doc__)
    parser.add_argument("--slurm", default="", help="the folder that has Slurm's bin (default: looked for)")
    parser.add_argument("--pyslurm", default="", help="a folder with a pyslurm for this Python")
    parser.add_argument("--site", default="", help="test on the site's own cluster; a folder that its nodes share")
    parser.add_argument("--check", action="store_true", help="look only: build nothing, run nothing")
    said, pytest = parser.parse_known_args(arguments)
    slurm = find_slurm(said.slurm)
    if isinstance(slurm, str):
        return _stop([slurm])
    version = slurm_version(slurm)
    if not fits(f"{PYSLURM_RELEASE}.0", version):
        told = f"is {version}" if version else "tells no version"
        return _stop([f"the Slurm in {slurm} {told}; pyslurm needs {PYSLURM_RELEASE}"])
    library = find_pyslurm(said.pyslurm)
    wanting = [*what_a_build_needs(slurm)] if library is None else []
    without_accounting = ""
    if said.site:
        wanting += what_a_site_needs(Path(said.site))
    else:
        lacking, without_accounting = what_a_cluster_needs(slurm)
        wanting += lacking
    if wanting:
        return _stop(wanting)
    if said.check:
        print(f"test-pyslurm: all there: {version} in {slurm}, {library or 'pyslurm is to be built'}")
        return 0
    if library is None:
        complaint = build(slurm)
        if complaint:
            return _stop([complaint])
    loaded, complaint = load(library)
    if complaint:
        return _stop([complaint])
    if not fits(loaded, version):
        return _stop([f"pyslurm {loaded} does not fit {version}: remove it ({_uninstall(library)}) and try again"])
    where = library or "the virtual environment"
    print(f"test-pyslurm: pyslurm {loaded} in {where}, {version} in {slurm}", flush=True)
    settings = {"OUTERLOOP_TEST_PYSLURM": str(library or "1"), "OUTERLOOP_REQUIRE_SLURM": "1"}
    tests, options = [CONTRACT], list[str]()
    if said.site:
        # Nodes have to see the scripts and the logs; pytest empties its folder first, so it gets one of its own.
        folder = Path(tempfile.mkdtemp(prefix="outerloop-test-", dir=said.site)) / "t"
        settings |= {"OUTERLOOP_TEST_SITE": str(slurm / "bin")}
        options = [f"--basetemp={folder}", "--timeout=3600"]
        print(f"test-pyslurm: on the site's own cluster, files in {folder}", flush=True)
    else:
        tests += [WHOLE_RUNS]
        # Another release that was unpacked for make test-slurm would win.
        settings |= {"OUTERLOOP_DEV_SLURM": str(slurm), "OUTERLOOP_DEV_PREFIX": ""}
        if without_accounting:
            settings |= {"OUTERLOOP_DEV_ACCOUNTING": "none"}
            print(f"test-pyslurm: tests of the accounting are skipped: {without_accounting}", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *tests, *options, *pytest],
        cwd=ROOT,
        env={**os.environ, **settings},
        check=False,
    ).returncode


def _stop(lines: list[str]) -> int:
    for line in lines:
        print(f"test-pyslurm: {line}", file=sys.stderr)
    return 2


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# ------------------------------------------------------------------------------------------------------- Slurm


def find_slurm(given: str) -> Path | str:
    """The folder whose bin has Slurm's client tools, or a sentence about where they were looked for."""
    on_path = shutil.which("scontrol")
    places = [Path(given)] if given else [Path(on_path).resolve().parent.parent] if on_path else []
    if not given:
        places += [Path(place) for place in ("/usr", "/usr/local", "/opt/slurm", "/usr/local/slurm")]
    found = next((place for place in places if os.access(place / "bin" / "sbatch", os.X_OK)), None)
    if found is not None:
        return found.absolute()
    return (
        f"no sbatch in {', '.join(str(place / 'bin') for place in places)}; say where Slurm is: "
        "make test-pyslurm SLURM=/opt/slurm"
    )


def slurm_version(slurm: Path) -> str:
    """What Slurm's programs print, such as `slurm 25.11.2`; empty when none does.

    Clients say their version only where they find a configuration; daemons always do, but are not everywhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        conf = Path(folder) / "slurm.conf"
        conf.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
        for program, option, environment in (
            ("sbin/slurmctld", "-V", {}),
            ("sbin/slurmd", "-V", {}),
            ("bin/sbatch", "--version", {}),
            ("bin/sbatch", "--version", {"SLURM_CONF": str(conf)}),
        ):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(
                    [str(slurm / program), option],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=_LOAD_SECONDS,
                    env={**os.environ, **environment},
                )
                if done.returncode == 0 and done.stdout.strip():
                    return _first_line(done.stdout)
    return ""


def _libraries(slurm: Path) -> Iterator[Path]:
    """Folders that SLURM_LIB_DIR may name: source builds, RPMs, Debian packages."""
    yield slurm / "lib64"
    yield slurm / "lib"
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        yield slurm / "lib" / multiarch


def find_library(slurm: Path) -> tuple[Path, Path] | None:
    """(what SLURM_LIB_DIR must be, the folder that has the library and the plugins)."""
    for folder in _libraries(slurm):
        for place in (folder, folder / "slurm", folder / "slurm-wlm"):
            if (place / LIBRARY).exists():
                return folder, place
    return None


# ----------------------------------------------------------------------------------------------------- pyslurm


def find_pyslurm(given: str) -> Path | None:
    """The folder of the pyslurm to test; Path() when it is in this environment, None when it has to be built."""
    if given:
        return Path(given).absolute()
    looks = "import importlib.util as u; s = u.find_spec('pyslurm'); print(s.origin if s else '')"
    for interpreter in (sys.executable, getattr(sys, "_base_executable", "")):
        if not interpreter:
            continue
        done = subprocess.run([interpreter, "-I", "-c", looks], capture_output=True, text=True, check=False)
        origin = done.stdout.strip()
        if done.returncode == 0 and origin:
            return Path() if interpreter == sys.executable else Path(origin).parent.parent
    return None


def what_a_build_needs(slurm: Path) -> list[str]:
    lacking = []
    if find_library(slurm) is None:
        looked = ", ".join(f"{folder}[/slurm|/slurm-wlm]" for folder in _libraries(slurm))
        lacking.append(f"no {LIBRARY} in {looked}: pyslurm is built against it (it comes with Slurm itself)")
    absent = [name for name in HEADERS if not (slurm / "include" / "slurm" / name).exists()]
    if absent:
        packages = "slurm-devel as an RPM, slurm-smd-dev for Debian"
        lacking.append(f"no {', '.join(absent)} in {slurm}/include/slurm: Slurm's headers ({packages})")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        version = "{}.{}".format(*sys.version_info[:2])
        lacking.append(
            f"no {header}: Python's headers (python{version}-devel as an RPM, python{version}-dev for Debian)"
        )
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        lacking.append("no C compiler (gcc)")
    return lacking


def build(slurm: Path) -> str:
    """Install the extra, which builds pyslurm (minutes); a sentence when that fails."""
    found = find_library(slurm)
    assert found is not None
    print(f"test-pyslurm: building pyslurm against {found[1] / LIBRARY}, some minutes", flush=True)
    environment = {
        **os.environ,
        "SLURM_LIB_DIR": str(found[0]),
        "SLURM_INCLUDE_DIR": str(slurm / "include"),
        "PYSLURM_BUILD_JOBS": str(os.cpu_count() or 1),
    }
    # No cache: a wheel from it has the path of the Slurm that it was built against in it.
    command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "-e", ".[slurm]"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode == 0:
        return ""
    log = Path(tempfile.mkdtemp(prefix="test-pyslurm-")) / "pip.log"
    log.write_text(done.stdout)
    error = next((line.strip() for line in done.stdout.splitlines() if "rror:" in line), _last_line(done.stdout))
    return f"pip could not build pyslurm: {error} (all of it: {log})"


def load(library: Path | None) -> tuple[str, str]:
    """(version, what is wrong) of the pyslurm, imported in a process of its own without a cluster."""
    place = "" if library in (None, Path()) else f"sys.path.insert(0, {str(library)!r}); "
    # The variable keeps the import from looking for a slurm.conf, without which it would end the process.
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; {place}import pyslurm; print(pyslurm.__version__)"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSLURM_DISABLE_AUTO_INIT": "1"},
        timeout=_LOAD_SECONDS,
    )
    if done.returncode == 0:
        return _last_line(done.stdout), ""
    return "", f"pyslurm does not load: {_last_line(done.stderr)} (to have it built again: {_uninstall(library)})"


def _uninstall(library: Path | None) -> str:
    return f"it is in {library}" if library not in (None, Path()) else f"{sys.executable} -m pip uninstall -y pyslurm"


# ----------------------------------------------------------------------------------------------------- cluster


def what_a_cluster_needs(slurm: Path) -> tuple[list[str], str]:
    """(what a throw-away cluster lacks, why it can have no accounting)."""
    # On PATH there may be daemons of another release.
    absent = [name for name in ("slurmctld", "slurmd", "slurmstepd") if not _has(slurm, name)]
    lacking = ", ".join(absent) or _missing_programs(slurm, accounting=False)
    instead = "on a cluster that runs already it tests with SITE=FOLDER"
    if lacking:
        return [
            f"a throw-away cluster needs {lacking.strip()} (Slurm's own in {slurm}, munged from munge); {instead}"
        ], ""
    found = find_library(slurm)
    if found is not None and not (found[1] / "auth_munge.so").exists():
        return [f"no auth_munge.so in {found[1]}: Slurm was built without munge's headers; {instead}"], ""
    if not _has(slurm, "slurmdbd"):
        return [], f"no slurmdbd in {slurm}"
    if found is not None and not (found[1] / "accounting_storage_mysql.so").exists():
        return (
            [],
            f"no accounting_storage_mysql.so in {found[1]}: Slurm was built without the headers of MySQL or MariaDB",
        )
    whole = _missing_programs(slurm, accounting=True)
    return [], f"no {whole}" if whole else ""


def _has(slurm: Path, program: str) -> bool:
    return any(os.access(slurm / folder / program, os.X_OK) for folder in ("sbin", "bin"))


def _missing_programs(slurm: Path, *, accounting: bool) -> str:
    knobs = {"OUTERLOOP_DEV_SLURM": str(slurm), "OUTERLOOP_DEV_ACCOUNTING": "dbd" if accounting else "none"}
    done = subprocess.run(
        [str(INSTALL), "--check"], capture_output=True, text=True, check=False, env={**os.environ, **knobs}
    )
    return "" if done.returncode == 0 else done.stderr.strip().removeprefix("missing: ")


def what_a_site_needs(folder: Path) -> list[str]:
    if not folder.is_absolute() or not os.access(folder, os.W_OK | os.X_OK):
        return [f"SITE={folder} is no folder that can be written to; name one that the cluster's nodes share"]
    return []


if __name__ == "__main__":
    sys.exit(main())
