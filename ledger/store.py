"""What `ledger.book` reads before it decides and writes after: few statements, whatever the batch.

These are the types, and which of the two databases is asked: `ledger.store_postgresql` or
`ledger.store_sqlite`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Connection, literal, literal_column

from ledger.chain import Entry
from ledger.rules import Account, Hold


@dataclass(frozen=True, slots=True)
class NewEntry:
    """One journal entry with what is stored beside it."""

    entry: Entry
    body: str
    leaf: bytes
    head: bytes


@dataclass(frozen=True, slots=True)
class OldEntry:
    """What an earlier command was answered, and the digest of its content."""

    id: UUID
    request_digest: bytes
    seq: int
    recorded_us: int
    result: str
    needed_umlx: int | None
    available_umlx: int | None


@dataclass(frozen=True, slots=True)
class NewHold:
    """What a hold's row keeps of its opening."""

    reference: str
    opened_us: int


@dataclass(frozen=True)
class Stored:
    """What was found: entries answered before, and the holds and accounts that a batch names."""

    answered: list[OldEntry]
    holds: dict[UUID, Hold]
    accounts: dict[str, Account]


@dataclass(frozen=True)
class Changes:
    """All that one batch writes. Balances and holds are the new values; those in `new_holds` have
    no row yet."""

    old_seq: int
    journal: list[NewEntry]
    accounts: dict[str, Account]
    holds: dict[UUID, Hold]
    new_holds: dict[UUID, NewHold] = field(default_factory=dict[UUID, NewHold])


class Store(Protocol):
    """One of the two databases. The chain row must be locked: that keeps everything as it is."""

    def read(
        self, connection: Connection, ids: list[UUID], hold_ids: list[UUID], account_ids: list[str]
    ) -> Stored:
        """The entries with these ids, these holds, these accounts and the holds' accounts."""
        ...

    def write(self, connection: Connection, changes: Changes) -> bool:
        """Write a batch. False if the chain row is not where it was: then nothing may be kept."""
        ...


def clock_us(connection: Connection) -> ColumnElement[int]:
    """The database's clock in UTC microseconds (SQLite has none of its own: this machine's)."""
    if connection.dialect.name == "postgresql":
        return literal_column("(extract(epoch FROM clock_timestamp()) * 1000000)::bigint", BigInteger)
    return literal(time.time_ns() // 1000, BigInteger)
