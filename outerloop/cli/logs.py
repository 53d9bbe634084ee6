"""`outerloop logs`: what a measure printed, harmless for the terminal, and followed while it runs.

Covered: choosing role and attempt, following until the attempt has ended. Not covered: where logs lie and the end of
large ones (controller.log_files), writing them (outerloop.job.streams, whose cut marker is recognised by its effect:
the bytes before our place change).
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli import service_client
from outerloop.cli.common import emit_json, json_option, notes
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import Whole
from outerloop.cli.reading import reading
from outerloop.cli.service_client import the_client
from outerloop.cli.text import folded
from outerloop.controller.log_files import STREAMS, default_measure, log_files, tail
from outerloop.printable import harmless

if TYPE_CHECKING:
    from outerloop.cli.reading import Reader
    from outerloop.controller.views import AttemptView, MeasureView, RunView
    from outerloop.slots import SlotDirectory

__all__ = ["Follower", "chosen_measure", "logs"]

LINES = 200
"""Lines of each stream that are shown unless --lines says otherwise."""
FOLLOW_SECONDS = 0.5
RECORD_SECONDS = 2.0
"""How often a follower asks the record whether the attempt was settled."""
_WITNESS_BYTES = 256
"""So many bytes before our place are compared: if they changed, the log was cut and its end rewritten."""


@click.command("logs", help="What a measure of RUN printed. ROLE: by default the one that failed, else the candidate.")
@click.argument("run")
@click.argument("role", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the attempt has ended.")
@click.option("--attempt", type=Whole(1), help="This attempt.  [default: the newest]")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only the command's stdout, without headings.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only the command's stderr, without headings.")
@click.option(
    "--lines",
    "-n",
    type=Whole(0),
    default=LINES,
    show_default=True,
    help="Last lines of each stream; 0 for everything.",
)
@json_option
def logs(
    run: str,
    role: str | None,
    follow: bool,
    attempt: int | None,
    only_stdout: bool,
    only_stderr: bool,
    lines: int,
    as_json: bool,
) -> None:
    if only_stdout and only_stderr:
        raise CliError("--stdout and --stderr: choose one, or neither for both")
    if follow and as_json:
        raise CliError("--follow prints as it comes, --json prints once: use one of them")
    if (client := the_client()) is not None:
        service_client.logs(client, run, role or "", as_json=as_json)
        return
    with reading() as reader:
        view = _view(reader, run)
        measure = _measure(view, role)
        chosen = _attempt(view, measure, attempt)
        folder = _slot(reader, measure)
        wanted = ("stdout.log",) if only_stdout else ("stderr.log",) if only_stderr else STREAMS
        if as_json:
            _as_json(view, measure, chosen, folder, wanted, lines)
            return
        if measure.state == "collected":
            raise CliError(f"the slot of {measure.role} was collected: its logs are gone", ExitCode.NOT_FOUND)
        headings = not (only_stdout or only_stderr)
        if follow and _unfinished(reader, view.row.id, measure, chosen, folder):
            _follow(reader, view, measure, chosen, folder, wanted, lines, headings=headings)
        else:
            _print(measure, chosen, folder, wanted, lines, headings=headings)


def chosen_measure(reader: Reader, run: str, role: str | None) -> tuple[RunView, MeasureView]:
    """The run and the measure that a person names; without a role the one that failed, else the candidate.

    Raises CliError and LookupError with the near names.
    """
    view = _view(reader, run)
    return view, _measure(view, role)


def _view(reader: Reader, run: str) -> RunView:
    from outerloop.controller.operate import find_run
    from outerloop.controller.views import one_run

    view = one_run(reader.record, find_run(reader, run).id)
    if view is None:
        raise CliError(f"run {run} was removed a moment ago", ExitCode.NOT_FOUND)
    return view


def _default_measure(view: RunView) -> MeasureView:
    measure = default_measure(view)
    if measure is None:
        raise CliError(
            f"run {view.row.id} has no measures"
            + (f": {view.row.sentence}" if view.row.sentence else " yet: nothing was submitted so far"),
            ExitCode.NOT_FOUND,
        )
    return measure


def _measure(view: RunView, role: str | None) -> MeasureView:
    if role is None:
        return _default_measure(view)
    measures = view.current or view.measures
    if view.row.kind == "campaign":
        # Its current measures are the live jobs alone.
        measures = view.measures
    for measure in measures:
        if measure.role == role:
            return measure
    begins = [measure for measure in measures if measure.role.startswith(role)]
    if len(begins) == 1:
        return begins[0]
    roles = ", ".join(measure.role for measure in begins or measures)
    what = "is the beginning of several roles" if begins else "is no role of this run"
    raise CliError(f"{role} {what}: {roles or 'it has none yet'}", ExitCode.NOT_FOUND)


def _attempt(view: RunView, measure: MeasureView, number: int | None) -> AttemptView:
    if not measure.attempts:
        raise CliError(
            f"{measure.role} of run {view.row.id} was not submitted yet; `outerloop show {view.row.id}` says why",
            ExitCode.NOT_FOUND,
        )
    if number is None:
        return measure.attempts[-1]
    for attempt in measure.attempts:
        if attempt.n == number:
            return attempt
    known = ", ".join(str(attempt.n) for attempt in measure.attempts)
    raise CliError(f"{measure.role} has no attempt {number}; it has {known}", ExitCode.NOT_FOUND)


def _slot(reader: Reader, measure: MeasureView) -> SlotDirectory:
    from outerloop.slots import SlotDirectory

    return SlotDirectory(reader.root.slot(measure.slot), measure.slot)


def _heading(measure: MeasureView, attempt: AttemptView, name: str) -> str:
    job = f", job {attempt.job_id}" if attempt.job_id else ""
    node = f" on {attempt.node}" if attempt.node else ""
    return f"==> {measure.role}, attempt {attempt.n}{job}{node}: {name} <=="


def _print(
    measure: MeasureView,
    attempt: AttemptView,
    folder: SlotDirectory,
    wanted: tuple[str, ...],
    lines: int,
    *,
    headings: bool,
) -> None:
    printed = False
    for name, path in log_files(folder, attempt.n, wanted).items():
        text, cut = tail(path, lines)
        if not text and headings and name not in {"stdout.log", "stderr.log"}:
            continue
        if headings:
            click.echo(("\n" if printed else "") + _heading(measure, attempt, name))
        if cut:
            notes([f"the beginning is left out; --lines 0 shows all of {path}"])
        click.echo(text, nl=not text.endswith("\n") and bool(text))
        printed = True
    if not printed:
        click.echo(folded(_why_nothing(measure, attempt)), err=True)


def _why_nothing(measure: MeasureView, attempt: AttemptView) -> str:
    from outerloop.controller.timeline import attempt_state

    told = f"{measure.role}, attempt {attempt.n}, has printed nothing"
    if attempt.state == "settled":
        detail = f": {attempt.detail}" if attempt.detail else ""
        return f"{told}; it ended as {attempt_state(attempt)}{detail}"
    if attempt.slurm_state == "pending" and attempt.slurm_reason:
        from outerloop.compute.reasons import pending_reason

        return (
            f"{told}; job {attempt.job_id} is pending ({attempt.slurm_reason}). "
            + pending_reason(attempt.slurm_reason).sentence
        )
    return f"{told} yet; it is {attempt_state(attempt)}"


def _as_json(
    view: RunView,
    measure: MeasureView,
    attempt: AttemptView,
    folder: SlotDirectory,
    wanted: tuple[str, ...],
    lines: int,
) -> None:
    streams: dict[str, Any] = {}
    for name, path in log_files(folder, attempt.n, wanted).items():
        text, cut = tail(path, lines)
        streams[name] = {"path": str(path), "bytes": path.stat().st_size, "cut": cut, "text": text}
    emit_json(
        {
            "run": view.row.id,
            "role": measure.role,
            "slot": measure.slot,
            "attempt": attempt.n,
            "job_id": attempt.job_id,
            "node": attempt.node,
            "state": attempt.state,
            "outcome": attempt.outcome,
            "streams": streams,
        }
    )


# following


@dataclass
class Follower:
    """One log, read as it grows. `rewritten` is set once bytes that were read already have changed."""

    path: Path
    place: int = 0
    rewritten: bool = False
    _witness: bytes = b""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def news(self) -> str:
        """What came since the last call, harmless; "" when the file is not there or was rewritten."""
        if self.rewritten:
            return ""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.place - len(self._witness))
                data = stream.read()
        except OSError:
            return ""
        if not data.startswith(self._witness):
            self.rewritten = True
            return ""
        fresh = data[len(self._witness) :]
        self.place += len(fresh)
        self._witness = data[-_WITNESS_BYTES:]
        return harmless(self._decoder.decode(fresh))

    def skip_to_tail(self, lines: int) -> str:
        """The last lines of what is there already; `news` goes on after them."""
        try:
            text, _cut = tail(self.path, lines)
        except OSError:
            return ""
        with self.path.open("rb") as stream:
            self.place = stream.seek(0, 2)
            stream.seek(max(0, self.place - _WITNESS_BYTES))
            self._witness = stream.read(min(_WITNESS_BYTES, self.place))
        return text


def _unfinished(reader: Reader, run_id: str, measure: MeasureView, attempt: AttemptView, folder: SlotDirectory) -> bool:
    """Whether more may come: the record has not settled the attempt and the job has left no result."""
    from outerloop.controller.views import one_run

    if attempt.state == "settled" or folder.result(attempt.n) is not None:
        return False
    view = one_run(reader.record, run_id)
    if view is None:
        return False
    return any(
        other.live
        for one in view.measures
        if one.slot == measure.slot
        for other in one.attempts
        if other.n == attempt.n
    )


def _pieces(
    followers: dict[str, Follower], folder: SlotDirectory, n: int, wanted: tuple[str, ...], lines: int
) -> Iterator[tuple[str, str]]:
    """(stream, text) of everything new; streams that appear are taken in, a restart's logs replace the older ones."""
    for name, path in log_files(folder, n, wanted).items():
        known = followers.get(name)
        if known is None or known.path != path:
            followers[name] = Follower(path)
            text = followers[name].skip_to_tail(lines) if known is None else followers[name].news()
        else:
            was_whole = not known.rewritten
            text = known.news()
            if known.rewritten and was_whole:
                notes([f"{name} is full, its end is being rewritten; the last lines follow when the job has ended"])
        if text:
            yield name, text


def _follow(
    reader: Reader,
    view: RunView,
    measure: MeasureView,
    attempt: AttemptView,
    folder: SlotDirectory,
    wanted: tuple[str, ...],
    lines: int,
    *,
    headings: bool,
) -> None:
    followers: dict[str, Follower] = {}
    last = ""
    asked = time.monotonic()
    if not log_files(folder, attempt.n, wanted):
        click.echo(folded(_why_nothing(measure, attempt)), err=True)
    unfinished = True
    while True:
        for name, text in _pieces(followers, folder, attempt.n, wanted, lines):
            if headings and name != last:
                click.echo(("\n" if last else "") + _heading(measure, attempt, name))
                last = name
            click.echo(text, nl=False)
        if not unfinished:
            break
        if folder.result(attempt.n) is not None:
            unfinished = False
        elif time.monotonic() - asked > RECORD_SECONDS:
            asked = time.monotonic()
            unfinished = _unfinished(reader, view.row.id, measure, attempt, folder)
        if unfinished:
            time.sleep(FOLLOW_SECONDS)
    for name, follower in followers.items():
        if follower.rewritten:
            if headings:
                click.echo("\n" + _heading(measure, attempt, f"the end of {name}"))
            text, _cut = tail(follower.path, lines)
            click.echo(text, nl=not text.endswith("\n"))
    result = folder.result(attempt.n)
    if result is not None:
        ended = "ended well" if result.ok else f"failed: {result.reason} {result.detail}".rstrip()
        click.echo(f"{measure.role}, attempt {attempt.n}, {ended}", err=True)
