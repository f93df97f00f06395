"""Simulated days through a real ledger: an Ultra seat earns most, and statements add up."""

from __future__ import annotations

from itertools import pairwise

from coordinator.db import Database
from ledger import statements
from tests.chip_hours import MACS, hours
from tests.demo_seats import report, simulate


def test_ultra_earns_more_than_dedicated_and_dedicated_more_than_idle(database: Database) -> None:
    earned = simulate(database)
    assert earned["ann"].total_umlx < earned["bob"].total_umlx < earned["cem"].total_umlx
    # Work is paid alike in every seat; the difference is the standing pay.
    work = [earned[owner].work_umlx for owner in ("ann", "bob", "cem")]
    assert max(work) < min(work) * 11 // 10
    # The two announced hours of upkeep are not paid, and cost no service level.
    unpaid = [slot for slot in earned["cem"].slots if slot.amount_umlx == 0]
    assert [slot.reason for slot in unpaid] == ["not_present"] * 12
    assert {slot.paid_as for slot in earned["cem"].slots} == {"ultra"}
    assert len(list(report(database, earned))) > 15
    with database.read() as session:
        assert statements.reconcile(session.connection()) == []


def test_a_chips_hours_rise_with_seat_and_bandwidth_and_hardly_depend_on_the_model() -> None:
    rows = [hours(*mac) for mac in MACS]
    for busy, standing in rows:
        assert max(busy) * 100 <= min(busy) * 105
        assert standing == sorted(set(standing))
    for (slow_busy, slow_standing), (fast_busy, fast_standing) in pairwise(rows):
        assert all(slow <= fast for slow, fast in zip(slow_busy, fast_busy, strict=True))
        assert all(slow < fast for slow, fast in zip(slow_standing, fast_standing, strict=True))
