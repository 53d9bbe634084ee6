"""From the README's code blocks alone to a first verdict, in a clean Debian: `python -m tests.stranger.first_verdict`.

Covered: a Debian made by debootstrap, a clone of this commit in it, the README's blocks in order (those that install
packages too) by an unprivileged account, `sudo` lines as root, and the time from the first command to the verdict. The
repository that is measured is `repository/` beside this file, which the README does not know: where its commands name
its own example (`WORDS`), a reader puts what is theirs. Not covered: whether the output is what the README shows
(tests/e2e/test_tutorial.py).

Needs root, debootstrap and a Debian mirror in apt's sources. Bind mounts live in a mount namespace of their own and
every process in a pid namespace, so nothing is left when it ends, however it ends.

How this machine reaches packages is passed on as it is: pip's variables and files, and the folders that they name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.documents import Block, Shell, console_blocks

__all__ = ["LIMIT_SECONDS", "Verdict", "first_verdict", "why_not"]

TOP = Path(__file__).resolve().parents[2]
README = TOP / "README.md"
REPOSITORY = Path(__file__).resolve().parent / "repository"

LIMIT_SECONDS = 600.0
"""What a stranger's machine may spend until the first verdict."""
PATIENCE_SECONDS = 1800.0

WORDS = (
    ("python3 docs/tutorial/stranger/build.py ~/fold", "git clone --quiet /srv/frontcode.git ~/frontcode"),
    # the README's words: where there is a remote, push it too
    ('"Say how fold is measured"', '"Say how it is measured" && git push --quiet'),
    ("python3 -m benchmarks.raggedness", "python3 benchmarks/size.py"),
    ("raggedness", "bytes_per_word"),
    ("git checkout optimal-fit", "git checkout origin/longer-blocks"),
    ("~/fold", "~/frontcode"),
    ("fold/", "frontcode/"),
)
"""(what the README says of its example, what a reader with this repository says instead), in this order."""

INSTALLS = "needs packages"
"""The one reason not to run a block in the test suite that does not hold here."""

_RUN = re.compile(r"\brun (c-[0-9a-f]{10})\b")
_VERDICT = re.compile(r"run c-[0-9a-f]{10}: (?P<outcome>accepted|rejected|failed)\b.*", re.DOTALL)
_PASSED_ON = re.compile(r"(?i)pip_\w+|ssl_cert_\w+|https?_proxy|no_proxy")
_PIP_FILES = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")


@dataclass(frozen=True)
class Verdict:
    """What came of it. `seconds` is the time from the first command to the verdict, `machine` the making of Debian."""

    outcome: str
    sentence: str
    seconds: float
    machine: float


def why_not() -> str:
    """Why this machine cannot do it; empty when it can."""
    if os.geteuid() != 0:
        return "only root can make a chroot"
    for program in ("debootstrap", "unshare", "chroot", "apt-get"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        return "this machine lets nobody have a mount namespace"
    return "" if _mirror() else "this machine's apt knows no Debian mirror"


def _mirror() -> str:
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return next((uri for uri in listed if re.search(r"/debian/?$", uri)), "")


def _suite() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else "stable"


def first_verdict(base: Path | None = None) -> Verdict:
    """Do it. `base` is a tar of a clean Debian, as debootstrap leaves it, instead of making one.

    Raises AssertionError for a command of the README that fails, with what it printed.
    """
    folder = Path(tempfile.mkdtemp(prefix="ol-stranger-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        started = time.monotonic()
        root = folder / "debian"
        _make(root, base)
        made = time.monotonic() - started
        binds = _prepare(root)
        return _follow(root, binds, made)
    finally:
        _remove(folder)


def _make(root: Path, base: Path | None) -> None:
    root.mkdir()
    if base is not None:
        subprocess.run(["tar", "-C", str(root), "-xpf", str(base)], check=True)
        return
    _say(f"making a clean Debian ({_suite()})")
    command = ["debootstrap", "--variant=minbase", _suite(), str(root), _mirror()]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def _prepare(root: Path) -> list[Path]:
    """What the machine has before the stranger comes: a network, an account, a clone, the stranger's repository.

    Returns the folders of this machine that must be seen inside.
    """
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        if Path(name).is_file():
            shutil.copy(name, root / name.lstrip("/"))
    for setting in Path("/etc/apt/apt.conf.d").glob("*"):
        if setting.is_file() and re.search(r"(?i)proxy", setting.read_text(encoding="utf-8", errors="replace")):
            shutil.copy(setting, root / "etc" / "apt" / "apt.conf.d")
    subprocess.run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", "ada"], check=True)
    home = root / "home" / "ada"
    # a person who uses git has said so; that is no command of ours
    (home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n", encoding="utf-8")
    texts = list(_passed_on().values())
    for name in _PIP_FILES:
        file = Path(name).expanduser()
        if file.is_file():
            texts.append(file.read_text(encoding="utf-8"))
            inside = home / file.relative_to(Path.home()) if name.startswith("~") else root / str(file).lstrip("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, inside)
    clone = home / "src" / "outerloop"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(TOP), str(clone)], check=True)
    _strangers_repository(root / "srv" / "frontcode.git")
    subprocess.run(["chroot", str(root), "chown", "-R", "ada:ada", "/home/ada", "/srv/frontcode.git"], check=True)
    named = {Path(path) for text in texts for path in re.findall(r"(?<![\w:/])(/[\w./-]+)", text)}
    # an index on disk links to files beside its own folder
    named |= {Path(path).parent for text in texts for path in re.findall(r"file://(/[\w./-]+)", text)}
    return sorted(path for path in named if len(path.parts) > 2 and path.exists() and not path.is_relative_to(root))


def _strangers_repository(bare: Path) -> None:
    """A remote with the branches `main` and `longer-blocks`, a candidate."""
    work = bare.with_suffix(".work")
    shutil.copytree(REPOSITORY, work, ignore=shutil.ignore_patterns("__pycache__"))

    def git(*words: str) -> None:
        author = ["-c", "user.name=Grace", "-c", "user.email=grace@example.org"]
        subprocess.run(["git", "-C", str(work), *author, *words], check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--message", "Front coding of word lists")
    git("checkout", "--quiet", "-b", "longer-blocks")
    coding = work / "frontcode" / "coding.py"
    text = coding.read_text(encoding="utf-8")
    assert "BLOCK = 4\n" in text
    coding.write_text(text.replace("BLOCK = 4\n", "BLOCK = 32\n"), encoding="utf-8")
    git("commit", "--quiet", "--all", "--message", "A whole word every 32")
    git("checkout", "--quiet", "main")
    git("clone", "--quiet", "--bare", ".", str(bare))
    shutil.rmtree(work)


def _passed_on() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}


def _inside(root: Path, binds: Sequence[Path], account: str) -> list[str]:
    """The command that is a shell of `account` in the chroot, with mounts and processes that end with it."""
    # Files are copied and not bound: a chroot's package may want to replace them.
    lines = ["set -eu", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    for path in binds:
        place = f"{root}{path}"
        if path.is_dir():
            lines.append(f"mkdir -p {place}; mount --bind {path} {place}; mount -o remount,bind,ro {place}")
        else:
            lines.append(f"mkdir -p $(dirname {place}); [ -e {place} ] || cp {path} {place}")
    lines.append(f"exec chroot --userspec={account}:{account} {root} /bin/bash --noprofile --norc")
    namespaces = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    return [*namespaces, "bash", "-c", "\n".join(lines)]


def _shell(root: Path, binds: Sequence[Path], account: str) -> Shell:
    environment = {
        **_passed_on(),
        "HOME": "/root" if account == "root" else f"/home/{account}",
        "USER": account,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    return Shell(Path("/"), environment, seconds=PATIENCE_SECONDS, program=_inside(root, binds, account))


def _blocks() -> Iterator[Block]:
    for block in console_blocks(README.read_text(encoding="utf-8")):
        if not block.why_not or block.why_not == INSTALLS:
            yield block


def _follow(root: Path, binds: Sequence[Path], made: float) -> Verdict:
    missing = [said for said, _ in WORDS if said not in README.read_text(encoding="utf-8")]
    assert not missing, f"the README no longer says {missing}: WORDS is out of date"
    verdict: Verdict | None = None
    started = time.monotonic()
    run = ""
    with _shell(root, (), "root") as administrator, _shell(root, binds, "ada") as stranger:
        code, output = stranger.run("cd ~/src/outerloop")
        assert code == 0, output
        for block in _blocks():
            for command in block.commands:
                text = command.text.replace("RUN", run)
                for said, ours in WORDS:
                    text = text.replace(said, ours)
                began = time.monotonic()
                if text.startswith("sudo "):
                    code, output = administrator.run(text.replace("sudo ", ""))
                else:
                    code, output = stranger.run(text)
                _say(f"{time.monotonic() - began:6.1f} s  $ {text}")
                wanted = block.exit if command is block.commands[-1] else 0
                assert code == wanted, f"README.md:{command.line}: $ {text}\nended with {code}:\n{output}"
                run = found[1] if (found := _RUN.search(output)) else run
                if verdict is None and (decided := _VERDICT.search(output)):
                    sentence = " ".join(decided[0].split("\n\n")[0].split())
                    verdict = Verdict(decided["outcome"], sentence, time.monotonic() - started, made)
    assert verdict is not None, "the README's commands led to no verdict"
    return verdict


def _remove(folder: Path) -> None:
    """Delete what was made, unless something is mounted in it after all."""
    mounts = Path("/proc/mounts").read_text(encoding="utf-8")
    if f" {folder}/" in mounts:
        _say(f"{folder} is left: something is mounted in it")
        return
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.stranger.first_verdict", description=__doc__.splitlines()[0]
    )
    options.add_argument("--base", type=Path, help="a tar of a clean Debian, instead of making one")
    chosen = options.parse_args()
    why = why_not()
    if why:
        print(f"skipped: {why}")
        return 0
    try:
        verdict = first_verdict(chosen.base)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{verdict.sentence}\n{verdict.seconds:.0f} s from the first command; the Debian took {verdict.machine:.0f} s"
    )
    return 0 if verdict.outcome == "accepted" and verdict.seconds < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
