"""What is done with the bench's own books at the end: reconcile, sign, export, verify offline."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from coordinator.db import Database
from ledger import checkpoints, models, statements, tree
from ledger.export import export_lines
from ledger.notes import Signer


@dataclass(frozen=True)
class Reconciled:
    """How many places of the books contradict others, and how long the look took."""

    drifts: int
    entries: int
    seconds: float


def reconcile(database: Database) -> Reconciled:
    """Replay the whole journal against balances, holds and chain."""
    started = time.perf_counter()
    with database.read() as session:
        connection = session.connection()
        drifts = statements.reconcile(connection)
        entries = connection.execute(select(models.chain.c.seq)).scalar_one()
    return Reconciled(len(drifts), entries, time.perf_counter() - started)


def sign_and_export(database: Database, signer: Signer, path: Path) -> None:
    """Let the tree catch up, sign it, and write all entries up to there."""
    left = 1
    while left:
        with database.write() as session:
            left = tree.advance(session.connection())
    with database.write() as session:
        checkpoints.make(session.connection(), signer, now_us=database.now_us(session))

    @contextmanager
    def connect() -> Generator[Connection]:
        with database.read() as session:
            yield session.connection()

    with path.open("wb") as file:
        file.writelines(export_lines(connect))


def verify_apart(path: Path, signer: Signer) -> dict[str, float]:
    """Verify a file in a process of its own, whose memory is then seen."""
    command = [sys.executable, "-m", "tests.benchmarks.ledger.verify", "--file", str(path), str(signer.key)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found
