"""What may be late by a second: plain functions over the database, and one table of when.

The embedded coordinator runs the table on a timer thread; a grown one runs it with Celery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy import delete

from coordinator.books import sign_checkpoint_now
from coordinator.db import Database, database_now_us
from coordinator.jobs.models import JobPayload
from coordinator.nodes.models import Enrolment
from coordinator.nodes.pace_book import drop_old_paces
from coordinator.policy.grants import grant_first_hours, top_up_pools
from coordinator.policy.held import release_held_pay
from coordinator.seats.credit import credit_missed_slots, credit_slots
from coordinator.seats.fees import split_fees
from coordinator.seats.service import grant_seats
from coordinator.seats.standing_rows import drop_old_standing
from coordinator.settings import Settings
from ledger import book, checkpoints, statements
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
            delete(Enrolment).where(Enrolment.expires_us < database_now_us(session)).returning(Enrolment.code)
        )
        return len(done.all())


def check_books(database: Database) -> int:
    """Look for drift in the ledger and log each place. Returns how many."""
    with database.read() as session:
        drifts = statements.reconcile(session.connection())
    for drift in drifts:
        log.error("ledger_drift", rule=drift.rule, subject=drift.subject)
    return len(drifts)


def sign_checkpoint(database: Database, settings: Settings) -> int:
    """Let the ledger's tree catch up and sign it if that is due. Returns how many were signed."""
    with database.read() as session:
        if not checkpoints.is_due(session.connection(), database.now_us(session)):
            return 0
    return 0 if sign_checkpoint_now(database, settings) is None else 1


@dataclass(frozen=True)
class Chore:
    """One function and how often it runs."""

    name: str
    run: Callable[[Database, Settings], int]
    every_seconds: float


def _plain(run: Callable[[Database], int]) -> Callable[[Database, Settings], int]:
    """A chore that needs no settings."""
    return lambda database, _settings: run(database)


SCHEDULE: Final = (
    # Often enough that a busy network signs about every 1000 entries; what is due decides.
    Chore("sign_checkpoint", sign_checkpoint, 5.0),
    Chore("expire_holds", _plain(expire_holds), 60.0),
    Chore("drop_old_results", _plain(drop_old_results), 300.0),
    Chore("drop_old_enrolments", _plain(drop_old_enrolments), 300.0),
    Chore("drop_old_paces", _plain(drop_old_paces), 3600.0),
    Chore("release_held_pay", _plain(release_held_pay), 600.0),
    Chore("grant_seats", _plain(grant_seats), 60.0),
    Chore("credit_slots", _plain(credit_slots), 60.0),
    Chore("credit_missed_slots", _plain(credit_missed_slots), 3600.0),
    Chore("drop_old_standing", _plain(drop_old_standing), 3600.0),
    Chore("split_fees", _plain(split_fees), 600.0),
    Chore("top_up_pools", _plain(top_up_pools), 300.0),
    Chore("grant_first_hours", _plain(grant_first_hours), 300.0),
    Chore("check_books", _plain(check_books), 3600.0),
)
