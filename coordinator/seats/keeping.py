"""How well a promise was kept: standing time and announced upkeep against the promised time.

Only slots count in which the seat was held and in which the coordinator looked, that is, for which
there is a row: nobody is blamed for a time in which the coordinator was away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.seats.models import StandingTime, UpkeepWindow
from coordinator.seats.standing import SLOT_SECONDS
from ledger.ratecard import DAY_US, SLOT_US, RateCard
from ledger.seats import WEEK_US, SeatTerm, Upkeep, seat_at, service_ppm, upkeep_seconds

MONDAY_US: Final = 4 * DAY_US  # 1970-01-05
DAY_SECONDS: Final = 86_400


@dataclass(frozen=True)
class Kept:
    """A promise over a time: `service_ppm` of `promised_seconds` were kept, upkeep included."""

    up_seconds: int
    upkeep_seconds: int
    promised_seconds: int
    service_ppm: int


def week_of(at_us: int) -> int:
    """The start of the week (Monday, UTC) that holds a moment."""
    return (at_us - MONDAY_US) // WEEK_US * WEEK_US + MONDAY_US


def kept(
    present: Iterable[tuple[int, int]],
    terms: Sequence[SeatTerm],
    windows: Sequence[Upkeep],
    *,
    promised_seconds_per_day: int,
    card: RateCard,
) -> Kept:
    """The promise over slots, given as (slot's start, seconds present in it). Pure.

    The promise of a day is spread evenly over it, so that a seat held for a part of a day owes
    that part. It is never less than the card's least, whatever is promised at the time of asking:
    stepping back does not undo what was promised. Upkeep fills up only what a slot lacks.
    """
    held = [(start, seconds) for start, seconds in present if seat_at(terms, start) != "idle"]
    per_day = min(DAY_SECONDS, max(promised_seconds_per_day, card.seats.dedicated_seconds_per_day))
    promised = len(held) * SLOT_SECONDS * per_day // DAY_SECONDS
    up = sum(seconds for _, seconds in held)
    upkeep = sum(
        min(SLOT_SECONDS - seconds, upkeep_seconds(windows, week_of(start), start, start + SLOT_US, card))
        for start, seconds in (held if windows else ())
        if seconds < SLOT_SECONDS
    )
    return Kept(up, upkeep, promised, service_ppm(up, upkeep, promised))


def present_of(
    session: Session, node_ids: Sequence[str], since_us: int, until_us: int
) -> dict[str, list[tuple[int, int]]]:
    """(slot's start, seconds present) of some nodes, for slots that begin within a time."""
    rows = session.execute(
        select(StandingTime.node_id, StandingTime.slot_start_us, StandingTime.present_seconds).where(
            StandingTime.node_id.in_(node_ids),
            StandingTime.slot_start_us >= since_us,
            StandingTime.slot_start_us < until_us,
        )
    )
    found: dict[str, list[tuple[int, int]]] = {}
    for node_id, slot_start_us, seconds in rows:
        found.setdefault(node_id, []).append((slot_start_us, seconds))
    return found


def windows_of(session: Session, node_ids: Sequence[str], since_us: int) -> dict[str, list[Upkeep]]:
    """Announced upkeep of some nodes that ends after a moment; earlier windows of that week count
    against the same allowance, so they are taken in, too.
    """
    rows = session.scalars(
        select(UpkeepWindow).where(
            UpkeepWindow.node_id.in_(node_ids), UpkeepWindow.end_us > week_of(since_us)
        )
    )
    found: dict[str, list[Upkeep]] = {}
    for row in rows:
        found.setdefault(row.node_id, []).append(Upkeep(row.announced_us, row.start_us, row.end_us))
    return found
