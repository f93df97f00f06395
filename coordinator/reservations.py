"""Seats taken in the database: many in one transaction, under the dispatcher's fenced lease.

Blocking; the dispatcher calls it from threads, one call at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import structlog
from sqlalchemy import delete, exists, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from coordinator.commits import GroupCommit, Written
from coordinator.db import database_now_us
from coordinator.ids import new_id
from coordinator.jobs.models import Attempt, Job, JobEvent
from coordinator.nodes.models import DispatcherLease, Node, Slot
from coordinator.placement.types import Placed, SlotPlan
from coordinator.policy.held import Standing, standings
from coordinator.settlement import record_job_transition
from node_agent.protocol.cards import ModelCard

log = structlog.get_logger()

LEASE_NAME: Final = "dispatcher"
LEASE_SECONDS: Final = 5.0  # a silent dispatcher is replaced after this


@dataclass(frozen=True)
class Wanted:
    """A job and the seat that was chosen for it."""

    job_id: str
    card: ModelCard
    choice: Placed


@dataclass(frozen=True)
class Reservation:
    """A seat taken for one attempt."""

    fence: int
    slot_id: str


@dataclass(frozen=True)
class AcceptedOffer:
    """A node said yes; `accepted_us` is when it was heard."""

    job_id: str
    fence: int
    accepted_us: int | None


@final
class Reservations:
    """The writer of one dispatcher. A dispatcher that lost its lease reserves nothing."""

    def __init__(self, commits: GroupCommit) -> None:
        self._commits: Final = commits
        self._holder: Final = new_id("disp")
        self._epoch = 0

    def reserve(self, wanted: Sequence[Wanted]) -> list[Reservation | None]:
        """Take the seats, each or None where job, seat or lease are no longer what was decided from.

        One write for all. If a constraint refuses it, each has its own.
        """
        if len(wanted) == 1:
            return [self._reserve_one(wanted[0])]
        try:
            return self._commits.write(lambda session: Written(self._reserve_in(session, wanted)))
        except IntegrityError:
            return [self._reserve_one(one) for one in wanted]

    def _reserve_one(self, wanted: Wanted) -> Reservation | None:
        try:
            (found,) = self._commits.write(lambda session: Written(self._reserve_in(session, [wanted])))
        except (_ChangedError, IntegrityError) as error:
            log.info("reservation_lost", job_id=wanted.job_id, error=type(error).__name__)
            return None
        return found

    def _reserve_in(self, session: Session, wanted: Sequence[Wanted]) -> list[Reservation | None]:
        now_us = database_now_us(session)
        if not self._hold_lease(session, now_us):
            return [None for _ in wanted]
        ids = [one.job_id for one in wanted]
        rows = session.scalars(select(Job).where(Job.id.in_(ids)).order_by(Job.id).with_for_update())
        jobs = {job.id: job for job in rows}
        found = _standings(session, jobs, wanted, now_us)
        return [self._take(session, jobs.get(one.job_id), one, found, now_us) for one in wanted]

    def _take(
        self,
        session: Session,
        job: Job | None,
        wanted: Wanted,
        standings: Mapping[str, Standing],
        now_us: int,
    ) -> Reservation | None:
        """One seat. Raises `_ChangedError` where a slot that was to be made cannot be."""
        if job is None or job.state != "queued" or wanted.job_id not in standings:
            return None
        standing = standings[wanted.job_id]
        choice = wanted.choice
        slot_id = choice.slot_id
        if slot_id is None:
            if choice.new_slot is None:
                raise _ChangedError
            slot_id = _make_slot(session, choice.node_id, wanted.card, choice.new_slot, now_us)
        # One model of a host is at work at a time.
        other = aliased(Slot)
        others_at_work = exists().where(other.node_id == choice.node_id, other.id != slot_id, other.live > 0)
        seat = session.execute(
            update(Slot)
            .where(Slot.id == slot_id, Slot.live < Slot.width, ~others_at_work)
            .values(live=Slot.live + 1)
            .returning(Slot.id)
        ).first()
        if seat is None:
            return None
        job.fence += 1
        record_job_transition(session, job, "running", fence=job.fence, reason=None, now_us=now_us)
        session.add(
            Attempt(
                id=new_id("att"),
                job_id=job.id,
                fence=job.fence,
                node_id=choice.node_id,
                slot_id=slot_id,
                owner_account_id=standing.owner_account_id,
                is_held=standing.is_held,
                is_linked=standing.is_linked,
                state="offered",
                forecast_ms=math.ceil(choice.forecast.total_seconds * 1000),
                offered_us=now_us,
            )
        )
        return Reservation(job.fence, slot_id)

    def make_slot(self, node_id: str, card: ModelCard, plan: SlotPlan) -> bool:
        """Make a slot for what the node has loaded already; whether it could be made."""

        def write(session: Session) -> Written[bool]:
            now_us = database_now_us(session)
            if not self._hold_lease(session, now_us):
                return Written(False)
            _ = _make_slot(session, node_id, card, plan, now_us)
            return Written(True)

        try:
            return self._commits.write(write)
        except (_ChangedError, IntegrityError) as error:
            log.info("slot_not_made", node_id=node_id, card=card.id, error=type(error).__name__)
            return False

    def _hold_lease(self, session: Session, now_us: int) -> bool:
        """Renew or take the dispatcher's lease; False while another holds it."""
        expires_us = now_us + int(LEASE_SECONDS * 1e6)
        lease = session.get(DispatcherLease, LEASE_NAME, with_for_update=True)
        if lease is None:
            lease = DispatcherLease(name=LEASE_NAME, holder="", epoch=0, expires_us=0)
            session.add(lease)
        is_ours = lease.holder == self._holder and lease.epoch == self._epoch
        # One that ends later than any can is of a clock that has been set back since: nobody's.
        if not is_ours and now_us < lease.expires_us <= expires_us and lease.holder:
            log.info("lease_held_by_another")
            return False
        if not is_ours:
            lease.holder, lease.epoch = self._holder, lease.epoch + 1
            self._epoch = lease.epoch
        lease.expires_us = expires_us
        return True

    def release_lease(self) -> None:
        """Give the lease up, so that a successor need not wait for its end."""
        self._commits.write(self._release)

    def _release(self, session: Session) -> Written[None]:
        _ = session.execute(
            update(DispatcherLease)
            .where(
                DispatcherLease.name == LEASE_NAME,
                DispatcherLease.holder == self._holder,
                DispatcherLease.epoch == self._epoch,
            )
            .values(expires_us=0)
        )
        return Written(None)

    def record_accepts(self, accepts: Sequence[AcceptedOffer]) -> None:
        """Note that nodes took their offers, unless an attempt has moved on meanwhile."""

        def write(session: Session) -> Written[None]:
            now_us = database_now_us(session)
            # Jobs before their attempts, as everybody locks them.
            ids = [accept.job_id for accept in accepts]
            _ = session.execute(
                select(Job.id).where(Job.id.in_(ids)).order_by(Job.id).with_for_update()
            ).all()
            for accept in accepts:
                _record_accept(session, accept, now_us)
            return Written(None)

        self._commits.write(write)


def _standings(
    session: Session, jobs: Mapping[str, Job], wanted: Sequence[Wanted], now_us: int
) -> dict[str, Standing]:
    """Whose each attempt will be and how it will be paid, by job; without jobs and nodes that are gone."""
    known = [one for one in wanted if one.job_id in jobs]
    found = standings(
        session,
        [(jobs[one.job_id].account_id, one.choice.node_id) for one in known],
        card_ids=[jobs[one.job_id].rate_card_id for one in known],
        now_us=now_us,
    )
    return {one.job_id: standing for one, standing in zip(known, found, strict=True) if standing}


def _record_accept(session: Session, accept: AcceptedOffer, now_us: int) -> None:
    hit = session.execute(
        update(Attempt)
        .where(
            Attempt.job_id == accept.job_id,
            Attempt.fence == accept.fence,
            Attempt.state == "offered",
        )
        .values(state="accepted", accepted_us=accept.accepted_us)
        .returning(Attempt.id)
    ).first()
    if hit is None:
        return
    session.add(
        JobEvent(
            job_id=accept.job_id,
            fence=accept.fence,
            from_state="offered",
            to_state="accepted",
            at_us=now_us,
        )
    )
    _ = session.execute(
        update(Job).where(Job.id == accept.job_id, Job.started_us.is_(None)).values(started_us=now_us)
    )


def _make_slot(session: Session, node_id: str, card: ModelCard, plan: SlotPlan, now_us: int) -> str:
    freed = 0
    for old_id in plan.evict_slot_ids:
        row = session.execute(
            delete(Slot).where(Slot.id == old_id, Slot.live == 0).returning(Slot.bytes)
        ).first()
        if row is None:
            raise _ChangedError
        freed += row[0]
    changed = session.execute(
        update(Node)
        .where(
            Node.id == node_id,
            Node.reserved_bytes - freed + plan.bytes <= Node.lent_bytes,
        )
        .values(reserved_bytes=Node.reserved_bytes - freed + plan.bytes)
        .returning(Node.id)
    ).first()
    if changed is None:
        raise _ChangedError
    slot = Slot(
        id=new_id("slot"),
        node_id=node_id,
        card_id=card.id,
        card_revision=card.revision,
        bytes=plan.bytes,
        width=plan.width,
        tokens_max=plan.tokens_max,
        created_us=now_us,
    )
    session.add(slot)
    session.flush()
    return slot.id


class _ChangedError(Exception):
    """The world is not what the decision was made from; decide again."""
