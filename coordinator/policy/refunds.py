"""Giving a job's charge back, wholly or in part, by an operator.

Where it comes from is `ledger.policy.plan_refund`'s to say: each owner's held-back pay of that job,
then the owner, then the treasury; nobody goes below zero. All legs of a refund are one transaction
and carry ids derived from job and key, so a refund that is asked for again moves nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.db import Database
from coordinator.jobs.models import Attempt, Job
from coordinator.policy.held import share_id
from coordinator.policy.models import HeldPayRow
from ledger import book, models, statements
from ledger.commands import TREASURY, Applied, Refund, settlement_id
from ledger.policy import PaidShare, plan_refund

TRIES_MAX: Final = 3


@dataclass(frozen=True)
class RefundWanted:
    """What is asked for. `amount_umlx` None means all that is left of the charge.

    `key` is the asker's own for this refund; the same one again gets the first answer.
    """

    job_id: str
    amount_umlx: int | None
    reason: str
    key: str


@dataclass(frozen=True)
class Refunded:
    """What was given back, by account. `owed_umlx` is what no account could give."""

    job_id: str
    legs: tuple[tuple[str, int], ...]
    owed_umlx: int
    is_replay: bool

    @property
    def refunded_umlx(self) -> int:
        """What the payer got."""
        return sum(amount for _, amount in self.legs)


class _ChangedError(Exception):
    """An account had less than it had when the refund was planned."""


def refund(database: Database, wanted: RefundWanted) -> Refunded:
    """Give back. Blocking.

    Raises `ApiError`: 404 for an unknown job; 400 for more than is left of the charge; 409 for a
    job that was not charged, for a key that was used for another refund, and if nobody who would
    have to give anything has anything.
    """
    for _ in range(TRIES_MAX):
        try:
            with database.write() as session:
                return _refund_in(session, wanted, database.now_us(session))
        except _ChangedError:
            continue
    raise errors.conflict("accounts_busy", "The accounts to refund from change too fast. Try again.")


def _refund_in(session: Session, wanted: RefundWanted, now_us: int) -> Refunded:
    job = session.get(Job, wanted.job_id, with_for_update=True)
    if job is None:
        raise errors.not_found("job", wanted.job_id)
    done = _done_before(session, wanted)
    if done is not None:
        return done
    charge = _captured(session, job)
    left_umlx = charge.captured_umlx - charge.refunded_umlx
    amount_umlx = left_umlx if wanted.amount_umlx is None else wanted.amount_umlx
    if not 0 < amount_umlx <= left_umlx:
        raise errors.invalid_value("amount_umlx", f"must be at most {left_umlx}, what is left of the charge")
    held = _held_rows(session, job.id)
    plan = plan_refund(
        amount_umlx,
        charge_umlx=charge.captured_umlx,
        refunded_umlx=charge.refunded_umlx,
        shares=_shares(session, job.id, held),
        treasury_available_umlx=_available_umlx(session, TREASURY),
    )
    if not plan.legs:
        raise errors.conflict("nothing_to_refund_from", "Neither the owners nor the treasury have anything.")
    for account_id, part in plan.legs:
        kind, _, owner = account_id.partition(":")
        if kind == "escrow":
            _take_from_held(session, held, owner, part)
    session.flush()
    commands = [_command(wanted, job, amount_umlx, leg, pay) for leg, pay in enumerate(plan.legs)]
    for outcome in book.apply(session.connection(), commands, now_us=now_us):
        if not isinstance(outcome, Applied):
            raise _ChangedError
    return Refunded(job.id, plan.legs, plan.owed_umlx, is_replay=False)


def _command(wanted: RefundWanted, job: Job, amount_umlx: int, leg: int, pay: tuple[str, int]) -> Refund:
    return Refund(
        id=_leg_id(wanted, leg),
        reference=f"refund:{job.id}:{amount_umlx}:{_short(wanted.key)}:{wanted.reason}",
        hold_id=UUID(job.hold_id),
        source=pay[0],
        amount_umlx=pay[1],
    )


def _short(key: str) -> str:
    """The key's mark in the journal, which is for ever: it tells one refund of a job from another."""
    return hashlib.sha256(key.encode("utf-8")).hexdigest()[:16]


def _leg_id(wanted: RefundWanted, leg: int) -> UUID:
    return settlement_id(wanted.job_id, 0, f"refund {leg} {wanted.key}")


def _done_before(session: Session, wanted: RefundWanted) -> Refunded | None:
    """The refund that the same key made before. Raises 409 if it was another one."""
    journal = models.journal
    reference = session.execute(
        select(journal.c.reference).where(journal.c.id == _leg_id(wanted, 0))
    ).scalar_one_or_none()
    if reference is None:
        return None
    _, _, asked, _, reason = reference.split(":", 4)
    if reason != wanted.reason or wanted.amount_umlx not in (None, int(asked)):
        raise errors.idempotency_key_reused()
    rows = session.execute(
        select(journal.c.body)
        .where(journal.c.reference == reference, journal.c.result == "posted")
        .order_by(journal.c.seq)
    )
    legs = tuple(_leg_of(row.body) for row in rows)
    owed_umlx = int(asked) - sum(amount for _, amount in legs)
    return Refunded(wanted.job_id, legs, owed_umlx, is_replay=True)


def _leg_of(body: str) -> tuple[str, int]:
    fields = json.loads(body)
    return str(fields["source"]), int(fields["amount_umlx"])


@dataclass(frozen=True)
class _Captured:
    captured_umlx: int
    refunded_umlx: int


def _captured(session: Session, job: Job) -> _Captured:
    """What was charged and given back. Raises 409 if nothing was charged."""
    holds = models.holds
    row = None
    if job.hold_id is not None:
        row = session.execute(
            select(holds.c.captured_umlx, holds.c.refunded_umlx).where(holds.c.id == UUID(job.hold_id))
        ).one_or_none()
    if row is None or row.captured_umlx == 0:
        raise errors.conflict("job_not_charged", f"{job.id} was not charged; there is nothing to give back.")
    return _Captured(row.captured_umlx, row.refunded_umlx)


def _held_rows(session: Session, job_id: str) -> Sequence[HeldPayRow]:
    """Shares of the job's charge that still lie in escrow."""
    fences = session.execute(select(Attempt.fence, Attempt.node_id).where(Attempt.job_id == job_id))
    ids = [share_id(job_id, fence, node_id) for fence, node_id in fences]
    return session.scalars(
        select(HeldPayRow)
        .where(HeldPayRow.id.in_(ids), HeldPayRow.released_us.is_(None), HeldPayRow.forfeited_us.is_(None))
        .order_by(HeldPayRow.id)
        .with_for_update()
    ).all()


def _shares(session: Session, job_id: str, held: Sequence[HeldPayRow]) -> list[PaidShare]:
    """Each owner's share of the charge, with what there is to take it back from."""
    rows = session.execute(
        select(Attempt.owner_account_id, Attempt.share_umlx)
        .where(Attempt.job_id == job_id, Attempt.share_umlx > 0)
        .order_by(Attempt.fence)
    )
    by_owner: dict[str, int] = {}
    for owner, amount in rows:
        by_owner[owner] = by_owner.get(owner, 0) + amount
    return [
        PaidShare(
            owner=owner,
            share_umlx=share,
            escrow_available_umlx=sum(row.amount_umlx for row in held if row.owner_account_id == owner),
            available_umlx=_available_umlx(session, f"user:{owner}"),
        )
        for owner, share in by_owner.items()
    ]


def _take_from_held(session: Session, held: Sequence[HeldPayRow], owner: str, amount_umlx: int) -> None:
    """Keep the rows equal to what is left in the escrow account."""
    for row in held:
        if row.owner_account_id != owner:
            continue
        taken = min(amount_umlx, row.amount_umlx)
        amount_umlx -= taken
        if taken == row.amount_umlx:
            session.delete(row)
        else:
            row.amount_umlx -= taken


def _available_umlx(session: Session, account_id: str) -> int:
    balance = statements.balance(session.connection(), account_id)
    return balance.available_umlx if balance is not None else 0
