"""What a job must name to be let in: account, QOS, reservation; looked up, tried with sbatch --test-only, proposed.

Covered: what sacctmgr, the controller's own copy of it and the list of reservations say is this account's, trying them
where a lane is refused, telling of lanes that name others'. Submits nothing. Not covered: how GPUs and memory are
spelled (spelling.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outerloop.compute.protocol import JobSpec, Refused, Unknown
from outerloop.compute.slurm import SlurmCli
from outerloop.compute.tools import clean_environment, run_tool
from outerloop.controller.deployment import account
from outerloop.controller.doctor.finding import FAIL, OK, TOOL_SECONDS, WARN, Finding, Site

__all__ = [
    "Association",
    "Reservation",
    "access",
    "admitted",
    "read_associations",
    "read_cached",
    "read_reservations",
    "said",
]

SETTING = {
    "InvalidAccount": "account",
    "InvalidQOS": "qos",
    "InvalidPartition": "partition",
    "PartitionAccess": "partition",
    "InvalidReservation": "reservation",
    "ReservationNotYet": "reservation",
}
"""The lane's setting behind a refusal."""
NAMED = ("account", "qos", "reservation")
"""Settings whose values can be looked up; in this order, since a QOS belongs to an account."""
MOST_TRIED = 12
"""Values of one setting that are tried: each is a question to the controller."""


@dataclass(frozen=True)
class Association:
    """An account that this user may charge. `qos` begins with the default one."""

    account: str
    max_submit: int | None = None
    qos: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reservation:
    """A reservation as the controller lists it."""

    name: str
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    state: str = ""
    ends: str = ""

    def is_for(self, user: str, accounts: Iterable[str]) -> bool:
        """Whether it names this user or one of these accounts; excluded ones begin with a minus."""
        return user in self.users or bool(set(accounts) & set(self.accounts))


def read_associations(text: str) -> list[Association]:
    """`sacctmgr -n -P show associations format=Account,MaxSubmitJobs,QOS,DefaultQOS`, a row each."""
    found = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 4 or not parts[0]:
            continue
        name, most, listed, default = parts
        qos = dict.fromkeys(q for q in (default, *listed.split(",")) if q)
        found.append(Association(name, int(most) if most.isdecimal() else None, tuple(qos)))
    return found


_CACHED = re.compile(r"^ClusterName=\S* Account=(\S+) UserName=(\S+)\(\d+\)")


def read_cached(text: str, user: str) -> list[Association]:
    """`scontrol -o show assoc_mgr`: what the controller keeps of accounting. It says nothing of QOS."""
    rows = (_CACHED.match(line) for line in text.splitlines())
    return [Association(name) for name in dict.fromkeys(row[1] for row in rows if row and row[2] == user)]


def read_reservations(text: str) -> list[Reservation]:
    """`scontrol -o show reservation`, a line each; none where the controller says so."""
    found = []
    for line in text.splitlines():
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "ReservationName" not in facts:
            continue
        users, accounts = (
            tuple(n for n in facts.get(key, "").split(",") if n not in ("", "(null)")) for key in ("Users", "Accounts")
        )
        found.append(
            Reservation(facts["ReservationName"], users, accounts, facts.get("State", ""), facts.get("EndTime", ""))
        )
    return found


# ------------------------------------------------------------------------------------------------------ asking


def _ask(cli: SlurmCli, tool: str, *arguments: str) -> str | None:
    path = cli.tool_beside(tool)
    if path is None:
        return None
    conf = {"SLURM_CONF": str(cli.slurm_conf)} if cli.slurm_conf else {}
    done = run_tool([str(path), *arguments], timeout=TOOL_SECONDS, env=clean_environment(os.environ, conf))
    return done.stdout if done.succeeded else None


def associations(cli: SlurmCli) -> tuple[list[Association], str] | None:
    """(this user's accounts, which question was answered); None when neither accounting nor the controller says."""
    user = account()
    columns = "format=Account,MaxSubmitJobs,QOS,DefaultQOS"
    text = _ask(cli, "sacctmgr", "-n", "-P", "show", "associations", f"user={user}", columns)
    if text is not None:
        return read_associations(text), "sacctmgr show associations"
    text = _ask(cli, "scontrol", "-o", "show", "assoc_mgr", f"users={user}", "flags=assoc")
    return None if text is None else (read_cached(text, user), "scontrol show assoc_mgr")


def reservations(cli: SlurmCli) -> list[Reservation]:
    """Every reservation that this account is shown."""
    return read_reservations(_ask(cli, "scontrol", "-o", "show", "reservation") or "")


# ------------------------------------------------------------------------------------------------------ trying


def admitted(
    site: Site, cli: SlurmCli, name: str, job: JobSpec, facts: Mapping[str, str]
) -> tuple[JobSpec | None, list[Finding]]:
    """(the job as the site lets it in, what had to change); None when it is refused whatever is named.

    `facts`: the partition's, as scontrol shows them.
    """
    label = f"lane {name}"
    found: list[Finding] = []
    outcome = cli.try_out(job)
    for _ in range(1 + len(NAMED)):
        if outcome is None:
            return job, found
        if isinstance(outcome, Unknown):
            return None, [*found, Finding(label, WARN, f"could not be tried: {outcome.why}", cluster=True)]
        setting = _setting(outcome, job, facts)
        if setting not in NAMED:
            break
        changed, outcome_then, tried = _try_others(cli, setting, job, facts)
        if changed is None:
            return None, [*found, _refused(label, name, outcome, setting, tried)]
        now, taken = getattr(job.lane, setting), getattr(changed.lane, setting)
        before = f"{'--' + setting + '=' + now if now else 'without one'}: {said(outcome)}"
        if taken:
            site.propose(("lanes", name, setting), taken, "\n".join([before, *tried]))
        let = f'set lanes.{name}.{setting} = "{taken}", or let `outerloop doctor --write` do it'
        found.append(
            Finding(
                label,
                FAIL,
                f"{setting} {now or '(none)'} is refused, {taken or 'none'} is taken",
                let if taken else f"take lanes.{name}.{setting} out",
            )
        )
        job, outcome = changed, outcome_then
    assert isinstance(outcome, Refused), outcome
    return None, [*found, _refused(label, name, outcome, SETTING.get(outcome.reason, ""), [])]


def _setting(refused: Refused, job: JobSpec, facts: Mapping[str, str]) -> str:
    """The setting that a refusal is about. A partition that asks for a reservation says only that access is denied."""
    if facts.get("ReqResv") == "YES" and not job.lane.reservation and refused.reason == "PermissionDenied":
        return "reservation"
    return SETTING.get(refused.reason, "")


def _try_others(
    cli: SlurmCli, setting: str, job: JobSpec, facts: Mapping[str, str]
) -> tuple[JobSpec | None, Refused | None, list[str]]:
    """(the job with the first value that is taken, or that is refused for a later setting; that refusal; the log)."""
    tried: list[str] = []
    now = getattr(job.lane, setting)
    for value in [v for v in dict.fromkeys(_candidates(cli, setting, job, facts)) if v != now][:MOST_TRIED]:
        named: dict[str, Any] = {setting: value}
        changed = replace(job, lane=replace(job.lane, **named))
        outcome = cli.try_out(changed)
        how = "taken" if outcome is None else said(outcome)
        tried.append(f"{'--' + setting + '=' + value if value else 'without one'}: {how}")
        if outcome is None:
            return changed, None, tried
        if isinstance(outcome, Refused):
            later = _setting(outcome, changed, facts)
            if later in NAMED and NAMED.index(later) > NAMED.index(setting):
                return changed, outcome, tried
    return None, None, tried


def _candidates(cli: SlurmCli, setting: str, job: JobSpec, facts: Mapping[str, str]) -> Iterator[str]:
    """Values that may be this account's, likeliest first. None at all is one of them where something was named."""
    asked = associations(cli)
    mine = asked[0] if asked is not None else []
    if setting == "account":
        yield from sorted(row.account for row in mine)
    elif setting == "reservation":
        own = [row for row in reservations(cli) if row.is_for(account(), [item.account for item in mine])]
        yield from (row.name for row in sorted(own, key=lambda row: row.state != "ACTIVE"))
    else:
        allowed = facts.get("AllowQos", "ALL")
        wanted = [] if allowed in ("ALL", "(null)") else allowed.split(",")
        rows = [row for row in mine if row.account == job.lane.account] or mine
        ours = [qos for row in rows for qos in row.qos]
        yield from (qos for qos in ours if qos in wanted)
        yield from ours
        if not ours:
            yield from wanted
            yield from (_ask(cli, "sacctmgr", "-n", "-P", "show", "qos", "format=Name") or "").split()
    yield ""


def _refused(label: str, name: str, outcome: Refused, setting: str, tried: Sequence[str]) -> Finding:
    fix = f"set lanes.{name}.{setting}" if setting else "change the lane as the message says"
    level = WARN if outcome.when.value == "later" else FAIL
    others = f" (tried: {'; '.join(tried)})" if tried else ""
    return Finding(label, level, f"a job of one CPU is refused ({outcome.reason}): {said(outcome)}{others}", fix)


def said(outcome: Refused | Unknown) -> str:
    """The last line of what sbatch printed, without its prefixes."""
    text = outcome.why if isinstance(outcome, Unknown) else outcome.detail or outcome.reason
    lines = [line for line in text.splitlines() if line.strip()]
    # allocation failure: Requested node configuration is not available
    return lines[-1].removeprefix("sbatch: error: ").removeprefix("allocation failure: ") if lines else "refused"


# ------------------------------------------------------------------------------------------------------ telling


def access(site: Site, cli: SlurmCli) -> Iterator[Finding]:
    """This user's accounts, QOS and reservations, the cap on submitted jobs, and lanes that name others'."""
    assert site.limits is not None, "command_line looked"
    asked = associations(cli) if site.limits.accounting else None
    mine: list[Association] = []
    if site.limits.accounting and asked is None:
        yield Finding("accounts", WARN, "neither sacctmgr nor scontrol says which accounts are yours")
    elif asked is not None:
        mine, source = asked
        yield from _accounts(site, mine, source)
    own = [row for row in reservations(cli) if row.is_for(account(), [row.account for row in mine])]
    used = {lane.reservation for lane in site.settings.lanes.values()}
    for row in own:
        of_lane = "" if row.name in used else "; no lane names it"
        yield Finding("reservations", OK, f"{row.name} is yours until {row.ends}, {row.state.lower()}{of_lane}")


def _accounts(site: Site, mine: Sequence[Association], source: str) -> Iterator[Finding]:
    known = sorted({row.account for row in mine})
    caps = [row.max_submit for row in mine if row.max_submit is not None]
    site.propose(("site", "max_submit_jobs"), min(caps) if caps else None, f"{source}: MaxSubmitJobs")
    if not known:
        yield Finding("accounts", OK, "accounting knows no account of yours, and jobs are taken without one")
        return
    most = f"at most {min(caps)} jobs in the queue" if caps else "no limit on jobs in the queue"
    qos = sorted({q for row in mine for q in row.qos})
    yield Finding("accounts", OK, f"{', '.join(known)}: {most}{'; QOS ' + ', '.join(qos) if qos else ''}")
    for name, lane in site.settings.lanes.items():
        for setting, value, ours in (("account", lane.account, known), ("qos", lane.qos, qos)):
            if value and ours and value not in ours:
                called = "QOS" if setting == "qos" else setting
                yield Finding(
                    f"lane {name}",
                    WARN,
                    f"{called} {value} is none of yours; there are {', '.join(ours)}",
                    f"set lanes.{name}.{setting}",
                )
