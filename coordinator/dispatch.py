"""Dispatch: decide in memory, reserve in the database, offer to the host.

One dispatcher at a time holds a fenced lease; its epoch is checked in every reservation, so that
one that lost its lease reserves nothing.

A *look* brings the table of hosts up to date, decides for the queue in fair order, and reserves.
What decides is `coordinator.placement`; what it decides from is kept by `fleet_book`,
`fair_shares` and `queue_book`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from dataclasses import replace
from typing import Final

import structlog
from sqlalchemy import select, tuple_
from starlette.concurrency import run_in_threadpool

from coordinator import clock
from coordinator.commits import GroupCommit
from coordinator.db import Database
from coordinator.endings import Endings
from coordinator.fair_shares import FairShares
from coordinator.fleet_book import FleetBook, read_slots
from coordinator.jobs.models import Job
from coordinator.live import LiveJob
from coordinator.nodes.channel import Fleet
from coordinator.offers import Chosen, Offers
from coordinator.placement.fleet import Fleet as HostTable
from coordinator.placement.match import POLICY, Decision, decide
from coordinator.placement.queue import Entry, hold_for, release_holds, take
from coordinator.placement.slots import NOBODY
from coordinator.placement.types import JobFacts, NotPlaced, Outlook, Placed, SlotFacts
from coordinator.queue_book import HOSTS_A_DECISION, QueueBook
from coordinator.relay import Relay
from coordinator.reservations import Reservation, Reservations
from coordinator.residency import Residency
from coordinator.settings import Settings
from node_agent.protocol.cards import ModelCard

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0  # a lost wake-up costs at most this
PAGE_JOBS: Final = 1000  # of the database's queue are read in one look
TAKE_UP_MAX: Final = 200  # jobs of an earlier process are taken up in one look: each is decrypted
GROUP_MAX: Final = 100  # seats reserved in one transaction
HOSTS_A_TURN: Final = 100_000  # decided over before others on this loop have their turn: about 10 ms
LONG_QUEUE: Final = 500  # jobs; looks at a longer one are further apart
PAUSE_SECONDS_A_JOB: Final = 1e-4  # some times what it takes to put one job in its place in the order
NEEDS_MAX: Final = 1000  # waiting jobs that big memory is kept for
GATHER_SECONDS_MAX: Final = 0.02  # a job waits so long for others that are just being queued
PATIENCE_SHARE: Final = 0.5  # of the time that a submitter waits for a host is spent on a better one
AT_ONCE: Final = replace(POLICY, hold_factor=float("inf"))  # nobody waits for a better host
WEEK_SECONDS: Final = 7 * 86_400
MONDAY_SECONDS: Final = 4 * 86_400  # the first one after 1970 began


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
        cards: Collection[ModelCard] = (),
    ) -> None:
        self._settings = settings
        self._database = database
        self._relay = relay
        self._endings = endings
        self._take_up = take_up
        self._cards = {card.id: card for card in cards}
        self._is_stopped = False
        self._wake = asyncio.Event()
        self._expected = 0
        self._none_expected = asyncio.Event()
        self.reservations = Reservations(commits)
        self._offers = Offers(
            settings=settings, fleet=fleet, relay=relay, endings=endings, reservations=self.reservations
        )
        self.book = FleetBook(
            settings=settings,
            channels=fleet,
            jobs=relay.jobs,
            health=endings.health,
            paces=endings.paces,
            revisions=[card.revision for card in cards],
        )
        self.residency = Residency(
            settings=settings,
            database=database,
            channels=fleet,
            jobs=relay.jobs,
            health=endings.health,
            book=self.book,
            reservations=self.reservations,
            cards=cards,
        )
        self.shares = FairShares()
        self._are_shares_loaded = False
        self._queue = QueueBook(settings.overdue_seconds)
        self.outlook = Outlook()
        endings.on_left = self._left
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
                waiting = await self._look()
                if waiting > LONG_QUEUE:
                    await asyncio.sleep(min(waiting * PAUSE_SECONDS_A_JOB, LOOK_SECONDS))
            except Exception:
                log.exception("dispatch_failed")
                await asyncio.sleep(LOOK_SECONDS)

    def release(self) -> None:
        """Give up the lease, so that a successor need not wait for its end. Blocking."""
        self.reservations.release_lease()

    def stop_offers(self) -> None:
        """Place nothing any more; what runs goes on."""
        self._is_stopped = True

    def judge(self, job: JobFacts) -> Placed | NotPlaced:
        """What placement would say now; used to refuse at once what no host could ever take.

        One decision on the kept table, at most milliseconds; nothing is read and nothing entered.
        May be called from any thread.
        """
        with self.book.lock:
            return decide(job, self.book.table, outlook=self.outlook, now_seconds=clock.monotonic()).choice

    # -- one look --------------------------------------------------------------------------------

    async def _look(self) -> int:
        """Decide for what waits; how many jobs that were."""
        marked = self.book.take_marked(clock.monotonic())
        page = await self._catch_up(marked)
        for node_id in await self.residency.adopt(marked):
            await self._read_again(node_id)
        for job_id in page:
            _ = await self._take_up(job_id)
        waiting = {live.job_id: live for live in self._relay.jobs.open() if self._is_waiting(live)}
        for job_id in self.last_look.keys() - waiting.keys():
            del self.last_look[job_id]
        if waiting and not self._is_stopped:
            await self._place(waiting)
        return len(waiting)

    async def _catch_up(self, node_ids: Sequence[str]) -> list[str]:
        """Bring the table up to date; the queued jobs that this process does not carry yet."""
        try:
            page, slots = await run_in_threadpool(self._read, node_ids, self._queue.after)
        except BaseException:
            for node_id in node_ids:
                self.book.mark(node_id)
            raise
        self.book.refresh(node_ids, slots, clock.monotonic())
        unknown: list[str] = []
        for job_id, created_us in page:
            live = self._relay.jobs.get(job_id)
            if live is None:
                unknown.append(job_id)
            else:
                live.created_us = created_us
        is_enough = len(unknown) > TAKE_UP_MAX
        if is_enough:
            # The others are read again.
            last = page.index(next(entry for entry in page if entry[0] == unknown[TAKE_UP_MAX - 1]))
            page = page[: last + 1]
        self._queue.was_read(page, is_whole=len(page) < PAGE_JOBS and not is_enough)
        return unknown[:TAKE_UP_MAX]

    def _read(
        self, node_ids: Sequence[str], after: tuple[int, str]
    ) -> tuple[list[tuple[str, int]], dict[str, list[SlotFacts]]]:
        """The next queued jobs, each with when it came, and the slots of these nodes."""
        if not self._are_shares_loaded:
            self._are_shares_loaded = True
            self._load_shares()
        with self._database.read() as session:
            jobs = session.execute(
                select(Job.id, Job.created_us)
                .where(Job.state == "queued", tuple_(Job.created_us, Job.id) > after)
                .order_by(Job.created_us, Job.id)
                .limit(PAGE_JOBS)
            ).all()
            return [(row.id, row.created_us) for row in jobs], read_slots(session, node_ids)

    def _load_shares(self) -> None:
        try:
            with self._database.read() as session:
                self.shares.load(session, self._cards, self.book.given, now=clock.monotonic())
        except Exception:
            # Turns are fair from now on; to place nothing would be worse.
            log.exception("shares_not_loaded")

    def _is_waiting(self, live: LiveJob) -> bool:
        """Whether the job is to be placed. One that is whole or too old is ended."""
        if live.attempt is not None or live.is_ending or live.is_being_queued:
            return False
        if live.job_id in self._queue.unsure:
            return False
        if live.is_orphaned and not live.token_ids and not live.stream.readers:
            # Its submitter may have been told that nothing was taken; it runs when somebody asks.
            return False
        if live.is_whole:
            self._endings.end_whole(live)
            return False
        waited_seconds = (clock.wall_us() - live.created_us) / 1e6
        late_seconds = math.inf if live.token_ids else live.work.wishes.deadline_seconds
        if waited_seconds > min(self._settings.queue_seconds_max, late_seconds):
            self._relay.give_up(live, waited_seconds)
            return False
        return True

    async def _place(self, waiting: dict[str, LiveJob]) -> None:
        now, wall_us = clock.monotonic(), clock.wall_us()
        self.outlook = self._outlook_of(wall_us)
        part, is_first, is_last = self._queue.next_part(
            [self.residency.expect(live.facts(now, wall_us)) for live in waiting.values()],
            self.shares.used.all(now_seconds=now),
            hosts=self.book.table.rows,
        )
        if is_first:
            with self.book.lock:
                release_holds(self.book.table)
        chosen: list[Chosen] = []
        try:
            await self._place_each(part, waiting, chosen)
            await self._start_all(chosen)
        except BaseException:
            # Nobody knows what of it is in the database.
            for one in chosen:
                self.book.take_back(one.choice.node_id, one.choice.forecast.total_seconds)
            raise
        if not is_last:
            self.wake()

    async def _place_each(
        self, part: Sequence[JobFacts], waiting: dict[str, LiveJob], chosen: list[Chosen]
    ) -> None:
        """Decide one job after the other. `chosen` are those that are entered and not reserved."""
        hosts = 0
        for facts in part:
            hosts += self.book.table.rows + HOSTS_A_DECISION
            if hosts > HOSTS_A_TURN:
                hosts = 0
                await asyncio.sleep(0)
            live = waiting[facts.job_id]
            if self._is_stopped or not self._is_waiting(live):
                continue
            found = self._decide(live, facts)
            if found is None:
                continue
            chosen.append(found)
            # A slot that is made, others being evicted, is reserved before anything is put there.
            if found.choice.slot_id is None or len(chosen) >= GROUP_MAX:
                await self._start_all(chosen)

    def _decide(self, live: LiveJob, facts: JobFacts) -> Chosen | None:
        table, now = self.book.table, clock.monotonic()
        with self.book.lock:
            decision = self._decision(live, facts, now)
            choice, slot, held = decision.choice, NOBODY, NOBODY
            if isinstance(choice, Placed):
                slot = take(table, decision, choice, facts, now_seconds=now)
                if facts.is_kept_apart:
                    self.book.keep_apart(decision.row)
            elif facts.is_overdue and choice.is_ever:
                held = hold_for(table, decision)
            self._tell_observers(Entry(facts, decision, slot, held))
        if isinstance(choice, NotPlaced):
            self.last_look[live.job_id] = choice
            return None
        _ = self.last_look.pop(live.job_id, None)
        return Chosen(live, facts, choice, slot)

    def _decision(self, live: LiveJob, facts: JobFacts, now: float) -> Decision:
        table = self.book.table
        found = decide(facts, table, outlook=self.outlook, now_seconds=now)
        choice = found.choice
        if isinstance(choice, Placed) or "better_soon" not in choice.rejected or live.is_async:
            return found
        # Whoever waits at the other end of a connection leaves if no host takes the job in time.
        row = self.book.row(choice.soonest_node_id or "")
        free_at = min(table.seat_at[row], table.idle_at[row]) if row is not None else now
        patience = PATIENCE_SHARE * self._settings.max_wait_seconds
        if facts.waited_seconds + max(float(free_at) - now, 0.0) <= patience:
            return found
        return decide(facts, table, policy=AT_ONCE, outlook=self.outlook, now_seconds=now)

    def _tell_observers(self, entry: Entry) -> None:
        for observer in self.observers:
            try:
                observer(entry, self.book.table)
            except Exception:
                log.exception("observer_failed", job_id=entry.job.job_id)

    def _outlook_of(self, wall_us: int) -> Outlook:
        # Who waits by choice, for a better host that is busy, needs no memory kept.
        needs = sorted(
            (
                look.needed_bytes
                for look in self.last_look.values()
                if look.is_ever and "better_soon" not in look.rejected
            ),
            reverse=True,
        )
        week_seconds = (wall_us / 1e6 - MONDAY_SECONDS) % WEEK_SECONDS
        return Outlook(big_needs=tuple(needs[:NEEDS_MAX]), week_seconds=week_seconds)

    def _left(self, live: LiveJob, node_id: str | None) -> None:
        """An end is on record: of the job's attempt on that node, of the job itself, or of both."""
        if node_id is not None:
            self.book.mark(node_id)
        if live.is_ending:
            self.shares.settle(live, now=clock.monotonic())

    # -- reserving -------------------------------------------------------------------------------

    async def _start_all(self, chosen: list[Chosen]) -> None:
        """Reserve all that was chosen in one transaction, then offer each; `chosen` is empty then."""
        # A slot to be made is reserved by itself: if it cannot be, what it evicted must come back.
        seats = [one for one in chosen if one.choice.slot_id is not None]
        made = [[one] for one in chosen if one.choice.slot_id is None]
        for group in ([seats] if seats else []) + made:
            found = await self._offers.reserve(group)
            for one, seat in zip(group, found, strict=True):
                chosen.remove(one)
                if seat is not None:
                    self._start(one, seat)
                    continue
                self._queue.unsure.add(one.live.job_id)
                self.book.take_back(one.choice.node_id, one.choice.forecast.total_seconds)
                if one.choice.slot_id is None:
                    # Nothing may be put into a slot that is not there.
                    await self._read_again(one.choice.node_id)

    def _start(self, one: Chosen, seat: Reservation) -> None:
        if one.choice.slot_id is None:
            self.book.name_slot(one.slot, seat.slot_id)
        self.shares.charge(one.facts, now=clock.monotonic())
        # One that is ending was ended after this reservation, and its end ends the attempt too.
        if not one.live.is_ending:
            self._offers.offer(one, seat)

    async def _read_again(self, node_id: str) -> None:
        def read() -> dict[str, list[SlotFacts]]:
            with self._database.read() as session:
                return read_slots(session, [node_id])

        self.book.refresh([node_id], await run_in_threadpool(read), clock.monotonic())
