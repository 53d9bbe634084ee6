"""Submitting a climb: from a researcher's clone to a durable request; taking in requests of every kind.

Covered: finding base and candidate, the checks that need no job, freezing the execution, asking twice, the inbox.
Not covered: making the request of a training (submit_training.py), measuring and deciding (advance.py).

The request is durable in the inbox before the record knows of it, so a crash or an unreachable record loses nothing
that was acknowledged: the tick imports it.
"""

from __future__ import annotations

import os
import platform as machine
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import DateTime, case, func, literal, select, text
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.orm import Session

from outerloop.compute.local_admission import FREE_LANE, beyond
from outerloop.contract import CONTRACT_FILE, Benchmark, Contract
from outerloop.controller.champions import champion_now
from outerloop.controller.content import content_digest, content_stamp
from outerloop.controller.deployment import account
from outerloop.controller.entry_request import EntryRequest
from outerloop.controller.git import GitError, Mirror, Repository
from outerloop.controller.plan import ContractGone, read_contract, relevant_siblings
from outerloop.controller.request import ClimbRequest, Execution, InputFile, champion_key, question_of, run_name
from outerloop.controller.scope import ScopeProblem, scope_problems
from outerloop.controller.training_request import Request, read_request
from outerloop.controller.work import lane_mapping
from outerloop.dispatch.settle import concerns_all
from outerloop.dispatch.submit import walltime_minutes
from outerloop.effects import effect
from outerloop.printable import one_line
from outerloop.record.models import Run
from outerloop.record.store import Record, RecordUnavailable
from outerloop.settings import Settings, choose_lane, effective_backend
from outerloop.slots import StateRoot
from outerloop.slots.files import publish, read_json, replace

__all__ = [
    "ChecksHeld",
    "Prepared",
    "Refusal",
    "checks_problem",
    "enqueue",
    "executions",
    "import_inbox",
    "leave_in_inbox",
    "platform_name",
    "prepare_climb",
    "resolve_commit",
]

CHECK_DAYS = 7
"""The week of contamination checks."""
STAMP_BELIEVED = timedelta(days=1)
"""How long ago a request that is taken in now may say that it was made: it may have waited in the inbox."""
CHECKS_PATIENCE_SECONDS = 10.0
"""How long one who submits an entry waits for another who does: who is not stopped only writes three small files."""
LOCK_NOT_AVAILABLE = "55P03"
"""SQLSTATE of a lock_timeout that ran out (PostgreSQL manual, appendix A)."""
_STRENGTH = {"none": 0, "bwrap": 1, "apptainer": 2}


class Refusal(Exception):
    """The climb cannot be taken; the text has every reason. Nothing was recorded."""


class ChecksHeld(RecordUnavailable):
    """Another submission of an entry holds the count of contamination checks and does not come to an end."""


@dataclass(frozen=True)
class Prepared:
    """A climb that can be submitted, and what a person may want to know before."""

    request: ClimbRequest
    contract: Contract
    siblings: tuple[str, ...]
    problems: tuple[ScopeProblem, ...]
    notes: tuple[str, ...] = field(default=())


def prepare_climb(
    settings: Settings,
    root: StateRoot,
    *,
    repository: Path,
    benchmark: str,
    base: str | None,
    candidate: str,
    ask: int = 0,
    priority: int = 0,
    submitter: str = "",
    default: str = "",
    revisions: tuple[str, str] = ("", ""),
    nonce: str = "",
) -> Prepared:
    """Resolve, check and freeze a climb. Pins its commits in the mirror and writes nothing else.

    The last four are a service's: who asked, the revision that stands for the default branch, what base and candidate
    were called where they were asked, and the name of the submission.

    Raises Refusal, GitError, ContractError, LaneError (settings).
    """
    repo = Repository.open(repository)
    mirror = Mirror(root.mirror(repo.identity))
    mirror.ensure()
    candidate_commit = repo.seal_worktree() if candidate == "worktree" else resolve_commit(repo, mirror, candidate)
    branch = default or (repo.default_branch() if base is None else "")
    first = repo.commit(branch) if base is None else ""
    pinned = {commit for commit in (candidate_commit, first) if commit and not mirror.has(commit)}
    given = ""
    if base is not None:
        given = resolve_commit(repo, mirror, base)
        if not mirror.has(given):
            pinned.add(given)
    mirror.pin(repo, {f"commits/{commit}": commit for commit in pinned})
    notes: list[str] = []
    start = given or first
    try:
        contract = read_contract(mirror, start)
    except ContractGone:
        if branch and not default and repo.has_file("HEAD", CONTRACT_FILE):
            raise ContractGone(
                f"{branch} has no {CONTRACT_FILE} yet and HEAD has: a climb starts from the default branch, so bring"
                " the commit there (`git push`), or name the base: --base HEAD"
            ) from None
        raise
    climbed = contract.benchmark(benchmark)
    champion = champion_now(root, champion_key(repo.identity, benchmark, climbed.definition_hash()))
    base_commit, base_revision = start, revisions[0] or base or branch
    if base is None and champion is not None:
        base_commit, base_revision = champion.commit, f"champion {champion.seq}"
        contract = read_contract(mirror, base_commit)
        climbed = contract.benchmark(benchmark)
    base_tree, candidate_tree = mirror.tree(base_commit), mirror.tree(candidate_commit)
    promotable = champion is None or champion.tree == base_tree
    if champion is None and base is not None:
        # Where no branch is the default one, the base that was named is what a first champion is measured against.
        usual = repo.commit(default) if default else _default_commit(repo, mirror)
        promotable = usual is None or base_tree == mirror.tree(usual)
    if not promotable:
        notes.append(
            "the base is not the champion, so acceptance will not make the candidate champion"
            if champion is not None
            else "the base is not the default branch, so acceptance will not make the first champion"
        )
    unusable = mirror.unusable_entries(candidate_tree)
    if unusable:
        raise Refusal("the candidate cannot be materialised on a node: " + "; ".join(unusable))
    changes = mirror.changes(base_tree, candidate_tree)
    siblings = relevant_siblings(contract, benchmark, [change.path for change in changes])
    definition = climbed.definition_hash()
    question = question_of(repo.identity, benchmark, definition, base_tree, candidate_tree)
    request = ClimbRequest(
        id=run_name(account(), str(root.path), question, ask),
        question=question,
        ask=ask,
        target=repo.identity,
        benchmark=benchmark,
        definition=definition,
        base_commit=base_commit,
        base_tree=base_tree,
        base_revision=base_revision,
        candidate_commit=candidate_commit,
        candidate_tree=candidate_tree,
        candidate_revision=revisions[1] or candidate,
        subject=mirror.subject(candidate_commit),
        champion_seq=champion.seq if champion else 0,
        promotable=promotable,
        submitter=submitter or account(),
        nonce=nonce,
        sealed=any(b.parsed_rule().ladder for b in (climbed, *siblings)),
        repository=str(repo.top),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        execution=executions(settings, repo, (climbed, *contract.siblings(benchmark))),
        platform=platform_name(),
        priority=priority,
        gpu_hours=None if contract.budgets.gpu_hours is None else float(contract.budgets.gpu_hours),
        runs_per_week=contract.budgets.runs_per_week,
    )
    if settings.mode == "personal":
        refuse_ladders((climbed, *siblings))
    else:
        refuse_leaking_ladders(climbed, siblings)
    problems = tuple(scope_problems(changes, contract.scope))
    if not changes:
        notes.append("candidate and base have the same tree")
    return Prepared(request, contract, tuple(s.name for s in siblings), problems, tuple(notes))


def platform_name() -> str:
    """System, architecture and interpreter: what an environment is built for."""
    return f"{machine.system()}-{machine.machine()}-python{sys.version_info[0]}.{sys.version_info[1]}"


def refuse_ladders(benchmarks: Sequence[Benchmark]) -> None:
    """Refuse rules that withhold values, since this deployment can't. Raises Refusal.

    A ladder is worth something only where the person who climbs can't read the hidden set's losses. In a personal
    deployment slots, logs and record belong to that very person, so nothing can be withheld.
    """
    withheld = [benchmark.name for benchmark in benchmarks if benchmark.parsed_rule().ladder]
    if withheld:
        raise Refusal(
            f"{', '.join(withheld)}: rule.ladder = true withholds every value below the ladder's step, but this is a"
            " personal deployment: its slots, logs and record belong to whoever climbs, so nothing can be withheld."
            " Take ladder out of the rule; `outerloop champions` counts how often the same data has decided"
        )


def refuse_leaking_ladders(climbed: Benchmark, siblings: Sequence[Benchmark]) -> None:
    """Refuse ladders that could not hold: without a hidden set, or beside a benchmark without one. Raises Refusal."""
    if climbed.parsed_rule().ladder and not (climbed.score and any(given.hidden for given in climbed.inputs)):
        raise Refusal(
            f"{climbed.name}: rule.ladder = true needs `score` and an input with hidden = true: without a hidden set"
            " there is nothing to withhold"
        )
    for sibling in siblings:
        if sibling.parsed_rule().ladder:
            raise Refusal(
                f"{sibling.name}, a sibling of {climbed.name}, has a ladder: its losses would decide here without its"
                " ladder; take it out of the suite"
            )


def resolve_commit(repo: Repository, mirror: Mirror, revision: str) -> str:
    """A commit of the clone, or, for a champion that only the mirror keeps, its full id."""
    try:
        return repo.commit(revision)
    except GitError:
        if len(revision) >= 40 and mirror.has(revision):
            return revision
        raise


def _default_commit(repo: Repository, mirror: Mirror) -> str | None:
    try:
        commit = repo.commit(repo.default_branch())
    except GitError:
        return None
    if not mirror.has(commit):
        mirror.pin(repo, {f"commits/{commit}": commit})
    return commit


def never_fits(settings: Settings, lane: str, *, cpus: int, gpus: int, nodes: int) -> str:
    """Why the local backend would refuse such a job for good, or "". What a cluster takes, only the cluster knows."""
    if effective_backend(settings) != "local":
        return ""
    have = None if lane == FREE_LANE else settings.local.cpus
    return beyond(cpus=cpus, gpus=gpus, nodes=nodes, have_cpus=have, have_gpus=settings.local.gpus)


def executions(settings: Settings, repo: Repository, benchmarks: Sequence[Benchmark]) -> dict[str, Execution]:
    """How and where each of these benchmarks runs, by name. Raises Refusal with every reason, LaneError."""
    problems: list[str] = []
    found: dict[str, Execution] = {}
    for benchmark in benchmarks:
        name, lane = choose_lane(settings, benchmark.lane, benchmark.gpus)
        isolation = max(lane.isolation or settings.isolation, benchmark.isolation or "none", key=_STRENGTH.__getitem__)
        image = benchmark.image or (str(lane.image) if lane.image else "")
        order = {"minutes": float(benchmark.minutes), "score": bool(benchmark.score)}
        minutes = walltime_minutes(order, settings.dispatch.margin_minutes)
        if lane.max_minutes is not None and minutes > lane.max_minutes:
            problems.append(
                f"{benchmark.name}: needs {minutes:g} minutes of walltime (its {benchmark.minutes} and a margin),"
                f" lane {name} allows {lane.max_minutes:g}"
            )
        never = never_fits(settings, name, cpus=benchmark.cpus, gpus=benchmark.gpus, nodes=benchmark.nodes)
        if never:
            problems.append(f"{benchmark.name}: {never}")
        if isolation == "apptainer" and not image:
            problems.append(f"{benchmark.name}: isolation is apptainer, but neither it nor lane {name} names an image")
        if isolation != "apptainer":
            image = ""
        try:
            inputs = tuple(_input(repo, item.path, item.digest, hidden=item.hidden) for item in benchmark.inputs)
            # stamp first: whoever writes in between makes the stamp look old, and the digest is taken again
            image_stamp = content_stamp(Path(image)) if image else ""
            image_digest = content_digest(Path(image)) if image else ""
        except (OSError, Refusal) as error:
            problems.append(f"{benchmark.name}: {error}")
            continue
        found[benchmark.name] = Execution(
            lane=lane_mapping(settings.lane(name)),
            prologue=lane.prologue,
            cache_seed=str(lane.cache_seed) if lane.cache_seed else "",
            isolation=isolation,
            image_path=image,
            image_digest=image_digest,
            image_stamp=image_stamp,
            gpu_type=benchmark.gpu_type or lane.gpu_type,
            inputs=inputs,
        )
    if problems:
        raise Refusal("; ".join(problems))
    return found


def _input(repo: Repository, path: str, digest: str, *, hidden: bool) -> InputFile:
    source = Path(path) if path.startswith("/") else repo.top / path
    if not source.exists():
        raise Refusal(f"input {path} does not exist ({source})")
    found = content_digest(source)
    if digest != "content" and digest.removeprefix("sha256:") != found:
        raise Refusal(f"input {path} has the content sha256:{found}, the contract says {digest}")
    return InputFile(path=path, source=str(source.resolve()), digest=found, hidden=hidden)


# -- taking it


def leave_in_inbox(root: StateRoot, request: Request) -> None:
    """Make the request durable; from here on it will be carried out.

    A campaign's later setting takes the place of one that still lies there; other requests of one id are the same.
    """
    if request.kind == "campaign":
        replace(root.inbox_request(request.id), request.to_json(), name="inbox.write")
    else:
        publish(root.inbox_request(request.id), request.to_json(), name="inbox.write")


def earlier_asks(record: Record, question: str) -> list[Run]:
    """Runs of this realm that asked the same, newest first."""
    with record.reading() as session:
        return list(
            session.scalars(
                select(Run).where(Run.realm_id == record.realm_id, Run.question == question).order_by(Run.ask.desc())
            )
        )


def week_budget_problem(record: Record, request: Request, limits: Sequence[int | None]) -> str | None:
    """Why the target's runs of this week are used up, with the numbers; None when they are not."""
    limit = min((value for value in limits if value is not None), default=None)
    if limit is None:
        return None
    with record.reading() as session:
        used = session.scalar(
            select(func.count())
            .select_from(Run)
            .where(
                Run.realm_id == record.realm_id,
                Run.target == request.target,
                Run.created_at > func.now() - timedelta(days=7),
            )
        )
    if (used or 0) < limit:
        return None
    return f"runs of {request.target} this week: {used} of {limit}, 0 remain"


def checks_problem(record: Record, request: EntryRequest) -> str | None:
    """Why the submitter's contamination checks of this week are used up, with the numbers; None when they are not.

    An answer above or below, asked often enough with rows left out, would tell which tasks a sealed suite has.
    """
    with record.reading() as session:
        return _checks_over(session, record.realm_id, request)


def _checks_over(session: Session, realm_id: int, request: EntryRequest) -> str | None:
    used = session.scalar(
        select(func.count(Run.question.distinct())).where(
            Run.realm_id == realm_id,
            Run.kind == "entry",
            Run.benchmark == request.challenge,
            Run.submitter == request.submitter,
            Run.question != request.question,
            Run.created_at > func.now() - timedelta(days=CHECK_DAYS),
        )
    )
    if (used or 0) < request.contamination_checks:
        return None
    return (
        f"contamination checks of {request.submitter} for {request.challenge} in {CHECK_DAYS} days: {used} of"
        f" {request.contamination_checks}, 0 remain"
    )


def _take_check(session: Session, realm_id: int, request: EntryRequest) -> bool:
    """Whether the entry is recorded already; if not, it has a check now, and who asks next waits for our commit.

    Raises Refusal when no check is left, ChecksHeld.
    """
    name = f"checks:{realm_id}:{request.submitter}:{request.challenge}"
    session.execute(text(f"set local lock_timeout = {round(CHECKS_PATIENCE_SECONDS * 1000)}"))
    try:
        session.execute(text("select pg_advisory_xact_lock(hashtext(:t))"), {"t": name})
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
            raise
        raise ChecksHeld(
            f"another process has been submitting an entry of {request.submitter} to {request.challenge} for more than"
            f" {CHECKS_PATIENCE_SECONDS:g} seconds (is it stopped?), so the contamination checks can't be counted"
        ) from error
    if session.get(Run, request.id) is not None:
        return True
    if over := _checks_over(session, realm_id, request):
        raise Refusal(over)
    return False


def enqueue(record: Record, root: StateRoot, request: Request) -> bool:
    """Write the request into the run's folder and the record. True when this call made the run. Idempotent.

    An entry comes into the inbox here, once it has its contamination check: nobody who is refused ever has to take a
    request back that another process, which submits the same, may rely on.

    Raises Refusal when other entries took the last check, with nothing written, and ChecksHeld.
    """
    if not isinstance(request, EntryRequest):
        request = _put_into_folder(root, request)
    with record.transaction("tx.enqueue") as session:
        if isinstance(request, EntryRequest):
            if not _take_check(session, record.realm_id, request):
                leave_in_inbox(root, request)
            request = _put_into_folder(root, request)
        made = session.scalar(insert_run(record.realm_id, request, taken_in=True).returning(Run.id))
    inbox = root.inbox_request(request.id)
    if inbox.exists():
        with effect("inbox.remove"):
            inbox.unlink(missing_ok=True)
    return made is not None


def _put_into_folder(root: StateRoot, request: Request) -> Request:
    publish(root.request(request.id), request.to_json(), name="run.request")
    # Another process may have asked the same meanwhile: its request is the one that counts.
    stored = read_json(root.request(request.id))
    return request if stored is None else read_request(stored)


def insert_run(realm_id: int, request: Request, *, taken_in: bool = False) -> Insert:
    """The statement that makes a run's row, harmless when it is there.

    The request was stamped by the clock of whoever submitted. Weeks of budgets are counted from that time, so it is
    believed only as far as the record's clock allows: never from the future, and of a request that is `taken_in` now
    not from before STAMP_BELIEVED either.
    """
    asked = literal(datetime.fromisoformat(request.created_at), DateTime(timezone=True))
    believed = case((asked.between(func.now() - STAMP_BELIEVED, func.now()), asked), else_=func.now())
    return (
        insert(Run)
        .values(
            id=request.id,
            realm_id=realm_id,
            kind=request.kind,
            question=request.question,
            ask=request.ask,
            target=request.target,
            benchmark=request.benchmark,
            definition=request.definition,
            base_commit=request.base_commit,
            base_tree=request.base_tree,
            candidate_commit=request.candidate_commit,
            candidate_tree=request.candidate_tree,
            submitter=request.submitter,
            label=request.subject,
            request=request.to_json(),
            priority=request.priority,
            created_at=believed if taken_in else func.least(asked, func.now()),
        )
        .on_conflict_do_nothing()
    )


def _is_recorded(record: Record, run_id: str) -> bool:
    with record.reading() as session:
        return session.get(Run, run_id) is not None


def import_inbox(
    record: Record, root: StateRoot, again: Callable[[Request], None] | None = None
) -> tuple[list[str], list[str]]:
    """Take in what submitters left. Returns (run ids, problems); a torn or foreign file is named and left alone, and an
    entry whose submitter has no contamination check left this week waits for one.

    `again` is told of a request whose run the record has already, before the file goes: it may raise Refusal.
    """
    taken, problems = [], []
    try:
        names = sorted(entry.name for entry in os.scandir(root.inbox) if entry.name.endswith(".json"))
    except FileNotFoundError:
        return [], []
    for name in names:
        body = read_json(root.inbox / name)
        try:
            request = read_request(body)
            if name != f"{request.id}.json":
                raise ValueError(f"it holds run {request.id}, and a request is named like its run")
            recorded = _is_recorded(record, request.id)
            if not recorded and isinstance(request, EntryRequest) and (over := checks_problem(record, request)):
                problems.append(f"inbox/{name} waits until a check is free, or until you delete it: {over}")
                continue
            if recorded and again is not None:
                try:
                    again(request)
                except Refusal as error:
                    problems.append(f"inbox/{name}: {error}")
            try:
                enqueue(record, root, request)
            except Refusal as error:
                problems.append(f"inbox/{name} waits until a check is free, or until you delete it: {error}")
                continue
            except ChecksHeld as error:
                problems.append(f"inbox/{name} waits for the next tick: {error}")
                continue
        except OSError as error:
            if concerns_all(error):
                raise
            problems.append(f"inbox/{one_line(name)} waits: {one_line(str(error))}")
            continue
        except (ValueError, DataError) as error:
            problems.append(f"inbox/{one_line(name)} is not a request: {one_line(str(error).splitlines()[0])}")
            continue
        taken.append(request.id)
    return taken, problems
