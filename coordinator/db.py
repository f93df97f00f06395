"""The database: engines for PostgreSQL and SQLite, sessions, the declarative base, migrations.

Everything that differs between the two databases is in this file. Sessions are synchronous.

- `Database.write()` is one transaction, committed when the block ends without an exception. On
  SQLite it starts with BEGIN IMMEDIATE at the *first statement*, after waiting for its turn in
  this process; on PostgreSQL it is READ COMMITTED.
- `Database.read()` sees one snapshot from its first statement on and cannot write, on both.

A handler must run the statements of one `write()` in one thread and must not wait for anything
but the database between the first of them and the end of the block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from sqlite3 import Connection as SqliteConnection
from typing import Annotated, Any, ClassVar, Final, cast

import sqlalchemy.exc
from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Connection,
    Engine,
    MetaData,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

import migrations
from coordinator import clock

BUSY_TIMEOUT_SECONDS: Final = 10.0
LOCK_TIMEOUT_SECONDS: Final = 5.0
STATEMENT_TIMEOUT_SECONDS: Final = 30.0
CONNECT_TIMEOUT_SECONDS: Final = 5.0
POOL_CONNECTIONS: Final = 20
POOL_OVERFLOW_CONNECTIONS: Final = 20
POOL_WAIT_SECONDS: Final = 10.0
PING_AFTER_IDLE_SECONDS: Final = 1.0
READ_ONLY_OPTION: Final = "mlxnet_read_only"
TURN_KEY: Final = "mlxnet_has_write_turn"
RETURNED_KEY: Final = "mlxnet_returned_seconds"

PortableJson: Final = JSON().with_variant(JSONB(), "postgresql")

Microseconds = Annotated[int, mapped_column(BigInteger)]
"""A point in time: microseconds since 1970 UTC. Name such columns `*_us`."""

Umlx = Annotated[int, mapped_column(BigInteger)]
"""An amount of money in uMLX (10**-6 MLX)."""

ByteCount = Annotated[int, mapped_column(BigInteger)]
"""A size in bytes."""

JsonObject = Annotated[dict[str, Any], mapped_column(PortableJson)]
"""A JSON object: JSONB on PostgreSQL, JSON text on SQLite."""

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of the coordinator's tables; check constraints need a `name`."""

    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMING)


class DatabaseUnavailable(Exception):
    """The database cannot be reached or opened; the message says where it was looked for."""


class DatabaseBusy(Exception):
    """A lock or a connection was not had in time; nothing was written and a retry is safe."""


class DatabaseFull(Exception):
    """The disk (or a size limit) of the database is exhausted; nothing was written."""


def make_engine(url: str) -> Engine:
    """Return an engine for `sqlite:///path` or `postgresql+psycopg://user:password@host/name`.

    Does not connect. Statement parameters never appear in errors or logs. Raises ValueError for
    any other kind of URL.
    """
    try:
        parsed = make_url(url)
    except sqlalchemy.exc.ArgumentError as error:
        raise ValueError(
            "MLXNET_DATABASE_URL is not a URL; write sqlite:///path or postgresql+psycopg://..."
        ) from error
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            engine = _make_sqlite_engine(parsed)
        case "postgresql" | "postgresql+psycopg":
            engine = _make_postgresql_engine(parsed.set(drivername="postgresql+psycopg"))
        case other:
            raise ValueError(
                f"MLXNET_DATABASE_URL begins with {other!r}; use sqlite:///path or postgresql+psycopg://..."
            )
    event.listen(engine, "handle_error", _explain_error)
    return engine


def _make_sqlite_engine(url: URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError(
            "MLXNET_DATABASE_URL must name a file: sqlite:///path/to/file.db (memory is not shared by threads)"
        )
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_size=POOL_CONNECTIONS,
        max_overflow=POOL_OVERFLOW_CONNECTIONS,
        pool_timeout=POOL_WAIT_SECONDS,
        connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "isolation_level": None, "check_same_thread": False},
    )
    _install_sqlite_transactions(engine, threading.Lock())
    return engine


def _install_sqlite_transactions(engine: Engine, turn: threading.Lock) -> None:
    """Emit BEGIN ourselves and let this process' writers take turns.

    SQLite's own busy-wait is unfair: under 16 writers some wait for seconds.
    """

    def on_connect(dbapi_connection: SqliteConnection, _record: ConnectionPoolEntry) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            dbapi_connection.execute(f"PRAGMA {pragma}")

    def on_begin(connection: Connection) -> None:
        if connection.get_execution_options().get(READ_ONLY_OPTION, False):
            connection.exec_driver_sql("PRAGMA query_only=ON")
            connection.exec_driver_sql("BEGIN")
            return
        if TURN_KEY not in connection.info:
            if not turn.acquire(timeout=BUSY_TIMEOUT_SECONDS):
                raise DatabaseBusy(f"another write transaction ran for more than {BUSY_TIMEOUT_SECONDS:g} s")
            connection.info[TURN_KEY] = True
        connection.exec_driver_sql("PRAGMA query_only=OFF")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def on_checkin(_dbapi_connection: SqliteConnection | None, record: ConnectionPoolEntry) -> None:
        if record.info.pop(TURN_KEY, False):
            turn.release()

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    event.listen(engine, "checkin", on_checkin)


def _make_postgresql_engine(url: URL) -> Engine:
    options = {
        "lock_timeout": f"{LOCK_TIMEOUT_SECONDS:g}s",
        "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS:g}s",
        "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_SECONDS:g}s",
        "TimeZone": "UTC",
    }
    engine = create_engine(
        url,
        hide_parameters=True,
        isolation_level="READ COMMITTED",
        pool_size=POOL_CONNECTIONS,
        max_overflow=POOL_OVERFLOW_CONNECTIONS,
        pool_timeout=POOL_WAIT_SECONDS,
        connect_args={
            "connect_timeout": int(CONNECT_TIMEOUT_SECONDS),
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        },
    )
    _ping_idle_connections(engine)
    return engine


def _ping_idle_connections(engine: Engine) -> None:
    """Replace a pooled connection that was lost while nobody used it.

    One that was in use a moment ago is taken as it is: a ping for each transaction would be a
    sixth of a group commit's journeys to the server.
    """

    def on_checkin(_dbapi_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        record.info[RETURNED_KEY] = time.monotonic()

    def on_checkout(
        dbapi_connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: PoolProxiedConnection
    ) -> None:
        returned_seconds = record.info.get(RETURNED_KEY)
        if returned_seconds is None or time.monotonic() - returned_seconds < PING_AFTER_IDLE_SECONDS:
            return
        try:
            engine.dialect.do_ping(dbapi_connection)
        except Exception as error:
            # The pool then drops all its connections and makes a new one.
            raise sqlalchemy.exc.InvalidatePoolError from error

    event.listen(engine, "checkin", on_checkin)
    event.listen(engine, "checkout", on_checkout)


# SQLSTATE classes and codes: PostgreSQL documentation, appendix A.
_FULL_STATES: Final = frozenset({"53100", "53200"})
_BUSY_STATES: Final = frozenset({"55P03", "57014", "40P01", "40001", "25P03"})
_AWAY_STATES: Final = frozenset({"57P01", "57P02", "57P03", "53300", "3D000", "28P01", "28000"})


def _explain_error(context: ExceptionContext) -> Exception | None:
    """Turn the driver's operational errors into ours; others stay what SQLAlchemy makes of them."""
    error = context.original_exception
    url = context.engine.url if context.engine is not None else None
    is_connecting = context.connection is None and getattr(error, "sqlstate", None) is None
    return _explanation(error, url, is_lost=context.is_disconnect or is_connecting)


def _explain_driver_error(error: Exception, engine: Engine) -> Exception | None:
    """The same for what did not pass through SQLAlchemy (the ledger's hot statements do not)."""
    if not isinstance(error, engine.dialect.loaded_dbapi.Error):
        return None
    return _explanation(error, engine.url, is_lost=engine.dialect.is_disconnect(error, None, None))


def _explanation(error: BaseException, url: URL | None, *, is_lost: bool) -> Exception | None:
    where = "DATABASE_URL" if url is None else url.render_as_string(hide_password=True)
    state = getattr(error, "sqlstate", None)
    words = str(error) if url is not None and url.get_backend_name() == "sqlite" else ""
    if state in _FULL_STATES or "disk is full" in words:
        return DatabaseFull(f"the database {where} has no space left; free some disk space")
    if state in _BUSY_STATES or "database is locked" in words or "database table is locked" in words:
        return DatabaseBusy(
            f"the database {where} is busy: a lock or an answer was not had in time; try again"
        )
    if state in _AWAY_STATES or "unable to open database file" in words or "disk I/O error" in words:
        return DatabaseUnavailable(_away_message(where))
    if is_lost and type(error).__name__ in {
        "OperationalError",
        "ConnectionTimeout",
        "InterfaceError",
        "AdminShutdown",
    }:
        return DatabaseUnavailable(_away_message(where))
    return None


def _away_message(where: str) -> str:
    return f"cannot reach the database {where}; see that it runs (or its folder exists) and that MLXNET_DATABASE_URL is right"


class Database:
    """Sessions of one database. Thread-safe; one object a process."""

    def __init__(self, engine: Engine, *, clock_us: Callable[[], int] | None = None) -> None:
        """`clock_us` replaces the database's clock (simulation); leave it out in production."""
        self.engine: Final = engine
        self._clock_us: Final = clock_us
        self._writer: Final = sessionmaker(engine, expire_on_commit=False)
        reading: dict[str, Any] = {READ_ONLY_OPTION: True}
        if engine.dialect.name == "postgresql":
            reading |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader: Final = sessionmaker(engine.execution_options(**reading), expire_on_commit=False)

    @contextmanager
    def write(self) -> Generator[Session]:
        """A session in one transaction: committed at the end of the block, rolled back if it raises.

        Raises DatabaseBusy, DatabaseFull or DatabaseUnavailable; nothing is then written.
        """
        with self._writer.begin() as session:
            try:
                yield session
            except Exception as error:
                explained = _explain_driver_error(error, self.engine)
                if explained is None:
                    raise
                raise explained from error

    @contextmanager
    def read(self) -> Generator[Session]:
        """A session that sees one snapshot and refuses to write."""
        with self._reader() as session:
            yield session

    def now_us(self, session: Session | Connection) -> int:
        """The database's clock in UTC microseconds (SQLite has none of its own: this machine's)."""
        if self._clock_us is not None:
            return self._clock_us()
        return database_now_us(session)

    def close(self) -> None:
        """Close all connections: those that are in use when they are given back."""
        pool = self.engine.pool
        self.engine.dispose()  # the engine has another pool now
        # The old one takes back what was out, and then nobody would close it.
        event.listen(pool, "checkin", _close_returned)
        pool.dispose()


def _close_returned(connection: DBAPIConnection | None, _record: ConnectionPoolEntry) -> None:
    if connection is not None:
        connection.close()


def database_now_us(session: Session | Connection) -> int:
    """The database's clock in UTC microseconds, the moment this statement runs."""
    connection = session.connection() if isinstance(session, Session) else session
    if connection.dialect.name == "sqlite":
        return clock.wall_us()
    answer = connection.execute(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))
    return cast("int", answer.scalar_one())


def migrate(engine: Engine) -> None:
    """Bring the database to the newest schema; safe when several processes start at once."""
    migrations.migrate(engine)
