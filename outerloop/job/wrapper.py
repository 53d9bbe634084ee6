"""The program that executes one attempt on the node: claim, prepare, run, score, parse, keep, report.

Covered: the order of things and the result. Not covered: how each thing is done (the modules beside this one).

result.json is written on the straight path only. A crash of this program, SIGKILL or a full slot disk leave no
result, and the attempt is then judged by what the queue says. Exit codes: 0 a measured value, 1 a result that says
what failed, 95 to 99 as in `layout`, 128 + n ended by signal n, 74 the result could not be written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping

from outerloop.job import array, claim, files, layout, pack, process, scratch, work
from outerloop.job.execution import Execution, Stopped
from outerloop.job.report import Report, read_work

EXIT_RESULT_NOT_WRITTEN = 74
"""EX_IOERR of sysexits.h."""

_USAGE = "usage: python -I -m outerloop.job SLOT ATTEMPT, or --array MAP, or --pack MAP"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def main(argv: list[str]) -> int:
    """Execute attempt `argv[1]` of the slot folder `argv[0]`, or what the map `argv[1]` gives to this task of an array
    (`argv[0]` is --array), or all that the map has, one after another (--pack). Returns the exit code."""
    if len(argv) == 2 and argv[0] == "--pack":
        try:
            return pack.main(argv[1], claim.identity(os.environ).job_id)
        except ValueError as error:
            return _refuse(layout.EXIT_SPEC, str(error))
    if len(argv) == 2 and argv[0] == "--array":
        try:
            slot, number = array.assignment(argv[1], os.environ)
        except (OSError, ValueError) as error:
            _discard_unused_scratch(os.environ)
            return _refuse(layout.EXIT_SPEC, str(error))
        argv = [slot, str(number)]
    if len(argv) != 2 or not argv[1].isdecimal() or int(argv[1]) < 1:
        return _refuse(layout.EXIT_SPEC, _USAGE)
    slot, attempt = os.path.normpath(argv[0]), int(argv[1])
    digest = os.path.basename(slot)
    folder = os.path.join(slot, layout.ATTEMPTS, str(attempt))
    if not os.path.isabs(slot) or not _DIGEST.fullmatch(digest):
        return _refuse(layout.EXIT_SPEC, f"{slot!r} is no absolute path of a slot folder")
    env = dict(os.environ)
    signals = process.Signals()
    signals.install()
    process.keep_descriptors_private()
    process.become_subreaper()
    os.chdir("/")
    try:
        me = claim.identity(env)
    except ValueError as error:
        return _refuse(layout.EXIT_SPEC, str(error))
    if not os.path.isdir(folder) and not files.listed(folder):
        _discard_unused_scratch(env)
        return _refuse(layout.EXIT_SPEC, f"there is no attempt {attempt} in {slot}")
    resumable = me.restart > 0 and _claims_to_resume(slot)
    try:
        claim.claim(folder, digest, attempt, me, env, resumable)
    except claim.Refusal as refusal:
        _discard_unused_scratch(env)
        return _refuse(refusal.code, str(refusal))
    except OSError as error:
        _discard_unused_scratch(env)
        return _refuse(EXIT_RESULT_NOT_WRITTEN, f"the claim could not be written: {error}")
    report = Report(slot, digest, attempt, me, env)
    with _scratch_folder(env, me.job_id) as place:
        code = _execute(report, place, signals)
        try:
            claim.confirm(folder, digest, attempt, me, env)
            files.replace(os.path.join(folder, layout.RESULT), files.encode(report.body))
        except claim.Refusal as refusal:
            return _refuse(refusal.code, f"no result is written: {refusal}")
        except OSError as error:
            return _refuse(EXIT_RESULT_NOT_WRITTEN, f"the result could not be written: {error}")
    return code


def _execute(report: Report, place: scratch.Scratch | OSError, signals: process.Signals) -> int:
    """Fill the report; returns the exit code."""
    try:
        if isinstance(place, OSError):
            reason = "SCRATCH_FULL" if place.errno in (errno.ENOSPC, errno.EDQUOT) else "RESOURCES"
            raise Stopped("setup", reason, f"no scratch folder could be made: {place}")
        Execution(read_work(report), report, place, signals).run()
    except Stopped as stopped:
        report.failed(stopped)
        print(f"outerloop: {stopped.phase} failed: {stopped.reason}: {stopped.detail}", file=sys.stderr, flush=True)
        return stopped.code
    return 0


def _claims_to_resume(slot: str) -> bool:
    try:
        return work.is_resumable(files.read_object_patiently(os.path.join(slot, layout.SPEC)))
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _scratch_folder(env: Mapping[str, str], job_id: str) -> Iterator[scratch.Scratch | OSError]:
    scratch.sweep(env)
    try:
        place = scratch.make(env, job_id)
    except OSError as error:
        yield error
        return
    try:
        yield place
    finally:
        place.remove()


def _discard_unused_scratch(env: Mapping[str, str]) -> None:
    path = scratch.adopt(env)
    if path:
        files.remove_tree(path)


def _refuse(code: int, why: str) -> int:
    print(f"outerloop: {why}", file=sys.stderr, flush=True)
    return code
