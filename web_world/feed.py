"""The live picture: a snapshot a minute, the network's figures every few seconds, encoded once.

Each reader has a short queue; one that does not keep up loses the oldest frames, never others'.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Final

import structlog
from starlette.concurrency import run_in_threadpool

from web_world.market import Market, MarketFacts
from web_world.market import advance as advance_market
from web_world.privacy import HOUR_US, Roster, Spot, advance, light_of, tells_figures
from web_world.snapshot import Encoded, Minutes, WorldView, encode, view_of
from web_world.source import SERIES_MINUTES, Pulse, Terms, WorldFacts

log = structlog.get_logger()

TICK_SECONDS: Final = 5.0
SNAPSHOT_TICKS: Final = 12  # a minute; being there or not must not be seen live
SMALL_NETWORK: Final = 200  # below it who joins without a place is counted at the next tick
QUEUE_FRAMES: Final = 3
KEEP_ALIVE_SECONDS: Final = 15.0
READERS_MAX: Final = 5_000
KEEP_ALIVE: Final = b": here\n\n"


@dataclass(frozen=True, slots=True)
class Standing:
    """How long this picture has been kept up, and about when a job last ended; None: not told."""

    up_since_us: int
    job_ended_us: int | None


class Feed:
    """Holds the current view. All methods run on the event loop, the reading of facts aside."""

    def __init__(
        self,
        read_facts: Callable[[], WorldFacts],
        read_pulse: Callable[[], Pulse],
        read_market: Callable[[], MarketFacts] = MarketFacts,
    ) -> None:
        """`read_facts` and `read_market`, which is asked once an hour, may block and run in a
        thread; `read_pulse` must not block."""
        self._read_facts: Final = read_facts
        self._read_pulse: Final = read_pulse
        self._read_market: Final = read_market
        self._market: Market | None = None
        self._market_hour = 0
        self._roster: Roster | None = None
        self._view: WorldView | None = None
        self._terms: Terms | None = None
        self._up_since_us = 0
        self._ended = (0, 0)  # jobs ended, and when the latest of them was first seen
        self._encoded: Encoded | None = None
        self._minutes: Final[deque[tuple[int, int] | None]] = deque(
            [None] * SERIES_MINUTES, maxlen=SERIES_MINUTES
        )
        self._pulses: Final[deque[Pulse]] = deque(maxlen=SNAPSHOT_TICKS + 1)
        self._noted = 0
        self._connected = -1
        self._readers: Final[set[asyncio.Queue[bytes]]] = set()
        self._making: Final = asyncio.Lock()
        self._is_ended = False

    async def run(self) -> None:
        """Tick until cancelled. A reading that fails is told in the log and tried again."""
        ticks = 0
        while True:
            try:
                await self.tick(ticks)
            except Exception:
                log.exception("world_not_renewed")
            ticks += 1
            await asyncio.sleep(TICK_SECONDS)

    async def tick(self, ticks: int) -> None:
        """One step: figures to all readers, and a new snapshot if one is due."""
        pulse = self._read_pulse()
        self.note(pulse)
        is_news = pulse.connected != self._connected and pulse.connected < SMALL_NETWORK
        if self._view is None or is_news or ticks % SNAPSHOT_TICKS == 0:
            self._connected = pulse.connected
            await self.renew()
            self._send("snapshot", {"etag": (await self.encoded()).etag})
        self._send("totals", self._totals(pulse))

    def note(self, pulse: Pulse) -> None:
        """Take one tick's work into the minutes; the first one only says where counting starts."""
        self._pulses.append(pulse)
        self._noted += 1
        if self._noted > 1 and self._noted % SNAPSHOT_TICKS == 1:
            first = self._pulses[0]
            self._minutes.append(
                (pulse.jobs_ended - first.jobs_ended, pulse.tokens_relayed - first.tokens_relayed)
            )

    async def renew(self) -> None:
        """Read the facts and make the view from them."""
        async with self._making:
            pulse = self._pulses[-1] if self._pulses else self._read_pulse()
            self._roster, self._view, self._encoded = await run_in_threadpool(self._make, pulse)

    def _make(self, pulse: Pulse) -> tuple[Roster, WorldView, Encoded]:
        facts = self._read_facts()
        self._terms = facts.terms
        self._up_since_us = self._up_since_us or facts.now_us
        if pulse.jobs_ended != self._ended[0]:
            self._ended = (pulse.jobs_ended, facts.now_us)
        hour = facts.now_us // HOUR_US
        if self._market is None or hour != self._market_hour:
            self._market, self._market_hour = advance_market(self._market, self._read_market()), hour
        roster = advance(self._roster, facts.macs, facts.now_us)
        minutes = Minutes(
            jobs=tuple(minute and minute[0] for minute in self._minutes),
            tokens=tuple(minute and minute[1] for minute in self._minutes),
        )
        view = view_of(roster, pulse, minutes, facts.checkpoint, now_us=facts.now_us)
        return roster, view, encode(view)

    async def view(self) -> WorldView:
        """The current view; made now if there is none yet."""
        if self._view is None:
            await self.renew()
        assert self._view is not None
        return self._view

    async def encoded(self) -> Encoded:
        """The current snapshot's bytes."""
        _ = await self.view()
        assert self._encoded is not None
        return self._encoded

    async def terms(self) -> Terms:
        """The rules in force when the current view was made."""
        _ = await self.view()
        assert self._terms is not None
        return self._terms

    async def market(self) -> Market:
        """Models and demand, as of this hour."""
        _ = await self.view()
        assert self._market is not None
        return self._market

    async def standing(self) -> Standing:
        """Since when there is a picture, and in which minute a job last ended, if that may be told."""
        _ = await self.view()
        is_told = self._roster is not None and tells_figures(self._roster)
        return Standing(self._up_since_us, self._ended[1] or None if is_told else None)

    def light_of(self, mac: str) -> Spot | None:
        """Where one Mac is drawn, for its owner alone; None before it counts as seen."""
        return light_of(self._roster, mac) if self._roster is not None else None

    def _totals(self, pulse: Pulse) -> dict[str, int | None]:
        roster, first = self._roster, self._pulses[0]
        if roster is None or not tells_figures(roster):
            return {"working": None, "jobs": None, "tokens": None}
        return {
            "working": len(pulse.busy & roster.spots.keys()),
            "jobs": pulse.jobs_ended - first.jobs_ended,
            "tokens": pulse.tokens_relayed - first.tokens_relayed,
        }

    # -- readers ---------------------------------------------------------------------------------

    def _send(self, event: str, data: object) -> None:
        frame = f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
        for queue in self._readers:
            if queue.full():
                _ = queue.get_nowait()
            queue.put_nowait(frame)

    def end(self) -> None:
        """End all streams: the process is about to stop, and readers come back by themselves."""
        self._is_ended = True
        for queue in self._readers:
            if queue.full():
                _ = queue.get_nowait()
            queue.put_nowait(b"")

    @contextlib.contextmanager
    def reading(self) -> Generator[asyncio.Queue[bytes] | None]:
        """A reader's queue of frames while the block runs; None if there are too many readers."""
        if self._is_ended or len(self._readers) >= READERS_MAX:
            yield None
            return
        queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_FRAMES)
        self._readers.add(queue)
        try:
            yield queue
        finally:
            self._readers.discard(queue)

    async def frames(self) -> AsyncGenerator[bytes]:
        """Frames of the stream for one reader, with a comment where nothing happens for long."""
        with self.reading() as queue:
            if queue is None:
                yield b"retry: 60000\n\n"
                return
            yield b"retry: 10000\n\n"
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        frame = await queue.get()
                except TimeoutError:
                    frame = KEEP_ALIVE
                if not frame:
                    return
                yield frame
