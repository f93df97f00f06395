"""Dispatch: decide in memory, reserve in the database, offer to the host.

One dispatcher at a time holds a fenced lease; its epoch is checked in every reservation, so that
one that lost its lease reserves nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from coordinator.db import Database, database_now_us
from coordinator.ids import new_id
from coordinator.jobs.models import Attempt, Job, JobEvent
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.models import DispatcherLease, Node, Slot
from coordinator.placement.match import match
from coordinator.placement.types import HostFacts, NotPlaced, Placed, SlotFacts
from coordinator.relay import LiveJob, Relay
from coordinator.settings import Settings
from coordinator.settlement import record_job_transition

log = structlog.get_logger()

LEASE_NAME: Final = "dispatcher"
LEASE_SECONDS: Final = 5.0  # a silent dispatcher is replaced after this
LOOK_SECONDS: Final = 1.0  # a lost wake-up costs at most this
QUEUE_LOOK_MAX: Final = 200
BUSY_PAUSE_SECONDS: Final = 2.0  # a node that said "busy" is asked again after this
OFFER_DECLINES_PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Reservation:
    """A seat taken for one attempt."""

    fence: int
    slot_id: str


class Dispatcher:
    """Places queued jobs. Runs on the event loop; its database work runs in threads."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        fleet: Fleet,
        relay: Relay,
        revive: Callable[[str], LiveJob | None],
    ) -> None:
        self._settings = settings
        self._database = database
        self._fleet = fleet
        self._relay = relay
        self._revive = revive
        self._wake = asyncio.Event()
        self._holder = new_id("disp")
        self._epoch = 0
        self._given_tokens: dict[str, int] = {}
        self._offers: set[asyncio.Task[None]] = set()
        self.last_look: dict[str, NotPlaced] = {}

    def wake(self) -> None:
        """Something changed: look at the queue soon."""
        self._wake.set()

    async def run(self) -> None:
        """Place jobs until cancelled."""
        while True:
            try:
                await asyncio.wait_for(self._wake.wait(), LOOK_SECONDS)
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._look()
            except Exception:
                log.exception("dispatch_failed")
                await asyncio.sleep(LOOK_SECONDS)

    # -- deciding --------------------------------------------------------------------------------

    async def _look(self) -> None:
        job_ids, slots = await run_in_threadpool(self._read_queue)
        taken: dict[str, int] = {}
        waiting: dict[str, NotPlaced] = {}
        for job_id in job_ids:
            live = self._relay.get(job_id) or await run_in_threadpool(self._revive, job_id)
            if live is None or live.attempt is not None or live.is_ending:
                continue
            if self._relay.get(job_id) is None:
                self._relay.add(live)
            hosts = self.hosts(slots, taken)
            choice = match(live.facts(time.monotonic()), hosts)
            if isinstance(choice, NotPlaced):
                waiting[job_id] = choice
                continue
            if await self._start(live, choice):
                if choice.slot_id is not None:
                    taken[choice.slot_id] = taken.get(choice.slot_id, 0) + 1
                else:
                    _, slots = await run_in_threadpool(self._read_queue)
                    taken = {}
        self.last_look = waiting

    def hosts(self, slots: Sequence[Slot], taken: dict[str, int]) -> list[HostFacts]:
        """The connected nodes as placement sees them; `taken` are seats taken in this round."""
        now = time.monotonic()
        by_node: dict[str, list[Slot]] = {}
        for slot in slots:
            by_node.setdefault(slot.node_id, []).append(slot)
        return [
            self._host(channel, by_node.get(channel.node_id, []), taken, now)
            for channel in self._fleet.channels.values()
        ]

    def _host(
        self, channel: Channel, slots: Sequence[Slot], taken: dict[str, int], now: float
    ) -> HostFacts:
        return HostFacts(
            node_id=channel.node_id,
            owner_id=channel.owner_id,
            hardware=channel.hardware,
            lent_bytes=channel.hardware.lent_bytes,
            is_online=not channel.is_closed,
            is_suspect=now - channel.heard_at > self._settings.node_suspect_seconds,
            mode=channel.mode,
            slots=tuple(
                SlotFacts(
                    slot_id=slot.id,
                    card_revision=slot.card_revision,
                    bytes=slot.bytes,
                    width=slot.width,
                    tokens_max=slot.tokens_max,
                    live=slot.live + taken.get(slot.id, 0),
                    is_warm=channel.is_warm(slot.card_revision),
                )
                for slot in slots
            ),
            given_tokens=self._given_tokens.get(channel.node_id, 0),
        )

    def _read_queue(self) -> tuple[list[str], list[Slot]]:
        with self._database.read() as session:
            jobs = session.scalars(
                select(Job.id)
                .where(Job.state == "queued")
                .order_by(Job.created_us, Job.id)
                .limit(QUEUE_LOOK_MAX)
            ).all()
            slots = session.scalars(select(Slot)).all()
            session.expunge_all()
            return list(jobs), list(slots)

    def judge(self, live: LiveJob) -> Placed | NotPlaced:
        """What placement would say now; used to refuse at once what no host could ever take."""
        with self._database.read() as session:
            slots = list(session.scalars(select(Slot)).all())
            session.expunge_all()
        return match(live.facts(time.monotonic()), self.hosts(slots, {}))

    # -- reserving and offering ------------------------------------------------------------------

    async def _start(self, live: LiveJob, choice: Placed) -> bool:
        reservation = await run_in_threadpool(self._reserve, live, choice)
        if reservation is None:
            return False
        if live.is_ending:
            return True  # its end, written after this reservation, ends the attempt too
        step = choice.forecast.prefill_seconds + 1 / choice.forecast.tokens_per_second
        deadline = max(
            self._settings.progress_floor_seconds, self._settings.progress_forecast_factor * step
        )
        self._given_tokens[choice.node_id] = (
            self._given_tokens.get(choice.node_id, 0) + live.work.max_tokens
        )
        attempt = self._relay.begin(
            live, fence=reservation.fence, node_id=choice.node_id, deadline_seconds=deadline
        )
        channel = self._fleet.get(choice.node_id)
        if channel is None or not channel.send(self._relay.offer_of(live, attempt)):
            self._relay.drop_attempt(live, "lost", "node_left", is_fault=False)
            return True
        task = asyncio.create_task(self._await_answer(live, reservation.fence, choice.node_id))
        self._offers.add(task)
        task.add_done_callback(self._offers.discard)
        return True

    async def _await_answer(self, live: LiveJob, fence: int, node_id: str) -> None:
        attempt = live.attempt
        if attempt is None or attempt.fence != fence:
            return
        try:
            declined = await asyncio.wait_for(
                asyncio.shield(attempt.answered), self._settings.offer_seconds_max
            )
        except TimeoutError:
            self._relay.drop_attempt(live, "lost", "offer_unanswered", is_fault=True)
            return
        if live.attempt is not attempt or live.is_ending:
            return
        if declined is not None:
            pause = BUSY_PAUSE_SECONDS if declined == "busy" else OFFER_DECLINES_PAUSE_SECONDS
            live.excluded[node_id] = time.monotonic() + pause
            log.info("offer_declined", job_id=live.job_id, node_id=node_id, reason=declined)
            self._relay.drop_attempt(live, "declined", declined, is_fault=False)
            return
        accepted_us = attempt.accepted_us
        try:
            await run_in_threadpool(self._record_accept, live.job_id, fence, accepted_us)
        except Exception as error:  # noqa: BLE001
            # The end's transaction writes the same facts; only the view of the moment is poorer.
            log.warning("accept_not_recorded", job_id=live.job_id, error=type(error).__name__)

    def _record_accept(self, job_id: str, fence: int, accepted_us: int | None) -> None:
        with self._database.write() as session:
            now_us = database_now_us(session)
            hit = session.execute(
                update(Attempt)
                .where(Attempt.job_id == job_id, Attempt.fence == fence, Attempt.state == "offered")
                .values(state="accepted", accepted_us=accepted_us)
                .returning(Attempt.id)
            ).first()
            if hit is not None:
                session.add(
                    JobEvent(
                        job_id=job_id,
                        fence=fence,
                        from_state="offered",
                        to_state="accepted",
                        at_us=now_us,
                    )
                )
                _ = session.execute(
                    update(Job)
                    .where(Job.id == job_id, Job.started_us.is_(None))
                    .values(started_us=now_us)
                )

    def _reserve(self, live: LiveJob, choice: Placed) -> Reservation | None:
        """Take the seat, or None if job, seat or lease are no longer what was decided from."""
        try:
            with self._database.write() as session:
                return self._reserve_in(session, live, choice)
        except (_ChangedError, IntegrityError) as error:
            log.info("reservation_lost", job_id=live.job_id, error=type(error).__name__)
            return None

    def _reserve_in(self, session: Session, live: LiveJob, choice: Placed) -> Reservation:
        now_us = database_now_us(session)
        self._hold_lease(session, now_us)
        job = session.get(Job, live.job_id, with_for_update=True)
        if job is None or job.state != "queued":
            raise _ChangedError
        slot_id = choice.slot_id
        if slot_id is None:
            slot_id = self._make_slot(session, live, choice, now_us)
        seat = session.execute(
            update(Slot)
            .where(Slot.id == slot_id, Slot.live < Slot.width)
            .values(live=Slot.live + 1)
            .returning(Slot.id)
        ).first()
        if seat is None:
            raise _ChangedError
        job.fence += 1
        record_job_transition(session, job, "running", fence=job.fence, reason=None, now_us=now_us)
        session.add(
            Attempt(
                id=new_id("att"),
                job_id=job.id,
                fence=job.fence,
                node_id=choice.node_id,
                slot_id=slot_id,
                state="offered",
                forecast_ms=math.ceil(choice.forecast.total_seconds * 1000),
                offered_us=now_us,
            )
        )
        return Reservation(job.fence, slot_id)

    def _make_slot(self, session: Session, live: LiveJob, choice: Placed, now_us: int) -> str:
        plan = choice.new_slot
        if plan is None:
            raise _ChangedError
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
                Node.id == choice.node_id,
                Node.reserved_bytes - freed + plan.bytes <= Node.lent_bytes,
            )
            .values(reserved_bytes=Node.reserved_bytes - freed + plan.bytes)
            .returning(Node.id)
        ).first()
        if changed is None:
            raise _ChangedError
        slot = Slot(
            id=new_id("slot"),
            node_id=choice.node_id,
            card_id=live.card.id,
            card_revision=live.card.revision,
            bytes=plan.bytes,
            width=plan.width,
            tokens_max=plan.tokens_max,
            created_us=now_us,
        )
        session.add(slot)
        session.flush()
        return slot.id

    def _hold_lease(self, session: Session, now_us: int) -> None:
        """Renew or take the dispatcher's lease. Raises `_ChangedError` while another holds it."""
        expires_us = now_us + int(LEASE_SECONDS * 1e6)
        lease = session.get(DispatcherLease, LEASE_NAME, with_for_update=True)
        if lease is None:
            lease = DispatcherLease(name=LEASE_NAME, holder="", epoch=0, expires_us=0)
            session.add(lease)
        is_ours = lease.holder == self._holder and lease.epoch == self._epoch
        if not is_ours and lease.expires_us > now_us and lease.holder:
            raise _ChangedError
        if not is_ours:
            lease.holder, lease.epoch = self._holder, lease.epoch + 1
            self._epoch = lease.epoch
        lease.expires_us = expires_us


class _ChangedError(Exception):
    """The world is not what the decision was made from; decide again."""

