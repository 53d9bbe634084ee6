"""How often each reserve rule says "luck", with and without a reason: `python -m tests.bench.bench_reserve_rules`.

Simulated: 200 equally good checkpoints, two classes of 400 items each, 10 % errors, of which the lexicographically
best on the test set is checked on a fresh reserve of the same sizes at alpha = 0.01. `rho` is the correlation of the
checkpoints' errors on an item (Gaussian copula); "rise" is a true rise to 15 % on both classes. 400 campaigns per
line, so a share has a standard error of at most 0.025. About a minute on one core.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.stats import norm

from outerloop.champion import fisher_p, selection_optimism, two_proportion_z

CHECKPOINTS, ITEMS, RATE, RISEN, ALPHA = 200, 400, 0.10, 0.15, 0.01
CORRELATIONS = (0.0, 0.5, 0.9)
RULES = ("z", "fisher", "optimism")


def luck_shares(correlation: float, reserve_rate: float, campaigns: int, seed: int = 1) -> dict[str, float]:
    """Share of campaigns in which each rule says "luck", for a true error rate on the reserve set."""
    random = np.random.default_rng(seed)
    threshold = norm.ppf(RATE)
    said = dict.fromkeys(RULES, 0)
    for _ in range(campaigns):
        tables = []
        for _class in range(2):
            shared = random.standard_normal(ITEMS)
            own = random.standard_normal((CHECKPOINTS, ITEMS))
            tables.append(np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own < threshold)
        counts = [table.sum(axis=1) for table in tables]
        best = int(np.lexsort((counts[1], counts[0]))[0])
        pairs = [(int(count[best]), int(random.binomial(ITEMS, reserve_rate))) for count in counts]
        optimism = selection_optimism(tables, resamples=200)
        for rule in RULES:
            shifts = [max(0.0, value) if rule == "optimism" else 0.0 for value in optimism]
            said[rule] += any(
                (fisher_p(a, ITEMS, b, ITEMS) if rule == "fisher" else two_proportion_z(a, ITEMS, b, ITEMS, shift)[1])
                < ALPHA
                for (a, b), shift in zip(pairs, shifts, strict=True)
            )
    return {rule: count / campaigns for rule, count in said.items()}


def main(campaigns: int = 400) -> None:
    """Print the table."""
    print("| rho | true change | " + " | ".join(RULES) + " |\n|---|---|---|---|---|")
    for correlation in CORRELATIONS:
        for name, rate in (("none", RATE), ("rise", RISEN)):
            shares = luck_shares(correlation, rate, campaigns)
            cells = " | ".join(f"{shares[rule]:.3f}" for rule in RULES)
            print(f"| {correlation} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
