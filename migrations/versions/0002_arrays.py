"""job arrays: one request for many attempts of one shape

Revision: 0002, after 0001, 2026-11-29
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "arrays",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("realm_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="intent", nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("cap", sa.Integer(), nullable=True),
        sa.Column("map", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("intent_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("state in ('intent', 'submitted', 'refused', 'dropped')", name=op.f("ck_arrays_state")),
        sa.CheckConstraint("state <> 'submitted' or job_id is not null", name=op.f("ck_arrays_submitted_has_job")),
        sa.CheckConstraint("count >= 2", name=op.f("ck_arrays_two_tasks_or_more")),
        sa.ForeignKeyConstraint(["realm_id"], ["realms.id"], name=op.f("fk_arrays_realm_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arrays")),
        sa.UniqueConstraint("realm_id", "name", name=op.f("uq_arrays_realm_id_name")),
    )
    op.create_index("ix_arrays_lane", "arrays", ["realm_id", "lane", "id"], unique=False)
    op.add_column("attempts", sa.Column("array_id", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("array_task", sa.Integer(), nullable=True))
    op.add_column("attempts", sa.Column("array_name", sa.Text(), server_default="", nullable=False))
    op.create_foreign_key(op.f("fk_attempts_array_id"), "attempts", "arrays", ["array_id"], ["id"])
    op.create_unique_constraint(op.f("uq_attempts_array_id_array_task"), "attempts", ["array_id", "array_task"])
    op.create_check_constraint(
        op.f("ck_attempts_array_and_task"), "attempts", "(array_id is null) = (array_task is null)"
    )
    op.create_check_constraint(op.f("ck_attempts_array_and_name"), "attempts", "(array_id is null) = (array_name = '')")


def downgrade() -> None:
    op.drop_constraint(op.f("ck_attempts_array_and_name"), "attempts", type_="check")
    op.drop_constraint(op.f("ck_attempts_array_and_task"), "attempts", type_="check")
    op.drop_constraint(op.f("uq_attempts_array_id_array_task"), "attempts", type_="unique")
    op.drop_constraint(op.f("fk_attempts_array_id"), "attempts", type_="foreignkey")
    op.drop_column("attempts", "array_name")
    op.drop_column("attempts", "array_task")
    op.drop_column("attempts", "array_id")
    op.drop_index("ix_arrays_lane", table_name="arrays")
    op.drop_table("arrays")
