"""The solvers: what a candidate is meant to improve."""
