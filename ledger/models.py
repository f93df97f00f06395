"""The ledger's tables (SQLAlchemy Core), the same on PostgreSQL and SQLite.

Amounts are integers of uMLX in BIGINT columns; times are UTC microseconds. `ledger_journal`,
`ledger_postings` and `ledger_checkpoints` are append-only: triggers made by the migrations refuse
UPDATE and DELETE.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

from ledger.limits import MAX_BALANCE_UMLX

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

accounts: Final = Table(
    "ledger_accounts",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("floor_umlx", BigInteger, nullable=True),
    Column("posted_umlx", BigInteger, nullable=False),
    Column("held_umlx", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    CheckConstraint("kind IN ('issuance', 'fee', 'treasury', 'pool', 'user', 'escrow')", name="kind_known"),
    CheckConstraint("floor_umlx IS NULL OR floor_umlx = 0", name="floor_null_or_zero"),
    CheckConstraint("held_umlx >= 0", name="held_not_negative"),
    CheckConstraint("floor_umlx IS NULL OR posted_umlx - held_umlx >= floor_umlx", name="above_floor"),
    CheckConstraint(
        f"posted_umlx BETWEEN -{MAX_BALANCE_UMLX} AND {MAX_BALANCE_UMLX} AND held_umlx <= {MAX_BALANCE_UMLX}",
        name="within_limits",
    ),
)

chain: Final = Table(
    "ledger_chain",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("head", LargeBinary, nullable=False),
    Column("recorded_us", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="single_row"),
    CheckConstraint("seq >= 0", name="seq_not_negative"),
)
"""One row: the last entry's number, chain head and time. Whoever holds its lock is the writer."""

journal: Final = Table(
    "ledger_journal",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Uuid, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("reference", String(200), nullable=False),
    Column("recorded_us", BigInteger, nullable=False),
    Column("result", String(32), nullable=False),
    Column("needed_umlx", BigInteger, nullable=True),
    Column("available_umlx", BigInteger, nullable=True),
    Column("body", Text, nullable=False),
    Column("request_digest", LargeBinary, nullable=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("head", LargeBinary, nullable=False),
    UniqueConstraint("id"),
    CheckConstraint("seq >= 1", name="seq_positive"),
    CheckConstraint(
        "kind IN ('mint', 'burn', 'transfer', 'open_hold', 'capture', 'void_hold', 'expire_hold', 'refund', "
        "'adjust', 'record')",
        name="kind_known",
    ),
    Index("ix_ledger_journal_reference", "reference"),
    Index("ix_ledger_journal_recorded_us", "recorded_us"),
)
"""Every command ever answered, refused ones too: `result` is `posted` or the reason of refusal."""

postings: Final = Table(
    "ledger_postings",
    metadata,
    Column("seq", BigInteger, ForeignKey("ledger_journal.seq"), primary_key=True, autoincrement=False),
    Column("leg", Integer, primary_key=True, autoincrement=False),
    Column("account_id", String(128), ForeignKey("ledger_accounts.id"), nullable=False),
    Column("amount_umlx", BigInteger, nullable=False),
    UniqueConstraint("seq", "account_id"),
    CheckConstraint("amount_umlx <> 0", name="amount_not_zero"),
    CheckConstraint("leg >= 0", name="leg_not_negative"),
    Index("ix_ledger_postings_account_id_seq", "account_id", "seq"),
)

holds: Final = Table(
    "ledger_holds",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("account_id", String(128), ForeignKey("ledger_accounts.id"), nullable=False),
    Column("amount_umlx", BigInteger, nullable=False),
    Column("state", String(8), nullable=False),
    Column("reference", String(200), nullable=False),
    Column("opened_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("captured_umlx", BigInteger, nullable=False),
    Column("refunded_umlx", BigInteger, nullable=False),
    CheckConstraint("amount_umlx > 0", name="amount_positive"),
    CheckConstraint("state IN ('open', 'posted', 'voided', 'expired')", name="state_known"),
    CheckConstraint("captured_umlx BETWEEN 0 AND amount_umlx", name="captured_within_amount"),
    CheckConstraint("captured_umlx = 0 OR state = 'posted'", name="captured_only_if_posted"),
    CheckConstraint("refunded_umlx BETWEEN 0 AND captured_umlx", name="refunded_within_captured"),
    Index("ix_ledger_holds_account_id_state", "account_id", "state"),
    Index("ix_ledger_holds_state_expires_us", "state", "expires_us"),
)

tree: Final = Table(
    "ledger_tree",
    metadata,
    Column("height", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    CheckConstraint("height > 0 AND height % 8 = 0", name="height_is_stored"),
    CheckConstraint("position >= 0", name="position_not_negative"),
)
"""Roots of complete subtrees of 256, 256**2, ... leaves; the leaves are the journal's. Derivable."""

checkpoints: Final = Table(
    "ledger_checkpoints",
    metadata,
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    Column("root", LargeBinary, nullable=False),
    Column("note", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    CheckConstraint("size >= 1", name="size_positive"),
)
"""Every signed checkpoint: the tree's root when the journal had `size` entries."""
