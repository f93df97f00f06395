"""Dispatch: decide in memory, reserve in the database, offer to the host.

One dispatcher at a time holds a fenced lease; its epoch is checked in every reservation, so that
one that lost its lease reserves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Sequence
from typing import Any, Final

import structlog
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from coordinator import clock
from coordinator.commits import GroupCommit
from coordinator.db import Database
from coordinator.endings import Endings
from coordinator.jobs.models import Job
from coordinator.live import LiveAttempt, LiveJob, lease_seconds
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.models import Slot
from coordinator.placement.fleet import Fleet as HostTable
from coordinator.placement.match import decide, match
from coordinator.placement.queue import Entry
from coordinator.placement.types import HostFacts, JobFacts, NotPlaced, Placed, SlotFacts
from coordinator.relay import Relay
from coordinator.reservations import AcceptedOffer, Reservation, Reservations, Wanted
from coordinator.settings import Settings
from node_agent.protocol import messages as wire

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0  # a lost wake-up costs at most this
QUEUE_LOOK_MAX: Final = 200
GATHER_SECONDS_MAX: Final = 0.02  # a job waits so long for others that are just being queued
BUSY_PAUSE_SECONDS: Final = 2.0  # a node that said "busy" is asked again after this
OFFER_DECLINES_PAUSE_SECONDS: Final = 60.0
ACCEPT_GATHER_SECONDS: Final = 0.1  # how far the recorded state may lag behind an accept


class Dispatcher:
    """Places queued jobs. Runs on the event loop; its database work runs in threads."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        fleet: Fleet,
        relay: Relay,
        endings: Endings,
        commits: GroupCommit,
        take_up: Callable[[str], Awaitable[LiveJob | None]],
    ) -> None:
        self._settings = settings
        self._database = database
        self._fleet = fleet
        self._relay = relay
        self._endings = endings
        self._take_up = take_up
        self._is_stopped = False
        self._wake = asyncio.Event()
        self._expected = 0
        self._none_expected = asyncio.Event()
        self._reservations = Reservations(commits)
        self._accepts: list[AcceptedOffer] = []
        self._given_tokens: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.last_look: dict[str, NotPlaced] = {}
        # Each is called on the loop with every decision, and with the hosts that it was made from.
        self.observers: list[Callable[[Entry, HostTable], None]] = []

    def wake(self) -> None:
        """Something changed: look at the queue soon."""
        self._wake.set()

    @contextlib.contextmanager
    def expecting(self) -> Generator[None]:
        """A job is being queued while the block runs.

        A look that is due waits for it, but not long: requests that came together are then placed
        together, and their host reads their prompts together. A lone request waits for nobody.
        """
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1
            if not self._expected:
                self._none_expected.set()

    async def run(self) -> None:
        """Place jobs until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    _ = await self._wake.wait()
            if self._expected:
                self._none_expected.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_SECONDS_MAX):
                        _ = await self._none_expected.wait()
            self._wake.clear()
            try:
                await self._look()
            except Exception:
                log.exception("dispatch_failed")
                await asyncio.sleep(LOOK_SECONDS)

    def release(self) -> None:
        """Give up the lease, so that a successor need not wait for its end. Blocking."""
        self._reservations.release_lease()

    # -- deciding --------------------------------------------------------------------------------

    def stop_offers(self) -> None:
        """Place nothing any more; what runs goes on."""
        self._is_stopped = True

    async def _look(self) -> None:
        job_ids, slots = await run_in_threadpool(self._read_queue)
        taken: dict[str, int] = {}
        waiting: dict[str, NotPlaced] = {}
        chosen: list[tuple[LiveJob, Placed]] = []
        for job_id, created_us in job_ids:
            live = await self._placeable(job_id, created_us)
            if live is None or self._is_stopped:
                continue
            apart = {choice.node_id for other, choice in chosen if other.is_kept_apart}
            choice = self._decide(live.facts(clock.monotonic()), self.hosts(slots, taken, apart))
            if isinstance(choice, NotPlaced):
                waiting[job_id] = choice
                continue
            chosen.append((live, choice))
            self._give(choice, live.work.max_tokens)
            if choice.slot_id is not None:
                taken[choice.slot_id] = taken.get(choice.slot_id, 0) + 1
                continue
            # A slot that is made, others being evicted, changes what all later ones are decided from.
            await self._start_all(chosen)
            chosen, taken = [], {}
            _, slots = await run_in_threadpool(self._read_queue)
        await self._start_all(chosen)
        self.last_look = waiting

    def _decide(self, job: JobFacts, hosts: Sequence[HostFacts]) -> Placed | NotPlaced:
        table = HostTable()
        for host in hosts:
            _ = table.put(host)
        decision = decide(job, table)
        self._tell_observers(Entry(job, decision, decision.slot), table)
        return decision.choice

    def _tell_observers(self, entry: Entry, hosts: HostTable) -> None:
        for observer in self.observers:
            try:
                observer(entry, hosts)
            except Exception:
                log.exception("observer_failed", job_id=entry.job.job_id)

    async def _placeable(self, job_id: str, created_us: int) -> LiveJob | None:
        live = await self._take_up(job_id)
        if live is None or live.attempt is not None or live.is_ending or live.is_being_queued:
            return None
        if live.is_orphaned and not live.token_ids and not live.stream.readers:
            # Its submitter may have been told that nothing was taken; it runs when somebody asks.
            return None
        if live.is_whole:
            self._endings.end_whole(live)
            return None
        waited_seconds = (clock.wall_us() - created_us) / 1e6
        if waited_seconds > self._settings.queue_seconds_max:
            self._relay.give_up(live, waited_seconds)
            return None
        return live

    def _give(self, choice: Placed, tokens: int) -> None:
        self._given_tokens[choice.node_id] = self._given_tokens.get(choice.node_id, 0) + tokens

    def hosts(
        self, slots: Sequence[Slot], taken: dict[str, int], apart: Collection[str] = ()
    ) -> list[HostFacts]:
        """The connected nodes as placement sees them.

        `taken` are seats taken in this round, `apart` nodes on which a job was put that shares none.
        """
        now = clock.monotonic()
        apart = {*apart, *self._relay.jobs.nodes_kept_apart()}
        by_node: dict[str, list[Slot]] = {}
        for slot in slots:
            by_node.setdefault(slot.node_id, []).append(slot)
        return [
            self._host(channel, by_node.get(channel.node_id, []), taken, apart, now)
            for channel in self._fleet.channels.values()
        ]

    def _host(
        self,
        channel: Channel,
        slots: Sequence[Slot],
        taken: dict[str, int],
        apart: Collection[str],
        now: float,
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
            standing=self._endings.health.standing(channel.device),
            is_kept_apart=channel.node_id in apart,
        )

    def _read_queue(self) -> tuple[list[tuple[str, int]], list[Slot]]:
        """The oldest queued jobs, each with when it came, and all slots."""
        with self._database.read() as session:
            jobs = session.execute(
                select(Job.id, Job.created_us)
                .where(Job.state == "queued")
                .order_by(Job.created_us, Job.id)
                .limit(QUEUE_LOOK_MAX)
            ).all()
            slots = session.scalars(select(Slot)).all()
            session.expunge_all()
            return [(row.id, row.created_us) for row in jobs], list(slots)

    def judge(self, job: JobFacts) -> Placed | NotPlaced:
        """What placement would say now; used to refuse at once what no host could ever take.

        May be called from any thread. Blocking: it reads the database.
        """
        with self._database.read() as session:
            slots = list(session.scalars(select(Slot)).all())
            session.expunge_all()
        return match(job, self.hosts(slots, {}))

    # -- reserving and offering ------------------------------------------------------------------

    async def _start_all(self, chosen: Sequence[tuple[LiveJob, Placed]]) -> None:
        """Reserve all that was chosen in one transaction, then offer each."""
        # A slot to be made is reserved by itself: if it cannot be, what it evicted must come back.
        made = [one for one in chosen if one[1].slot_id is None]
        for group in ([one for one in chosen if one[1].slot_id is not None], *([one] for one in made)):
            if not group:
                continue
            wanted = [Wanted(live.job_id, live.card, choice) for live, choice in group]
            try:
                found = await run_in_threadpool(self._reservations.reserve, wanted)
            except Exception:
                # Nobody knows whether it was committed: what runs without us is queued again.
                for live, choice in group:
                    self._give(choice, -live.work.max_tokens)
                    self._endings.requeue_unsent(live)
                raise
            for (live, choice), reservation in zip(group, found, strict=True):
                if reservation is None:
                    self._give(choice, -live.work.max_tokens)
                elif not live.is_ending:
                    self._offer(live, choice, reservation)
                # Else its end, written after this reservation, ends the attempt too.

    def _offer(self, live: LiveJob, choice: Placed, reservation: Reservation) -> None:
        deadline = lease_seconds(
            self._settings,
            prefill_seconds=choice.forecast.prefill_seconds,
            step_seconds=1 / choice.forecast.tokens_per_second,
        )
        channel = self._fleet.get(choice.node_id)
        attempt = self._relay.begin(
            live,
            fence=reservation.fence,
            node_id=choice.node_id,
            device=channel.device if channel is not None else "",
            deadline_seconds=deadline,
        )
        if channel is None or not channel.send(self._relay.offer_of(live, attempt)):
            self._endings.drop_attempt(live, "lost", "node_left", is_fault=False)
            return
        self._spawn(self._await_answer(live, reservation.fence, choice.node_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_answer(self, live: LiveJob, fence: int, node_id: str) -> None:
        attempt = live.attempt
        if attempt is None or attempt.fence != fence:
            return
        try:
            async with asyncio.timeout(self._settings.offer_seconds_max):
                declined = await asyncio.shield(attempt.answered)
        except TimeoutError:
            if live.attempt is attempt:
                self._unanswered(live, attempt)
            return
        if live.attempt is not attempt or live.is_ending:
            return
        if declined is not None:
            pause = BUSY_PAUSE_SECONDS if declined == "busy" else OFFER_DECLINES_PAUSE_SECONDS
            live.excluded[node_id] = clock.monotonic() + pause
            log.info("offer_declined", job_id=live.job_id, node_id=node_id, reason=declined)
            self._endings.drop_attempt(live, "declined", declined, is_fault=False)
            return
        self._accepts.append(AcceptedOffer(live.job_id, fence, attempt.accepted_us))
        if len(self._accepts) == 1:
            self._spawn(self._record_accepts())

    def _unanswered(self, live: LiveJob, attempt: LiveAttempt) -> None:
        """A node that spoke meanwhile could have answered; one that did not is silent, not at fault."""
        channel = self._fleet.get(attempt.node_id)
        has_spoken = channel is not None and channel.heard_at > attempt.begun_at
        live.excluded[attempt.node_id] = clock.monotonic() + self._settings.node_lost_seconds
        cancel = wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="lost")
        self._endings.tell(attempt.node_id, cancel)
        self._endings.drop_attempt(live, "lost", "offer_unanswered", is_fault=has_spoken)

    async def _record_accepts(self) -> None:
        """Write the accepts of a moment together, once their prompts are under way."""
        await asyncio.sleep(ACCEPT_GATHER_SECONDS)
        accepts, self._accepts = self._accepts, []
        try:
            await run_in_threadpool(self._reservations.record_accepts, accepts)
        except Exception as error:  # noqa: BLE001
            # The end's transaction writes the same facts; only the view of the moment is poorer.
            log.warning("accepts_not_recorded", count=len(accepts), error=type(error).__name__)
