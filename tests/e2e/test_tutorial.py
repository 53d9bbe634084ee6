"""Pages whose commands do not run, or do not print what the page shows.

Every console block of the tutorial and of the README is run, in order, in one shell, as somebody would who has just
cloned the repository and has nothing else: a home folder of its own, jobs on this machine, the embedded Postgres.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.controller.deployment import account
from tests.e2e.documents import Block, Shell, console_blocks, difference, masked

TOP = Path(__file__).resolve().parents[2]
TUTORIAL = TOP / "docs" / "tutorial" / "index.md"
README = TOP / "README.md"
HOW_TO = TOP / "docs" / "how-to"
RECOVER = HOW_TO / "recover.md"

SORT_BENCHMARK = """\
mkdir -p ~/sort/bench ~/sort/src && cd ~/sort && git init --quiet
printf 'import json\\nprint(json.dumps({"seconds": sum(range(1000)) / 1e6}))\\n' > bench/sort.py
touch bench/__init__.py src/sorting.py && git add . && git commit --quiet --message 'Sorting'
"""
PAGES_AFTER_THE_TUTORIAL: tuple[tuple[str, str], ...] = (
    ("add-a-lane.md", "cd ~"),
    ("write-a-contract.md", SORT_BENCHMARK),
    ("post-training-challenge.md", "cd ~/src/outerloop"),
    (
        "submit-many-candidates.md",
        "cd ~/tsp && git branch exp/one nothing && git branch exp/two crash && git branch sweep crash",
    ),
)
"""(how-to page, what its reader has before): their blocks are run where the tutorial ended, with its runs."""

SHOWN_HOME = "/home/ada"
"""The home folder on the pages."""
SHOWN_HOST = "laptop"
PATIENCE_SECONDS = 700.0

_RUN = re.compile(r"\brun (c-[0-9a-f]{10})\b")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder with a short path, because the embedded server has sockets below it; its servers are stopped."""
    folder = Path(tempfile.mkdtemp(prefix="ol-doc-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    if (folder / ".config" / "outerloop" / "config.toml").exists():
        subprocess.run(
            [str(Path(sys.executable).parent / "outerloop"), "db", "stop"],
            env=environment(folder),
            capture_output=True,
            check=False,
            timeout=60,
        )
    shutil.rmtree(folder, ignore_errors=True)


def environment(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "USER": "somebody",  # after sudo; it must not matter
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
    }


def clone(home: Path) -> Path:
    """What the pages use of the repository, as it is in the working tree."""
    folder = home / "src" / "outerloop"
    shutil.copytree(TOP / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__", "out"))
    shutil.copy(TOP / "README.md", folder)
    return folder


def normalised(output: str, home: Path) -> list[str]:
    """The output with what belongs to this machine called as the pages call it."""
    for real in (str(home), str(home.resolve())):
        output = output.replace(real, SHOWN_HOME)
    output = output.replace(str(Path(sys.executable).parent), f"{SHOWN_HOME}/src/outerloop/.venv/bin")
    # One interpreter, two names: which one a venv's scripts name depends on how pip was called.
    output = re.sub(r"(/\.venv/bin/python)(?![\w.])", r"\g<1>3", output)
    output = re.sub(rf"\b{re.escape(socket.gethostname())}\b", SHOWN_HOST, output)
    output = re.sub(rf"\bby {re.escape(account())}\b", "by ada", output)
    return output.splitlines()


def run_page(page: Path, home: Path) -> list[tuple[Block, list[list[str]]]]:
    """Run a page, check it, and return what each command printed. Fails with every difference of the page at once."""
    with Shell(clone(home), environment(home), seconds=PATIENCE_SECONDS) as shell:
        return run_blocks(page, shell, home)


def run_blocks(page: Path, shell: Shell, home: Path, *, all_output: bool = True) -> list[tuple[Block, list[list[str]]]]:
    """The same in a shell that is there. `all_output` False: a block that shows no output may print any."""
    blocks = console_blocks(page.read_text(encoding="utf-8"))
    assert blocks, page
    complaints: list[str] = []
    printed: list[tuple[Block, list[list[str]]]] = []
    run = ""
    for block in blocks:
        if block.why_not:
            continue
        compared = all_output or any(command.output for command in block.commands)
        outputs = []
        for command in block.commands:
            where = f"{page.name}:{command.line}: $ {command.text}"
            assert run or "RUN" not in command.text, f"{where}: no run has been named yet"
            code, output = shell.run(command.text.replace("RUN", run))
            run = found[1] if (found := _RUN.search(output)) else run
            lines = normalised(output, home)
            outputs.append(lines)
            wanted = block.exit if command is block.commands[-1] else 0
            if code != wanted:
                complaints.append(f"{where}\nended with {code}, not {wanted}:\n" + "\n".join(lines))
            elif compared and (wrong := difference(command.output, lines)):
                complaints.append(f"{where}\n{wrong}\n--- printed\n" + "\n".join(lines))
        printed.append((block, outputs))
    assert not complaints, "\n\n".join(complaints)
    return printed


@pytest.mark.slow
def test_the_tutorial_runs_and_a_lost_database_is_made_anew(home: Path) -> None:
    run_page(TUTORIAL, home)
    [how_to] = [block for block in console_blocks(RECOVER.read_text(encoding="utf-8")) if not block.why_not]
    with Shell(home, environment(home), seconds=60) as shell:
        before = shell.run("outerloop champions --json")
        assert json.loads(before[1]), before
        for command in how_to.commands:
            code, output = shell.run(command.text)
            assert code == 0, (command, output)
        assert output.startswith("6 runs with 6 verdicts, 2 champions"), output
        assert shell.run("outerloop champions --json") == before
    follow_how_to_pages(home)


def follow_how_to_pages(home: Path) -> None:
    """Run every page's blocks; what they submitted and what has not ended is cancelled at the end."""
    runs: set[str] = set()
    for name, before in PAGES_AFTER_THE_TUTORIAL:
        with Shell(home, environment(home), seconds=PATIENCE_SECONDS) as shell:
            code, output = shell.run(before)
            assert code == 0, (name, output)
            printed = run_blocks(HOW_TO / name, shell, home, all_output=False)
        runs.update(re.findall(r"\bc-[0-9a-f]{10}\b", str(printed)))
    with Shell(home, environment(home), seconds=PATIENCE_SECONDS) as shell:
        for run in sorted(runs):
            shell.run(f"outerloop cancel {run}")


@pytest.mark.slow
def test_a_stranger_reaches_a_verdict_with_the_readme_alone(home: Path) -> None:
    printed = run_page(README, home)
    said = "\n".join(line for _, outputs in printed for lines in outputs for line in lines)
    assert re.search(r"run c-[0-9a-f]{10}: accepted: .*raggedness fell", said), said
    # what the README says about removing everything is true
    assert not (home / "outerloop").exists() and not (home / ".config" / "outerloop").exists()


@pytest.mark.parametrize(
    ("shown", "printed", "agrees"),
    [
        (["a 1"], ["a 2.5"], True),
        (["a 1"], ["b 1"], False),
        (["run c-0123456789: x"], ["run c-abcdef0123: x"], True),
        (["…", "end"], ["1", "2", "end"], True),
        (["…", "end"], ["1", "2"], False),
        (["a", "…"], ["a"], True),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
        ([], ["surprise"], False),
        (["fe884c6 The target"], ["1234567 The target"], True),
        (["accepted"], ["rejected"], False),
        (["0.5, 333616868"], ["0.0061841, 12"], True),
        (["fell by 0.17, from", "1.2"], ["fell by 0.1, from 1.3"], True),
        (["tsp: 2-opt in a …", "x 1"], ["tsp: 2-opt…", "x 2"], False),
        (["tsp: 2-opt…", "x 1"], ["tsp: 2-opt in a …", "x 2"], True),
        (["a … b … c"], ["a b x b y c"], True),
        (["a … b … c"], ["a b x b y"], False),
    ],
)
def test_the_comparison_forgives_values_and_nothing_else(shown: list[str], printed: list[str], agrees: bool) -> None:
    assert (difference(shown, printed) == "") is agrees


def test_words_that_happen_to_be_hexadecimal_are_not_masked() -> None:
    assert masked("the decade faced a facade") == "the decade faced a facade"


def test_blocks_are_found_with_their_remarks() -> None:
    page = "<!-- exit: 3 -->\n```console\n$ one \\\n  two\nout\n$ three\n```\n"
    first, second = console_blocks(f"{page}<!-- not run: why -->\n```console\n$ y\n```\n")
    assert (first.exit, [c.text for c in first.commands]) == (3, ["one \\\n  two", "three"])
    assert first.commands[0].output == ("out",)
    assert second.why_not == "why"
