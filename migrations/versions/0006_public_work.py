"""Who may ask for public work, and an index over the jobs that the pool pays for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_public_work"
down_revision = "0004_seats_budgets_shares"
branch_labels = None
depends_on = None

PAID_BY_POOL = sa.text("payer = 'pool:availability'")


def upgrade() -> None:
    with op.batch_alter_table("accounts") as batch_op:
        batch_op.add_column(
            sa.Column("may_ask_commons", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    with op.batch_alter_table("accounts") as batch_op:
        batch_op.alter_column("may_ask_commons", existing_type=sa.Boolean(), server_default=None)
    op.create_index(
        "ix_jobs_commons",
        "jobs",
        ["created_us"],
        sqlite_where=PAID_BY_POOL,
        postgresql_where=PAID_BY_POOL,
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_commons", table_name="jobs")
    with op.batch_alter_table("accounts") as batch_op:
        batch_op.drop_column("may_ask_commons")
