"""From a measured series to a study: what its values say, kept for the verdicts to come.

Covered: when there is nothing to recommend, the study's body as it is stored and printed. Not covered: measuring
(noise.py), the arithmetic (climb.noise), where studies lie (noise_store.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter

from outerloop.climb.noise import NoiseStudy, contract_fragment, study_noise
from outerloop.controller.noise import NoSeries, Series, SeriesState
from outerloop.controller.noise_store import keep_study
from outerloop.slots import StateRoot

__all__ = ["kept", "studied"]


def studied(series: Series, state: SeriesState, gain: Decimal | None) -> NoiseStudy:
    """What a series at rest says; `gain` is the smallest one worth finding. Raises NoSeries with what to do."""
    if state.exhausted:
        digest, why = state.exhausted[0]
        raise NoSeries(
            f"{len(state.exhausted)} of {state.total} measures used up their attempts; the first: {why}\n"
            f"Give them their attempts again with `outerloop retry {digest[:12]}`, then repeat this command."
        )
    if state.failed:
        raise NoSeries(
            f"the base itself gives no value in {len(state.failed)} of {state.total} measures, so there is nothing to"
            f" recommend. The first: {state.failed[0]}"
        )
    rule = series.benchmark.parsed_rule()
    alpha, beta = getattr(rule, "alpha", Decimal("0.05")), getattr(rule, "beta", Decimal("0.05"))
    try:
        return study_noise(state.noise_values(), wanted_gain=gain, alpha=alpha, beta=beta)
    except ValueError as error:
        raise NoSeries(str(error)) from error


def kept(root: StateRoot, series: Series, state: SeriesState, study: NoiseStudy) -> dict[str, Any]:
    """Store the study, so that verdicts that are asked for from now on know this noise. Returns its body."""
    body = {
        "schema": 1,
        "target": series.request.target,
        "benchmark": series.benchmark.name,
        "metric": series.benchmark.metric,
        "definition": series.request.definition,
        "base_commit": series.request.base_commit,
        "base_revision": series.request.base_revision,
        "base_tree": series.request.base_tree,
        "values": [{**vars(item), "value": str(item.value)} for item in state.measured],
        "study": TypeAdapter(NoiseStudy).dump_python(study, mode="json"),
        "fragment": contract_fragment(study),
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    keep_study(root, series.request.target, series.benchmark, body)
    return body
