"""Sessions and engines of both databases."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from coordinator import db
from coordinator.db import Database, DatabaseBusy, DatabaseFull, DatabaseUnavailable, make_engine

ADD = text("UPDATE ledger_chain SET recorded_us = recorded_us + 1")
READ = text("SELECT recorded_us FROM ledger_chain")


def test_a_write_is_committed_and_a_failed_one_is_not(database: Database) -> None:
    with database.write() as session:
        session.execute(ADD)
    with pytest.raises(ZeroDivisionError), database.write() as session:
        session.execute(ADD)
        raise ZeroDivisionError
    with database.read() as session:
        assert session.execute(READ).scalar_one() == 1


def test_a_read_session_cannot_write_and_the_next_session_can(database: Database) -> None:
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(ADD)
    with database.write() as session:
        session.execute(ADD)


def test_a_read_session_sees_one_moment(database: Database) -> None:
    with database.read() as reader:
        assert reader.execute(READ).scalar_one() == 0
        with database.write() as writer:
            writer.execute(ADD)
        assert reader.execute(READ).scalar_one() == 0
    with database.read() as reader:
        assert reader.execute(READ).scalar_one() == 1


def test_writers_do_not_lose_each_others_work(database: Database) -> None:
    def add(_: int) -> None:
        for _ in range(10):
            with database.write() as session:
                session.execute(ADD)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    with database.read() as session:
        assert session.execute(READ).scalar_one() == 80


def test_writers_of_several_processes_may_read_before_they_write(database_url: str) -> None:
    """Each `Database` stands for a process: they share no lock but the database's own."""
    processes = [Database(make_engine(database_url)) for _ in range(4)]
    locking = "" if database_url.startswith("sqlite") else " FOR UPDATE"

    def add(process: Database) -> None:
        for _ in range(15):
            with process.write() as session:
                seen = session.execute(text(f"SELECT recorded_us FROM ledger_chain{locking}")).scalar_one()
                session.execute(text("UPDATE ledger_chain SET recorded_us = :next"), {"next": seen + 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, processes))
    with processes[0].read() as session:
        assert session.execute(READ).scalar_one() == 60
    for process in processes:
        process.close()


def test_an_unused_write_session_blocks_nobody(database: Database) -> None:
    with database.write(), database.write() as session:
        session.execute(ADD)


def test_a_writer_that_waits_too_long_is_told_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_SECONDS", 0.1)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write() as session:
            session.execute(ADD)
            held.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    try:
        with pytest.raises(DatabaseBusy), database.write() as session:
            if database.engine.dialect.name == "postgresql":
                session.execute(text("SET LOCAL lock_timeout = '100ms'"))
            session.execute(ADD)
    finally:
        done.set()
        holder.join()
    with database.write() as session:
        session.execute(ADD)
    with database.read() as session:
        assert session.execute(READ).scalar_one() == 2


def test_the_clock_is_utc_microseconds(database: Database) -> None:
    with database.read() as session:
        first = database.now_us(session)
        second = database.now_us(session)
    assert abs(first - time.time_ns() // 1000) < 5_000_000
    assert second >= first and isinstance(first, int)
    virtual = Database(database.engine, clock_us=lambda: 42)
    with virtual.read() as session:
        assert virtual.now_us(session) == 42


def test_errors_do_not_show_values(database: Database) -> None:
    with pytest.raises(DBAPIError) as caught, database.write() as session:
        session.execute(text("SELECT * FROM nothing WHERE secret = :value"), {"value": "marker-text"})
    assert "marker-text" not in str(caught.value)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    database = Database(make_engine(f"sqlite:///{tmp_path / 'small.db'}"))
    with database.write() as session:
        session.execute(text("CREATE TABLE t (x BLOB)"))
        session.execute(text("PRAGMA max_page_count = 10"))
    with pytest.raises(DatabaseFull, match="no space left"), database.write() as session:
        session.execute(text("INSERT INTO t VALUES (zeroblob(1000000))"))
    database.close()


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all.db", "postgresql+psycopg://someone:hunter2@127.0.0.1:1/mlx"]
)
def test_a_database_that_is_not_there_is_named_without_its_password(url: str) -> None:
    database = Database(make_engine(url))
    with (
        pytest.raises(DatabaseUnavailable, match="cannot reach the database") as caught,
        database.read() as session,
    ):
        session.execute(text("SELECT 1"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:", "nonsense"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="DATABASE_URL"):
        make_engine(url)


def test_a_lost_connection_is_replaced(database: Database) -> None:
    if database.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no server")
    with pytest.raises(DatabaseUnavailable), database.write() as session:
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    with database.write() as session:
        session.execute(ADD)


def test_a_connection_that_was_lost_while_idle_is_replaced_unseen(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no server")
    monkeypatch.setattr(db, "PING_AFTER_IDLE_SECONDS", 0.05)
    with database.write() as session:
        lost = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    killer = make_engine(database.engine.url.render_as_string(hide_password=False))
    with killer.begin() as other:
        other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": lost})
    killer.dispose()
    time.sleep(0.1)
    with database.write() as session:
        assert session.execute(text("SELECT pg_backend_pid()")).scalar_one() != lost


def test_a_connection_that_was_just_used_is_not_asked_again(database: Database) -> None:
    if database.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no server")
    with database.write() as session:
        session.execute(text("SELECT 1"))
    asked: list[object] = []
    database.engine.dialect.do_ping = lambda dbapi_connection: not asked.append(dbapi_connection)
    with database.write() as session:
        session.execute(text("SELECT 1"))
    assert asked == []


def test_a_connection_in_use_when_the_database_closes_is_closed_when_given_back(database_url: str) -> None:
    """A thread that a shutdown overtakes must leave no open connection behind."""
    database = Database(make_engine(database_url))
    with database.read() as session:
        raw = session.connection().connection.dbapi_connection
        database.close()
        assert session.scalar(text("SELECT 1")) == 1
    assert raw is not None
    with pytest.raises(Exception, match="closed"):
        _ = raw.cursor().execute("SELECT 1")
