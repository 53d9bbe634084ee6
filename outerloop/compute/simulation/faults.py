"""What goes wrong on a simulated cluster, as switches that a test or a schedule sets.

Covered: outages of controller and accounting, lost replies. Not covered: faults of nodes and jobs, which are methods
of the cluster, because they happen at one instant (compute/simulated.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Faults", "Reply"]

Reply = Literal["lost-before", "lost-after", "full", "refused", "down"]
"""What becomes of one submission: its request or its reply is lost, a cap is met, a limit forbids it for ever, the
connection is refused."""


@dataclass
class Faults:
    """Standing faults; everything false is a cluster in good health."""

    controller_down: bool = False
    """Every query and cancel goes unanswered. With `stopped` a submission is still taken when the controller goes on:
    measured with a stopped slurmctld, whose sbatch exits 1 after 10 s."""
    stopped: bool = False
    accounting_down: bool = False
    cancels_lost: bool = False
    """The request to cancel is answered, and nothing happens."""
    replies: deque[Reply] = field(default_factory=deque)
    """What becomes of the next submissions, one each."""

    def heal(self) -> None:
        """Everything works again from now on."""
        self.controller_down = self.stopped = self.accounting_down = self.cancels_lost = False
        self.replies.clear()
