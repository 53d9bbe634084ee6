"""Pages as tests: the console blocks of a Markdown file, run in one shell and compared with what they show.

Covered: finding blocks and what is said about them, running them, a loose comparison. Not covered: which pages, and
what a machine needs for them (test_tutorial.py).

In a page, a line of a console block that begins with `$ ` is a command, and the lines below it are its output, stdout
and stderr together. A word with `…` in it stands for any number of words. Numbers, digests, times and run ids are
compared as kinds, not as values; blanks and line breaks are not compared. A comment on the line before a block says
what is special about it:

    <!-- exit: 3 -->             its last command ends with 3 (every other command must end with 0)
    <!-- not run: WHY -->        it is only shown; WHY is one of REASONS, or names the test that runs it

A block that no test can run says so to its readers, too: ```console title="needs Slurm".
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["REASONS", "Block", "Command", "Shell", "console_blocks", "difference", "invocations", "masked"]

ANY = "…"

REASONS = frozenset(
    {
        "needs packages",  # a network and a package registry; tests/stranger runs the README's
        "needs Slurm",
        "needs a GPU",
        "needs minutes",
        "needs other accounts",
        "needs another machine",
        "runs until Ctrl-C",
    }
)
"""Why a block is not run, as its readers see it. Its commands are compared with the command line all the same."""

_FENCE = re.compile(r"^```console(?: title=\"(?P<title>[^\"\n]+)\")?\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- (?:exit: (?P<exit>\d+)|not run: (?P<why>[^>]+)) -->\s*\Z")

_MASKS = (
    (re.compile(r"\bc-[0-9a-f]{10}\b"), "RUN"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "DATE"),
    (re.compile(r"\b\d\d-\d\d (?=\d\d:\d\d)"), "DATE "),
    (re.compile(r"\b\d\d:\d\d(:\d\d)?\b"), "TIME"),
    # a digest may be all digits, so it is masked as a number is
    (re.compile(r"(?<![.\w])(?=[0-9a-f]*\d)[0-9a-f]{7,64}(?!\w|\.\d)"), "N"),
    (re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "N"),
)


@dataclass(frozen=True)
class Command:
    """One command of a block and the output that the page shows for it."""

    text: str
    output: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Block:
    """A console block. `exit` is the code of its last command; `why_not` is set when it is only shown."""

    commands: tuple[Command, ...]
    line: int
    exit: int = 0
    why_not: str = ""


def console_blocks(page: str) -> list[Block]:
    """The console blocks of a page, in order. Raises ValueError for output before any command."""
    found = []
    for fence in _FENCE.finditer(page):
        comment = _COMMENT.search(page[: fence.start()])
        line = page.count("\n", 0, fence.start()) + 1
        found.append(
            Block(
                commands=tuple(_commands(fence["body"].splitlines(), line)),
                line=line,
                exit=int(comment["exit"]) if comment and comment["exit"] else 0,
                why_not=fence["title"] or (comment["why"] if comment and comment["why"] else ""),
            )
        )
    return found


def _commands(lines: Sequence[str], first: int) -> list[Command]:
    found: list[Command] = []
    continued = False
    for number, line in enumerate(lines, first + 1):
        if line.startswith("$ "):
            found.append(Command(line[2:], (), number))
        elif not found:
            raise ValueError(f"line {number}: output before any command")
        elif continued:
            last = found[-1]
            found[-1] = Command(f"{last.text}\n{line}", (), last.line)
        else:
            last = found[-1]
            found[-1] = Command(last.text, (*last.output, line), last.line)
        continued = line.endswith("\\") and not found[-1].output
    return found


def invocations(command: str) -> list[list[str]]:
    """The simple commands of a shell command as words, without redirections and variables set before one.

    `A=b x y > f && z | w` is x with y, z, and w. Raises ValueError for quotes that do not close.
    """
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    redirected = False
    for word in lexer:
        if redirected:
            redirected = False
        elif word in {"<", ">", ">>"}:
            redirected = True
        elif set(word) <= set("|&;()\n"):
            found.append([])
        elif found[-1] or not re.fullmatch(r"[A-Za-z_]\w*=.*", word, re.DOTALL):
            found[-1].append(word)
    return [words for words in found if words]


def masked(line: str) -> str:
    """The line with everything that differs between two runs replaced by its kind."""
    for pattern, kind in _MASKS:
        line = pattern.sub(kind, line)
    return line


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Where `printed` leaves what is `shown`, as a sentence; empty when they agree.

    Words are compared, not lines: where a line is broken and how wide a column is depends on the values.
    """
    wanted = [ANY if ANY in word else word for line in shown for word in masked(line).split()]
    there = [word for line in printed for word in masked(line).split()]
    w = t = furthest = 0
    resume: tuple[int, int] | None = None
    while t < len(there):
        if w < len(wanted) and wanted[w] == ANY:
            w += 1
            resume = (w, t)
        elif w < len(wanted) and wanted[w] == there[t]:
            w, t = w + 1, t + 1
            furthest = max(furthest, w)
        elif resume is not None:
            # the last wildcard takes one word more
            w, t = resume[0], resume[1] + 1
            resume = (w, t)
        else:
            return _sentence(wanted[w:], there[t:])
    while w < len(wanted) and wanted[w] == ANY:
        w += 1
    return "" if w == len(wanted) else _sentence(wanted[furthest:], ["(nothing that fits)"])


def _sentence(wanted: Sequence[str], there: Sequence[str]) -> str:
    return f"shown:   {' '.join(wanted[:12]) or '(nothing more)'}\nprinted: {' '.join(there[:12])}"


class Shell:
    """One bash that runs commands one after another; a change of folder or a variable lasts. A context manager."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        *,
        seconds: float,
        program: Sequence[str] = ("bash", "--noprofile", "--norc"),
    ) -> None:
        self._deadline = time.monotonic() + seconds
        self._mark = f"=={os.urandom(8).hex()}=="
        self._bash = subprocess.Popen(
            list(program),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.close()
        try:
            self._bash.wait(5)
        except subprocess.TimeoutExpired:
            self._bash.kill()
            self._bash.wait()
        self._bash.stdout.close()

    def run(self, command: str) -> tuple[int, str]:
        """Exit code and output (stdout and stderr as they came). Raises TimeoutError when the shell's time is over."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        text = f"{{ {command}\n}} </dev/null\nprintf '\\n{self._mark} %d\\n' $?\n"
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()
        end = re.compile(rb"\n" + self._mark.encode() + rb" (\d+)\n")
        output = b""
        while (ended := end.search(output)) is None:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._bash.stdout], [], [], left)[0]:
                raise TimeoutError(f"no time left in: {command}\n{output.decode(errors='replace')}")
            chunk = os.read(self._bash.stdout.fileno(), 65536)
            if not chunk:
                raise RuntimeError(f"the shell ended in: {command}\n{output.decode(errors='replace')}")
            output += chunk
        return int(ended[1]), output[: ended.start()].decode(errors="replace")
