"""The rows that squeue and sacct print: fifty thousand of them are recognised at once and read when somebody looks.

Covered: the fields that are asked for, rows whose name holds separators or newlines, instants, exit codes, folded
array tasks. Not covered: running the tools and judging their exit codes (slurm.py), what a state means (states.py).
"""

from __future__ import annotations

import calendar
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

from outerloop.compute.changes import changed_lines
from outerloop.compute.jobids import expand_ids
from outerloop.compute.protocol import NO_REASON, JobRow, JobState, Listing, NoAnswer, Sights
from outerloop.compute.states import parse_state

__all__ = ["ISO", "ROW", "SACCT_FIELDS", "SEPARATOR", "SQUEUE_FIELDS", "sacct_rows", "scontrol_rows", "squeue_listing"]

log = logging.getLogger(__name__)

SEPARATOR = "|"
ROW = "row|"
"""Every row of squeue begins with this word of ours, so that a name with a newline in it is not taken for two rows."""
SQUEUE_FIELDS = ("%i", "%T", "%V", "%S", "%e", "%N", "%r", "%j")
SACCT_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "NodeList", "JobName")

ISO = "%Y-%m-%dT%H:%M:%S"

# A digit begins an instant; anything else there (N/A, NONE, Unknown) says that there is none.
_TIME = r"(?:\d{4}-(?:0\d|1[0-2])-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d|[^\d|][^|]*|)"
_INSTANT = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", re.ASCII)
_SQUEUE_ROW = re.compile(rf"row\|([^|]*)\|[^|]*\|{_TIME}\|{_TIME}\|{_TIME}\|[^|]*\|[^|]*\|", re.ASCII)
_SCONTROL_ROW = re.compile(r"JobId=\d", re.ASCII)
# The same row for a whole answer at once, in groups of what `Listing.sights` holds.
_LINE_TIME = _TIME.replace("^|", r"^|\n").replace(r"[^\d|]", r"[^\d|\n]")
_SQUEUE_LINE = re.compile(
    r"^row\|(\d+(?:_(?:\d+|\[[0-9,:-]+(?:%\d+)?\])|\+\d+)?\|[^|\n]*\|)"
    rf"{_LINE_TIME}\|{_LINE_TIME}\|{_LINE_TIME}\|[^|\n]*\|([^|\n]*)\|",
    re.ASCII | re.MULTILINE,
)
# The name, which may hold anything, stands before this word, and everything that is read after it.
_SCONTROL_AFTER_NAME = " UserId="
_SACCT_ROW = re.compile(r"\d[\d_+\[\],:%-]*\|", re.ASCII)

# For seconds after a job ended, sacct of 22.05 shows this instead of its name, beside the right state and exit code.
_NAME_NOT_KNOWN_YET = "allocation"

LOOKED_FOR = 16
"""So many jobs are looked for in the text of an answer, a millisecond each; for more a table is made."""

_state = lru_cache(maxsize=256)(parse_state)


_Seen = TypeVar("_Seen")


class _Lines(Mapping[str, _Seen]):
    """Job id -> what its line says, read when it is asked for: of fifty thousand quiet jobs few are ever looked at."""

    def __init__(self, lines: Mapping[str, str], read: Callable[[str, str], _Seen]) -> None:
        self._lines = lines
        self._read = read

    def __getitem__(self, job_id: str) -> _Seen:
        return self._read(job_id, self._lines[job_id])

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._lines

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


@dataclass(frozen=True, eq=False)
class _Read:
    """An answer in which every line is a row."""

    text: str
    folded: bool
    """Whether a row stands for several tasks."""
    mark: object
    sights_read: Sights | None
    """As `Listing.sights` has them; None until somebody asks for them."""
    since: object = None
    """The mark of the answer before, if this one was read by what changed."""
    went: Sights = field(default_factory=list)
    came: Sights = field(default_factory=list)

    @cached_property
    def sights(self) -> Sights:
        if self.sights_read is not None:
            return self.sights_read
        sights = _sights(_SQUEUE_LINE.findall(self.text))
        assert sights is not None, "each line was expanded when it came"
        return sights

    @cached_property
    def lines(self) -> dict[str, str]:
        """Job id -> line."""
        lines = {line.split(SEPARATOR, 2)[1]: line for line in self.text.split("\n")[:-1]}
        for folded in [job_id for job_id in lines if "[" in job_id] if self.folded else ():
            line = lines.pop(folded)
            lines.update(dict.fromkeys(expand_ids(folded), line))
        return lines


class _Found(Mapping[str, str]):
    """Job id -> line, for an answer in which no row stands for several tasks. The first few are looked for in the
    text: of fifty thousand jobs one or two are asked about when something happened to them."""

    def __init__(self, answer: _Read) -> None:
        self._answer = answer
        self._asked = 0

    def _line(self, job_id: object) -> str | None:
        if self._asked >= LOOKED_FOR:
            return self._answer.lines.get(str(job_id))
        self._asked += 1
        text, begins = self._answer.text, f"{ROW}{job_id}{SEPARATOR}"
        # The last of several, as in `lines`.
        at = text.rfind(f"\n{begins}") + 1
        return text[at : text.index("\n", at)] if text.startswith(begins, at) else None

    def __getitem__(self, job_id: str) -> str:
        line = self._line(job_id)
        if line is None:
            raise KeyError(job_id)
        return line

    def __contains__(self, job_id: object) -> bool:
        return self._line(job_id) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._answer.lines)

    def __len__(self) -> int:
        return len(self._answer.lines)


class _SqueueListing(Listing):
    """A listing whose rows are still lines, and one text until somebody asks for a job."""

    _answer: _Read | dict[str, str]

    def __init__(self, answer: _Read | dict[str, str], bad_rows: int) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "bad_rows", bad_rows)

    @cached_property
    def _lines(self) -> Mapping[str, str]:
        if isinstance(self._answer, _Read):
            return self._answer.lines if self._answer.folded else _Found(self._answer)
        return self._answer

    @property
    def mark(self) -> object:
        return self._answer.mark if isinstance(self._answer, _Read) else self

    def changes(self, since: object) -> tuple[Sights, Sights] | None:
        answer = self._answer
        if not isinstance(answer, _Read) or answer.since is None or answer.since is not since:
            return None
        return answer.went, answer.came

    def sights(self) -> Sights:
        return self._answer.sights if isinstance(self._answer, _Read) else super().sights()

    @property
    def jobs(self) -> tuple[JobRow, ...]:
        return tuple(self.by_id().values())

    def by_id(self) -> Mapping[str, JobRow]:
        return _Lines(self._lines, _squeue_row)

    def states(self) -> Mapping[str, tuple[JobState, str]]:
        return _Lines(self._lines, _squeue_state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listing) and (self.jobs, self.bad_rows) == (other.jobs, other.bad_rows)

    __hash__ = None  # type: ignore[assignment]


class _Last:
    """The answer before, for who sweeps again and again: a queue mostly says the same but for a few lines."""

    def __init__(self) -> None:
        self._answer: _Read | None = None

    def read(self, text: str) -> _Read | None:
        """An answer in which every line is a row; None for one that has to be read line by line."""
        before = self._answer
        if before is None or text != before.text:
            self._answer = (_what_changed(before, text) if before is not None else None) or _all_of_it(text)
        return self._answer


_last = _Last()


def _all_of_it(text: str) -> _Read | None:
    rows: Sights = _SQUEUE_LINE.findall(text)
    # No match reaches into a second line, so as many matches as lines are one for each.
    sights = _sights(rows) if len(rows) == text.count("\n") else None
    return None if sights is None else _Read(text, len(sights) > len(rows), object(), sights)


def _what_changed(before: _Read, text: str) -> _Read | None:
    """The same as `_all_of_it`, of the lines that changed alone; None where these are many, or no rows."""
    if not (text.endswith("\n") and before.text.endswith("\n")):
        return None
    changed = changed_lines(before.text, text)
    if changed is None:
        return None
    found: list[Sights] = []
    folded = before.folded
    for lines in changed:
        rows: Sights = _SQUEUE_LINE.findall("".join(f"{line}\n" for line in lines))
        sights = _sights(rows) if len(rows) == len(lines) else None
        if sights is None:
            return None
        found.append(sights)
        folded = folded or len(sights) > len(rows)
    went, came = found
    return _Read(text, folded, object(), None, before.mark, went, came)


def _sights(rows: Sights) -> Sights | None:
    """The rows with the tasks of folded ones after them; None when such a row cannot be expanded."""
    folded = [(seen, reason) for seen, reason in rows if "[" in seen]
    if not folded:
        return rows
    sights = list(rows)
    for seen, reason in folded:
        ids, _, rest = seen.partition(SEPARATOR)
        try:
            sights += [(f"{task}|{rest}", reason) for task in expand_ids(ids)]
        except ValueError:
            return None
    return sights


def squeue_listing(text: str) -> Listing | NoAnswer:
    """What squeue printed. Rows that cannot be read are logged and counted; nothing but such rows is no answer."""
    whole = _last.read(text)
    if whole is not None:
        return _SqueueListing(whole, 0)
    lines: dict[str, str] = {}
    bad = 0
    for line in _rows(text):
        recognised = _SQUEUE_ROW.match(line)
        try:
            if recognised is None:
                raise ValueError("not a row that we asked for, or fields are missing")
            for job_id in expand_ids(recognised[1]):
                lines[job_id] = line
        except ValueError as error:
            bad += 1
            log.warning("squeue shows a row that we cannot read (%s): %r", error, line)
    if bad and not lines:
        return NoAnswer(f"squeue shows {bad} rows, and not one can be read")
    return _SqueueListing(lines, bad)


def _rows(text: str, beginning: re.Pattern[str] | None = None) -> list[str]:
    """Rows whose last field, a name, may hold newlines: a line that does not begin like a row goes on with the one
    before it."""
    rows: list[str] = []
    for line in text.split("\n")[:-1]:
        begins = line.startswith(ROW) if beginning is None else beginning.match(line)
        if begins or not rows:
            rows.append(line)
        else:
            rows[-1] += "\n" + line
    return rows


def _squeue_row(job_id: str, line: str) -> JobRow:
    _row, _job, state, submitted, started, ended, node, reason, name = line.split(SEPARATOR, len(SQUEUE_FIELDS))
    seen = _state(state)
    return JobRow(
        job_id=job_id,
        name=name,
        state=seen.state,
        reason=_said(reason),
        node=node,
        submitted=_instant(submitted),
        started=_instant(started),
        # While a job is active this column foretells its time limit.
        ended=_instant(ended) if seen.state.final else None,
        cancelled_by=seen.cancelled_by,
        raw_state=state,
    )


def _squeue_state(_job_id: str, line: str) -> tuple[JobState, str]:
    fields = line.split(SEPARATOR, len(SQUEUE_FIELDS))
    return _state(fields[2]).state, _said(fields[7])


def _said(reason: str) -> str:
    return reason if reason != NO_REASON else ""


def sacct_rows(text: str) -> list[JobRow] | NoAnswer:
    """What sacct printed. One row that cannot be read spoils the answer: its job might be the one in question."""
    rows = []
    for line in _rows(text, _SACCT_ROW):
        try:
            rows += _sacct_row(line)
        except ValueError as error:
            return NoAnswer(f"sacct shows a row that we cannot read ({error}): {line!r}")
    return rows


def _sacct_row(line: str) -> list[JobRow]:
    fields = line.split(SEPARATOR, len(SACCT_FIELDS) - 1)
    if len(fields) != len(SACCT_FIELDS):
        raise ValueError(f"{len(fields)} fields instead of {len(SACCT_FIELDS)}")
    job, state, exits, submitted, started, ended, node, name = fields
    seen = parse_state(state)
    code, signal = _exits(exits)
    return [
        JobRow(
            job_id=job_id,
            name="" if name == _NAME_NOT_KNOWN_YET else name,
            state=seen.state,
            exit_code=code if seen.state.final else None,
            signal=signal if seen.state.final else None,
            node="" if node.startswith("None") else node,
            submitted=_instant(submitted),
            started=_instant(started),
            ended=_instant(ended) if seen.state.final else None,
            cancelled_by=seen.cancelled_by,
            raw_state=state,
        )
        for job_id in expand_ids(job)
    ]


def scontrol_rows(text: str) -> list[JobRow] | NoAnswer:
    """What `scontrol -o show job` printed."""
    rows = []
    for line in _rows(text, _SCONTROL_ROW):
        try:
            rows += _scontrol_row(line)
        except ValueError as error:
            return NoAnswer(f"scontrol shows a job that we cannot read ({error}): {line[:200]!r}")
    return rows


def _scontrol_row(line: str) -> list[JobRow]:
    before, separator, after = line.rpartition(_SCONTROL_AFTER_NAME)
    if not separator:
        raise ValueError("it has no UserId")
    first, _, name = before.partition(" JobName=")
    ids = dict(word.partition("=")[::2] for word in first.split())
    said = dict(word.partition("=")[::2] for word in reversed(after.split()))
    reason = re.search(r" Reason=(.*?) Dependency=", after)
    seen = parse_state(said["JobState"])
    code, signal = _exits(said.get("ExitCode", ""))
    # A pending array is one job with a list of tasks.
    array, tasks = ids.get("ArrayJobId", ""), ids.get("ArrayTaskId", "")
    printed = ids["JobId"] if not array else f"{array}_{tasks}" if tasks.isdigit() else f"{array}_[{tasks}]"
    return [
        JobRow(
            job_id=job_id,
            name=name,
            state=seen.state,
            reason=reason.group(1) if reason and reason.group(1) != "None" else "",
            exit_code=code if seen.state.final else None,
            signal=signal if seen.state.final else None,
            restarts=int(said.get("Restarts", 0)),
            node="" if said.get("NodeList", "").startswith("(null") else said.get("NodeList", ""),
            submitted=_instant(said.get("SubmitTime", "")),
            started=_instant(said.get("StartTime", "")),
            ended=_instant(said.get("EndTime", "")) if seen.state.final else None,
            raw_state=said["JobState"],
        )
        for job_id in expand_ids(printed)
    ]


def _exits(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) of sacct's "1:0"; no signal is None."""
    if not text:
        return None, None
    code, _, signal = text.partition(":")
    if not code.isdigit() or not (signal.isdigit() or not signal):
        raise ValueError(f"exit code {text!r}")
    return int(code), int(signal or 0) or None


def _instant(text: str) -> float | None:
    """Epoch seconds of an ISO time in UTC. None for N/A, NONE, Unknown and the like."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        if text[:1].isdigit():
            raise ValueError(f"time {text!r}")
        return None
    return float(calendar.timegm((*map(int, found.groups()), 0, 0, 0)))
