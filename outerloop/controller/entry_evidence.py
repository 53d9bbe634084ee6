"""An entry's evidence on disk: its rounds, what its evaluations left, the judgement over them, and checking it anew.

Covered: the artifacts of accepted attempts and the sealed rows behind them, the verdict as the ledger has it, steps on
disk for `db rebuild`, the comparison for `verify`. Not covered: handing out (entries.py), the rule itself
(outerloop.posttrain.decision).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from outerloop.climb import alpha_share
from outerloop.controller.entry_request import EntryRequest
from outerloop.controller.entry_work import ABOVE, CONTAMINATION, Step, entry_steps, sealed_root
from outerloop.controller.ledger import LedgerEvent
from outerloop.controller.plan import Planned
from outerloop.job.layout import OUT
from outerloop.posttrain.decision import Verdict
from outerloop.posttrain.evaluate import SealError
from outerloop.posttrain.judging import Evaluated, JudgeError, judge_records, verdict_record
from outerloop.posttrain.stage import EVALUATION_FILE
from outerloop.slots import SlotDirectory, StateRoot
from outerloop.slots.files import read_json

__all__ = [
    "EntryRound",
    "MissingEvidence",
    "entry_differences",
    "entry_on_disk",
    "entry_verdict",
    "evaluation_record",
    "is_above",
    "judged",
    "rounds_of",
    "steps_of",
    "training_failure",
]


class MissingEvidence(JudgeError):
    """A file that the judgement needs is not there, or is not the one that was accepted."""


class OnDisk(Protocol):
    """Where evidence lies."""

    @property
    def root(self) -> StateRoot: ...

    def slot(self, digest: str) -> SlotDirectory: ...


@dataclass(frozen=True)
class EntryRound:
    """One comparison: with which champion, and whether its suites were won, so that the reserve counts."""

    number: int
    champion_seq: int
    opponent: str
    """The champion's run, "" for the untrained model."""
    reserve: bool


def rounds_of(events: Sequence[LedgerEvent]) -> list[EntryRound]:
    """The rounds of an entry's ledger."""
    won = {event.body.get("round") for event in events if event.kind == "reserve"}
    return [
        EntryRound(
            number=int(event.body["round"]),
            champion_seq=int(event.body["champion_seq"]),
            opponent=str(event.body["opponent"]),
            reserve=event.body["round"] in won,
        )
        for event in events
        if event.kind == "round"
    ]


def is_above(result: Mapping[str, Any] | None) -> bool:
    """Whether a contamination check found more than the challenge allows."""
    metric = (result or {}).get("metric")
    return isinstance(metric, Mapping) and metric.get("name") == ABOVE and Decimal(str(metric.get("text"))) > 0


def steps_of(context: OnDisk, request: EntryRequest, round_: EntryRound) -> list[Step]:
    """The steps of a round. Raises MissingEvidence when the champion's request is gone."""
    opponent = None
    if round_.opponent:
        path = context.root.request(round_.opponent)
        body = read_json(path)
        if body is None:
            raise MissingEvidence(f"the request of the champion, {path}, can't be read")
        opponent = EntryRequest.model_validate(body)

    def done(digest: str) -> bool:
        return context.slot(digest).value() is not None

    return entry_steps(context.root, request, opponent, reserve=round_.reserve, done=done)


def evaluation_record(context: OnDisk, step: Step) -> Evaluated:
    """What the accepted attempt of an evaluation left. Raises MissingEvidence."""
    directory = context.slot(step.work.digest)
    pin = directory.pinned()
    result = None if pin is None else directory.result(pin.attempt)
    if pin is None or result is None:
        raise MissingEvidence(f"{step.role}: there is no accepted result in {directory.path}")
    path = directory.logs(pin.attempt, pin.restart) / OUT / EVALUATION_FILE
    kept = {entry.get("path"): entry.get("sha256") for entry in result.body.get("artifacts") or ()}
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise MissingEvidence(f"{step.role}: {path}: {error.strerror}") from None
    if hashlib.sha256(raw).hexdigest() != kept.get(EVALUATION_FILE):
        raise MissingEvidence(f"{step.role}: {path} was changed after it was accepted")
    record = json.loads(raw)
    return Evaluated(record, sealed_root(context.root) / f"{directory.digest[:16]}-{pin.attempt}")


def _sides(
    context: OnDisk, steps: Sequence[Step], suites: Sequence[str]
) -> tuple[dict[str, list[Evaluated]], dict[str, list[Evaluated]]]:
    """The evaluations of candidate and opponent on some suites."""
    sides: dict[str, dict[str, list[Evaluated]]] = {"candidate": {}, "base": {}}
    for step in steps:
        if step.kind == "evaluate" and step.suite in suites:
            sides[step.side].setdefault(step.suite, []).append(evaluation_record(context, step))
    return sides["candidate"], sides["base"]


def judged(context: OnDisk, request: EntryRequest, round_: EntryRound, steps: Sequence[Step]) -> Verdict:
    """The judgement of a round: on the suites alone, or with the reserve. Raises JudgeError, SealError."""
    ours, theirs = _sides(context, steps, [suite.id for suite in request.suites])
    reserve = _sides(context, steps, [suite.id for suite in request.reserve]) if round_.reserve else None
    return judge_records(
        ours,
        theirs,
        reserve=reserve,
        name=request.challenge,
        train_seeds=request.train_seeds,
        alpha=Decimal(request.alpha) * alpha_share(request.asking),
        min_delta=Decimal(request.min_delta),
    )


# -- the verdict


def training_failure(role: str, reason: str, detail: str) -> dict[str, str]:
    """How a training failed by itself, as the verdict has it."""
    return {"role": role, "reason": reason, "detail": detail}


_SAID = {
    "not-above-zero": "not above zero",
    "below-floor": "below the floor",
    "not-significant": "not significant",
    "too-few-tasks": "too few tasks to be significant",
    "reserve": "the win does not hold on the reserve",
    "superseded": "the champion moved too often meanwhile",
}


def entry_verdict(
    request: EntryRequest,
    round_: EntryRound,
    *,
    contaminated: bool = False,
    failure: Mapping[str, str] | None = None,
    verdict: Verdict | None = None,
    context: OnDisk | None = None,
    steps: Sequence[Step] = (),
    superseded: bool = False,
) -> dict[str, Any]:
    """The verdict as the ledger has it: plain JSON, nothing about a single task."""
    body: dict[str, Any] = {
        "kind": "entry",
        "challenge": request.challenge,
        "data_sha256": request.data_sha256,
        "opponent": round_.opponent or "untrained",
        "seeds": list(request.train_seeds),
        "asking": request.asking,
        "detail": "",
    }
    if contaminated:
        return body | {
            "outcome": "failed",
            "reason": "contaminated",
            "sentence": "refused: the training data contain more of the suites than the challenge allows; nothing was"
            " trained",
        }
    if failure is not None:
        detail = f" ({failure['detail']})" if failure["detail"] else ""
        return body | {
            "outcome": "failed",
            "reason": failure["reason"],
            "sentence": f"the training failed: {failure['role']} {failure['reason']}{detail}",
            "failure": dict(failure),
        }
    assert verdict is not None and context is not None
    body |= verdict_record(verdict)
    body["evaluations"] = {step.role: _public(context, step) for step in steps if step.kind == "evaluate"}
    if superseded:
        body |= {"outcome": "rejected", "reason": "superseded", "detail": ""}
    body["sentence"] = _sentence(body, verdict)
    # as it will be read back: the ledger is JSON, and so is what is compared with it
    plain: dict[str, Any] = json.loads(json.dumps(body))
    return plain


def _public(context: OnDisk, step: Step) -> dict[str, Any]:
    record = evaluation_record(context, step).record
    names = ("mean", "sd", "scored_tasks", "dropped_tasks", "trials", "infrastructure_fraction", "sealed_sha256")
    return {"suite": step.suite, "side": step.side, "seed": step.seed, **{name: record.get(name) for name in names}}


def _sentence(body: Mapping[str, Any], verdict: Verdict) -> str:
    found = verdict.comparison
    why = _SAID.get(str(body["detail"] or body["reason"]), "")
    told = f"{body['outcome']}: {why + ': ' if why else ''}{found.candidate:.4f} against {found.opponent:.4f}"
    told += f" of the {'untrained model' if body['opponent'] == 'untrained' else 'champion ' + str(body['opponent'])}"
    told += f", gain {found.gain:+.4f} over {found.tasks} tasks (p = {found.p:.2g})"
    if verdict.reserve is not None:
        told += f"; reserve: gain {verdict.reserve.reserve_gain:+.4f}"
    return told


# -- from disk alone


def entry_on_disk(context: OnDisk, request: EntryRequest, events: Sequence[LedgerEvent]) -> dict[int, list[Planned]]:
    """By round: every step that was handed out, as far as slots tell."""
    found: dict[int, list[Planned]] = {}
    for round_ in rounds_of(events):
        known: dict[str, Step] = {}
        for position, step in enumerate(steps_of(context, request, round_)):
            directory = context.slot(step.work.digest)
            if directory.spec() is None or not _came_to(context, known, step):
                continue
            known[step.role] = step
            found.setdefault(round_.number, []).append(step.planned(request.challenge, position))
    return found


def _came_to(context: OnDisk, known: Mapping[str, Step], step: Step) -> bool:
    """Whether what a step waits for was done: a slot that is there may be another entry's."""
    if not step.needs:
        return True
    before = known.get(step.needs)
    result = None if before is None else context.slot(before.work.digest).value()
    return result is not None and not (step.needs == CONTAMINATION and is_above(result.body))


def entry_differences(
    context: OnDisk, request: EntryRequest, events: Sequence[LedgerEvent], told: Mapping[str, Any], *, sealed: bool
) -> tuple[list[str], str]:
    """(what does not fit, what the slots say). `sealed`: the sealed rows should be there; an archive has none."""
    round_ = rounds_of(events)[-1]
    try:
        steps = steps_of(context, request, round_)
        again = _again(context, request, round_, steps, told, sealed=sealed)
    except (JudgeError, SealError) as error:
        return [str(error)], f"not to be judged: {error}"
    if again is None:
        return _aggregates(context, steps, told)
    if again != told:
        keys = sorted(key for key in {*again, *told} if again.get(key) != told.get(key))
        return [f"the slots say: {again['sentence']} ({', '.join(keys)} differ)"], str(again["sentence"])
    return [], str(again["sentence"])


def _again(
    context: OnDisk,
    request: EntryRequest,
    round_: EntryRound,
    steps: Sequence[Step],
    told: Mapping[str, Any],
    *,
    sealed: bool,
) -> dict[str, Any] | None:
    """The verdict that the slots lead to; None where only the aggregates can be looked at."""
    by_role = {step.role: step for step in steps}
    if told["reason"] == "contaminated":
        result = context.slot(by_role[CONTAMINATION].work.digest).value()
        above = result is not None and is_above(result.body)
        if not above:
            raise MissingEvidence("the contamination check does not say that the data are above the limit")
        return entry_verdict(request, round_, contaminated=True)
    if "failure" in told:
        from outerloop.controller.evidence import ending_on_disk

        failure = told["failure"]
        ending = ending_on_disk(context.slot(by_role[failure["role"]].work.digest), failure)
        return entry_verdict(request, round_, failure=training_failure(failure["role"], ending.reason, ending.detail))
    if not sealed:
        return None
    verdict = judged(context, request, round_, steps)
    return entry_verdict(
        request,
        round_,
        verdict=verdict,
        context=context,
        steps=steps,
        superseded=told["reason"] == "superseded" and verdict.outcome == "accepted",
    )


def _aggregates(context: OnDisk, steps: Sequence[Step], told: Mapping[str, Any]) -> tuple[list[str], str]:
    """The aggregates against those of the verdict, for an archive: it has no sealed rows."""
    differences = []
    for step in steps:
        if step.kind == "evaluate" and told["evaluations"].get(step.role) != _public(context, step):
            differences.append(f"{step.role}: its aggregates are not those of the verdict")
    return differences, f"{told['sentence']} (from aggregates: an archive has no sealed rows)"
