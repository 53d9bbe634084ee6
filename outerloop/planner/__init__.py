"""PURE. Strategy menu, estimators, and verdicts with their arithmetic."""
