"""The database of the worlds that one process simulates: a file in memory, copied afresh for each."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from coordinator import clock
from coordinator.accounts.service import create_account, create_key
from coordinator.db import Database, make_engine, migrate
from coordinator.nodes.service import EnrolmentRequest, approve, start_enrolment
from coordinator.policy.local_operators import ensure_local_budgets
from coordinator.settings import Settings
from node_agent.protocol import messages as wire
from node_agent.protocol.ids import node_id_of
from node_agent.protocol.signing import encode_bytes, enrolment_statement

NODES_MAX: Final = 4
SUBMITTERS: Final = 3
GRANT_UMLX: Final = 50_000
POOR_GRANT_UMLX: Final = 700
WALL_START_NS: Final = 1_800_000_000 * 10**9
ORIGIN: Final = "http://simulated"
SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True)
class KnownNode:
    """A node that is enrolled in every world."""

    node_id: str
    key: Ed25519PrivateKey
    public_key: str
    owner_id: str


@dataclass(frozen=True)
class KnownSubmitter:
    """An account with a key and some money; the last one has very little."""

    account_id: str
    api_key: str
    grant_umlx: int


class Storage:
    """One database file and the engine on it. Worlds of one process use it one after another."""

    def __init__(self) -> None:
        self._scratch: Final = tempfile.TemporaryDirectory(
            prefix="mlxnet-simulation-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        )
        self.home: Final = Path(self._scratch.name)
        self._path: Final = self.home / "coordinator.sqlite3"
        self.engine: Final[Engine] = make_engine(f"sqlite:///{self._path}")
        self.settings: Final = Settings(home=self.home, public_url=ORIGIN)
        migrate(self.engine)
        database = Database(self.engine)
        # Ids of accounts, too, are the same in every process.
        fixed = clock.Sources(wall_ns=lambda: WALL_START_NS, random_bytes=Random(0).randbytes)
        with clock.replaced_by(fixed), database.write() as session:
            _ = ensure_local_budgets(session, self.home, now_us=clock.wall_us())
            self.submitters: Final = [_make_submitter(session, n) for n in range(SUBMITTERS)]
            self.nodes: Final = [_make_node(session, n, self.settings) for n in range(NODES_MAX)]
        self.engine.dispose()
        with _opened(self._path) as connection:
            _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._template: Final = self._path.read_bytes()

    def reset(self) -> None:
        """Make the database as every world finds it."""
        self.engine.dispose()
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        _ = self._path.write_bytes(self._template)

    def look(self) -> sqlite3.Connection:
        """A connection of one's own, to see what is committed."""
        connection = sqlite3.connect(self._path, isolation_level=None)
        _ = connection.execute("PRAGMA query_only=ON")
        return connection

    def close(self) -> None:
        """Remove the file."""
        self.engine.dispose()
        self._scratch.cleanup()


@contextmanager
def _opened(path: Path) -> Generator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    try:
        yield connection
    finally:
        connection.close()


def _make_submitter(session: Session, index: int) -> KnownSubmitter:
    amount = GRANT_UMLX if index + 1 < SUBMITTERS else POOR_GRANT_UMLX
    account = create_account(session, f"submitter {index}", grant_umlx=amount)
    return KnownSubmitter(account.id, create_key(session, account, "first"), amount)


def _make_node(session: Session, index: int, settings: Settings) -> KnownNode:
    """Enrol a node as its owner would."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([index + 1]) * 32)
    raw = key.public_key().public_bytes_raw()
    public_key, nonce = encode_bytes(raw), "0" * 32
    statement = enrolment_statement(audience=settings.origin, public_key=public_key, nonce=nonce)
    request = EnrolmentRequest(
        public_key=public_key,
        nonce=nonce,
        signature=encode_bytes(key.sign(statement)),
        name=f"mac{index}",
        hardware=wire.Hardware(memory_bytes=1 << 34, lent_bytes=1 << 33, bandwidth_bytes_per_second=10**11),
    )
    started = start_enrolment(session, request, settings=settings)
    session.flush()
    owner = create_account(session, f"owner {index}")
    _ = approve(session, owner.id, started.code)
    session.flush()
    return KnownNode(node_id_of(raw), key, public_key, owner.id)


@cache
def storage() -> Storage:
    """This process's own."""
    return Storage()
