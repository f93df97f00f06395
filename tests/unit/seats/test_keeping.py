"""How well a promise was kept: whole and part days, upkeep, and what stepping back does to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest

from coordinator.seats.keeping import DAY_SECONDS, kept, week_of
from ledger.ratecard import CARD, DAY_US, HOUR_US, SLOT_US, SLOTS_PER_DAY
from ledger.seats import SeatTerm, Upkeep

MONDAY: Final = 20_513 * DAY_US // DAY_US * DAY_US + DAY_US  # 2026-03-02
ALWAYS: Final = [SeatTerm("dedicated", MONDAY)]
PROMISED: Final = CARD.seats.dedicated_seconds_per_day


def day(*, down: range = range(0), slots: int = SLOTS_PER_DAY) -> list[tuple[int, int]]:
    """A day's slots; those in `down` have nobody there."""
    return [(MONDAY + index * SLOT_US, 0 if index in down else 600) for index in range(slots)]


def service(
    present: list[tuple[int, int]],
    terms: list[SeatTerm] = ALWAYS,
    windows: tuple[Upkeep, ...] = (),
    promised: int = PROMISED,
) -> int:
    return kept(present, terms, windows, promised_seconds_per_day=promised, card=CARD).service_ppm


def test_the_week_begins_on_monday() -> None:
    assert datetime.fromtimestamp(week_of(MONDAY) / 1e6, tz=UTC).strftime("%A %H:%M") == "Monday 00:00"
    assert week_of(MONDAY - 1) == MONDAY - 7 * DAY_US
    assert week_of(MONDAY + 7 * DAY_US - 1) == MONDAY


def test_four_hours_a_day_may_be_missed() -> None:
    assert service(day(down=range(24))) == 10**6
    assert service(day(down=range(25))) == 10**6 * (119 * 600) // PROMISED


def test_a_part_of_a_day_owes_that_part() -> None:
    # Half a day owes 10 of its 12 hours: two may be missed, three not.
    assert service(day(down=range(12), slots=72)) == 10**6
    assert service(day(down=range(18), slots=72)) == 10**6 * 9 // 10


def test_only_slots_of_the_seat_count() -> None:
    terms = [SeatTerm("dedicated", MONDAY + 12 * HOUR_US)]
    assert service(day(down=range(72)), terms) == 10**6
    assert service(day(down=range(72, 144)), terms) == 0


def test_slots_that_nobody_watched_are_nobodys_fault() -> None:
    assert service(day(slots=144)[:10]) == 10**6


def test_promising_nothing_afterwards_does_not_make_a_broken_promise_kept() -> None:
    broken = day(down=range(100))
    assert service(broken, promised=0) == service(broken) < 500_000


def test_who_promises_more_is_measured_by_it() -> None:
    assert service(day(down=range(1)), promised=DAY_SECONDS) < 10**6


@pytest.mark.parametrize(("hours", "ppm"), [(2, 900_000 + 100_000), (3, 950_000)])
def test_two_announced_hours_of_upkeep_count_as_kept(hours: int, ppm: int) -> None:
    # Down for 4 + `hours`; announced upkeep for all of the surplus, of which two hours count.
    down = range((4 + hours) * 6)
    window = Upkeep(MONDAY - HOUR_US, MONDAY, MONDAY + hours * HOUR_US)
    assert service(day(down=down), windows=(window,)) == ppm
    late = Upkeep(MONDAY + 1, MONDAY, MONDAY + hours * HOUR_US)
    assert service(day(down=down), windows=(late,)) == 10**6 * (20 - hours) // 20


def test_being_there_in_upkeep_counts_once() -> None:
    window = Upkeep(MONDAY - 1, MONDAY, MONDAY + 2 * HOUR_US)
    found = kept(day(), ALWAYS, (window,), promised_seconds_per_day=PROMISED, card=CARD)
    assert found.upkeep_seconds == 0
    assert found.up_seconds == DAY_SECONDS
