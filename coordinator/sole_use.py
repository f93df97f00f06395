"""One coordinator a database: a second one would end the first one's jobs as its own past.

Held by the operating system (SQLite: a lock file beside it) or by the database server (an advisory
lock of a session), so that a process that dies lets go at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, text

# Any constant does, as long as every release uses the same one.
ADVISORY_KEY: Final = 0x4D4C5853


class InUseError(Exception):
    """Another coordinator uses this database; the message says what to do."""


@final
class SoleUse:
    """Holds a database for this process, from `acquire` to `release`."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._file: FileLock | None = None
        self._session: Connection | None = None

    def acquire(self) -> None:
        """Blocking, but never waits. Raises `InUseError`."""
        if self._engine.dialect.name == "sqlite":
            path = Path(self._engine.url.database or "").with_suffix(".lock")
            lock = FileLock(path, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                raise InUseError(
                    f"another coordinator runs on {path.parent}: end it, or choose another --home"
                ) from None
            self._file = lock
            return
        session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        query = text("SELECT pg_try_advisory_lock(:key)")
        if not session.execute(query, {"key": ADVISORY_KEY}).scalar_one():
            session.close()
            raise InUseError("another coordinator uses this database: end it, or name another one")
        self._session = session

    def release(self) -> None:
        """Let go; safe to call twice."""
        if self._file is not None:
            self._file.release()
            self._file = None
        if self._session is not None:
            # The pool would keep the session, and the lock with it.
            self._session.invalidate()
            self._session.close()
            self._session = None
