"""Pauses after faults: doubling, one crash once, one job at a time, and forgiven by a good result."""

from __future__ import annotations

import pytest

from coordinator.nodes.health import Health, Pauses, after_fault, after_success, taken_back

PAUSES = Pauses(first_seconds=30, longest_seconds=3600)


def fail(health: Health | None, at: float, *, begun_at: float | None = None) -> Health:
    begun_at = at if begun_at is None else begun_at
    return after_fault(health, "runner_crashed", begun_at=begun_at, now=at, pauses=PAUSES)


def test_pauses_double_from_the_first_to_the_longest() -> None:
    found = [PAUSES.after(faults) for faults in range(1, 10)]
    assert found == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert PAUSES.after(10**6) == 3600


def test_after_the_pause_comes_probation_and_after_a_good_result_nothing() -> None:
    health = fail(None, 100.0)
    assert [health.standing(now) for now in (100, 129.9, 130)] == ["paused", "paused", "on_probation"]
    assert after_success(health, begun_at=131.0) is None


def test_attempts_that_ran_side_by_side_fail_once() -> None:
    health = fail(None, 100.0, begun_at=90.0)
    for begun_at in (80.0, 95.0, 100.0):
        assert fail(health, 100.1, begun_at=begun_at) is health
    assert fail(health, 140.0, begun_at=131.0) == Health(2, "runner_crashed", 140.0, 200.0)


def test_a_neighbour_that_ended_well_after_the_crash_forgives_nothing() -> None:
    health = fail(None, 100.0, begun_at=90.0)
    assert after_success(health, begun_at=95.0) is health


@pytest.mark.parametrize(("faults", "left"), [(1, None), (2, 1), (5, 4)])
def test_blame_can_be_given_back(faults: int, left: int | None) -> None:
    health = None
    for number in range(faults):
        health = fail(health, 10_000.0 * number)
    now = 10_000.0 * (faults - 1) + 1
    found = taken_back(health, now=now)
    assert (found.faults if found else None) == left
    assert found is None or found.standing(now) == "on_probation"


def test_nothing_is_taken_back_from_a_sound_device() -> None:
    assert taken_back(None, now=1.0) is None
    assert after_success(None, begun_at=1.0) is None
