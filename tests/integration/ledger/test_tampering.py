"""Someone with the database's password changes one stored value: reconciliation names the entry."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from coordinator.db import Database
from ledger import book, models, statements
from tests.unit.ledger.exports import START_US, every_kind

SEQ = 3  # a capture with three postings


def disarm(database: Database) -> None:
    """Take the triggers away, as an intruder would."""
    with database.write() as session:
        if database.engine.dialect.name == "postgresql":
            for table in ("ledger_journal", "ledger_postings", "ledger_holds", "ledger_checkpoints"):
                session.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
            return
        names = session.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars()
        for name in list(names):
            session.execute(text(f"DROP TRIGGER {name}"))


@pytest.fixture
def books(database: Database) -> Database:
    with database.write() as session:
        connection = session.connection()
        book.ensure_accounts(connection, ("user:a", "user:b", "user:c"), now_us=START_US)
        for number, command in enumerate(every_kind()):
            book.apply(connection, [command], now_us=START_US + 5 + number)
    disarm(database)
    return database


def drifts(database: Database) -> list[statements.Drift]:
    with database.read() as session:
        return statements.reconcile(session.connection())


CHANGES = {
    "id": "'00000000000000000000000000000009'",
    "kind": "'refund'",
    "reference": "'job_2'",
    "recorded_us": "recorded_us + 1",
    "result": "'hold_not_open'",
    "needed_umlx": "1",
    "available_umlx": "1",
    "body": "replace(body, 'fee', 'fei')",
    "request_digest": "head",
    "leaf": "head",
    "head": "leaf",
}


def test_every_column_is_tried() -> None:
    assert {column.name for column in models.journal.columns} == {"seq", *CHANGES}


@pytest.mark.parametrize("column", CHANGES)
def test_a_changed_column_of_an_entry(books: Database, column: str) -> None:
    assert drifts(books) == []
    value = CHANGES[column]
    if column == "id" and books.engine.dialect.name == "postgresql":
        value += "::uuid"
    with books.write() as session:
        session.execute(text(f"UPDATE ledger_journal SET {column} = {value} WHERE seq = {SEQ}"))
    assert any(drift.subject == str(SEQ) for drift in drifts(books)), drifts(books)


@pytest.mark.parametrize(
    ("statement", "rule", "subject"),
    [
        (
            "UPDATE ledger_postings SET amount_umlx = amount_umlx + 1 WHERE seq = 3 AND leg = 0",
            "chain_recomputes",
            "3",
        ),
        (
            "UPDATE ledger_postings SET account_id = 'user:c' WHERE seq = 3 AND account_id = 'user:b'",
            "chain_recomputes",
            "3",
        ),
        ("DELETE FROM ledger_postings WHERE seq = 3", "chain_recomputes", "3"),
        ("DELETE FROM ledger_journal WHERE seq = 12", "seq_is_gapless", "13"),
        ("DELETE FROM ledger_journal WHERE seq = 12 OR seq = 11", "seq_is_gapless", "13"),
        (
            "UPDATE ledger_accounts SET posted_umlx = posted_umlx + 1 WHERE id IN ('user:b')",
            "balance_is_of_the_entries",
            "user:b",
        ),
        (
            "UPDATE ledger_chain SET head = (SELECT leaf FROM ledger_journal WHERE seq = 1)",
            "chain_row_is_the_last_entry",
            "13",
        ),
    ],
)
def test_a_changed_row_beside_the_journal(books: Database, statement: str, rule: str, subject: str) -> None:
    with books.write() as session:
        if "seq = 11" in statement:
            session.execute(text("DELETE FROM ledger_postings WHERE seq = 11"))
        session.execute(text(statement))
    assert (rule, subject) in {(drift.rule, drift.subject) for drift in drifts(books)}, drifts(books)


def test_a_hold_that_was_reopened(books: Database) -> None:
    with books.write() as session:
        session.execute(
            text(
                "UPDATE ledger_holds SET state = 'open', captured_umlx = 0, refunded_umlx = 0 WHERE captured_umlx > 0"
            )
        )
    found = {drift.rule for drift in drifts(books)}
    assert {"open_hold_is_of_the_entries", "held_is_sum_of_open_holds"} <= found
