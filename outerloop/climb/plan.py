"""Roles and requests: which measure has which name, seed and replicate.

Covers: the mapping (benchmark, side, pair) -> MeasureRequest. Does not cover: how many pairs are needed so
far, which depends on the readings (judge.py).
"""

from __future__ import annotations

import hashlib

from outerloop.climb.model import BenchmarkRule, ClimbPlan, MeasureRequest, Side

# Cached seeds are injected like drawn ones: positive and within what every seed variable takes.
_SEED_SPAN = 2**31 - 1


def role_name(plan: ClimbPlan, benchmark: BenchmarkRule, side: Side, pair: int) -> str:
    """`baseline`, `candidate`, `sib-<name>-base`, `sib-<name>-cand`; `-<k>` follows for pair k > 0."""
    if benchmark.name == plan.climbed.name:
        stem = "baseline" if side == "base" else "candidate"
    else:
        stem = f"sib-{benchmark.name}-{'base' if side == 'base' else 'cand'}"
    return stem if pair == 0 else f"{stem}-{pair}"


def cached_seed(benchmark: str, index: int) -> int:
    """The seed of a cached base measurement, the same in every climb of this benchmark.

    It may be known in advance: candidates are never measured on it.
    """
    digest = hashlib.sha256(f"cached baseline\0{benchmark}\0{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _SEED_SPAN + 1


def pair_requests(plan: ClimbPlan, benchmark: BenchmarkRule, pair: int) -> tuple[MeasureRequest, MeasureRequest]:
    """Both sides of one pair, base first: one seed for both, replicates of their own."""
    return _request(plan, benchmark, "base", pair), _request(plan, benchmark, "candidate", pair)


def climbed_requests(plan: ClimbPlan, pairs: int) -> tuple[MeasureRequest, ...]:
    """The measures of the climbed benchmark for so many pairs.

    With a cached baseline: its `cached_k` base measurements and one candidate measurement per pair.
    """
    if plan.climbed.baseline == "paired":
        return tuple(request for pair in range(pairs) for request in pair_requests(plan, plan.climbed, pair))
    cached = tuple(_cached_request(plan, index) for index in range(plan.climbed.cached_k))
    return cached + tuple(_request(plan, plan.climbed, "candidate", pair) for pair in range(pairs))


def sibling_requests(plan: ClimbPlan, sibling: BenchmarkRule, pairs: int) -> tuple[MeasureRequest, ...]:
    """The measures of one sibling, always paired: as many pairs as the climb used, one if it has one value."""
    wanted = 1 if sibling.single_valued else pairs
    return tuple(request for pair in range(wanted) for request in pair_requests(plan, sibling, pair))


def _request(plan: ClimbPlan, benchmark: BenchmarkRule, side: Side, pair: int) -> MeasureRequest:
    seeds = plan.pair_seeds if benchmark.name == plan.climbed.name else plan.suite_seeds.get(benchmark.name, ())
    replicate = 0
    if not benchmark.seeded and not benchmark.deterministic:
        replicate = plan.replicate_start + 2 * pair + (1 if side == "candidate" else 0)
    return MeasureRequest(
        role=role_name(plan, benchmark, side, pair),
        benchmark=benchmark.name,
        side=side,
        pair=pair,
        seed=seeds[pair] if benchmark.seeded else 0,
        replicate=replicate,
    )


def _cached_request(plan: ClimbPlan, index: int) -> MeasureRequest:
    climbed = plan.climbed
    seed = 0
    if climbed.seeded:
        seed = plan.cached_seeds[index] if plan.cached_seeds else cached_seed(climbed.name, index)
    return MeasureRequest(
        role=role_name(plan, climbed, "base", index),
        benchmark=climbed.name,
        side="base",
        pair=index,
        seed=seed,
        replicate=0 if climbed.seeded else index + 1,
    )
