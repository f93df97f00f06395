"""What a batch writes comes back as it was, whatever characters and sizes are in it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection

from coordinator.db import Database, database_now_us
from ledger import book, journal, statements, store_postgresql, store_sqlite
from ledger.commands import Applied, Capture, Command, Mint, OpenHold, Record, Rejected, Transfer
from ledger.limits import MAX_AMOUNT_UMLX
from ledger.store import Changes

AWKWARD = (
    "",
    " ",
    "NULL",
    "null",
    '"',
    "\\",
    '\\"',
    "{},;'",
    "%s %(x)s :seq $1",
    "\\x00",
    "".join(map(chr, range(32, 127))),
)


def apply(database: Database, *commands: Command) -> list[book.Outcome]:
    with database.write() as session:
        connection = session.connection()
        book.ensure_accounts(connection, ["user:a", "user:b"], now_us=1)
        return book.apply(connection, commands, now_us=1)


def test_awkward_references_are_stored_as_they_are(database: Database) -> None:
    records = [
        Record(id=uuid4(), reference=reference, subject="node_key:n", content_sha256="0" * 64)
        for reference in AWKWARD
    ]
    assert all(isinstance(outcome, Applied) for outcome in apply(database, *records))
    with database.read() as session:
        stored = journal.page(session.connection(), 1, len(AWKWARD))
        assert [each.entry.reference for each in stored] == list(AWKWARD)
        assert [each.body for each in stored] == [record.body for record in records]
        assert [each.entry.request_digest for each in stored] == [record.digest for record in records]
        assert statements.reconcile(session.connection()) == []


def test_a_batch_of_everything_at_once_is_stored(database: Database) -> None:
    hold = OpenHold(
        id=uuid4(), reference='h"\\', account_id="user:a", amount_umlx=MAX_AMOUNT_UMLX, expires_us=9
    )
    refused = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1)
    answers = apply(
        database,
        Mint(id=uuid4(), account_id="user:a", amount_umlx=MAX_AMOUNT_UMLX),
        hold,
        refused,
        Capture(id=uuid4(), hold_id=hold.id, pays=(("user:b", MAX_AMOUNT_UMLX - 1), ("fee", 1))),
    )
    assert [type(answer) for answer in answers] == [Applied, Applied, Rejected, Applied]
    (again,) = apply(database, refused)
    assert again == answers[2]
    with database.read() as session:
        entries = journal.page(session.connection(), 1, 9)
        assert (entries[2].entry.needed_umlx, entries[2].entry.available_umlx) == (1, 0)
        assert statements.reconcile(session.connection()) == []


def test_without_a_time_the_databases_clock_is_taken(database: Database) -> None:
    with database.write() as session:
        before = database_now_us(session)
        record = Record(id=uuid4(), subject="node_key:n", content_sha256="0" * 64)
        (answer,) = book.apply(session.connection(), [record])
        assert before <= answer_us(answer) <= database_now_us(session)


def answer_us(answer: book.Outcome) -> int:
    assert isinstance(answer, Applied)
    return answer.recorded_us


def test_a_chain_that_moved_under_its_lock_is_not_written(database: Database) -> None:
    """Nobody can move it; if the books are damaged, nothing is added to them."""
    connection_of = database.engine.begin
    record = Record(id=uuid4(), subject="node_key:n", content_sha256="0" * 64)
    store = store_postgresql if database.engine.dialect.name == "postgresql" else store_sqlite
    found: list[Changes] = []

    def keep(_connection: Connection, changes: Changes) -> None:
        found.append(changes)

    with pytest.MonkeyPatch.context() as patch, connection_of() as connection:
        patch.setattr(store, "write", keep)
        book.apply(connection, [record])
    (changes,) = found
    with pytest.raises(Exception, match="moved under its lock"), connection_of() as connection:
        store.write(connection, replace(changes, old_seq=changes.old_seq + 1))
    with database.read() as session:
        assert journal.page(session.connection(), 1, 9) == []
        assert statements.reconcile(session.connection()) == []


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        (store_postgresql.plain_array([]), "{}"),
        (store_postgresql.plain_array([1, None, -2]), "{1,NULL,-2}"),
        (store_postgresql.plain_array([UUID(int=1)]), "{00000000-0000-0000-0000-000000000001}"),
        (store_postgresql.text_array([]), "{}"),
        (store_postgresql.text_array(["", "NULL", 'a"\\']), '{"","NULL","a\\"\\\\"}'),
        (store_postgresql.bytes_array([]), "{}"),
        (store_postgresql.bytes_array([b"\x00\xff", b""]), '{"\\\\x00ff","\\\\x"}'),
    ],
)
def test_array_literals(literal: str, expected: str) -> None:
    assert literal == expected
