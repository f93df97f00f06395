"""Seats: what each asks for, which condition fails, and how to mend it. Pure.

A seat is a promise by a Mac's owner: `idle` (lent while its owner is away), `dedicated` (lent for
most of every day) or `ultra` (dedicated, on a Mac whose measured bandwidth only Ultra chips reach).
Conditions are data, so that owner, page and rule never say different things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledger.pricing import PER_MILLION, divide_up
from ledger.ratecard import DAY_US, GIBIBYTE, GIGABYTE, SEATS, SLOT_US, RateCard, Seat

WEEK_US: Final = 7 * DAY_US


@dataclass(frozen=True, kw_only=True)
class SeatFacts:
    """One Mac as the network knows it. Nothing here is taken from what the Mac says of itself, but
    for what its owner promises and lends.

    `warm_bandwidths_bytes_per_second` are the results of self-tests run warm, newest last.
    `checks_passed` counts valid checked results since the last failed one. `other_seat_of_device`
    says that the same device already holds a seat under another node.
    """

    promised_seconds_per_day: int
    promised_days: int
    owner_may_interrupt: bool
    warm_bandwidths_bytes_per_second: tuple[int, ...]
    installed_bytes: int
    lent_bytes: int
    checks_passed: int
    other_seat_of_device: bool = False


@dataclass(frozen=True)
class Condition:
    """One thing that a seat asks for: a name, the test, what was found and needed, and the fix."""

    id: str
    holds: Callable[[SeatFacts, RateCard], bool]
    found: Callable[[SeatFacts, RateCard], str]
    needed: Callable[[SeatFacts, RateCard], str]
    fix: Callable[[SeatFacts, RateCard], str]


@dataclass(frozen=True)
class Failing:
    """A condition that a Mac does not meet, told to its owner."""

    seat: Seat
    condition: str
    found: str
    needed: str
    fix: str


def _hours(seconds: int) -> str:
    return f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds // 60} min"


def _gb_per_second(bytes_per_second: int) -> str:
    return f"{bytes_per_second // GIGABYTE} GB/s"


def _gb(size_bytes: int) -> str:
    return f"{size_bytes * 10 // GIBIBYTE / 10:g} GB"


def _recent_bandwidths(facts: SeatFacts, card: RateCard) -> tuple[int, ...]:
    return facts.warm_bandwidths_bytes_per_second[-card.seats.ultra_self_tests :]


def ultra_lent_bytes(installed_bytes: int, card: RateCard) -> int:
    """The memory that an Ultra seat must lend: the larger of a part of it and a fixed amount."""
    part = divide_up(installed_bytes * card.seats.ultra_lent_ppm, PER_MILLION)
    return max(part, card.seats.ultra_lent_bytes)


_ONE_PER_DEVICE: Final = Condition(
    "one_per_device",
    lambda facts, _: not facts.other_seat_of_device,
    lambda _facts, _card: "this Mac already holds a seat under another node",
    lambda _facts, _card: "one seat per Mac",
    lambda _facts, _card: "Remove the other node of this Mac, then ask again.",
)
_HOURS: Final = Condition(
    "promised_hours",
    lambda facts, card: facts.promised_seconds_per_day >= card.seats.dedicated_seconds_per_day,
    lambda facts, _: f"{_hours(facts.promised_seconds_per_day)} a day",
    lambda _, card: f"{_hours(card.seats.dedicated_seconds_per_day)} a day",
    lambda _, card: (
        f"Lend this Mac for at least {_hours(card.seats.dedicated_seconds_per_day)} of every day."
    ),
)
_DAYS: Final = Condition(
    "promised_days",
    lambda facts, card: facts.promised_days >= card.seats.dedicated_days,
    lambda facts, _: f"{facts.promised_days} days",
    lambda _, card: f"{card.seats.dedicated_days} days",
    lambda _, card: f"Promise it for {card.seats.dedicated_days} days; you may step back at any time.",
)
_UNINTERRUPTED: Final = Condition(
    "no_interruption",
    lambda facts, _: not facts.owner_may_interrupt,
    lambda _facts, _card: "your own use stops the network's work",
    lambda _facts, _card: "work is not stopped by your own use",
    lambda _facts, _card: "Turn off 'stop when I use this Mac', or keep the idle seat.",
)
_CHECKS: Final = Condition(
    "checks_passed",
    lambda facts, card: facts.checks_passed >= card.seats.checks_passed,
    lambda facts, _: f"{facts.checks_passed} checked results in a row",
    lambda _, card: f"{card.seats.checks_passed} checked results in a row",
    lambda facts, card: (
        f"Keep lending: {card.seats.checks_passed - facts.checks_passed} more results are checked"
        " by themselves, nothing else is needed."
    ),
)
_SELF_TESTS: Final = Condition(
    "self_tests",
    lambda facts, card: len(_recent_bandwidths(facts, card)) >= card.seats.ultra_self_tests,
    lambda facts, _: f"{len(facts.warm_bandwidths_bytes_per_second)} warm self-tests",
    lambda _, card: f"{card.seats.ultra_self_tests} warm self-tests",
    lambda _facts, _card: (
        "Keep this Mac connected and idle: the network asks for three tests in the first hour, then for"
        " one each six hours."
    ),
)
_BANDWIDTH: Final = Condition(
    "measured_bandwidth",
    # Without a result there is nothing to judge; `self_tests` says so.
    lambda facts, card: all(
        measured >= card.seats.ultra_bandwidth_bytes_per_second
        for measured in _recent_bandwidths(facts, card)
    ),
    lambda facts, card: f"{_gb_per_second(min(_recent_bandwidths(facts, card), default=0))} in the slowest",
    lambda _, card: f"{_gb_per_second(card.seats.ultra_bandwidth_bytes_per_second)} in each",
    lambda _facts, _card: (
        "Close what uses memory and cool the Mac; it is tested again within six hours. Only Ultra chips reach this; with"
        " another chip the dedicated seat is the highest."
    ),
)
_LENT: Final = Condition(
    "lent_memory",
    lambda facts, card: facts.lent_bytes >= ultra_lent_bytes(facts.installed_bytes, card),
    lambda facts, _: f"{_gb(facts.lent_bytes)} of {_gb(facts.installed_bytes)}",
    lambda facts, card: _gb(ultra_lent_bytes(facts.installed_bytes, card)),
    lambda facts, card: (
        f"Lend {_gb(ultra_lent_bytes(facts.installed_bytes, card))} or more of this Mac's memory."
    ),
)

CONDITIONS: Final[dict[Seat, tuple[Condition, ...]]] = {
    "idle": (_ONE_PER_DEVICE,),
    "dedicated": (_ONE_PER_DEVICE, _HOURS, _DAYS, _UNINTERRUPTED),
    "ultra": (
        _ONE_PER_DEVICE,
        _HOURS,
        _DAYS,
        _UNINTERRUPTED,
        _SELF_TESTS,
        _BANDWIDTH,
        _LENT,
        _CHECKS,
    ),
}


def failing(facts: SeatFacts, seat: Seat, card: RateCard) -> tuple[Failing, ...]:
    """Every condition of a seat that a Mac fails, each with what to do; empty if it has the seat."""
    return tuple(
        Failing(
            seat,
            condition.id,
            condition.found(facts, card),
            condition.needed(facts, card),
            condition.fix(facts, card),
        )
        for condition in CONDITIONS[seat]
        if not condition.holds(facts, card)
    )


def granted_seat(facts: SeatFacts, wanted: Seat, card: RateCard) -> Seat | None:
    """The highest seat, at most the wanted one, whose conditions all hold; None if not even idle."""
    upto = SEATS[: SEATS.index(wanted) + 1]
    return next((seat for seat in reversed(upto) if not failing(facts, seat, card)), None)


@dataclass(frozen=True)
class SeatTerm:
    """A seat held from `since_us` (included) to `until_us` (excluded; None: still held)."""

    seat: Seat
    since_us: int
    until_us: int | None = None


def seat_at(terms: Iterable[SeatTerm], at_us: int) -> Seat:
    """The seat at a moment; idle where no term covers it."""
    for term in terms:
        if term.since_us <= at_us and (term.until_us is None or at_us < term.until_us):
            return term.seat
    return "idle"


def change_seat(terms: Sequence[SeatTerm], seat: Seat, now_us: int) -> tuple[SeatTerm, ...]:
    """Take another seat from the next slot on; every slot before it keeps its seat and pay.

    Also how an owner steps back to idle, at any time. Raises ValueError if a later term exists.
    """
    start_us = divide_up(now_us, SLOT_US) * SLOT_US
    if any(term.since_us > start_us for term in terms):
        raise ValueError("now_us is before a term that has begun already")
    kept = [
        replace(term, until_us=start_us) if term.until_us is None else term
        for term in terms
        if term.since_us < start_us
    ]
    return (*kept, SeatTerm(seat, start_us))


@dataclass(frozen=True)
class Upkeep:
    """A time in which the owner keeps the Mac up (updates, a move), announced before it begins."""

    announced_us: int
    start_us: int
    end_us: int


def upkeep_seconds(
    windows: Iterable[Upkeep], week_start_us: int, from_us: int, until_us: int, card: RateCard
) -> int:
    """Seconds of announced upkeep from `from_us` to `until_us` that count as up.

    A week's allowance is used up in the order of time. Windows that were announced after they
    began do not count; what overlaps counts once.
    """
    left_us = card.seats.upkeep_seconds_per_week * 1_000_000
    counted_us, reached_us = 0, week_start_us
    for window in sorted(windows, key=lambda window: (window.start_us, window.end_us)):
        if window.announced_us > window.start_us:
            continue
        start_us = max(window.start_us, reached_us)
        end_us = min(window.end_us, week_start_us + WEEK_US, start_us + left_us)
        if end_us <= start_us:
            continue
        left_us -= end_us - start_us
        reached_us = end_us
        counted_us += max(0, min(end_us, until_us) - max(start_us, from_us))
    return counted_us // 1_000_000


def service_ppm(up_seconds: int, upkeep_counted_seconds: int, promised_seconds: int) -> int:
    """The share of the promised time in which a Mac was up or in counted upkeep, at most 10**6.

    Rounded down; 10**6 if nothing was promised.
    """
    if min(up_seconds, upkeep_counted_seconds, promised_seconds) < 0:
        raise ValueError("up_seconds, upkeep_counted_seconds and promised_seconds must not be negative")
    if promised_seconds == 0:
        return PER_MILLION
    return min(PER_MILLION, (up_seconds + upkeep_counted_seconds) * PER_MILLION // promised_seconds)
