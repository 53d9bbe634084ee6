"""PURE. Which measures a climb needs and who wins.

`plan_measures` and `next_step` decide everything; `Verdict` carries every number that led to it. Anything may
be imported from here. The room imports nothing that touches a disk, a database, a process or the clock, and it
draws no random number: seeds come in with the plan. numpy and scipy are imported only where they are used,
since the command line must start quickly.
"""

from outerloop.climb.again import alpha_share, total_alpha
from outerloop.climb.climbed import sequential_bounds
from outerloop.climb.findings import (
    Blocked,
    ClimbedFinding,
    Failure,
    Findings,
    FloorFinding,
    Look,
    LossFinding,
    NeedMore,
    PairFinding,
    Step,
    TestFinding,
    Verdict,
    Waiting,
)
from outerloop.climb.judge import (
    judge,
    ladder_verdict,
    next_step,
    plan_measures,
    scope_verdict,
    superseded_verdict,
)
from outerloop.climb.model import (
    FIRST_FRESH_REPLICATE,
    BenchmarkRule,
    ClimbPlan,
    EvidenceError,
    Facts,
    Guard,
    MeasureRequest,
    Paired,
    Reading,
    Regression,
    Rule,
    RuleError,
    Sequential,
    Threshold,
    fewest_pairs,
    seeds_needed,
)
from outerloop.climb.rule import parse_rule

__all__ = [
    "FIRST_FRESH_REPLICATE",
    "BenchmarkRule",
    "Blocked",
    "ClimbPlan",
    "ClimbedFinding",
    "EvidenceError",
    "Facts",
    "Failure",
    "Findings",
    "FloorFinding",
    "Guard",
    "Look",
    "LossFinding",
    "MeasureRequest",
    "NeedMore",
    "PairFinding",
    "Paired",
    "Reading",
    "Regression",
    "Rule",
    "RuleError",
    "Sequential",
    "Step",
    "TestFinding",
    "Threshold",
    "Verdict",
    "Waiting",
    "alpha_share",
    "fewest_pairs",
    "judge",
    "ladder_verdict",
    "next_step",
    "parse_rule",
    "plan_measures",
    "scope_verdict",
    "seeds_needed",
    "sequential_bounds",
    "superseded_verdict",
    "total_alpha",
]
