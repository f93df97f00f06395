"""Ends: one transaction marks attempt and job, moves the money and removes the payload.

Money follows from what the coordinator counted itself. Ids of ledger commands are derived from
job and purpose, so an end that is tried again pays nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast
from uuid import UUID

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from coordinator.accounts.models import Account
from coordinator.commits import Written
from coordinator.db import database_now_us
from coordinator.jobs.models import Attempt, Job, JobEvent, JobPayload
from coordinator.jobs.payloads import PayloadBox
from coordinator.jobs.schemas import AttemptEnd, JobEnd
from coordinator.jobs.states import (
    FINAL_JOB_STATES,
    LIVE_ATTEMPT_STATES,
    AttemptState,
    JobState,
    check_attempt_transition,
    check_job_transition,
)
from coordinator.nodes.models import Node, Slot
from ledger.commands import FEE, Capture, Command, VoidHold, settlement_id
from ledger.pricing import Rate, charge_umlx, split_charge, split_shares
from node_agent.protocol.cards import Price

JOB_WIDE_FENCE = 0  # ledger commands of the job as a whole, whatever its attempts


class SettlementError(RuntimeError):
    """The ledger refused an end that the job's own rows allow: a fault of ours."""


@dataclass(frozen=True)
class Settled:
    """What an end came to."""

    charge_umlx: int
    was_settled_before: bool = False


def record_job_transition(
    session: Session, job: Job, end: JobState, *, fence: int | None, reason: str | None, now_us: int
) -> None:
    """Move the job along its table and log it. Raises `InvalidTransitionError`."""
    check_job_transition(cast("JobState", job.state), end)
    session.add(
        JobEvent(job_id=job.id, fence=fence, from_state=job.state, to_state=end, reason=reason, at_us=now_us)
    )
    job.state = end


def end_attempt(session: Session, job_id: str, end: AttemptEnd, *, now_us: int) -> Attempt | None:
    """End a live attempt and free its seat. None if it had already ended or never was."""
    attempt = session.scalars(
        select(Attempt).where(Attempt.job_id == job_id, Attempt.fence == end.fence).with_for_update()
    ).one_or_none()
    if attempt is None or attempt.state not in LIVE_ATTEMPT_STATES:
        return None
    start: AttemptState = attempt.state
    if start == "offered" and end.state in {"done", "failed", "reclaimed"}:
        # The node's accept was in memory only: its row was to follow, and now need not.
        check_attempt_transition(start, "accepted")
        start = "accepted"
    check_attempt_transition(start, end.state)
    session.add(
        JobEvent(
            job_id=job_id,
            fence=end.fence,
            from_state=attempt.state,
            to_state=end.state,
            reason=end.reason,
            at_us=now_us,
        )
    )
    attempt.state, attempt.reason, attempt.ended_us = end.state, end.reason, now_us
    attempt.delivered_tokens = end.delivered_tokens
    attempt.node_signature = end.node_signature
    attempt.accepted_us = attempt.accepted_us or end.accepted_us
    attempt.first_token_us = end.first_token_us
    if attempt.slot_id is not None:
        session.execute(
            update(Slot).where(Slot.id == attempt.slot_id, Slot.live > 0).values(live=Slot.live - 1)
        )
    return attempt


def requeue(session: Session, job_id: str, end: AttemptEnd) -> bool:
    """End the attempt and put the job back into the queue. False if the job had ended."""
    now_us = database_now_us(session)
    job = session.get(Job, job_id, with_for_update=True)
    if job is None or job.state != "running":
        return False
    end_attempt(session, job_id, end, now_us=now_us)
    record_job_transition(session, job, "queued", fence=end.fence, reason=end.reason, now_us=now_us)
    return True


def end_job(
    session: Session,
    job_id: str,
    end: JobEnd,
    *,
    price: Price,
    fee_ppm: int,
    payloads: PayloadBox,
    result: bytes | None,
    result_keep_us: int,
) -> Written[Settled]:
    """End a job once and for all: states, charge, payload, in the caller's transaction.

    The ledger commands that are returned must commit with it. Ending an ended job changes nothing
    and tells what it came to. Raises `SettlementError`, `InvalidTransitionError`.
    """
    now_us = database_now_us(session)
    job = session.get(Job, job_id, with_for_update=True)
    if job is None:
        raise SettlementError(f"no job {job_id}")
    if job.state in FINAL_JOB_STATES:
        return Written(Settled(job.charge_umlx, was_settled_before=True))
    fence = end.attempt.fence if end.attempt is not None else None
    if end.attempt is not None:
        _ = end_attempt(session, job_id, end.attempt, now_us=now_us)
    _end_unknown_attempt(session, job_id, now_us=now_us)
    charge = charge_umlx(rate_of(price), job.prompt_tokens, 0, end.charged_tokens)
    charged_umlx = min(charge, job.bound_umlx) if end.is_charged else 0
    if end.state == "cancelled":
        record_job_transition(session, job, "cancelling", fence=fence, reason=None, now_us=now_us)
    reason = end.error_code or end.finish_reason
    record_job_transition(session, job, end.state, fence=fence, reason=reason, now_us=now_us)
    job.finish_reason, job.error_code = end.finish_reason, end.error_code
    job.output_tokens, job.output_digest = end.output_tokens, end.output_digest
    job.charge_umlx, job.ended_us = charged_umlx, now_us
    _drop_payloads(session, job, result, payloads, expires_us=now_us + result_keep_us)
    commands = _money(session, job, charged_umlx, fee_ppm=fee_ppm) if job.hold_id is not None else ()
    return Written(Settled(charged_umlx), commands)


def _end_unknown_attempt(session: Session, job_id: str, *, now_us: int) -> None:
    """An attempt may have been reserved while the job's end was on its way here."""
    session.flush()
    fence = session.scalar(
        select(Attempt.fence).where(Attempt.job_id == job_id, Attempt.state.in_(LIVE_ATTEMPT_STATES))
    )
    if fence is not None:
        end = AttemptEnd(fence=fence, state="cancelled", reason="job_ended", delivered_tokens=0)
        _ = end_attempt(session, job_id, end, now_us=now_us)


def rate_of(price: Price) -> Rate:
    """A card's price as the ledger's pricing takes it."""
    return Rate(
        input_umlx_per_million=price.input_umlx_per_million,
        cached_input_umlx_per_million=price.cached_input_umlx_per_million,
        output_umlx_per_million=price.output_umlx_per_million,
        minimum_umlx=price.minimum_umlx,
    )


def _money(session: Session, job: Job, charged_umlx: int, *, fee_ppm: int) -> tuple[Command, ...]:
    """What the ledger is told: the hold captured for owners and fee, or void."""
    hold_id = UUID(job.hold_id)
    if charged_umlx == 0:
        void_id = settlement_id(job.id, JOB_WIDE_FENCE, "void")
        return (VoidHold(id=void_id, reference=job.id, hold_id=hold_id),)
    owners_umlx, fee_umlx = split_charge(charged_umlx, fee_ppm)
    pays = (*_owners_shares(session, job, owners_umlx), (FEE, fee_umlx))
    capture_id = settlement_id(job.id, JOB_WIDE_FENCE, "capture")
    return (Capture(id=capture_id, reference=job.id, hold_id=hold_id, pays=pays),)


def _owners_shares(session: Session, job: Job, owners_umlx: int) -> list[tuple[str, int]]:
    """Split by delivered tokens, exactly, by largest remainder.

    An answer without a token (the model ended at once) is paid to its last attempt: the prompt
    was read.
    """
    session.flush()
    rows = session.execute(
        select(Attempt, Account)
        .join(Node, Node.id == Attempt.node_id)
        .join(Account, Account.id == Node.account_id)
        .where(Attempt.job_id == job.id)
        .order_by(Attempt.fence)
    ).all()
    if not rows:
        raise SettlementError(f"{job.id} has a charge and no attempt")
    paid = [row for row in rows if row[0].delivered_tokens > 0] or rows[-1:]
    weights = {f"{attempt.fence:09}": attempt.delivered_tokens for attempt, _ in paid}
    parts = split_shares(owners_umlx, weights if any(weights.values()) else dict.fromkeys(weights, 1))
    shares: list[tuple[str, int]] = []
    for attempt, owner in paid:
        attempt.share_umlx = parts[f"{attempt.fence:09}"]
        shares.append((owner.ledger_account, attempt.share_umlx))
    return shares


def _drop_payloads(
    session: Session, job: Job, result: bytes | None, payloads: PayloadBox, *, expires_us: int
) -> None:
    session.execute(delete(JobPayload).where(JobPayload.job_id == job.id))
    if result is not None:
        wrapped, ciphertext = payloads.seal(result, job_id=job.id, part="result")
        session.add(
            JobPayload(
                job_id=job.id,
                part="result",
                wrapped_key=wrapped,
                ciphertext=ciphertext,
                expires_us=expires_us,
            )
        )
