"""Books that were written before the tree existed are the same after the migration."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

import migrations
from coordinator.db import Database, make_engine
from ledger import book, models, statements
from ledger.commands import Capture, Mint, OpenHold, Record, Transfer

NOW_US = 1_800_000_000_000_000
BEFORE = "0002_add_the_coordinators_tables"


def test_a_ledger_with_entries_is_brought_to_the_head(empty_database_url: str) -> None:
    database = Database(make_engine(empty_database_url))
    migrations.migrate(database.engine, BEFORE)
    hold = OpenHold(id=UUID(int=7), account_id="user:a", amount_umlx=50, expires_us=NOW_US + 9)
    with database.write() as session:
        connection = session.connection()
        book.ensure_accounts(connection, ("user:a", "user:b"), now_us=NOW_US)
        commands = [
            Mint(id=uuid4(), account_id="user:a", amount_umlx=100),
            hold,
            Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=51),
        ]
        book.apply(connection, commands, now_us=NOW_US)
    with database.read() as session:
        rows = session.execute(select(models.journal).order_by(models.journal.c.seq)).all()

    migrations.migrate(database.engine)
    with database.read() as session:
        connection = session.connection()
        assert session.execute(select(models.journal).order_by(models.journal.c.seq)).all() == rows
        assert statements.reconcile(connection) == []
        assert migrations.drift(connection) == []
    with database.write() as session:
        capture = Capture(id=uuid4(), hold_id=hold.id, pays=(("user:b", 50),))
        record = Record(id=uuid4(), subject="card:tiny", content_sha256="0" * 64)
        book.apply(session.connection(), [capture, record], now_us=NOW_US)
    with database.read() as session:
        assert statements.reconcile(session.connection()) == []
    for statement in ("UPDATE ledger_journal SET kind = 'burn'", "DELETE FROM ledger_journal WHERE seq = 5"):
        with pytest.raises(DBAPIError), database.write() as session:
            session.execute(text(statement))
    with pytest.raises(DBAPIError), database.write() as session:
        session.execute(text("INSERT INTO ledger_postings VALUES (99, 0, 'user:a', 1)"))
    database.close()
