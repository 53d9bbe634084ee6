"""sweeps that read an index: all that a tick compares lies in it, and ended runs are looked at until they are released

Revision: 0004, after 0003, 2026-11-29
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

OPEN = sa.text("state in ('intent', 'submitted')")
BEFORE = ["job_id", "job_name", "slurm_state", "slurm_reason", "state"]
NOW = [
    "job_id",
    "job_name",
    "array_name",
    "slurm_state",
    "slurm_reason",
    "state",
    "array_id",
    "intent_at",
    "absent_at",
]


def upgrade() -> None:
    op.drop_index("live_attempts", table_name="attempts")
    op.create_index("live_attempts", "attempts", ["realm_id", "id"], postgresql_include=NOW, postgresql_where=OPEN)
    op.add_column("runs", sa.Column("released", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    # Those that have live attempts are left to the next tick.
    op.execute(
        """
        update runs set released = true
         where state = 'ended' and not exists (
               select 1 from measures m join attempts a on a.slot_id = m.slot_id
                where m.run_id = runs.id and a.state in ('intent', 'submitted'))
        """
    )
    op.create_index(
        "unreleased_runs", "runs", ["realm_id", "id"], postgresql_where=sa.text("state = 'ended' and not released")
    )


def downgrade() -> None:
    op.drop_index("unreleased_runs", table_name="runs")
    op.drop_column("runs", "released")
    op.drop_index("live_attempts", table_name="attempts")
    op.create_index("live_attempts", "attempts", ["realm_id", "id"], postgresql_include=BEFORE, postgresql_where=OPEN)
