"""What a Mac learns of when it is lent: neutral at first, rounded, never told against its owner."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.placement.survival import HOURS as HOURS_THERE
from coordinator.placement.survival import PRIOR_STAY_SECONDS, packed
from node_agent.habit_book import FILE, HabitBook
from node_agent.habits import HOUR_SECONDS, HOURS, MONDAY_SECONDS, NEUTRAL, STEPS, Habits, hour_of_week
from node_agent.protocol.messages import HOURS_OF_WEEK, Heartbeat, encode, parse_to_coordinator

MONDAY = MONDAY_SECONDS + 2900 * 7 * 86_400.0
DAY = 24 * HOUR_SECONDS
LOOK = 60.0


def live(habits: Habits | HabitBook, start: float, seconds: float, *, is_lent: bool) -> float:
    """Look each minute; the time after."""
    at = start
    while at < start + seconds:
        _ = habits.look(at, is_lent=is_lent)
        at += LOOK
    return at


def office_week(habits: Habits, start: float) -> float:
    """Lent from 18:30 to 9:30, the owner at work in between, five days; lent all the weekend."""
    at = start
    for _ in range(5):
        at = live(habits, at, 9.5 * HOUR_SECONDS, is_lent=True)
        at = live(habits, at, 9 * HOUR_SECONDS, is_lent=False)
        at = live(habits, at, 5.5 * HOUR_SECONDS, is_lent=True)
    return live(habits, at, 2 * DAY, is_lent=True)


def test_both_sides_mean_the_same_hours_and_the_same_neutral() -> None:
    assert HOURS == HOURS_THERE == HOURS_OF_WEEK
    assert pytest.approx(exp(-HOUR_SECONDS / PRIOR_STAY_SECONDS)) == NEUTRAL
    assert [hour_of_week(at) for at in (MONDAY, MONDAY + DAY, MONDAY - 1.0)] == [0, 24, 167]


def test_nothing_is_told_of_a_day_and_the_unknown_is_neutral() -> None:
    habits = Habits()
    assert habits.chances() == pytest.approx([NEUTRAL] * HOURS)
    _ = live(habits, MONDAY, 23 * HOUR_SECONDS, is_lent=True)
    assert habits.told() == ()


def test_an_owners_hours_are_learnt_and_told_in_few_steps() -> None:
    habits, at = Habits(), MONDAY
    for _ in range(6):
        at = office_week(habits, at)
    told = habits.told()
    assert len(told) == HOURS
    assert set(told) <= set(STEPS)
    nine_on_monday, two_at_night, saturday_noon = told[9], told[2], told[5 * 24 + 12]
    assert nine_on_monday < 0.5 < two_at_night
    assert saturday_noon > 0.9
    _ = packed(told)  # the coordinator takes it


def test_an_hour_that_ended_early_counts_as_one_and_half_an_hour_as_none() -> None:
    habits = Habits()
    at = live(habits, MONDAY + 1800.0, 1800.0 + 600.0, is_lent=True)
    _ = habits.look(at, is_lent=False)
    assert (habits.began[0], habits.stayed[0]) == (0.0, 0.0)
    assert (habits.began[1], habits.stayed[1]) == (1.0, 0.0)


def test_a_sleep_that_was_not_seen_ends_the_hour_in_which_it_began() -> None:
    habits = Habits()
    _ = live(habits, MONDAY, HOUR_SECONDS + 600.0, is_lent=True)
    _ = habits.look(MONDAY + 10 * HOUR_SECONDS, is_lent=True)
    assert habits.began[:11] == [1.0, 1.0] + [0.0] * 9
    assert habits.stayed[:11] == [1.0] + [0.0] * 10
    # A clock that is set back is no more than that.
    _ = habits.look(MONDAY, is_lent=True)
    assert sum(habits.began) == 2.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-100.0, 20_000.0), st.booleans()), max_size=60))
def test_whatever_happens_counts_and_chances_stay_what_they_are(steps: list[tuple[float, bool]]) -> None:
    habits, at = Habits(), MONDAY
    for seconds, is_lent in steps:
        at += seconds
        _ = habits.look(at, is_lent=is_lent)
        assert all(0 <= s <= b for s, b in zip(habits.stayed, habits.began, strict=True))
    assert all(0 < chance < 1 for chance in habits.chances())


def test_habits_outlive_the_process_and_are_removed_when_they_may_not_be_told(tmp_path: Path) -> None:
    book = HabitBook(tmp_path, is_told=True)
    _ = live(book, MONDAY, 3 * DAY, is_lent=True)
    assert len(book.told()) == HOURS
    assert HabitBook(tmp_path, is_told=True).told() == book.told()
    silent = HabitBook(tmp_path, is_told=False)
    _ = live(silent, MONDAY, 3 * DAY, is_lent=True)
    assert silent.told() == ()
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"began": [1], "stayed": [2]}', '{"began": "x"}'])
def test_a_damaged_file_is_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content, "utf-8")
    book = HabitBook(tmp_path, is_told=True)
    assert book.told() == ()
    _ = live(book, MONDAY, 2 * DAY, is_lent=True)
    assert len(json.loads((tmp_path / FILE).read_text("utf-8"))["began"]) == HOURS


def test_older_nodes_say_nothing_of_it_and_a_curve_is_a_week_or_none() -> None:
    older = '{"type": "heartbeat", "mode": "ready", "free_bytes": 1}'
    message = parse_to_coordinator(older)
    assert isinstance(message, Heartbeat)
    assert (message.disk_free_bytes, message.on_disk, message.survival) == (None, None, None)
    told = Heartbeat(mode="ready", free_bytes=1, on_disk=("0" * 16,), survival=(0.5,) * HOURS)
    assert parse_to_coordinator(encode(told)) == told
    for wrong in ({"survival": (0.5,)}, {"survival": (2.0,) * HOURS}, {"on_disk": ("../x",)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            _ = Heartbeat(mode="ready", free_bytes=1, **wrong)  # pyright: ignore[reportArgumentType]
