"""The ledger: accounts, chain, journal, postings, holds, and triggers that keep them append-only."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0001_ledger"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("ledger_journal", "ledger_postings")

# A hold's amount never changes, and it leaves `open` once; refunds may still be counted on it.
HOLD_IS_WRONG = """
    NEW.id <> OLD.id OR NEW.account_id <> OLD.account_id OR NEW.amount_umlx <> OLD.amount_umlx
    OR NEW.expires_us <> OLD.expires_us OR NEW.opened_us <> OLD.opened_us OR NEW.reference <> OLD.reference
    OR (OLD.state <> 'open' AND (NEW.state <> OLD.state OR NEW.captured_umlx <> OLD.captured_umlx))
    OR NEW.refunded_umlx < OLD.refunded_umlx
"""


def upgrade() -> None:
    _create_accounts()
    _create_chain()
    _create_journal()
    _create_holds()
    _create_postings()
    op.execute(
        sa.text("INSERT INTO ledger_chain (id, seq, head, recorded_us) VALUES (1, 0, :head, 0)").bindparams(
            sa.bindparam("head", hashlib.sha256(b"").digest(), sa.LargeBinary)
        )
    )
    for account_id, floor in (("issuance", "NULL"), ("fee", "0"), ("treasury", "0")):
        op.execute(
            "INSERT INTO ledger_accounts (id, kind, floor_umlx, posted_umlx, held_umlx, created_us) "  # noqa: S608
            f"VALUES ('{account_id}', '{account_id}', {floor}, 0, 0, 0)"
        )
    if op.get_bind().dialect.name == "postgresql":
        _create_postgresql_triggers()
    else:
        _create_sqlite_triggers()


def downgrade() -> None:
    raise NotImplementedError("the ledger is never thrown away; restore a backup instead")


def _create_accounts() -> None:
    op.create_table(
        "ledger_accounts",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("floor_umlx", sa.BigInteger(), nullable=True),
        sa.Column("posted_umlx", sa.BigInteger(), nullable=False),
        sa.Column("held_umlx", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('issuance', 'fee', 'treasury', 'pool', 'user', 'escrow')",
            name=op.f("ck_ledger_accounts_kind_known"),
        ),
        sa.CheckConstraint(
            "floor_umlx IS NULL OR floor_umlx = 0", name=op.f("ck_ledger_accounts_floor_null_or_zero")
        ),
        sa.CheckConstraint(
            "floor_umlx IS NULL OR posted_umlx - held_umlx >= floor_umlx",
            name=op.f("ck_ledger_accounts_above_floor"),
        ),
        sa.CheckConstraint("held_umlx >= 0", name=op.f("ck_ledger_accounts_held_not_negative")),
        sa.CheckConstraint(
            "posted_umlx BETWEEN -4000000000000000000 AND 4000000000000000000 AND held_umlx <= 4000000000000000000",
            name=op.f("ck_ledger_accounts_within_limits"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_accounts")),
    )


def _create_chain() -> None:
    op.create_table(
        "ledger_chain",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.Column("recorded_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_chain_single_row")),
        sa.CheckConstraint("seq >= 0", name=op.f("ck_ledger_chain_seq_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_chain")),
    )


def _create_journal() -> None:
    op.create_table(
        "ledger_journal",
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
        sa.CheckConstraint(
            "kind IN ('mint', 'burn', 'transfer', 'open_hold', 'capture', 'void_hold', 'expire_hold', 'refund')",
            name=op.f("ck_ledger_journal_kind_known"),
        ),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_ledger_journal_seq_positive")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_ledger_journal")),
        sa.UniqueConstraint("id", name=op.f("uq_ledger_journal_id")),
    )
    op.create_index("ix_ledger_journal_recorded_us", "ledger_journal", ["recorded_us"], unique=False)
    op.create_index("ix_ledger_journal_reference", "ledger_journal", ["reference"], unique=False)


def _create_holds() -> None:
    op.create_table(
        "ledger_holds",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.String(length=128), nullable=False),
        sa.Column("amount_umlx", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("reference", sa.String(length=200), nullable=False),
        sa.Column("opened_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("captured_umlx", sa.BigInteger(), nullable=False),
        sa.Column("refunded_umlx", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "captured_umlx = 0 OR state = 'posted'", name=op.f("ck_ledger_holds_captured_only_if_posted")
        ),
        sa.CheckConstraint(
            "state IN ('open', 'posted', 'voided', 'expired')", name=op.f("ck_ledger_holds_state_known")
        ),
        sa.CheckConstraint("amount_umlx > 0", name=op.f("ck_ledger_holds_amount_positive")),
        sa.CheckConstraint(
            "captured_umlx BETWEEN 0 AND amount_umlx", name=op.f("ck_ledger_holds_captured_within_amount")
        ),
        sa.CheckConstraint(
            "refunded_umlx BETWEEN 0 AND captured_umlx", name=op.f("ck_ledger_holds_refunded_within_captured")
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["ledger_accounts.id"], name=op.f("fk_ledger_holds_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_holds")),
    )
    op.create_index("ix_ledger_holds_account_id_state", "ledger_holds", ["account_id", "state"], unique=False)
    op.create_index("ix_ledger_holds_state_expires_us", "ledger_holds", ["state", "expires_us"], unique=False)


def _create_postings() -> None:
    op.create_table(
        "ledger_postings",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("leg", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("account_id", sa.String(length=128), nullable=False),
        sa.Column("amount_umlx", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_umlx <> 0", name=op.f("ck_ledger_postings_amount_not_zero")),
        sa.CheckConstraint("leg >= 0", name=op.f("ck_ledger_postings_leg_not_negative")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["ledger_accounts.id"], name=op.f("fk_ledger_postings_account_id")
        ),
        sa.ForeignKeyConstraint(["seq"], ["ledger_journal.seq"], name=op.f("fk_ledger_postings_seq")),
        sa.PrimaryKeyConstraint("seq", "leg", name=op.f("pk_ledger_postings")),
        sa.UniqueConstraint("seq", "account_id", name=op.f("uq_ledger_postings_seq_account_id")),
    )
    op.create_index(
        "ix_ledger_postings_account_id_seq", "ledger_postings", ["account_id", "seq"], unique=False
    )


def _create_sqlite_triggers() -> None:
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
    op.execute(
        f"CREATE TRIGGER ledger_holds_moves BEFORE UPDATE ON ledger_holds WHEN {HOLD_IS_WRONG} "
        "BEGIN SELECT RAISE(ABORT, 'a hold leaves open once and keeps its amount'); END"
    )
    op.execute(
        "CREATE TRIGGER ledger_holds_no_delete BEFORE DELETE ON ledger_holds "
        "BEGIN SELECT RAISE(ABORT, 'ledger_holds keeps every hold'); END"
    )


def _create_postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse('{table} is append-only')"
        )
    op.execute(
        f"CREATE TRIGGER ledger_holds_moves BEFORE UPDATE ON ledger_holds FOR EACH ROW WHEN ({HOLD_IS_WRONG}) "
        "EXECUTE FUNCTION ledger_refuse('a hold leaves open once and keeps its amount')"
    )
    op.execute(
        "CREATE TRIGGER ledger_holds_no_delete BEFORE DELETE OR TRUNCATE ON ledger_holds "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse('ledger_holds keeps every hold')"
    )
