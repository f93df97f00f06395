"""How fast each Mac was seen to be, against the forecast."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_keep_the_paces_of_devices"
down_revision = "0007_add_the_places_of_nodes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "device_paces",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("decode_median_ppm", sa.Integer(), nullable=False),
        sa.Column("decode_seen", sa.Integer(), nullable=False),
        sa.Column("prefill_median_ppm", sa.Integer(), nullable=False),
        sa.Column("prefill_seen", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_device_paces")),
    )


def downgrade() -> None:
    op.drop_table("device_paces")
