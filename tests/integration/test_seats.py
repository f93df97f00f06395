"""Seats on both databases: what fails and how it is told, steps up and back, upkeep."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from coordinator.errors import ApiError
from coordinator.nodes import service as nodes
from coordinator.nodes.models import Node
from coordinator.seats import upkeep_windows
from coordinator.seats.models import SeatTerm
from coordinator.seats.service import grant_seats
from coordinator.seats.views import seat_view, upkeep_view
from ledger.ratecard import CARD, DAY_US, GIBIBYTE, HOUR_US, SLOT_US, Seat
from node_agent.sizing.chips import all_chips
from tests.integration.macs import MONDAY_US, ULTRA_BANDWIDTH, Macs

ULTRAS = [chip for chip in all_chips() if chip.name.endswith("Ultra")]


def view(macs: Macs, node_id: str) -> dict[str, Any]:
    with macs.database.read() as session:
        return seat_view(session, session.get_one(Node, node_id), now_us=macs.now_us)


def failing(macs: Macs, node_id: str) -> list[str]:
    return [one["condition"] for one in view(macs, node_id)["failing"]]


def terms(macs: Macs, node_id: str) -> list[tuple[str, int, int | None]]:
    with macs.database.read() as session:
        rows = session.scalars(
            select(SeatTerm).where(SeatTerm.node_id == node_id).order_by(SeatTerm.since_us)
        )
        return [(row.seat, row.since_us, row.until_us) for row in rows]


def test_each_condition_fails_alone_and_is_told_with_its_fix(macs: Macs) -> None:
    node_id = macs.add("Ada")
    macs.ask(node_id, "ultra")
    assert failing(macs, node_id) == []
    cases: list[tuple[str, dict[str, object], dict[str, object]]] = [
        ("promised_hours", {"promised_seconds_per_day": 20 * 3600 - 1}, {"promised_seconds_per_day": 72_000}),
        ("promised_days", {"promised_days": 6}, {"promised_days": 7}),
        ("no_interruption", {"owner_may_interrupt": True}, {"owner_may_interrupt": False}),
        ("lent_memory", {"lent_bytes": 153 * GIBIBYTE}, {"lent_bytes": 154 * GIBIBYTE}),
        ("checks_passed", {"checks_passed": 9}, {"checks_passed": 10}),
    ]
    for condition, broken, mended in cases:
        macs.change(node_id, **broken)
        (told,) = view(macs, node_id)["failing"]
        assert told["condition"] == condition
        assert told["found"] and told["needed"] and told["fix"].endswith(".")
        macs.change(node_id, **mended)
        assert failing(macs, node_id) == []
    macs.test_again(node_id, 649 * 10**9)
    assert failing(macs, node_id) == ["measured_bandwidth"]
    macs.test_again(node_id, *(650 * 10**9,) * 3)
    assert failing(macs, node_id) == []


def test_without_three_warm_tests_there_is_no_ultra_seat(macs: Macs) -> None:
    macs.now_us += 1
    node_id = macs.add("Ada", tests=(ULTRA_BANDWIDTH,) * 2)
    macs.ask(node_id, "ultra")
    assert failing(macs, node_id) == ["self_tests"]
    assert view(macs, node_id)["next_seat"] == "dedicated"
    macs.test_again(node_id, ULTRA_BANDWIDTH)
    assert grant_seats(macs.database) == 1
    assert grant_seats(macs.database) == 0
    assert view(macs, node_id)["next_seat"] == "ultra"
    assert macs.node(node_id).seat == "idle"  # held from the next slot on
    macs.now_us += SLOT_US
    assert grant_seats(macs.database) == 1
    assert grant_seats(macs.database) == 0
    assert macs.node(node_id).seat == "ultra"


@pytest.mark.parametrize("chip", ULTRAS, ids=lambda chip: f"{chip.name}-{chip.gpu_cores}")
def test_a_mac_with_each_ultra_chip_can_have_the_seat(macs: Macs, chip: Any) -> None:
    warm = (chip.bandwidth_bytes_per_second * 85 // 100,) * 3
    node_id = macs.add(
        "Ada", chip=f"Apple {chip.name}", gpu_cores=chip.gpu_cores, memory_bytes=96 * GIBIBYTE, tests=warm
    )
    macs.ask(node_id, "ultra")
    assert view(macs, node_id)["next_seat"] == "ultra"


def test_one_mac_has_one_seat_whatever_nodes_it_is(macs: Macs) -> None:
    first = macs.add("Ada", device="d" * 64)
    second = macs.add("Bo", device="d" * 64)
    for node_id in (first, second):
        macs.ask(node_id, "dedicated")
    assert failing(macs, first) == []
    assert failing(macs, second) == ["one_per_device"]
    assert view(macs, second)["next_seat"] == "idle"
    # A node that was removed, or not seen for a week, is in nobody's way.
    macs.change(first, state="offline", seen_us=macs.now_us - 8 * DAY_US)
    assert failing(macs, second) == []
    macs.change(first, seen_us=macs.now_us)
    assert failing(macs, second) == ["one_per_device"]
    with macs.writing() as session:
        nodes.revoke(session, first)
    assert failing(macs, second) == []


def test_a_seat_begins_with_the_next_slot_and_stepping_back_ends_with_this_one(macs: Macs) -> None:
    node_id = macs.add("Ada")
    macs.now_us += 1
    macs.ask(node_id, "dedicated")
    assert (macs.node(node_id).seat, view(macs, node_id)["seat"]) == ("idle", "idle")
    start = MONDAY_US + SLOT_US
    macs.now_us = start
    grant_seats(macs.database)
    assert macs.node(node_id).seat == "dedicated"
    macs.now_us = start + 3 * SLOT_US + 5
    macs.ask(node_id, "idle")
    assert view(macs, node_id)["seat"] == "dedicated"
    assert terms(macs, node_id) == [
        ("dedicated", start, start + 4 * SLOT_US),
        ("idle", start + 4 * SLOT_US, None),
    ]
    # Thinking better of it within the slot leaves one seat for the next, not two.
    macs.ask(node_id, "dedicated")
    assert [seat for seat, _, _ in terms(macs, node_id)] == ["dedicated", "dedicated"]
    macs.ask(node_id, "idle")
    macs.now_us += SLOT_US
    grant_seats(macs.database)
    assert macs.node(node_id).seat == "idle"


def test_a_seat_falls_with_its_conditions_and_comes_back_by_itself(macs: Macs) -> None:
    node_id = macs.add("Ada")
    macs.ask(node_id, "ultra")

    def after_a_slot() -> str:
        macs.now_us += SLOT_US
        grant_seats(macs.database)
        macs.now_us += SLOT_US
        grant_seats(macs.database)
        return macs.node(node_id).seat

    assert after_a_slot() == "ultra"
    macs.change(node_id, checks_passed=0)
    assert after_a_slot() == "dedicated"
    macs.change(node_id, owner_may_interrupt=True)
    assert after_a_slot() == "idle"
    macs.change(node_id, owner_may_interrupt=False, checks_passed=10)
    assert after_a_slot() == "ultra"


def test_a_removed_mac_loses_its_seat_even_if_it_is_enrolled_again_at_once(macs: Macs) -> None:
    node_id = macs.add("Ada")
    macs.ask(node_id, "dedicated")
    macs.now_us += SLOT_US
    grant_seats(macs.database)
    macs.change(node_id, seat="idle", wanted_seat="idle")  # as enrolling does
    macs.now_us += 1
    grant_seats(macs.database)
    assert terms(macs, node_id)[-1][0] == "idle"


def test_a_clock_set_back_changes_no_seat_that_has_begun(macs: Macs) -> None:
    node_id = macs.add("Ada")
    macs.now_us += 5 * SLOT_US
    macs.ask(node_id, "dedicated")
    before = terms(macs, node_id)
    macs.now_us -= 3 * SLOT_US
    macs.ask(node_id, "idle")
    assert terms(macs, node_id) == before
    macs.now_us += 4 * SLOT_US
    grant_seats(macs.database)
    assert terms(macs, node_id)[-1][0] == "idle"


@pytest.mark.parametrize("seat", ["dedicated", "ultra"])
def test_what_is_left_out_of_a_wish_is_what_the_seat_needs(macs: Macs, seat: Seat) -> None:
    node_id = macs.add("Ada")
    macs.ask(node_id, seat)
    node = macs.node(node_id)
    assert (node.promised_seconds_per_day, node.promised_days, node.owner_may_interrupt) == (72_000, 7, False)
    macs.ask(node_id, "idle")
    assert macs.node(node_id).owner_may_interrupt


# -- upkeep --------------------------------------------------------------------------------------


def upkeep(macs: Macs, node_id: str) -> dict[str, Any]:
    with macs.database.read() as session:
        return upkeep_view(session, session.get_one(Node, node_id), CARD, now_us=macs.now_us)


def test_upkeep_is_announced_used_up_and_taken_back(macs: Macs) -> None:
    node_id = macs.add("Ada")
    first = macs.announce_upkeep(node_id, 3600, 3600)
    second = macs.announce_upkeep(node_id, 10 * 3600, 3600)
    assert upkeep(macs, node_id)["left_seconds"] == 0
    with pytest.raises(ApiError, match="0 are left") as refused:
        macs.announce_upkeep(node_id, 20 * 3600, 60)
    assert refused.value.param == "seconds"
    next_week = macs.announce_upkeep(node_id, 8 * 86_400, 7200)
    macs.now_us += 2 * HOUR_US
    with macs.writing() as session:
        node = session.get_one(Node, node_id)
        with pytest.raises(ApiError, match="has begun"):
            upkeep_windows.cancel(session, node, first, now_us=macs.now_us)
        with pytest.raises(ApiError) as unknown:
            upkeep_windows.cancel(session, node, "upkeep_x", now_us=macs.now_us)
        assert unknown.value.code == "upkeep_not_found"
        _ = upkeep_windows.cancel(session, node, second, now_us=macs.now_us)
    found = upkeep(macs, node_id)
    assert (found["used_seconds"], found["left_seconds"]) == (3600, 3600)
    assert [window["id"] for window in found["windows"]] == [first, next_week]


def test_upkeep_over_the_weeks_bound_is_of_both_weeks(macs: Macs) -> None:
    node_id = macs.add("Ada")
    macs.announce_upkeep(node_id, 7 * 86_400 - 3600, 7200)
    assert upkeep(macs, node_id)["used_seconds"] == 3600
    macs.announce_upkeep(node_id, 86_400, 3600)
    with pytest.raises(ApiError, match="0 are left"):
        macs.announce_upkeep(node_id, 2 * 86_400, 60)


def test_anothers_upkeep_cannot_be_taken_back(macs: Macs) -> None:
    node_id, other = macs.add("Ada"), macs.add("Bo")
    window = macs.announce_upkeep(node_id, 3600, 3600)
    with macs.writing() as session, pytest.raises(ApiError) as refused:
        upkeep_windows.cancel(session, session.get_one(Node, other), window, now_us=macs.now_us)
    assert refused.value.status == 404
