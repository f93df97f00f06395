"""Migrations make exactly the tables that the models describe, on both databases, also at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

import migrations
from coordinator.db import Database, make_engine, migrate
from ledger import statements
from migrations.metadata import target_metadata
from tests.fixtures.databases import NewDatabase


def _shape(connection: Connection) -> dict[str, Any]:
    """All tables with columns, keys, checks and indexes, in a form that compares."""
    inspector = inspect(connection)
    shape: dict[str, Any] = {}
    for table in sorted(set(inspector.get_table_names()) - {"alembic_version"}):
        shape[table] = {
            "columns": {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)},
            "key": inspector.get_pk_constraint(table)["constrained_columns"],
            "foreign": sorted(
                (f["constrained_columns"], f["referred_table"]) for f in inspector.get_foreign_keys(table)
            ),
            "unique": sorted(u["column_names"] for u in inspector.get_unique_constraints(table)),
            "checks": sorted((str(c["name"]), c["sqltext"]) for c in inspector.get_check_constraints(table)),
            "indexes": sorted(
                (
                    str(i["name"]),
                    bool(i["unique"]),
                    repr(i["column_names"]),
                    _condition(i.get("dialect_options")),
                )
                for i in inspector.get_indexes(table)
            ),
        }
    return shape


def _condition(options: dict[str, Any] | None) -> str:
    """The WHERE of a partial index, as the database prints it."""
    return " ".join(str(value) for name, value in sorted((options or {}).items()) if name.endswith("_where"))


def test_migrations_and_models_agree(empty_database_url: str) -> None:
    engine = make_engine(empty_database_url)
    with engine.connect() as connection, connection.begin() as transaction:
        for metadata in target_metadata():
            metadata.create_all(connection)
        wanted = _shape(connection)
        transaction.rollback()
    migrate(engine)
    with engine.connect() as connection:
        assert _shape(connection) == wanted
        assert migrations.drift(connection) == []
    engine.dispose()


def test_what_writes_a_migration_compares_with_the_models(empty_database_url: str) -> None:
    engine = make_engine(empty_database_url)
    migrate(engine)
    with migrations.migration_connection(engine) as connection:
        config = migrations.config_for(connection)
        config.attributes["compares"] = True
        command.check(config)
    engine.dispose()


def test_an_empty_database_is_brought_to_the_head(empty_database_url: str) -> None:
    engine = make_engine(empty_database_url)
    with engine.connect() as connection:
        assert migrations.current_revision(connection) is None
    migrate(engine)
    migrate(engine)
    with engine.connect() as connection:
        assert migrations.current_revision(connection) == migrations.head_revision()
        assert connection.execute(text("SELECT seq FROM ledger_chain")).scalar_one() == 0
        assert statements.trial_balance(connection) == [("fee", 0, 0), ("issuance", 0, 0), ("treasury", 0, 0)]
        assert statements.reconcile(connection) == []
    engine.dispose()


def test_several_processes_may_migrate_at_once(empty_database_url: str) -> None:
    # Threads with an engine each meet in the database just as processes do.
    engines = [make_engine(empty_database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, engines))
    with engines[0].connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM ledger_chain")).scalar_one() == 1
    for engine in engines:
        engine.dispose()


def test_a_failed_migration_leaves_nothing(empty_database_url: str) -> None:
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger_postings (x INTEGER)"))
    with pytest.raises(DBAPIError):
        migrate(engine)
    with engine.connect() as connection:
        assert "ledger_accounts" not in inspect(connection).get_table_names()
        assert migrations.current_revision(connection) is None
    engine.dispose()


def _triggers(connection: Connection) -> set[str]:
    names = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
    }
    return set(connection.execute(text(names[connection.dialect.name])).scalars())


def test_triggers_are_still_there_at_the_head(database: Database) -> None:
    """A migration that copies a table on SQLite would lose them."""
    wanted = {
        "sqlite": {
            "ledger_journal_no_update",
            "ledger_journal_no_delete",
            "ledger_postings_no_update",
            "ledger_postings_no_delete",
        },
        "postgresql": {"ledger_journal_no_change", "ledger_postings_no_change"},
    }[database.engine.dialect.name]
    with database.engine.connect() as connection:
        assert wanted | {"ledger_holds_moves", "ledger_holds_no_delete"} <= _triggers(connection)


def test_postgresql_refuses_truncate(new_postgresql: NewDatabase) -> None:
    with new_postgresql() as url:
        engine = make_engine(url)
        with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(text("TRUNCATE ledger_journal CASCADE"))
        engine.dispose()
