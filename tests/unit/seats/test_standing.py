"""Standing time: what one process counts, under clocks that jump and looks that come late."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import hypothesis.strategies as st
from hypothesis import given

from coordinator.seats.standing import GAP_SECONDS_MAX, SLOT_SECONDS, Sight, StandingBook, Stood
from ledger.ratecard import SLOT_US

START_US: Final = 1_000 * SLOT_US
HERE: Final = Sight("node_1", is_present=True)


class Watcher:
    """A book with the two clocks that it is told."""

    def __init__(self, wall_us: int = START_US) -> None:
        self.book = StandingBook()
        self.wall_us = wall_us
        self.monotonic_seconds = 50.0

    def look(self, *sights: Sight) -> None:
        self.book.observe(sights, wall_us=self.wall_us, monotonic_seconds=self.monotonic_seconds)

    def after(self, seconds: float, *sights: Sight) -> Watcher:
        """Time passes on both clocks, then a look."""
        self.wall_us += round(seconds * 1e6)
        self.monotonic_seconds += seconds
        self.look(*sights)
        return self

    def jump(self, seconds: float) -> Watcher:
        """Somebody sets the wall clock."""
        self.wall_us += round(seconds * 1e6)
        return self

    def present(self, node_id: str = "node_1") -> dict[int, int]:
        """Seconds present by slot, counted from the first one."""
        return {
            (row.slot_start_us - START_US) // SLOT_US: row.present_seconds
            for row in self.book.stood()
            if row.node_id == node_id
        }


def watched(seconds: int, sight: Sight = HERE, wall_us: int = START_US) -> Watcher:
    watcher = Watcher(wall_us)
    watcher.look(sight)
    for _ in range(seconds):
        watcher.after(1, sight)
    return watcher


def test_a_mac_that_is_there_all_the_time_gets_whole_slots() -> None:
    assert watched(2 * SLOT_SECONDS).present() == {0: SLOT_SECONDS, 1: SLOT_SECONDS}


def test_time_is_cut_at_the_slots_bound() -> None:
    watcher = Watcher(START_US + SLOT_US - 3_000_000)
    watcher.look(HERE)
    assert watcher.after(8, HERE).present() == {0: 3, 1: 5}


def test_the_first_look_counts_nothing_and_a_late_one_neither() -> None:
    watcher = Watcher()
    watcher.look(HERE)
    assert watcher.present() == {}
    assert watcher.after(GAP_SECONDS_MAX + 1, HERE).present() == {}
    assert watcher.after(10, HERE).present() == {0: 10}


def test_who_was_gone_at_either_look_was_not_there_between() -> None:
    away = replace(HERE, is_present=False)
    watcher = Watcher()
    watcher.look(away)
    assert watcher.after(1, HERE).after(1, away).after(1, HERE).present() == {0: 0}
    assert watcher.after(1, HERE).present() == {0: 1}


def test_a_promised_mac_that_is_not_there_has_a_row_of_zero() -> None:
    (row,) = watched(5, replace(HERE, is_present=False)).book.stood()
    assert row == Stood("node_1", START_US, 0, 0, 0, has_demanded_model=False)


def test_busy_and_linked_seconds_do_not_overlap() -> None:
    both = replace(HERE, is_busy=True, is_linked_busy=True)
    watcher = watched(10, both)
    for _ in range(5):
        watcher.after(1, replace(HERE, is_linked_busy=True))
    watcher.after(1, HERE)
    (row,) = watcher.book.stood()
    assert (row.present_seconds, row.busy_seconds, row.linked_busy_seconds) == (16, 11, 5)


def test_a_model_loaded_for_a_moment_is_not_ready() -> None:
    watcher = watched(4, replace(HERE, has_demanded_model=True))
    assert watcher.book.stood()[0].has_demanded_model
    for _ in range(7):
        watcher.after(1, HERE)
    assert not watcher.book.stood()[0].has_demanded_model


def test_a_clock_set_back_counts_nothing_twice() -> None:
    watcher = watched(300)
    watcher.jump(-200)
    for _ in range(200):
        watcher.after(1, HERE)
    assert watcher.present() == {0: 300}
    for _ in range(100):
        watcher.after(1, HERE)
    assert watcher.present() == {0: 400}


def test_a_clock_set_ahead_adds_nothing() -> None:
    watcher = watched(100).jump(5 * 3600)
    watcher.after(1, HERE)
    assert sum(watcher.present().values()) == 101


def test_what_is_stored_and_over_is_forgotten_and_not_counted_again() -> None:
    watcher = watched(SLOT_SECONDS + 10)
    stored = watcher.book.stood()
    watcher.book.forget(stored, before_us=watcher.wall_us)
    assert watcher.present() == {1: 10}
    watcher.jump(-60)
    for _ in range(60):
        watcher.after(1, HERE)
    assert watcher.present() == {1: 10}


steps = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=30, allow_nan=False),
        st.sampled_from([0.0, 0.0, 0.0, -700.0, -5.0, 5.0, 4000.0]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=60,
)


@given(steps)
def test_never_more_than_time_and_never_more_than_a_slot(
    steps: list[tuple[float, float, bool, bool]],
) -> None:
    watcher = Watcher()
    watcher.look(HERE)
    passed = 0.0
    for seconds, jump, is_present, is_busy in steps:
        passed += seconds
        watcher.jump(jump).after(seconds, replace(HERE, is_present=is_present, is_busy=is_busy))
    rows = watcher.book.stood()
    assert sum(row.present_seconds for row in rows) <= passed + 1e-6
    for row in rows:
        assert 0 <= row.busy_seconds + row.linked_busy_seconds <= row.present_seconds <= SLOT_SECONDS
