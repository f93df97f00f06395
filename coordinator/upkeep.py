"""What may be late by a second: plain functions over the database, and one table of when.

The embedded coordinator runs the table on a timer thread; a grown one runs it with Celery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy import delete

from coordinator.db import Database, database_now_us
from coordinator.jobs.models import JobPayload
from coordinator.nodes.models import Enrolment
from ledger import book, statements
from ledger.commands import ExpireHold, settlement_id

log = structlog.get_logger()


def expire_holds(database: Database) -> int:
    """Release holds whose time is over. Returns how many."""
    with database.write() as session:
        connection = session.connection()
        now_us = database_now_us(session)
        commands = [
            ExpireHold(id=settlement_id(str(hold_id), 0, "expire"), hold_id=hold_id)
            for hold_id in statements.expired_holds(connection, now_us)
        ]
        if commands:
            _ = book.apply(connection, commands, now_us=now_us)
        return len(commands)


def drop_old_results(database: Database) -> int:
    """Delete results that nobody fetched in time. Returns how many."""
    with database.write() as session:
        done = session.execute(
            delete(JobPayload)
            .where(JobPayload.expires_us < database_now_us(session))
            .returning(JobPayload.job_id)
        )
        return len(done.all())


def drop_old_enrolments(database: Database) -> int:
    """Delete enrolments whose code is no longer valid. Returns how many."""
    with database.write() as session:
        done = session.execute(
            delete(Enrolment)
            .where(Enrolment.expires_us < database_now_us(session))
            .returning(Enrolment.code)
        )
        return len(done.all())


def check_books(database: Database) -> int:
    """Look for drift in the ledger and log each place. Returns how many."""
    with database.read() as session:
        drifts = statements.reconcile(session.connection())
    for drift in drifts:
        log.error("ledger_drift", rule=drift.rule, subject=drift.subject)
    return len(drifts)


@dataclass(frozen=True)
class Chore:
    """One function and how often it runs."""

    name: str
    run: Callable[[Database], int]
    every_seconds: float


SCHEDULE: Final = (
    Chore("expire_holds", expire_holds, 60.0),
    Chore("drop_old_results", drop_old_results, 300.0),
    Chore("drop_old_enrolments", drop_old_enrolments, 300.0),
    Chore("check_books", check_books, 3600.0),
)
