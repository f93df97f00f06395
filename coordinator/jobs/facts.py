"""What a job's own rows say to the rule that settles it. Pure: rows in, `JobFacts` out.

Everything here was counted or decided by the coordinator; a node's own claims are not among it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from coordinator.jobs.models import Attempt, Job
from ledger.pricing import PER_MILLION, Rate
from ledger.rewards import AttemptFacts, Check, Ending, JobFacts, Member, Outcome

COORDINATOR_RESTARTED: Final = "coordinator_restarted"
JOB_FAILS_ALIKE: Final = "job_fails_alike"
"""The error of a job that crashed two Macs in the same way: it is to blame, not they."""

FAILED_CHECKS: Final = frozenset({"result_not_proven", "bad_chunk"})
"""Reasons that no sound node can have: its signature is not over what it sent, or it sent tokens
that the model does not have. What is otherwise not proven is not paid, but forfeits nothing."""

NOT_PROVEN: Final = "not_proven"
"""`attempts.zero_reason` of tokens that were relayed and then not vouched for."""

_OUTCOMES: Final[dict[str, Outcome]] = {
    "done": "finished",
    "cancelled": "cancelled",
    "failed": "failed",
    "expired": "expired",
}
_ENDINGS: Final[dict[str, Ending]] = {
    "done": "finished",
    "cancelled": "cancelled",
    "reclaimed": "reclaimed",
    "declined": "declined",
    "failed": "crashed",
    "lost": "disconnected",
}
_LOST: Final[dict[str, Ending]] = {
    "asleep": "asleep",
    "node_restarted": "crashed",
    "runner_crashed": "crashed",
    # Its socket was there and its heart beat, yet for many times the forecast nothing came.
    "no_progress": "crashed",
}
_BLAMELESS_FAILURES: Final = frozenset({"request_invalid", "cancelled_by_node", "download_failed"})


def outcome_of(job: Job) -> Outcome:
    """How an ended job counts. Raises ValueError if it has not ended."""
    if job.error_code == COORDINATOR_RESTARTED:
        return "coordinator_fault"
    if job.state not in _OUTCOMES:
        raise ValueError(f"state of {job.id} is {job.state!r}: it has not ended")
    return _OUTCOMES[job.state]


def ending_of(state: str, reason: str | None) -> Ending:
    """How an ended attempt counts: who is to blame, not whether it is paid.

    Only what the Mac did wrong is a crash; whatever we cannot tell from a lost network is one.
    Raises ValueError if it has not ended.
    """
    if state not in _ENDINGS:
        raise ValueError(f"an attempt in state {state!r} has not ended")
    if state == "lost":
        return _LOST.get(reason or "", _ENDINGS["lost"])
    if state == "failed" and reason in _BLAMELESS_FAILURES:
        return "cancelled"
    return _ENDINGS[state]


def received_of(attempts: Sequence[Attempt], received_tokens: int, output_tokens: int) -> list[int]:
    """How many of each attempt's tokens are among the first `received_tokens` of the answer, which
    has `output_tokens`.

    `attempts` in order of their fences. What is marked as not proven counts as not received; nor
    does what more was delivered than the answer has: it was lost, and later attempts made it anew.
    """
    found: list[int] = []
    start = min(0, output_tokens - sum(attempt.delivered_tokens for attempt in attempts))
    for attempt in attempts:
        end = start + attempt.delivered_tokens
        count = max(0, min(received_tokens, end) - max(start, 0))
        found.append(0 if attempt.zero_reason == NOT_PROVEN else count)
        start = end
    return found


def facts_of(
    job: Job,
    attempts: Sequence[Attempt],
    *,
    rate: Rate,
    late: frozenset[tuple[int, str]] = frozenset(),
) -> JobFacts:
    """The ended job as `ledger.rewards.settle` takes it.

    `attempts` are all of the job's in order of their fences, all ended; `rate` is the price of the
    card revision that the job names. `late` are (fence, node) whose whole result came after they
    were lost: it changes what their zero is called, never what an attempt delivered before.
    Raises ValueError if the rows contradict each other.
    """
    return JobFacts(
        job_id=job.id,
        payer=job.payer,
        rate=rate,
        fee_ppm=job.fee_ppm,
        factor_ppm=job.factor_ppm,
        bound_umlx=job.bound_umlx,
        outcome=outcome_of(job),
        input_tokens=job.prompt_tokens,
        cached_tokens=0,
        attempts=tuple(_attempt(job, attempt, late) for attempt in attempts),
    )


def _attempt(job: Job, attempt: Attempt, late: frozenset[tuple[int, str]]) -> AttemptFacts:
    ending = ending_of(attempt.state, attempt.reason)
    if ending == "crashed" and job.error_code == JOB_FAILS_ALIKE:
        ending = "cancelled"
    is_proven = attempt.zero_reason != NOT_PROVEN
    if attempt.delivered_tokens == 0 and (attempt.fence, attempt.node_id) in late:
        ending = "late"
    member = Member(node_id=attempt.node_id, owner=attempt.owner_account_id, held_ppm=PER_MILLION)
    return AttemptFacts(
        fence=attempt.fence,
        members=(member,),
        ending=ending,
        delivered_tokens=attempt.delivered_tokens if is_proven else 0,
        received_tokens=attempt.received_tokens,
        check=cast("Check", attempt.check_result),
        is_held=attempt.is_held,
        is_linked=attempt.is_linked,
    )
