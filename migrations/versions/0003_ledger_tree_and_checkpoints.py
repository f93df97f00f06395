"""The ledger's Merkle tree and checkpoints, and two more kinds of entry: adjust and record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_ledger_tree_and_checkpoints"
down_revision = "0002_add_the_coordinators_tables"
branch_labels = None
depends_on = None

KIND_KNOWN = (
    "kind IN ('mint', 'burn', 'transfer', 'open_hold', 'capture', 'void_hold', 'expire_hold', 'refund', "
    "'adjust', 'record')"
)
APPEND_ONLY_MESSAGE = "is append-only"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("ck_ledger_journal_kind_known", "ledger_journal", type_="check")
        op.create_check_constraint(op.f("ck_ledger_journal_kind_known"), "ledger_journal", KIND_KNOWN)
    else:
        _copy_sqlite_journal()
    op.create_table(
        "ledger_tree",
        sa.Column("height", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("height > 0 AND height % 8 = 0", name=op.f("ck_ledger_tree_height_is_stored")),
        sa.CheckConstraint("position >= 0", name=op.f("ck_ledger_tree_position_not_negative")),
        sa.PrimaryKeyConstraint("height", "position", name=op.f("pk_ledger_tree")),
    )
    op.create_table(
        "ledger_checkpoints",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size >= 1", name=op.f("ck_ledger_checkpoints_size_positive")),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_ledger_checkpoints")),
    )
    _keep_append_only("ledger_checkpoints")


def downgrade() -> None:
    raise NotImplementedError("the ledger is never thrown away; restore a backup instead")


def _copy_sqlite_journal() -> None:
    """SQLite cannot change a constraint: copy the table, then make indexes and triggers anew."""
    op.create_table(
        "ledger_journal_new",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("reference", sa.String(length=200), nullable=False),
        sa.Column("recorded_us", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.String(length=32), nullable=False),
        sa.Column("needed_umlx", sa.BigInteger(), nullable=True),
        sa.Column("available_umlx", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("leaf", sa.LargeBinary(), nullable=False),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(KIND_KNOWN, name=op.f("ck_ledger_journal_kind_known")),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_ledger_journal_seq_positive")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_ledger_journal")),
        sa.UniqueConstraint("id", name=op.f("uq_ledger_journal_id")),
    )
    op.execute("INSERT INTO ledger_journal_new SELECT * FROM ledger_journal")
    op.drop_table("ledger_journal")
    op.rename_table("ledger_journal_new", "ledger_journal")
    op.create_index("ix_ledger_journal_recorded_us", "ledger_journal", ["recorded_us"], unique=False)
    op.create_index("ix_ledger_journal_reference", "ledger_journal", ["reference"], unique=False)
    _keep_append_only("ledger_journal")


def _keep_append_only(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse('{table} {APPEND_ONLY_MESSAGE}')"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} {APPEND_ONLY_MESSAGE}'); END"
        )
