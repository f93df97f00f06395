"""Signed checkpoints: made from time to time, kept for ever, each the continuation of the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, insert, select

from ledger import models, tree
from ledger.book import LedgerDamaged
from ledger.notes import NoteError, Signer, open_checkpoint

EVERY_ENTRIES: Final = 1000
EVERY_US: Final = 60_000_000


class OtherKeyError(NoteError):
    """The last checkpoint was signed by another key than the one at hand."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """One checkpoint as kept: `note` is the signed text over `size` entries."""

    size: int
    root: bytes
    note: str
    created_us: int


def latest(connection: Connection, at_most: int | None = None) -> StoredCheckpoint | None:
    """The newest checkpoint (of at most so many entries), or None."""
    query = select(models.checkpoints).order_by(models.checkpoints.c.size.desc()).limit(1)
    if at_most is not None:
        query = query.where(models.checkpoints.c.size <= at_most)
    row = connection.execute(query).one_or_none()
    return None if row is None else StoredCheckpoint(row.size, bytes(row.root), row.note, row.created_us)


def is_due(connection: Connection, now_us: int) -> bool:
    """Whether 1000 entries have come since the last checkpoint, or any and a minute has passed."""
    size = connection.execute(select(models.chain.c.seq)).scalar_one()
    last = latest(connection)
    if last is None:
        return size > 0
    return size >= last.size + EVERY_ENTRIES or (size > last.size and now_us - last.created_us >= EVERY_US)


def make(connection: Connection, signer: Signer, *, now_us: int) -> StoredCheckpoint | None:
    """Sign the tree as it is now; None if nothing came since the last checkpoint.

    Raises LedgerDamaged, and signs nothing, if the tree does not contain what the last checkpoint
    promised; OtherKeyError if that was signed by another key. The caller commits.
    """
    size = connection.execute(select(models.chain.c.seq)).scalar_one()
    last = latest(connection)
    if last is not None:
        try:
            _ = open_checkpoint(last.note, signer.key)
        except NoteError:
            raise OtherKeyError(
                "the last checkpoint was not signed by this ledger.key; use the file that signed it"
            ) from None
        if last.size >= size:
            return None
        if tree.root(connection, last.size) != last.root:
            raise LedgerDamaged(
                f"the first {last.size} entries are not what was signed; run `mlx-network ledger reconcile`"
            )
    if size == 0:
        return None
    root = tree.root(connection, size)
    made = StoredCheckpoint(size, root, signer.sign_checkpoint(size, root), now_us)
    connection.execute(
        insert(models.checkpoints),
        {"size": size, "root": root, "note": made.note, "created_us": now_us},
    )
    return made
