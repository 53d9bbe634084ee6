"""A reporter that also says how far a stage is, for whoever follows the log of its job.

Covered: one line for each row of metrics, numbers alone. Not covered: the files of the reports (outerloop.torch.facts).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from outerloop.torch import world
from outerloop.torch.facts import Reporter

__all__ = ["AloudReporter"]

_TOLD = ("loss", "reward")


class AloudReporter(Reporter):
    """Says `sft step 12: loss 0.057` on stderr; stdout is for the stage's own result."""

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        super().log_metrics(metrics)
        if world.rank() > 0:
            return
        of = f" of {metrics['of']}" if "of" in metrics else ""
        told = [f"{name} {metrics[name]:.4g}" for name in _TOLD if isinstance(metrics.get(name), int | float)]
        words = f"{metrics.get('stage', '')} step {metrics.get('step', '?')}{of}"
        print(f"{words}: {', '.join(told)}" if told else words, file=sys.stderr, flush=True)
