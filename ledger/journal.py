"""Read the journal in pages, so that a ledger of any length needs little memory.

Rows of the journal never change, so pages may be read in one transaction or in many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, select

from ledger import models
from ledger.chain import Entry

PAGE_ENTRIES: Final = 1000


@dataclass(frozen=True)
class StoredEntry:
    """One journal entry with its postings, its command's canonical body, leaf and head."""

    entry: Entry
    body: str
    leaf: bytes
    head: bytes


def page(connection: Connection, first: int, last: int) -> list[StoredEntry]:
    """The entries with numbers from `first` to `last`, those that exist, in order."""
    return _read(
        connection,
        models.journal.c.seq.between(first, last),
        models.postings.c.seq.between(first, last),
    )


def _read(
    connection: Connection, entries: ColumnElement[bool], postings: ColumnElement[bool]
) -> list[StoredEntry]:
    legs: dict[int, list[tuple[str, int]]] = {}
    table = models.postings.c
    query = select(table.seq, table.account_id, table.amount_umlx).where(postings)
    for row in connection.execute(query.order_by(table.seq, table.leg)):
        legs.setdefault(row.seq, []).append((row.account_id, row.amount_umlx))
    rows = connection.execute(select(models.journal).where(entries).order_by(models.journal.c.seq))
    return [_entry_of(row, tuple(legs.get(row.seq, ()))) for row in rows]


def touching(connection: Connection, account_id: str, since_seq: int, limit: int) -> list[StoredEntry]:
    """Entries after `since_seq` that moved money of an account or opened a hold on it, in order."""
    journal, postings, holds = models.journal.c, models.postings.c, models.holds.c
    moved = select(postings.seq).where(postings.account_id == account_id, postings.seq > since_seq)
    opened = (
        select(journal.seq)
        .join(models.holds, holds.id == journal.id)
        .where(holds.account_id == account_id, journal.seq > since_seq)
    )
    numbers = list(connection.execute(moved.union(opened).order_by("seq").limit(limit)).scalars())
    if not numbers:
        return []
    return _read(connection, journal.seq.in_(numbers), postings.seq.in_(numbers))


def _entry_of(row: Row[Any], legs: tuple[tuple[str, int], ...]) -> StoredEntry:
    entry = Entry(
        row.seq,
        row.id,
        row.kind,
        row.reference,
        row.recorded_us,
        bytes(row.request_digest),
        row.result,
        row.needed_umlx,
        row.available_umlx,
        legs,
    )
    return StoredEntry(entry, row.body, bytes(row.leaf), bytes(row.head))
