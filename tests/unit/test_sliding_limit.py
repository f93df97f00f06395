"""The limit on tries: a sliding window an address or account, and bounded memory."""

from __future__ import annotations

import pytest

from coordinator import sliding_limit
from coordinator.sliding_limit import SlidingLimit


def test_an_address_waits_until_its_oldest_try_is_over() -> None:
    limit = SlidingLimit(tries_max=2, window_seconds=10)
    assert [limit.wait_seconds("a", now) for now in (0, 4)] == [0, 0]
    assert limit.wait_seconds("a", 5) == 5
    assert limit.wait_seconds("b", 5) == 0
    assert limit.wait_seconds("a", 10) == 0
    assert limit.wait_seconds("a", 11) == 3


def test_a_refused_try_is_not_counted() -> None:
    limit = SlidingLimit(tries_max=1, window_seconds=10)
    assert limit.wait_seconds("a", 0) == 0
    for now in range(1, 10):
        assert limit.wait_seconds("a", now) == 10 - now
    assert limit.wait_seconds("a", 10) == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding_limit, "NAMES_MAX", 3)
    limit = SlidingLimit(tries_max=1, window_seconds=10)
    for name in "abcd":
        assert limit.wait_seconds(name, 0) == 0
    assert limit.wait_seconds("d", 1) == 9
    assert limit.wait_seconds("a", 1) == 0  # forgotten


def test_a_try_that_is_given_back_counts_no_more() -> None:
    limit = SlidingLimit(tries_max=2, window_seconds=10)
    for now in range(20):
        assert limit.wait_seconds("a", now) == 0
        limit.give_back("a", now)
    assert [limit.wait_seconds("a", now) for now in (20, 21)] == [0, 0]
    limit.give_back("b", 20)  # nobody else's
    limit.give_back("a", 5)  # no longer there
    assert limit.wait_seconds("a", 22) == 8
