"""The ledger on the coordinator's own machine: the key that signs it, its checkpoints, a connection.

What a command line needs of the books, without the rest of the coordinator.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import structlog
from sqlalchemy import Connection

from coordinator.db import Database
from coordinator.settings import Settings
from ledger import checkpoints, tree
from ledger.notes import Signer

log = structlog.get_logger()


def ledger_signer(settings: Settings) -> Signer:
    """The key that signs checkpoints: `ledger.key` in the home folder, made when first needed.

    Replicas that share a database must share this file. Its name is the coordinator's origin at
    the time it was made. Raises `ledger.notes.NoteError` if the file is damaged.
    """
    name = settings.origin.partition("://")[2] + "/ledger"
    return Signer.from_file(settings.home / "ledger.key", name)


def sign_checkpoint_now(database: Database, settings: Settings) -> checkpoints.StoredCheckpoint | None:
    """Sign the ledger as it is now; None if nothing is new or another key has signed before."""
    # In steps, so that a long backlog keeps no writer waiting.
    while _advance(database):
        pass
    try:
        with database.write() as session:
            return checkpoints.make(
                session.connection(), ledger_signer(settings), now_us=database.now_us(session)
            )
    except checkpoints.OtherKeyError:
        log.error("ledger_key_differs", file=str(settings.home / "ledger.key"))  # noqa: TRY400 - no fault of ours to trace
        return None


def _advance(database: Database) -> int:
    with database.write() as session:
        return tree.advance(session.connection())


@contextmanager
def connection_to(database: Database) -> Generator[Connection]:
    """A connection of one read session."""
    with database.read() as session:
        yield session.connection()
