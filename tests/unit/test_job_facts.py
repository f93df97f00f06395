"""How a job's rows read as facts for its settlement: outcomes, endings, what was received."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.jobs.facts import NOT_PROVEN, ending_of, facts_of, outcome_of, received_of
from coordinator.jobs.models import Attempt, Job
from coordinator.jobs.states import ATTEMPT_TRANSITIONS, FINAL_JOB_STATES, LIVE_ATTEMPT_STATES
from ledger.pricing import PER_MILLION, Rate

RATE = Rate(2_000_000, 2_000_000, 5_000_000, 20)


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": "job_1",
        "state": "done",
        "error_code": None,
        "payer": "user:sam",
        "fee_ppm": 100_000,
        "factor_ppm": PER_MILLION,
        "bound_umlx": 500,
        "prompt_tokens": 10,
        **changes,
    }
    return Job(**fields)


def attempt(fence: int, delivered: int, **changes: Any) -> Attempt:
    fields: dict[str, Any] = {
        "fence": fence,
        "node_id": f"node_{fence}",
        "owner_account_id": f"acct_{fence}",
        "state": "done",
        "reason": None,
        "delivered_tokens": delivered,
        "received_tokens": delivered,
        "check_result": "none",
        "is_held": False,
        "is_linked": False,
        "zero_reason": None,
        **changes,
    }
    return Attempt(**fields)


def test_every_end_has_its_meaning() -> None:
    for state in FINAL_JOB_STATES:
        assert outcome_of(job(state=state)) in {"finished", "cancelled", "failed", "expired"}
    for state in ATTEMPT_TRANSITIONS.keys() - LIVE_ATTEMPT_STATES:
        assert ending_of(state, "whatever")
    for state in LIVE_ATTEMPT_STATES:
        with pytest.raises(ValueError, match="not ended"):
            ending_of(state, None)
    with pytest.raises(ValueError, match="not ended"):
        outcome_of(job(state="running"))
    assert outcome_of(job(state="expired", error_code="coordinator_restarted")) == "coordinator_fault"


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("reclaimed", "owner_returned", "reclaimed"),
        ("lost", "node_lost", "disconnected"),
        ("lost", "node_left", "disconnected"),
        ("lost", "offer_unanswered", "disconnected"),
        ("lost", "coordinator_restarted", "disconnected"),
        ("lost", "a reason of tomorrow", "disconnected"),
        ("lost", "node_restarted", "crashed"),
        ("lost", "no_progress", "crashed"),
        ("failed", "runner_crashed", "crashed"),
        ("failed", "too_many_tokens", "crashed"),
        ("failed", "request_invalid", "cancelled"),
        ("failed", "download_failed", "cancelled"),
    ],
)
def test_only_what_the_mac_did_wrong_is_a_crash(state: str, reason: str, expected: str) -> None:
    assert ending_of(state, reason) == expected


def test_a_job_that_crashes_macs_alike_is_to_blame_itself() -> None:
    crashed = attempt(1, 3, state="failed", reason="runner_crashed")
    blamed, spared = (
        facts_of(job(state="failed", error_code=code), [crashed], rate=RATE).attempts[0]
        for code in ("host_lost", "job_fails_alike")
    )
    assert (blamed.ending, spared.ending, spared.received_tokens) == ("crashed", "cancelled", 3)


@pytest.mark.parametrize(
    ("received", "expected"),
    [(0, [0, 0, 0]), (2, [2, 0, 0]), (3, [3, 0, 0]), (5, [3, 0, 2]), (7, [3, 0, 4]), (99, [3, 0, 4])],
)
def test_what_was_received_is_the_answers_beginning(received: int, expected: list[int]) -> None:
    assert received_of([attempt(1, 3), attempt(2, 0), attempt(3, 4)], received, 7) == expected


def test_what_was_lost_and_made_anew_is_the_later_attempts() -> None:
    rows = [attempt(1, 20), attempt(2, 30)]
    assert received_of(rows, 30, 30) == [0, 30]
    assert received_of(rows, 12, 30) == [0, 12]
    assert received_of(rows, 40, 40) == [10, 30]


def test_what_is_not_proven_counts_for_nothing_and_keeps_its_place() -> None:
    rows = [attempt(1, 3, zero_reason=NOT_PROVEN), attempt(2, 4)]
    assert received_of(rows, 7, 7) == [0, 4]
    rows[0].received_tokens = 0
    first, second = facts_of(job(), rows, rate=RATE).attempts
    assert (first.delivered_tokens, first.received_tokens, second.received_tokens) == (0, 0, 4)


def test_a_late_result_names_a_zero_and_takes_nothing_away() -> None:
    empty, worked = (
        attempt(1, 0, state="lost", reason="node_lost"),
        attempt(2, 3, state="lost", reason="node_lost"),
    )
    late = frozenset({(1, "node_1"), (2, "node_2"), (3, "node_1")})
    facts = facts_of(job(), [empty, worked, attempt(3, 1)], rate=RATE, late=late)
    assert [found.ending for found in facts.attempts] == ["late", "disconnected", "finished"]
    foreign = facts_of(job(), [empty], rate=RATE, late=frozenset({(1, "node_9")}))
    assert foreign.attempts[0].ending == "disconnected"


def test_rows_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="order of their fences"):
        facts_of(job(), [attempt(2, 1), attempt(1, 1)], rate=RATE)
    with pytest.raises(ValueError, match="received_tokens"):
        facts_of(job(), [attempt(1, 1, received_tokens=2)], rate=RATE)
