"""The state tables: what absorbs, what leads where, what raises."""

from __future__ import annotations

import itertools

import pytest

from coordinator.jobs.states import (
    ATTEMPT_TRANSITIONS,
    FINAL_JOB_STATES,
    JOB_TRANSITIONS,
    LIVE_ATTEMPT_STATES,
    InvalidTransitionError,
    JobState,
    check_attempt_transition,
    check_job_transition,
)
from coordinator.nodes.states import NODE_TRANSITIONS, may_become


def test_the_last_four_job_states_absorb() -> None:
    assert {"done", "failed", "cancelled", "expired"} == FINAL_JOB_STATES
    assert {"offered", "accepted", "loading", "prefill", "decoding"} == LIVE_ATTEMPT_STATES


@pytest.mark.parametrize(("start", "end"), list(itertools.product(JOB_TRANSITIONS, repeat=2)))
def test_a_job_goes_only_where_its_table_leads(start: str, end: str) -> None:
    is_allowed = end in JOB_TRANSITIONS[start]  # pyright: ignore[reportArgumentType]
    if is_allowed:
        check_job_transition(start, end)  # pyright: ignore[reportArgumentType]
    else:
        with pytest.raises(InvalidTransitionError, match=f"{start} to {end}"):
            check_job_transition(start, end)  # pyright: ignore[reportArgumentType]


def test_every_live_attempt_can_be_lost_and_none_comes_back() -> None:
    for state in LIVE_ATTEMPT_STATES:
        check_attempt_transition(state, "lost")
    for state, after in ATTEMPT_TRANSITIONS.items():
        if after:
            continue
        for end in ATTEMPT_TRANSITIONS:
            with pytest.raises(InvalidTransitionError):
                check_attempt_transition(state, end)


def test_from_every_job_state_an_end_can_be_reached() -> None:
    for start in JOB_TRANSITIONS:
        seen: set[JobState] = {start}
        waiting: list[JobState] = [start]
        while waiting:
            for after in JOB_TRANSITIONS[waiting.pop()] - seen:
                seen.add(after)
                waiting.append(after)
        assert seen & FINAL_JOB_STATES


def test_a_node_may_stay_and_may_always_go_offline() -> None:
    for state in NODE_TRANSITIONS:
        assert may_become(state, state)
        assert may_become(state, "offline")
    assert not may_become("offline", "asleep")
