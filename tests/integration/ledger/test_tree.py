"""Tree and checkpoints over a real journal."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from uuid import uuid4

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from coordinator.db import Database
from ledger import book, checkpoints, merkle, models, statements, tree
from ledger.commands import Record
from ledger.notes import Signer, open_checkpoint

NOW_US = 1_800_000_000_000_000
SIGNER = Signer.generate("example.com/ledger")


def write(database: Database, count: int) -> None:
    for begin in range(0, count, 500):
        commands = [
            Record(id=uuid4(), subject="card:tiny", content_sha256=f"{number:064x}")
            for number in range(min(500, count - begin))
        ]
        with database.write() as session:
            book.apply(session.connection(), commands, now_us=NOW_US)


def grow(database: Database, max_blocks: int = tree.MAX_BLOCKS) -> int:
    with database.write() as session:
        return tree.advance(session.connection(), max_blocks)


def checkpoint(database: Database, now_us: int = NOW_US) -> checkpoints.StoredCheckpoint | None:
    with database.write() as session:
        return checkpoints.make(session.connection(), SIGNER, now_us=now_us)


def leaves_of(database: Database) -> list[bytes]:
    with database.read() as session:
        rows = session.execute(select(models.journal.c.leaf).order_by(models.journal.c.seq))
        return list(rows.scalars())


def roots_agree(database: Database, leaves: list[bytes], sizes: Iterable[int]) -> None:
    with database.read() as session:
        for size in sizes:
            assert tree.root(session.connection(), size) == merkle.root(size, merkle.node_of(leaves)), (
                f"root of {size}"
            )


def test_the_stored_tree_gives_the_same_roots_and_proofs_as_the_leaves(database: Database) -> None:
    write(database, 1500)
    leaves = leaves_of(database)
    draw = random.Random(7)
    edges = {0, 1, 255, 256, 257, 511, 512, 513, 1279, 1280, 1499, 1500}
    roots_agree(database, leaves, edges)
    assert [grow(database, 2), grow(database, 2), grow(database, 2), grow(database)] == [2, 2, 1, 0]
    roots_agree(database, leaves, edges | {draw.randrange(1500) for _ in range(20)})
    with database.read() as session:
        connection = session.connection()
        for _ in range(25):
            size = draw.randint(1, 1500)
            seq, old = draw.randint(1, size), draw.randint(1, size)
            path = tree.inclusion_proof(connection, seq, size)
            assert path == merkle.inclusion_proof(seq - 1, size, merkle.node_of(leaves))
            proof = tree.consistency_proof(connection, old, size)
            assert proof == merkle.consistency_proof(old, size, merkle.node_of(leaves))
        for bad in (lambda: tree.root(connection, 1501), lambda: tree.inclusion_proof(connection, 0, 5)):
            with pytest.raises(ValueError, match=r"entries|index"):
                bad()


def test_the_second_height_is_stored_and_used(database: Database) -> None:
    """65,536 leaves and some: written as bare rows, for speed; the tree reads leaves alone."""
    count = 256 * 257 + 3
    draw = random.Random(3)
    leaves = [draw.randbytes(32) for _ in range(count)]
    with database.write() as session:
        connection = session.connection()
        bare = {"kind": "record", "reference": "", "recorded_us": 0, "result": "posted", "body": ""}
        for begin in range(0, count, 5000):
            rows = [
                bare | {"seq": begin + i + 1, "id": uuid4(), "request_digest": b"", "leaf": leaf, "head": b""}
                for i, leaf in enumerate(leaves[begin : begin + 5000])
            ]
            connection.execute(insert(models.journal), rows)
        connection.execute(update(models.chain).values(seq=count))
    while grow(database):
        pass
    with database.read() as session:
        stored = session.execute(
            select(models.tree.c.height, func.count()).group_by(models.tree.c.height)
        ).all()
    assert sorted(tuple(row) for row in stored) == [(8, 257), (16, 1)]
    frontier = merkle.Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    with database.read() as session:
        connection = session.connection()
        assert tree.root(connection, count) == frontier.root()
        path = tree.inclusion_proof(connection, 70, count)
        assert merkle.inclusion_holds(leaves[69], 69, count, path, frontier.root())


def test_two_that_advance_at_once_do_no_harm(database: Database) -> None:
    write(database, 1100)
    threads = [threading.Thread(target=grow, args=(database,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leaves = leaves_of(database)
    roots_agree(database, leaves, [1024, 1100])


def test_checkpoints_are_made_when_due_and_continue_each_other(database: Database) -> None:
    def is_due(now_us: int) -> bool:
        with database.read() as session:
            return checkpoints.is_due(session.connection(), now_us)

    assert not is_due(NOW_US) and checkpoint(database) is None
    write(database, 3)
    assert is_due(NOW_US)
    first = checkpoint(database)
    assert first is not None and first.size == 3
    assert checkpoint(database) is None and not is_due(NOW_US + checkpoints.EVERY_US)
    write(database, 1)
    assert not is_due(NOW_US + checkpoints.EVERY_US - 1)
    assert is_due(NOW_US + checkpoints.EVERY_US)
    write(database, 998)
    assert not is_due(NOW_US + 1)
    write(database, 1)
    assert is_due(NOW_US + 1)
    second = checkpoint(database, NOW_US + 1)
    assert second is not None and second.size == 1003
    with database.read() as session:
        connection = session.connection()
        assert checkpoints.latest(connection) == second
        assert checkpoints.latest(connection, 1002) == first
        proof = tree.consistency_proof(connection, 3, 1003)
    old, new = open_checkpoint(first.note, SIGNER.key), open_checkpoint(second.note, SIGNER.key)
    assert merkle.consistency_holds(old.size, old.root, new.size, new.root, proof)


def test_another_key_cannot_go_on(database: Database) -> None:
    write(database, 2)
    checkpoint(database)
    write(database, 1)
    stranger = Signer.generate("example.com/ledger")
    with pytest.raises(checkpoints.OtherKeyError), database.write() as session:
        checkpoints.make(session.connection(), stranger, now_us=NOW_US)


def test_nothing_is_signed_over_a_rewritten_history(database: Database) -> None:
    write(database, 600)
    grow(database)
    checkpoint(database)
    with database.write() as session:
        session.execute(delete(models.tree).where(models.tree.c.position == 1))
        session.execute(insert(models.tree).values(height=8, position=1, hash=bytes(32)))
    write(database, 1)
    with pytest.raises(book.LedgerDamaged, match="600"):
        checkpoint(database)


@pytest.mark.parametrize(
    "verb", ["UPDATE ledger_checkpoints SET root = note", "DELETE FROM ledger_checkpoints"]
)
def test_the_database_keeps_every_checkpoint(database: Database, verb: str) -> None:
    write(database, 1)
    checkpoint(database)
    with pytest.raises(DBAPIError), database.write() as session:
        session.execute(text(verb))


def drifts(database: Database) -> set[tuple[str, str]]:
    with database.read() as session:
        return {(drift.rule, drift.subject) for drift in statements.reconcile(session.connection())}


def test_reconciliation_compares_tree_and_checkpoints(database: Database) -> None:
    write(database, 1100)
    grow(database)
    checkpoint(database)
    assert drifts(database) == set()
    with database.write() as session:
        session.execute(text("DELETE FROM ledger_tree WHERE position = 1"))
    assert drifts(database) == set(), "what upkeep has not stored yet is no fault"
    with database.write() as session:
        connection = session.connection()
        connection.execute(insert(models.tree).values(height=8, position=1, hash=bytes(32)))
        connection.execute(insert(models.tree).values(height=8, position=4, hash=bytes(32)))
        false = {"root": bytes(32), "note": "", "created_us": 0}
        connection.execute(insert(models.checkpoints), [{"size": size, **false} for size in (7, 5000)])
    assert drifts(database) == {
        ("tree_is_of_the_leaves", "height 8, position 1"),
        ("tree_is_of_the_leaves", "height 8, position 4"),
        ("checkpoint_is_of_the_tree", "7"),
        ("checkpoint_is_of_the_tree", "5000"),
    }
