"""Standing time in the database: stored as totals, so that storing twice adds nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

from sqlalchemy import case, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.db import Database
from coordinator.seats.models import StandingTime
from coordinator.seats.standing import SLOT_SECONDS, Stood
from ledger.ratecard import DAY_US

ROWS_MAX: Final = 500
KEPT_US: Final = 90 * DAY_US
"""What was paid stays in `credited_slots`; service and weeks look back for days only."""

Key = tuple[str, int]
Seconds = tuple[int, int, int]
"""Present, busy, busy with linked jobs."""


@final
class StandingRows:
    """Writes one process's totals on top of what others had counted before it.

    What others counted is read once for a Mac and slot and kept, so a write whose outcome was not
    known can be made again. A Mac talks to one process at a time: where it changed over, the
    larger total stands, which can lose the last minute and never counts one twice.
    """

    def __init__(self) -> None:
        self._before: dict[Key, Seconds] = {}

    def write(self, session: Session, stood: Sequence[Stood], *, now_us: int) -> None:
        """Store totals. No slot gets more than the time that has passed of it."""
        self._learn(session, stood)
        # In one order everywhere, so that two processes never wait for each other in a ring.
        ordered = sorted(stood, key=lambda row: (row.node_id, row.slot_start_us))
        for start in range(0, len(ordered), ROWS_MAX):
            _upsert(session, [self._row(row, now_us) for row in ordered[start : start + ROWS_MAX]])

    def forget(self, before_us: int) -> None:
        """Drop what was kept of slots that began before a moment."""
        for key in [key for key in self._before if key[1] < before_us]:
            del self._before[key]

    def _learn(self, session: Session, stood: Iterable[Stood]) -> None:
        new = [key for row in stood if (key := (row.node_id, row.slot_start_us)) not in self._before]
        for start in range(0, len(new), ROWS_MAX):
            part = new[start : start + ROWS_MAX]
            rows = session.execute(
                select(
                    StandingTime.node_id,
                    StandingTime.slot_start_us,
                    StandingTime.present_seconds,
                    StandingTime.busy_seconds,
                    StandingTime.linked_busy_seconds,
                ).where(tuple_(StandingTime.node_id, StandingTime.slot_start_us).in_(part))
            ).all()
            found = {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows}
            self._before.update({key: found.get(key, (0, 0, 0)) for key in part})

    def _row(self, stood: Stood, now_us: int) -> dict[str, object]:
        before = self._before[stood.node_id, stood.slot_start_us]
        passed = max(0, (now_us - stood.slot_start_us) // 1_000_000)
        present = min(before[0] + stood.present_seconds, passed, SLOT_SECONDS)
        busy = min(before[1] + stood.busy_seconds, present)
        return {
            "node_id": stood.node_id,
            "slot_start_us": stood.slot_start_us,
            "present_seconds": present,
            "busy_seconds": busy,
            "linked_busy_seconds": min(before[2] + stood.linked_busy_seconds, present - busy),
            "has_demanded_model": stood.has_demanded_model,
        }


def _upsert(session: Session, rows: Sequence[dict[str, object]]) -> None:
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    insert = dialect.insert(StandingTime)
    old, new = StandingTime, insert.excluded
    seconds = ("present_seconds", "busy_seconds", "linked_busy_seconds")
    update: dict[str, object] = {
        name: case((getattr(old, name) > new[name], getattr(old, name)), else_=new[name]) for name in seconds
    }
    # Whoever has seen more of the slot knows better what was loaded.
    is_older = old.present_seconds > new["present_seconds"]
    update["has_demanded_model"] = case((is_older, old.has_demanded_model), else_=new["has_demanded_model"])
    statement = insert.on_conflict_do_update(index_elements=["node_id", "slot_start_us"], set_=update)
    _ = session.execute(statement.values(list(rows)))


def drop_old_standing(database: Database) -> int:
    """Delete standing time that nothing is counted from any more. Returns the rows."""
    with database.write() as session:
        kept_us = database.now_us(session) - KEPT_US
        done = session.execute(
            delete(StandingTime).where(StandingTime.slot_start_us < kept_us).returning(StandingTime.node_id)
        )
        return len(done.all())
