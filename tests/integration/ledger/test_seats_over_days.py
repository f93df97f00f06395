"""Simulated days through the coordinator's own functions: an Ultra seat earns most, and statements add up."""

from __future__ import annotations

from itertools import pairwise

from tests.chip_hours import MACS, hours
from tests.demo_seats import SLOTS_PER_DAY, report, simulate
from tests.integration.macs import Macs


def test_ultra_earns_more_than_dedicated_and_dedicated_more_than_idle(database_url: str) -> None:
    macs = Macs(database_url)
    world = simulate(macs, days=2)
    totals = [world.total_umlx(mac) for mac in world.fleet]
    assert totals == sorted(set(totals))
    # Work is paid alike in every seat; the difference is the standing pay.
    work = [earned.work_umlx for earned in world.earned.values()]
    assert max(work) < min(work) * 11 // 10
    # The two announced hours of upkeep are not paid, and cost no service level.
    slots = world.slots_of(world.fleet[2])
    assert [slot.reason for slot in slots if slot.amount_umlx == 0] == ["not_present"] * 12
    assert {slot.paid_as for slot in slots} == {"ultra"}
    assert all(len(world.slots_of(mac)) == 2 * SLOTS_PER_DAY for mac in world.fleet)
    assert len(list(report(world))) > 15
    macs.check_books()
    macs.database.close()


def test_a_chips_hours_rise_with_seat_and_bandwidth_and_hardly_depend_on_the_model() -> None:
    rows = [hours(*mac) for mac in MACS]
    for busy, standing in rows:
        assert max(busy) * 100 <= min(busy) * 105
        assert standing == sorted(set(standing))
    for (slow_busy, slow_standing), (fast_busy, fast_standing) in pairwise(rows):
        assert all(slow <= fast for slow, fast in zip(slow_busy, fast_busy, strict=True))
        assert all(slow < fast for slow, fast in zip(slow_standing, fast_standing, strict=True))
