"""Database migrations: `migrate` brings a database to the newest schema, `drift` compares.

To write a new migration after changing a table: `python -m migrations "Add the x column"`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

WAIT_SECONDS: Final = 60.0
LOCK_TIMEOUT_SECONDS: Final = 5.0
# Any constant does, as long as every release uses the same one.
LOCK_KEY: Final = 0x4D4C584E


def migrate(engine: Engine, revision: str = "head") -> None:
    """Upgrade the database to `revision`, in one transaction; nothing happens if it is there.

    Several processes may call this at once: one migrates, the others wait up to 60 s and find it
    done. Raises what the database raises; the schema is then as before.
    """
    with migration_connection(engine) as connection:
        command.upgrade(config_for(connection), revision)


def head_revision() -> str:
    """The newest revision in this installation."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise RuntimeError("this installation holds no migrations")
    return head


def current_revision(connection: Connection) -> str | None:
    """The revision of a database, or None if it was never migrated."""
    return MigrationContext.configure(connection).get_current_revision()


def drift(connection: Connection) -> list[Any]:
    """What would have to change for the database to be as the models say; empty if nothing."""
    from migrations.metadata import target_metadata

    context = MigrationContext.configure(
        connection,
        opts={"compare_type": True, "compare_server_default": True, "target_metadata": target_metadata()},
    )
    # Alembic takes a sequence here, too, though its type does not say so.
    return list(compare_metadata(context, cast("Any", target_metadata())))


@contextmanager
def migration_connection(engine: Engine) -> Generator[Connection]:
    """A connection in a transaction that only one process at a time can have."""
    if engine.dialect.name == "sqlite":
        yield from _sqlite_connection(engine)
    else:
        yield from _postgresql_connection(engine)


def config_for(connection: Connection) -> Config:
    """Alembic's configuration for running this package's scripts on `connection`."""
    config = _config()
    config.attributes["connection"] = connection
    return config


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def _sqlite_connection(engine: Engine) -> Generator[Connection]:
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        if driver is None:
            raise RuntimeError("the SQLite connection is closed")
        # Copying a table drops the old one, which would delete rows that refer to it; the setting
        # has no effect inside a transaction, so it comes before BEGIN.
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                yield connection
                broken = connection.execute(text("PRAGMA foreign_key_check")).all()
                if broken:
                    raise RuntimeError(
                        f"the migration leaves {len(broken)} rows without the row they refer to"
                    )
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def _postgresql_connection(engine: Engine) -> Generator[Connection]:
    with engine.begin() as connection:
        connection.execute(text(f"SET LOCAL lock_timeout = '{WAIT_SECONDS:g}s'"))
        connection.execute(text(f"SET LOCAL statement_timeout = '{WAIT_SECONDS:g}s'"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS:g}s'"))
        yield connection
