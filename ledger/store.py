"""What `ledger.book` reads before it decides and writes after: few statements, whatever the batch.

These are the types, and which of the two databases is asked: `ledger.store_postgresql` or
`ledger.store_sqlite`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from sqlalchemy import Connection

from ledger.chain import Entry
from ledger.rules import Account, Hold


class ChainMoved(Exception):
    """The chain row is not where it was when it was locked: the books are damaged."""


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


@dataclass(frozen=True, slots=True)
class Tip:
    """The chain row, and the database's clock (UTC microseconds) when it was locked."""

    seq: int
    head: bytes
    recorded_us: int
    clock_us: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a batch names: ids of commands, of holds, of accounts."""

    ids: list[UUID]
    hold_ids: list[UUID]
    account_ids: list[str]


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
    """One of the two databases."""

    def lock_and_read(self, connection: Connection, wanted: Wanted) -> tuple[Tip, Stored] | None:
        """Lock the chain row, which keeps everything as it is until the transaction ends, and *then*
        read the entries with these ids, these holds, these accounts and the holds' accounts. None
        if there is no chain row."""
        ...

    def write(self, connection: Connection, changes: Changes) -> None:
        """Write a batch. Raises `ChainMoved` or a database error if the chain row is not where it
        was; inside of a pipeline only the commit does, and nothing is then kept."""
        ...

    def journeys(self, connection: Connection, /) -> AbstractContextManager[Callable[[], None]]:
        """As `ledger.book.journeys` says."""
        ...
