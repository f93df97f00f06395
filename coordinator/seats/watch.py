"""Watches which Macs stand ready, each second; stores it each minute; asks for self-tests.

One loop of a coordinator process. What it has not stored yet when the database is away stays and
is stored later.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, final

import structlog
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from coordinator import clock
from coordinator.db import Database, DatabaseBusy, DatabaseFull, DatabaseUnavailable
from coordinator.jobs.models import Job
from coordinator.live import LiveJobs
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.models import Node
from coordinator.policy.held import standings
from coordinator.seats.self_tests import Measured, SelfTests, history_of, store_tests
from coordinator.seats.standing import Sight, StandingBook, Stood
from coordinator.seats.standing_rows import StandingRows
from ledger.ratecard import CARD, DAY_US, SLOT_US
from node_agent.protocol.ids import make_id

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0
STORE_SECONDS: Final = 60.0
DEMAND_SECONDS: Final = 600.0  # what was asked for changes slowly, and is a walk over a day of jobs
CLOCK_SLACK_US: Final = 1_000_000
"""The calendar follows the database's clock when it is off by more: a smaller step each minute
would cut a little out of every slot."""

PAIRS_MAX: Final = 100_000

Pair = tuple[str, str]
"""A submitter's account and a node."""


@dataclass(frozen=True)
class Learned:
    """What a round with the database brought."""

    now_us: int
    promised: frozenset[str]
    linked: dict[Pair, bool]
    history: dict[str, tuple[int, float]]
    demanded: frozenset[str] | None


@final
class StandingWatch:
    """Which Macs were there, of one process. `run` and `look` belong on the event loop."""

    def __init__(
        self,
        database: Database,
        fleet: Fleet,
        jobs: LiveJobs,
        *,
        suspect_seconds: float,
        always_demanded: Callable[[], str | None],
    ) -> None:
        """`always_demanded`: the id of the card that is worth having loaded though nobody asks."""
        self._database: Final = database
        self._fleet: Final = fleet
        self._jobs: Final = jobs
        self._suspect_seconds: Final = suspect_seconds
        self._always_demanded: Final = always_demanded
        self._book: Final = StandingBook()
        self._rows: Final = StandingRows()
        self._turn: Final = threading.Lock()
        self._tests: Final = SelfTests()
        self._offset_us: int | None = None
        self._promised: frozenset[str] = frozenset()
        self._demanded: frozenset[str] = frozenset()
        self._demanded_at: float | None = None
        self._linked: dict[Pair, bool] = {}
        self._new_pairs: set[Pair] = set()
        self._untold: list[Measured] = []

    async def run(self) -> None:
        """Look and store until cancelled. A slow database keeps nobody from looking."""
        await asyncio.gather(self._store_forever(), self._look_forever())

    async def _look_forever(self) -> None:
        while True:
            try:
                self.look()
            except Exception:
                log.exception("standing_failed")
            await asyncio.sleep(LOOK_SECONDS)

    async def _store_forever(self) -> None:
        while True:
            try:
                await self.store()
            except (DatabaseBusy, DatabaseFull, DatabaseUnavailable) as error:
                log.warning("standing_not_stored", error=type(error).__name__)
            except Exception:
                log.exception("standing_failed")
            # Until the calendar is known nothing is counted, so the first store is tried again soon.
            await asyncio.sleep(LOOK_SECONDS if self._offset_us is None else STORE_SECONDS)

    async def finish(self) -> None:
        """Store what is left, once, when `run` has ended."""
        try:
            await self.store()
        except (DatabaseBusy, DatabaseFull, DatabaseUnavailable) as error:
            log.warning("standing_not_stored", error=type(error).__name__)

    def look(self) -> None:
        """Count the time since the last look; nothing before the database's clock is known."""
        now = clock.monotonic()
        channels = list(self._fleet.channels.values())
        self._untold += self._tests.take(channels, now=now)
        if self._offset_us is None:
            return
        wall_us = self._offset_us + round(now * 1e6)
        self._book.observe(self._sights(channels, now), wall_us=wall_us, monotonic_seconds=now)

    def _sights(self, channels: Iterable[Channel], now: float) -> Iterable[Sight]:
        strangers, linked = self._busy()
        wanted = {self._always_demanded(), *self._demanded}
        seen: set[str] = set()
        for channel in channels:
            seen.add(channel.node_id)
            is_heard = now - channel.heard_at <= self._suspect_seconds
            yield Sight(
                node_id=channel.node_id,
                is_present=is_heard and channel.mode in {"ready", "busy"},
                is_busy=channel.node_id in strangers,
                is_linked_busy=channel.node_id in linked,
                has_demanded_model=any(slot.card_id in wanted for slot in channel.slots),
            )
        # Who promised to be there and is not: somebody looked, and it counts.
        for node_id in self._promised - seen:
            yield Sight(node_id, is_present=False)

    def _busy(self) -> tuple[set[str], set[str]]:
        """Nodes with an accepted attempt for a stranger, and with one for somebody linked."""
        strangers: set[str] = set()
        linked: set[str] = set()
        for live in self._jobs:
            attempt = live.attempt
            if attempt is None or attempt.accepted_us is None or live.is_ending:
                continue
            pair = (live.account_id, attempt.node_id)
            if pair not in self._linked:
                self._new_pairs.add(pair)
            channel = self._fleet.get(attempt.node_id)
            is_own = channel is not None and channel.owner_id == live.account_id
            (linked if is_own or self._linked.get(pair, False) else strangers).add(attempt.node_id)
        return strangers, linked

    # -- the database ----------------------------------------------------------------------------

    async def store(self) -> None:
        """Store what was counted, learn what is needed, ask for self-tests that are due."""
        stood, counted_us = self._book.stood(), self._book.reached_us
        untold, pairs = self._untold, frozenset(self._new_pairs)
        channels = list(self._fleet.channels.values())
        unknown = self._tests.unknown(channels)
        is_stale = self._demanded_at is None or clock.monotonic() - self._demanded_at >= DEMAND_SECONDS
        self._untold = []
        try:
            learned = await run_in_threadpool(self._exchange, stood, untold, pairs, unknown, is_stale)
        except BaseException:
            self._untold = untold + self._untold
            raise
        now = clock.monotonic()
        self._follow(learned.now_us, now)
        self._book.forget(stood, before_us=min(learned.now_us, counted_us))
        self._rows.forget(learned.now_us - 3 * SLOT_US)
        self._promised = learned.promised
        if len(self._linked) > PAIRS_MAX:
            self._linked.clear()
        self._linked.update(learned.linked)
        self._new_pairs -= pairs
        if learned.demanded is not None:
            self._demanded, self._demanded_at = learned.demanded, now
        self._tests.learn(learned.history, now=now)
        working = frozenset(self._jobs.attempts_by_node())
        _ = self._tests.challenge(channels, working, now=now)

    def _follow(self, database_us: int, now: float) -> None:
        offset_us = database_us - round(now * 1e6)
        if self._offset_us is None or abs(offset_us - self._offset_us) > CLOCK_SLACK_US:
            self._offset_us = offset_us

    def _exchange(
        self,
        stood: list[Stood],
        tested: list[Measured],
        pairs: frozenset[Pair],
        unknown: list[str],
        is_demand_stale: bool,
    ) -> Learned:
        """One transaction, in a thread of its own; nothing of this object but `_rows` is touched."""
        ordered = sorted(pairs)
        # A store that was cancelled at shutdown may still be on its way in its thread.
        with self._turn, self._database.write() as session:
            now_us = self._database.now_us(session)
            self._rows.write(session, stood, now_us=now_us)
            store_tests(session, tested, now_us)
            session.flush()
            found = standings(session, ordered, card_ids=[CARD.id] * len(ordered), now_us=now_us)
            promised = select(Node.id).where(Node.seat != "idle", Node.revoked_us.is_(None))
            demanded = None
            if is_demand_stale:
                # Ids are made from the time: the newest day of them is a range of the primary key.
                since = make_id("job", unix_ms=max(0, now_us - DAY_US) // 1000, random_bytes=bytes(10))
                asked = session.scalars(select(Job.card_id).where(Job.id >= since).distinct())
                demanded = frozenset(asked)
            return Learned(
                now_us=now_us,
                promised=frozenset(session.scalars(promised)),
                linked={
                    pair: standing is not None and standing.is_linked
                    for pair, standing in zip(ordered, found, strict=True)
                },
                history=history_of(session, unknown, now_us),
                demanded=demanded,
            )
