"""Seats: which Macs can have which, what fails and how to mend it, and stepping back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ratecard import CARD, DAY_US, GIBIBYTE, HOUR_US, SEATS, SLOT_US, Seat
from ledger.seats import (
    CONDITIONS,
    WEEK_US,
    SeatFacts,
    SeatTerm,
    Upkeep,
    change_seat,
    failing,
    granted_seat,
    seat_at,
    service_ppm,
    ultra_lent_bytes,
    upkeep_seconds,
)
from node_agent.sizing.chips import all_chips

GB_PER_SECOND = 10**9
ULTRA = SeatFacts(
    promised_seconds_per_day=20 * 3600,
    promised_days=7,
    owner_may_interrupt=False,
    warm_bandwidths_bytes_per_second=(700 * GB_PER_SECOND,) * 3,
    installed_bytes=128 * GIBIBYTE,
    lent_bytes=77 * GIBIBYTE,
    checks_passed=10,
)
# Every Ultra that was sold, with the memory it could be bought with, in GB.
ULTRA_MEMORY_GB = {
    "M1 Ultra": (64, 128),
    "M2 Ultra": (64, 128, 192),
    "M3 Ultra": (96, 256, 512),
    "M5 Ultra": (96, 256, 512),
}
# What macOS lets a GPU use of a large Mac's memory if its owner changes nothing.
USABLE_PERCENT = 75
# The least share of its specified bandwidth that a warm Mac measures (M5 Max: 577 of 614 GB/s, 94 %).
MEASURED_PERCENT = 82


def test_no_chip_but_an_ultra_reaches_the_bandwidth_even_by_its_maker_s_figure() -> None:
    needed = CARD.seats.ultra_bandwidth_bytes_per_second
    others = [chip.bandwidth_bytes_per_second for chip in all_chips() if "Ultra" not in chip.name]
    assert len(others) > 20
    assert max(others) < needed


def test_every_ultra_ever_sold_can_qualify() -> None:
    ultras = [chip for chip in all_chips() if "Ultra" in chip.name]
    assert {chip.name for chip in ultras} == set(ULTRA_MEMORY_GB)
    for chip in ultras:
        measured = chip.bandwidth_bytes_per_second * MEASURED_PERCENT // 100
        for memory_gb in ULTRA_MEMORY_GB[chip.name]:
            installed = memory_gb * GIBIBYTE
            lent = ultra_lent_bytes(installed, CARD)
            assert lent <= installed * USABLE_PERCENT // 100
            facts = replace(
                ULTRA,
                warm_bandwidths_bytes_per_second=(measured,) * 3,
                installed_bytes=installed,
                lent_bytes=lent,
            )
            assert granted_seat(facts, "ultra", CARD) == "ultra"
            assert granted_seat(replace(facts, lent_bytes=lent - 1), "ultra", CARD) == "dedicated"


def test_no_other_mac_gets_an_ultra_seat_whatever_it_promises() -> None:
    for chip in all_chips():
        if "Ultra" not in chip.name:
            tests = (chip.bandwidth_bytes_per_second,) * 3
            facts = replace(ULTRA, warm_bandwidths_bytes_per_second=tests)
            assert [item.condition for item in failing(facts, "ultra", CARD)] == ["measured_bandwidth"]
            assert granted_seat(facts, "ultra", CARD) == "dedicated"


LIMIT = CARD.seats.ultra_bandwidth_bytes_per_second


@pytest.mark.parametrize(
    ("change", "condition", "told"),
    [
        ({"promised_seconds_per_day": 20 * 3600 - 1}, "promised_hours", "20 h of every day"),
        ({"promised_days": 6}, "promised_days", "7 days"),
        ({"owner_may_interrupt": True}, "no_interruption", "Turn off"),
        ({"warm_bandwidths_bytes_per_second": (LIMIT,) * 2}, "self_tests", "connected and idle"),
        (
            {"warm_bandwidths_bytes_per_second": (LIMIT, LIMIT - 1, LIMIT)},
            "measured_bandwidth",
            "tested again",
        ),
        ({"lent_bytes": 76 * GIBIBYTE}, "lent_memory", "Lend 76.8 GB"),
        ({"installed_bytes": 64 * GIBIBYTE, "lent_bytes": 40 * GIBIBYTE - 1}, "lent_memory", "Lend 40 GB"),
        ({"checks_passed": 9}, "checks_passed", "1 more"),
        ({"other_seat_of_device": True}, "one_per_device", "Remove the other node"),
    ],
)
def test_the_owner_is_told_the_one_condition_that_fails(
    change: dict[str, object], condition: str, told: str
) -> None:
    found = failing(replace(ULTRA, **change), "ultra", CARD)  # pyright: ignore[reportArgumentType]
    assert [item.condition for item in found] == [condition]
    assert told in found[0].fix
    assert found[0].found
    assert found[0].needed


def test_all_that_fails_is_told_at_once() -> None:
    facts = SeatFacts(
        promised_seconds_per_day=0,
        promised_days=0,
        owner_may_interrupt=True,
        warm_bandwidths_bytes_per_second=(),
        installed_bytes=16 * GIBIBYTE,
        lent_bytes=0,
        checks_passed=0,
    )
    assert [item.condition for item in failing(facts, "ultra", CARD)] == [
        "promised_hours",
        "promised_days",
        "no_interruption",
        "self_tests",
        "lent_memory",
        "checks_passed",
    ]
    assert granted_seat(facts, "ultra", CARD) == "idle"
    assert granted_seat(replace(facts, other_seat_of_device=True), "ultra", CARD) is None


def test_only_the_last_three_self_tests_count() -> None:
    slow_once = replace(ULTRA, warm_bandwidths_bytes_per_second=(1, LIMIT, LIMIT, LIMIT))
    assert granted_seat(slow_once, "ultra", CARD) == "ultra"


def test_nobody_gets_a_higher_seat_than_asked_for() -> None:
    assert [granted_seat(ULTRA, seat, CARD) for seat in SEATS] == list(SEATS)


def test_a_higher_seat_asks_for_all_that_a_lower_one_does() -> None:
    names = [{condition.id for condition in CONDITIONS[seat]} for seat in SEATS]
    assert names[0] < names[1] < names[2]


@given(now=st.integers(0, 10 * DAY_US), seat=st.sampled_from(SEATS))
def test_stepping_back_loses_only_what_lies_ahead(now: int, seat: Seat) -> None:
    held = (SeatTerm(seat, 0),)
    after = change_seat(held, "idle", now)
    assert all(seat_at(after, slot) == seat for slot in range(0, now, SLOT_US))
    assert seat_at(after, now // SLOT_US * SLOT_US + SLOT_US) == "idle"


def test_a_seat_can_be_taken_again_and_the_past_stays() -> None:
    terms = change_seat((), "ultra", 0)
    terms = change_seat(terms, "idle", 3 * SLOT_US)
    terms = change_seat(terms, "dedicated", 5 * SLOT_US + 1)
    assert [seat_at(terms, slot * SLOT_US) for slot in range(7)] == [
        "ultra", "ultra", "ultra", "idle", "idle", "idle", "dedicated",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="now_us"):
        change_seat(terms, "idle", 0)


def window(start_hours: float, hours: float, announced_hours: float = 0) -> Upkeep:
    start = int(start_hours * HOUR_US)
    return Upkeep(int(announced_hours * HOUR_US), start, start + int(hours * HOUR_US))


@pytest.mark.parametrize(
    ("windows", "hours"),
    [
        ((), 0),
        ((window(5, 1),), 1),
        ((window(5, 2),), 2),
        ((window(5, 3),), 2),
        ((window(5, 1), window(30, 0.5), window(60, 4)), 2),
        ((window(5, 1), window(5.5, 1)), 1.5),
        ((window(5, 1), window(5, 1)), 1),
        ((window(5, 1, announced_hours=5.01),), 0),
        ((window(5, 1, announced_hours=5),), 1),
        ((window(7 * 24 - 1, 2),), 1),
        ((window(7 * 24, 1),), 0),
    ],
)
def test_two_announced_hours_a_week_count_as_up(windows: tuple[Upkeep, ...], hours: float) -> None:
    assert upkeep_seconds(windows, 0, 0, WEEK_US, CARD) == hours * 3600


def test_upkeep_of_a_day_is_what_of_the_weeks_allowance_fell_into_it() -> None:
    windows = (window(10, 1.5), window(34, 1.5))
    assert upkeep_seconds(windows, 0, 0, DAY_US, CARD) == 5400
    assert upkeep_seconds(windows, 0, DAY_US, 2 * DAY_US, CARD) == 1800


@pytest.mark.parametrize(
    ("up", "upkeep", "promised", "ppm"),
    [
        (72_000, 0, 72_000, 1_000_000),
        (71_280, 0, 72_000, 990_000),
        (71_279, 0, 72_000, 989_986),
        (64_800, 7_200, 72_000, 1_000_000),
        (86_400, 0, 72_000, 1_000_000),
        (0, 0, 72_000, 0),
        (0, 0, 0, 1_000_000),
    ],
)
def test_service_is_the_share_of_the_promised_time(up: int, upkeep: int, promised: int, ppm: int) -> None:
    assert service_ppm(up, upkeep, promised) == ppm
