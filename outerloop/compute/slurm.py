"""Slurm through its command line: works with every release from 22.05 on.

Covered: submit with its three outcomes, of jobs and of arrays, one listing, one history, cancel, limits. Not covered:
pyslurm (slurm_api.py, same protocol, same contract tests), when to ask, what an answer changes.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from outerloop.compute.argv import MAX_SCRIPT_BYTES, ArrayRange, check_job, sbatch_argv
from outerloop.compute.jobids import array_id, fold_tasks, is_job_id
from outerloop.compute.protocol import (
    Accepted,
    History,
    JobRow,
    JobSpec,
    Listing,
    NoAnswer,
    Refused,
    SiteLimits,
    SubmitOutcome,
    Unavailable,
    Unknown,
    When,
)
from outerloop.compute.reasons import classify_refusal
from outerloop.compute.rows import (
    ISO,
    ROW,
    SACCT_FIELDS,
    SEPARATOR,
    SQUEUE_FIELDS,
    sacct_rows,
    scontrol_rows,
    squeue_listing,
)
from outerloop.compute.tools import ToolEnd, ToolResult, clean_environment, run_tool

__all__ = ["TOOLS", "SlurmCli", "find_tools", "make_durable_folder"]

log = logging.getLogger(__name__)

TOOLS = ("sbatch", "squeue", "sacct", "scancel", "scontrol")

# Slurm's tools give up by themselves after MessageTimeout (10 s as shipped, up to 100 s on busy sites; 49 s were
# measured with munge down). Ours is longer, so that they can say what was wrong.
SUBMIT_TIMEOUT_SECONDS = 150.0
QUERY_TIMEOUT_SECONDS = 120.0

# Instants travel as ISO times of the client's zone: asked for in UTC, they know no summer time.
# SLURM_BITSTR_LEN=0 keeps Slurm from cutting the task list of an array.
_QUERY_ENVIRONMENT = {"TZ": "UTC0", "SLURM_BITSTR_LEN": "0"}

_CLOCK_SLACK_SECONDS = 60.0

# Refusals of sbatch that may be about where it was called, not about the job.
_MAY_BE_THE_PLACE = frozenset({"PermissionDenied", "TOOL_MISSING", "NoConfiguration"})

# Far below the kernel's limit on arguments, and few enough for one request to a busy controller.
_CANCEL_BATCH = 500

_ID_LINE = re.compile(r"(\d+)(?:;([A-Za-z0-9._-]+))?", re.ASCII)
_NO_SUCH_JOB = re.compile(
    r"invalid job id specified|job/step already completing or completed|already completing", re.IGNORECASE
)
_ACCOUNTING_OFF = re.compile(
    r"accounting storage is disabled|accounting_storage/none|accounting is (?:disabled|not enabled)", re.IGNORECASE
)
_COMPLAINT = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)
_CUT_OFF = re.compile(r"contact slurm|timed out|connect|communication|persist|munge|slurm_load|database", re.IGNORECASE)


def find_tools(search_path: str | None = None) -> dict[str, Path]:
    """Absolute paths of Slurm's tools on `search_path` (default: PATH), those that are there. For `init` and `doctor`:
    cron's PATH is another one, so the answer belongs into the settings."""
    found = {name: shutil.which(name, path=search_path) for name in TOOLS}
    return {name: Path(path).absolute() for name, path in found.items() if path}


class SlurmCli:
    """The Compute protocol on sbatch, squeue, sacct, scancel and scontrol."""

    name = "slurm"
    arrays = True

    def __init__(
        self,
        *,
        tools: Mapping[str, Path] | None = None,
        bin_dir: Path | None = None,
        slurm_conf: Path | None = None,
        user: str = "",
        submit_timeout: float = SUBMIT_TIMEOUT_SECONDS,
        query_timeout: float = QUERY_TIMEOUT_SECONDS,
        max_script_bytes: int = MAX_SCRIPT_BYTES,
        environ: Mapping[str, str] | None = None,
        accounting: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        """`tools` (name -> absolute path) wins over `bin_dir`; without both, PATH is searched now.

        `slurm_conf` is handed on as SLURM_CONF. `user` is whose jobs are listed, by default the caller's.
        Timeouts are seconds per call. `accounting`: off never asks sacct; on takes "there is none" for an outage.
        Raises ValueError for a tool path that is not absolute.
        """
        paths = dict(tools or {})
        if bin_dir is not None:
            for name in TOOLS:
                paths.setdefault(name, bin_dir / name)
        elif tools is None:
            paths = find_tools()
        for name, path in paths.items():
            if not path.is_absolute():
                raise ValueError(f"the path of {name}, {str(path)!r}, is not absolute")
        self._tools = paths
        self.slurm_conf = slurm_conf
        self._user = user
        self.submit_timeout = submit_timeout
        self.query_timeout = query_timeout
        self.max_script_bytes = max_script_bytes
        self._environ = environ
        self._insists_on_accounting = accounting == "on"
        self._without_accounting: str | None = (
            'the settings say slurm.accounting = "off"' if accounting == "off" else None
        )

    # ---------------------------------------------------------------------------------------------- submit

    def submit(self, job: JobSpec) -> SubmitOutcome:
        """Hand one job to sbatch. Makes the log's folder, because Slurm opens the log before the script runs."""
        return self._submit(job, None)

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        """One sbatch for `count` tasks. Pending tasks of an array are one record for Slurm's controller."""
        return self._submit(job, ArrayRange(count, throttle))

    def _submit(self, job: JobSpec, tasks: ArrayRange | None) -> SubmitOutcome:
        outcome = self._hand_over(job, tasks)
        if isinstance(outcome, Refused) and outcome.reason in _MAY_BE_THE_PLACE and self._inside_a_job():
            # Some sites take no submissions from compute nodes. That says nothing about the job: the tick will do it.
            return Refused("NOT_FROM_JOBS", When.LATER, f"inside a job: {outcome.detail or outcome.reason}")
        return outcome

    def try_out(self, job: JobSpec) -> Refused | Unknown | None:
        """Whether the site would take this job (sbatch --test-only); None when it would. Submits nothing."""
        refused = check_job(job, max_script_bytes=self.max_script_bytes)
        sbatch = self._tools.get("sbatch")
        if refused or sbatch is None:
            return refused or Refused("TOOL_MISSING", When.CONFIG, "no path of sbatch is configured")
        argv = sbatch_argv(sbatch, job)
        argv.insert(argv.index("--parsable") + 1, "--test-only")
        result = run_tool(argv, timeout=self.query_timeout, env=self.environment(job.env))
        if result.succeeded:
            return None
        outcome = _read_submission(result)
        return outcome if isinstance(outcome, (Refused, Unknown)) else Unknown(f"sbatch: {result.what_happened()}")

    def _hand_over(self, job: JobSpec, tasks: ArrayRange | None) -> SubmitOutcome:
        refused = check_job(job, tasks, max_script_bytes=self.max_script_bytes)
        if refused:
            return refused
        sbatch = self._tools.get("sbatch")
        if sbatch is None:
            return Refused("TOOL_MISSING", When.CONFIG, "no path of sbatch is configured")
        try:
            make_durable_folder(job.log.parent)
        except OSError as error:
            return Refused("LogFolder", When.LATER, f"{job.log.parent}: {error.strerror}")
        result = run_tool(sbatch_argv(sbatch, job, tasks), timeout=self.submit_timeout, env=self.environment(job.env))
        return _read_submission(result)

    # ------------------------------------------------------------------------------------------- questions

    def listing(self) -> Listing | NoAnswer:
        """One squeue: all our jobs in all states and partitions, one row per array task.

        Pending tasks of an array come as one range, which is expanded here: `squeue -r` of 22.05 leaves out the last
        task of an array with a step (0-20:2 shows no 20).
        """
        whose = f"--user={self._user}" if self._user else "--me"
        result = self._ask(
            "squeue",
            ["-h", "-a", "-t", "all", whose, "-o", ROW + SEPARATOR.join(SQUEUE_FIELDS)],
        )
        trouble = _trouble("squeue", result)
        if trouble:
            return trouble
        return squeue_listing(result.stdout)

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
        """One sacct about jobs since the epoch second `since`, rows of the ids (an array's id covers its tasks) and
        names asked for. Whoever matches a row checks its name and submit time too: ids are used again.

        A row's name is empty while accounting does not know it yet (seconds, on 22.05): such a row was asked for by id.
        sacct shows 127 for exit codes from 128 up, 0 for TIMEOUT and CANCELLED, and on 22.05 lags: empty just after
        a submit. A held or dependency-pending job that is asked for by name stands in the listing only.
        """
        if self._without_accounting:
            return Unavailable(self._without_accounting)
        wanted_ids, wanted_names = set(ids), set(names)
        askable = sorted(job_id for job_id in wanted_ids if is_job_id(job_id))
        if not askable and not wanted_names:
            return History(())
        if "sacct" not in self._tools:
            return self._no_accounting("no path of sacct is configured")
        # sacct refuses a start in the future, and clocks differ by seconds.
        start = time.strftime(ISO, time.gmtime(min(max(0.0, since), time.time() - _CLOCK_SLACK_SECONDS)))
        arguments = ["-X", "-n", "-P", f"--delimiter={SEPARATOR}", "-S", start, "-o", ",".join(SACCT_FIELDS)]
        # Ids and names cannot be asked for together (both must fit then), so a question with names asks for all of
        # the user's jobs and the rest is done here.
        arguments += ["-u", self._user or str(os.getuid())] if wanted_names else ["-j", ",".join(askable)]
        result = self._ask("sacct", arguments)
        if result.end is ToolEnd.MISSING:
            return self._no_accounting(result.what_happened())
        if _ACCOUNTING_OFF.search(result.stderr) or _ACCOUNTING_OFF.search(result.stdout):
            return self._no_accounting(result.what_happened())
        trouble = _trouble("sacct", result)
        if trouble:
            return trouble
        seen = sacct_rows(result.stdout)
        if isinstance(seen, NoAnswer):
            return seen
        return History(
            tuple(
                row
                for row in seen
                if row.job_id in wanted_ids or array_id(row.job_id) in wanted_ids or row.name in wanted_names
            )
        )

    def look_up(self, job_id: str) -> JobRow | NoAnswer | None:
        """One job as the controller knows it, with its true exit code; None when it does not know it (any more)."""
        if not is_job_id(job_id):
            return None
        result = self._ask("scontrol", ["-o", "show", "job", job_id])
        if result.end is ToolEnd.EXITED and result.rc and _NO_SUCH_JOB.search(result.stderr):
            return None
        trouble = _trouble("scontrol", result)
        if trouble:
            return trouble
        rows = scontrol_rows(result.stdout)
        return rows if isinstance(rows, NoAnswer) else next((row for row in rows if row.job_id == job_id), None)

    def limits(self) -> SiteLimits | NoAnswer:
        """What `scontrol show config` and `show partition` say. Partitions carry Slurm's own keys and spellings."""
        config = self._ask("scontrol", ["show", "config"])
        partitions = self._ask("scontrol", ["-o", "show", "partition"])
        trouble = _trouble("scontrol", config) or _trouble("scontrol", partitions)
        if trouble:
            return trouble
        values = _config_values(config.stdout)
        storage = values.get("AccountingStorageType")
        return SiteLimits(
            version=values.get("SLURM_VERSION", ""),
            cluster=values.get("ClusterName", ""),
            max_array_size=_leading_int(values.get("MaxArraySize")),
            min_job_age_seconds=_leading_int(values.get("MinJobAge")),
            message_timeout_seconds=_leading_int(values.get("MessageTimeout")),
            kill_wait_seconds=_leading_int(values.get("KillWait")),
            preempt_mode=values.get("PreemptMode", ""),
            max_script_bytes=script_limit(values.get("SchedulerParameters", "")),
            # 24.11 prints (null) where 22.05 prints accounting_storage/none.
            accounting=None if storage is None else storage not in ("accounting_storage/none", "(null)", ""),
            partitions=_partitions(partitions.stdout),
        )

    @property
    def tools(self) -> dict[str, Path]:
        """Name -> absolute path of the tools that were found."""
        return dict(self._tools)

    def tool_beside(self, name: str) -> Path | None:
        """Another of Slurm's tools, from where sbatch is; None when it is not there."""
        sbatch = self._tools.get("sbatch")
        beside = sbatch.with_name(name) if sbatch is not None else None
        return beside if beside is not None and os.access(beside, os.X_OK) else None

    # ---------------------------------------------------------------------------------------------- cancel

    def cancel(self, ids: Iterable[str]) -> NoAnswer | None:
        """scancel. Unknown and finished ids are fine: what they are now is for the next listing to say."""
        wanted = fold_tasks(job_id for job_id in ids if is_job_id(job_id))
        for first in range(0, len(wanted), _CANCEL_BATCH):
            result = self._ask("scancel", wanted[first : first + _CANCEL_BATCH])
            complaints = [line for line in result.stderr.splitlines() if line.strip()]
            harmless = complaints and all(_NO_SUCH_JOB.search(line) for line in complaints)
            if not result.succeeded and not (result.end is ToolEnd.EXITED and harmless):
                return NoAnswer(f"scancel: {result.what_happened()}")
        return None

    # --------------------------------------------------------------------------------------------- helpers

    def _inside_a_job(self) -> bool:
        return "SLURM_JOB_ID" in (os.environ if self._environ is None else self._environ)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What Slurm's tools are given, and with sbatch's --export=ALL the job; `extra` has been checked."""
        source = os.environ if self._environ is None else self._environ
        conf = {"SLURM_CONF": str(self.slurm_conf)} if self.slurm_conf else {}
        return clean_environment(source, {**(extra or {}), **conf})

    def _ask(self, tool: str, arguments: list[str]) -> ToolResult:
        path = self._tools.get(tool)
        if path is None:
            return ToolResult(ToolEnd.MISSING, None, "", f"no path of {tool} is configured", 0.0)
        return run_tool([str(path), *arguments], timeout=self.query_timeout, env=self.environment(_QUERY_ENVIRONMENT))

    def _no_accounting(self, why: str) -> Unavailable | NoAnswer:
        if self._insists_on_accounting:
            return NoAnswer(f"sacct: {why}")
        if self._without_accounting is None:
            log.warning("no accounting here (%s): the queue and the slots have to do", why)
        self._without_accounting = why
        return Unavailable(why)


# ------------------------------------------------------------------------------------------------- reading


def _read_submission(result: ToolResult) -> SubmitOutcome:
    if result.end is ToolEnd.MISSING:
        return Refused("TOOL_MISSING", When.CONFIG, result.what_happened())
    if result.end is ToolEnd.TOO_LONG:
        return Refused("ARGUMENTS_TOO_LONG", When.NEVER, result.what_happened())
    if result.end is not ToolEnd.EXITED or result.rc is None:
        return Unknown(f"sbatch: {result.what_happened()}")
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    ids = [match for match in map(_ID_LINE.fullmatch, lines) if match]
    if result.rc != 0:
        # An id beside a failure: something between us and Slurm failed after the job was taken.
        refused = None if ids else classify_refusal(result.rc, result.stderr)
        return refused or Unknown(f"sbatch: {result.what_happened()}")
    if len(ids) != 1:
        return Unknown(f"sbatch succeeded but printed {len(ids)} job ids: {result.stdout.strip()[:200]!r}")
    notes = [line for line in lines if line != ids[0].group(0)]
    notes += [line.strip() for line in result.stderr.splitlines() if line.strip()]
    return Accepted(ids[0].group(1), ids[0].group(2) or "", "\n".join(notes))


def _trouble(tool: str, result: ToolResult) -> NoAnswer | None:
    """Why a query's output is no complete answer, None when it is one."""
    if not result.succeeded:
        return NoAnswer(f"{tool}: {result.what_happened()}")
    if result.stdout and not result.stdout.endswith("\n"):
        return NoAnswer(f"{tool}: the output is cut: {result.stdout.splitlines()[-1]!r}")
    if _COMPLAINT.search(result.stderr) and _CUT_OFF.search(result.stderr):
        # "I could not ask" with exit code 0. Any other complaint is a site's noise (24.11 prints a line about every
        # setting that it finds odd, with each answer) and must not stop everything for ever.
        return NoAnswer(f"{tool}: {result.what_happened()}")
    return None


def _config_values(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() and " " not in key.strip():
            values.setdefault(key.strip(), value.strip())
    return values


def _partitions(text: str) -> dict[str, dict[str, str]]:
    partitions = {}
    for line in text.splitlines():
        pairs = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        name = pairs.pop("PartitionName", "")
        if name:
            partitions[name] = pairs
    return partitions


def script_limit(parameters: str) -> int | None:
    """Bytes of `max_script_size` among SchedulerParameters (slurm.conf(5)); None where it is not set."""
    found = re.search(r"(?:^|,)\s*max_script_size=(\d+)", parameters, re.IGNORECASE)
    return int(found[1]) if found and int(found[1]) > 0 else None


def _leading_int(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match.group(0)) if match else None


def make_durable_folder(folder: Path) -> None:
    """Make a folder and flush it, so that a node that lists it sees it. One that exists was flushed by its maker."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
