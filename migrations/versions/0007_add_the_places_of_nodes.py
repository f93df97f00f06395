"""What each node's owner shows of its place on the public map."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_add_the_places_of_nodes"
down_revision = "0006_public_work"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("place_kind", sa.String(length=7), server_default="none", nullable=False)
        )
        batch_op.add_column(sa.Column("place_country", sa.String(length=2), nullable=True))
        batch_op.add_column(sa.Column("place_cell", sa.String(length=15), nullable=True))
        batch_op.add_column(sa.Column("place_sequence", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.drop_column("place_sequence")
        batch_op.drop_column("place_cell")
        batch_op.drop_column("place_country")
        batch_op.drop_column("place_kind")
