"""The limit on enrolments: a sliding window an address, and bounded memory."""

from __future__ import annotations

import pytest

from coordinator.nodes import enrolment_limit
from coordinator.nodes.enrolment_limit import EnrolmentLimit


def test_an_address_waits_until_its_oldest_start_is_over() -> None:
    limit = EnrolmentLimit(starts_max=2, window_seconds=10)
    assert [limit.wait_seconds("a", now) for now in (0, 4)] == [0, 0]
    assert limit.wait_seconds("a", 5) == 5
    assert limit.wait_seconds("b", 5) == 0
    assert limit.wait_seconds("a", 10) == 0
    assert limit.wait_seconds("a", 11) == 3


def test_a_refused_start_is_not_counted() -> None:
    limit = EnrolmentLimit(starts_max=1, window_seconds=10)
    assert limit.wait_seconds("a", 0) == 0
    for now in range(1, 10):
        assert limit.wait_seconds("a", now) == 10 - now
    assert limit.wait_seconds("a", 10) == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_limit, "ADDRESSES_MAX", 3)
    limit = EnrolmentLimit(starts_max=1, window_seconds=10)
    for name in "abcd":
        assert limit.wait_seconds(name, 0) == 0
    assert limit.wait_seconds("d", 1) == 9
    assert limit.wait_seconds("a", 1) == 0  # forgotten
