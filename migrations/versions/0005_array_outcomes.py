"""an array's row holds the whole outcome of its request, and a submission of hundreds writes fewer indexes

Revision: 0005, after 0004, 2026-11-30
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("arrays", sa.Column("cluster", sa.Text(), server_default="", nullable=False))
    op.add_column("arrays", sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=True))
    op.execute(
        """
        update arrays set cluster = told.cluster, submitted_at = told.submitted_at
          from (select array_id, max(cluster) as cluster, min(submitted_at) as submitted_at
                  from attempts where array_id is not null group by array_id) as told
         where told.array_id = arrays.id and arrays.state = 'submitted'
        """
    )
    # The slot has the realm, too, and the foreign key to it.
    op.drop_constraint(op.f("fk_attempts_realm_id"), "attempts", type_="foreignkey")
    # Tasks of an array are known to the cluster by the array's name, which is unique itself.
    op.drop_constraint(op.f("uq_attempts_realm_id_job_name"), "attempts", type_="unique")
    op.create_index(
        "one_job_per_name",
        "attempts",
        ["realm_id", "job_name"],
        unique=True,
        postgresql_where=sa.text("array_id is null"),
    )


def downgrade() -> None:
    op.drop_index("one_job_per_name", table_name="attempts")
    op.create_unique_constraint(op.f("uq_attempts_realm_id_job_name"), "attempts", ["realm_id", "job_name"])
    op.create_foreign_key(op.f("fk_attempts_realm_id"), "attempts", "realms", ["realm_id"], ["id"])
    # What is not handed on yet could not be handed on by older code.
    op.execute(
        """
        update attempts
           set state = 'submitted', job_id = concat(arrays.job_id, '_', attempts.array_task), cluster = arrays.cluster,
               submitted_at = arrays.submitted_at, unknown_at = null, absent_at = null, reason = '', detail = ''
          from arrays
         where attempts.array_id = arrays.id and arrays.state = 'submitted' and attempts.state = 'intent'
        """
    )
    op.drop_column("arrays", "submitted_at")
    op.drop_column("arrays", "cluster")
