"""Ends: one transaction marks attempt and job, moves the money and removes the payload.

What is charged and who is paid is decided by `ledger.rewards.settle` alone, from what the
coordinator counted itself; here its answer becomes rows and ledger commands. Their ids are derived
from job and purpose, so an end that is tried again pays nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast
from uuid import UUID

from sqlalchemy import case, delete, select, update
from sqlalchemy.orm import Session

from coordinator.commits import OnRefusal, Written
from coordinator.db import database_now_us
from coordinator.jobs.facts import FAILED_CHECKS, NOT_PROVEN, facts_of, received_of
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
from coordinator.policy import held
from coordinator.policy.models import HeldPayRow
from ledger.commands import Capture, Command, Transfer, VoidHold, settlement_id
from ledger.pricing import Rate
from ledger.rewards import AVAILABILITY_POOL, TREASURY_ACCOUNT, Payment, Settlement, TrustChange, settle
from node_agent.protocol.cards import Price

JOB_WIDE_FENCE = 0  # ledger commands of the job as a whole, whatever its attempts
UNPRICED: Final = Rate(0, 0, 0, 0)


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
    if not end.is_proven and end.reason in FAILED_CHECKS:
        attempt.check_result = "failed"
    elif not end.is_proven:
        attempt.zero_reason = NOT_PROVEN
    attempt.node_signature = end.node_signature
    attempt.accepted_us = attempt.accepted_us or end.accepted_us
    attempt.first_token_us = end.first_token_us
    if attempt.slot_id is not None:
        session.execute(
            update(Slot).where(Slot.id == attempt.slot_id, Slot.live > 0).values(live=Slot.live - 1)
        )
    return attempt


def requeue(session: Session, job_id: str, end: AttemptEnd) -> bool:
    """End the attempt and put the job back into the queue. False if the job had ended, or was
    queued already and has a newer attempt: a write whose answer was lost is tried again."""
    now_us = database_now_us(session)
    job = session.get(Job, job_id, with_for_update=True)
    if job is None or job.state != "running" or job.fence != end.fence:
        return False
    end_attempt(session, job_id, end, now_us=now_us)
    record_job_transition(session, job, "queued", fence=end.fence, reason=end.reason, now_us=now_us)
    return True


def end_job(
    session: Session,
    job_id: str,
    end: JobEnd,
    *,
    price: Price | None,
    payloads: PayloadBox,
    result: bytes | None,
    result_keep_us: int,
) -> Written[Settled]:
    """End a job once and for all: states, charge, payload, in the caller's transaction.

    The ledger commands that are returned must commit with it. Ending an ended job changes nothing
    and tells what it came to. `price` None: the card's revision is known to nobody any more, so
    nothing is charged and nothing paid. Raises `SettlementError`, `InvalidTransitionError`.
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
    if end.state == "cancelled":
        record_job_transition(session, job, "cancelling", fence=fence, reason=None, now_us=now_us)
    reason = end.error_code or end.finish_reason
    record_job_transition(session, job, end.state, fence=fence, reason=reason, now_us=now_us)
    job.finish_reason, job.error_code = end.finish_reason, end.error_code
    job.output_tokens, job.output_digest = end.output_tokens, end.output_digest
    job.ended_us = now_us
    _drop_payloads(session, job, result, payloads, expires_us=now_us + result_keep_us)
    attempts = _ended_attempts(session, job, end)
    try:
        settlement = settle(
            facts_of(job, attempts, rate=UNPRICED if price is None else rate_of(price), late=end.late)
        )
    except ValueError as error:
        raise SettlementError(f"{job_id}: {error}") from error
    job.charge_umlx = settlement.charge_umlx
    _note_pay(attempts, settlement)
    return _Books(session, job, attempts, settlement, now_us).written()


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


def _ended_attempts(session: Session, job: Job, end: JobEnd) -> Sequence[Attempt]:
    """The job's attempts, first to last, with what reached the submitter of each."""
    session.flush()
    attempts = session.scalars(select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.fence)).all()
    counts = received_of(attempts, end.received_tokens, end.output_tokens)
    for attempt, received in zip(attempts, counts, strict=True):
        attempt.received_tokens = received
    return attempts


def _note_pay(attempts: Sequence[Attempt], settlement: Settlement) -> None:
    """Write down what each attempt comes to: its share, its second reading, or why there is none.

    One reason has room: the share's if it is nothing, else the second reading's.
    """
    by_fence = {attempt.fence: attempt for attempt in attempts}
    for payment in (*settlement.shares, *settlement.extra):
        attempt = by_fence[payment.fence]
        is_reading = payment.source == AVAILABILITY_POOL
        if is_reading:
            attempt.reading_umlx += payment.amount_umlx
        else:
            attempt.share_umlx += payment.amount_umlx
        if payment.amount_umlx == 0:
            attempt.zero_reason = attempt.zero_reason or payment.reason


class _Books:
    """One settlement as ledger commands, with the rows that go with them."""

    def __init__(
        self, session: Session, job: Job, attempts: Sequence[Attempt], settlement: Settlement, now_us: int
    ) -> None:
        self._session: Final = session
        self._job: Final = job
        self._attempts: Final = {attempt.fence: attempt for attempt in attempts}
        self._settlement: Final = settlement
        self._now_us: Final = now_us
        self._commands: Final[list[Command]] = []
        self._refusable: Final[dict[UUID, OnRefusal]] = {}

    def written(self) -> Written[Settled]:
        """All that moves, in the order in which it must be applied."""
        if self._job.hold_id is not None:
            self._commands.append(self._end_of_hold(UUID(self._job.hold_id)))
        for payment in self._settlement.shares:
            _ = self._hold_back(payment, held.share_id(self._job.id, payment.fence, payment.node_id))
        for change in self._settlement.trust:
            self._change_trust(change)
        for payment in self._settlement.extra_pays():
            self._pay_extra(payment)
        return Written(Settled(self._settlement.charge_umlx), tuple(self._commands), self._refusable)

    def _end_of_hold(self, hold_id: UUID) -> Command:
        job_id, pays = self._job.id, self._settlement.capture_pays()
        if not pays:
            void_id = settlement_id(job_id, JOB_WIDE_FENCE, "void")
            return VoidHold(id=void_id, reference=job_id, hold_id=hold_id)
        capture_id = settlement_id(job_id, JOB_WIDE_FENCE, "capture")
        return Capture(id=capture_id, reference=job_id, hold_id=hold_id, pays=pays)

    def _hold_back(self, payment: Payment, row_id: str) -> HeldPayRow | None:
        """Note pay that goes into escrow; None if it goes to the owner at once or is none."""
        if payment.amount_umlx == 0 or not payment.account_id.startswith("escrow:"):
            return None
        attempt = self._attempts[payment.fence]
        return held.hold_pay(
            self._session,
            row_id=row_id,
            owner_account_id=payment.owner,
            node_id=payment.node_id,
            job_id=self._job.id,
            amount_umlx=payment.amount_umlx,
            earned_us=self._now_us,
            is_suspected=attempt.check_result == "suspected",
            card=held.rate_card(self._session, self._job.rate_card_id),
        )

    def _change_trust(self, change: TrustChange) -> None:
        if change.effect == "none":
            return
        attempt = self._attempts[change.fence]
        lower = case((Node.checks_passed > 0, Node.checks_passed - 1), else_=0)
        _ = self._session.execute(
            update(Node)
            .where(Node.id == attempt.node_id)
            .values(checks_passed=0 if change.effect == "reset" else lower)
        )
        if change.slashes:
            taken = held.forfeit(
                self._session,
                node_id=attempt.node_id,
                owner_account_id=attempt.owner_account_id,
                job_id=self._job.id,
                fence=change.fence,
                now_us=self._now_us,
            )
            if taken is not None:
                self._commands.append(taken)

    def _pay_extra(self, payment: Payment) -> None:
        """A second reading or the network's own fault. Paid now or never: what the pool or the
        treasury does not have is told to the owner as the reason of a zero.
        """
        kind: held.ExtraKind = "fault" if payment.source == TREASURY_ACCOUNT else "reading"
        command = Transfer(
            id=settlement_id(self._job.id, payment.fence, f"{kind} {payment.node_id}"),
            reference=f"{kind}:{self._job.id}:{payment.fence}:{payment.node_id}",
            source=payment.source,
            target=payment.account_id,
            amount_umlx=payment.amount_umlx,
        )
        attempt = self._attempts[payment.fence]
        row = self._hold_back(payment, held.transfer_row_id(command.reference, command.id))

        def refused(session: Session) -> None:
            if kind == "reading":
                attempt.reading_umlx -= payment.amount_umlx
            else:
                attempt.share_umlx -= payment.amount_umlx
            attempt.zero_reason = "treasury_empty" if kind == "fault" else "pool_empty"
            if row is not None:
                session.delete(row)

        self._commands.append(command)
        self._refusable[command.id] = refused


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
