"""Alembic's environment: runs migrations on the connection that `migrations.migrate` hands over."""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import JSON, Connection

from migrations.metadata import target_metadata


def _render_item(kind: str, item: object, autogen: AutogenContext) -> str | Literal[False]:
    """Write JSON columns with their PostgreSQL variant; Alembic's own text lacks an import."""
    if kind == "type" and isinstance(item, JSON):
        autogen.imports.add("from sqlalchemy.dialects import postgresql\n")
        return 'sa.JSON().with_variant(postgresql.JSONB(), "postgresql")'
    return False


connection = context.config.attributes.get("connection")
if not isinstance(connection, Connection):
    raise TypeError("migrations run through migrations.migrate(engine); see python -m migrations")

context.configure(
    connection=connection,
    # Reading the models takes most of the coordinator in; only writing a migration compares with them.
    target_metadata=target_metadata() if context.config.attributes.get("compares") else None,
    # SQLite cannot alter most things in place; batch mode copies the table instead.
    render_as_batch=connection.dialect.name == "sqlite",
    render_item=_render_item,
    # Our SQLite connections emit BEGIN themselves, so DDL is rolled back there, too.
    transactional_ddl=True,
    compare_type=True,
    compare_server_default=True,
)
context.run_migrations()
