"""plan(): from a request to a report.

Covers the order of things: judge every candidate, rank those that pass, and say what would unlock a plan when none
does. Pure: the same request, planner version, catalogue and ledger give the same report on any machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from outerloop.planner.catalog import GPUS
from outerloop.planner.figures import agrees
from outerloop.planner.handover import figure_fields
from outerloop.planner.hint import hint, unlocks
from outerloop.planner.judge import judge_all
from outerloop.planner.rank import ranked
from outerloop.planner.report import Candidate, PlanReport
from outerloop.planner.request import MeasuredFigure, PlanRequest, TransformerFinetune
from outerloop.planner.shapes import SHAPES

MOST_GPUS_PER_HOST = 16
"""The DGX-2 had 16; more in one host are nearly always hosts that were not told apart."""

PLANNER_VERSION = "1"
"""Raised whenever an estimate or a verdict can change for an unchanged request."""


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def catalog_digest() -> str:
    """SHA-256 of the GPUs and model shapes that the planner knows."""
    content = {
        "gpus": {name: gpu.model_dump(mode="json") for name, gpu in GPUS.items()},
        "shapes": {name: shape.model_dump(mode="json") for name, shape in SHAPES.items()},
    }
    return hashlib.sha256(_canonical(content)).hexdigest()


def plan_digest(request: PlanRequest, ledger: Sequence[MeasuredFigure] = ()) -> str:
    """SHA-256 that names a plan: request, planner version, catalogue, ledger figures."""
    content = {
        "request": request.model_dump(mode="json"),
        "planner": PLANNER_VERSION,
        "catalog": catalog_digest(),
        "ledger": sorted((figure.model_dump(mode="json") for figure in ledger), key=_canonical),
    }
    return hashlib.sha256(_canonical(content)).hexdigest()


def _notes(request: PlanRequest, candidates: Sequence[Candidate]) -> list[str]:
    notes = []
    work = request.workload
    if isinstance(work, TransformerFinetune) and candidates:
        if work.total_tokens is None:
            notes.append("neither tokens nor samples given: time and cost are unknown")
        if work.loss == "plain":
            notes.append(
                "loss = plain keeps all logits at once; trl 1.16 and later run a chunked loss (loss = chunked)"
            )
    resources = request.resources
    if resources.gpus_per_host > MOST_GPUS_PER_HOST:
        notes.append(
            f"{resources.gpus_per_host} GPUs in one host are planned as asked, with no network between them; hosts of "
            f"8 are written {max(1, resources.gpus // 8)}x8x{resources.gpu.name if resources.gpu else 'GPU'}"
        )
    known = [fields for candidate in candidates if (fields := figure_fields(candidate, request)) is not None]
    for figure in request.figures:
        if not any(agrees(figure, fields) for fields in known):
            notes.append(
                f"the figure of {figure.candidate} ({figure.model} on {figure.gpu}) is of no candidate of this request "
                "and changes nothing"
            )
    if candidates and request.resources.price_per_gpu_hour is None and request.resources.price_per_host_hour is None:
        notes.append("no price given: cost is unknown, and candidates are ranked by worker time")
    return notes


def plan(request: PlanRequest, *, ledger: Sequence[MeasuredFigure] = ()) -> PlanReport:
    """The planner's answer to `request`.

    `ledger` are figures of recorded runs; they replace the static estimate of exactly the layout they were measured on
    (basis `ledger`) and are part of the digest.
    """
    judged, notes = judge_all(request, ledger)
    order, selected = ranked(judged, request.mode)
    found = [] if selected is not None else unlocks(request, judged, ledger)
    return PlanReport(
        digest=plan_digest(request, ledger),
        planner_version=PLANNER_VERSION,
        request=request,
        mode=request.mode,
        selected=selected,
        candidates=tuple(order),
        notes=(*notes, *_notes(request, order)),
        hint=None if selected is not None else hint(request, judged, found),
        unlocks=tuple(found),
    )
