"""PURE. Dominance, Pareto front, hold-up test and the campaign's event fold."""
