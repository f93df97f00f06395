"""Alembic's environment: runs migrations on the connection that `migrations.migrate` hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from migrations.metadata import target_metadata

connection = context.config.attributes.get("connection")
if not isinstance(connection, Connection):
    raise TypeError("migrations run through migrations.migrate(engine); see python -m migrations")

context.configure(
    connection=connection,
    target_metadata=target_metadata(),
    # SQLite cannot alter most things in place; batch mode copies the table instead.
    render_as_batch=connection.dialect.name == "sqlite",
    # Our SQLite connections emit BEGIN themselves, so DDL is rolled back there, too.
    transactional_ddl=True,
    compare_type=True,
    compare_server_default=True,
)
context.run_migrations()
