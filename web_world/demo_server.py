"""MLX World over a made-up fleet, without a coordinator: for looking at the pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from hashlib import sha256

from fastapi import FastAPI

from web_world.demo import SPREAD_DEGREES, DemoWork, demo_fleet
from web_world.demo_terms import DEMO_TERMS
from web_world.feed import SNAPSHOT_TICKS, TICK_SECONDS, Feed
from web_world.market import MarketFacts
from web_world.routes import make_router
from web_world.source import SERIES_MINUTES, Checkpoint, Pulse, WorldFacts

CHECKPOINT_ENTRIES = 1_284_331
CHECKPOINT_ROOT = sha256(b"the ledger of a made-up network").hexdigest()


def demo_feed(
    count: int,
    *,
    seed: int,
    now_us: int | None = None,
    spread_degrees: float = SPREAD_DEGREES,
    market: MarketFacts | None = None,
) -> Feed:
    """A feed over `count` made-up Macs, its last thirty minutes filled. A fixed time stands still.

    This package has no catalogue: without a `market` there are no models.
    """
    fleet = demo_fleet(count, seed=seed, now_us=now_us or _wall_us(), spread_degrees=spread_degrees)
    work = DemoWork(fleet, seed=seed)

    def read_facts() -> WorldFacts:
        moment_us = now_us or _wall_us()
        # Nobody leaves a made-up fleet, however long it is looked at.
        macs = tuple(replace(mac, seen_us=moment_us) for mac in fleet) if now_us is None else fleet
        checkpoint = Checkpoint(CHECKPOINT_ENTRIES, CHECKPOINT_ROOT, moment_us)
        return WorldFacts(now_us=moment_us, macs=macs, terms=DEMO_TERMS, checkpoint=checkpoint)

    def read_pulse() -> Pulse:
        return work.step(TICK_SECONDS)

    feed = Feed(read_facts, read_pulse, lambda: market or MarketFacts())
    for _ in range(SERIES_MINUTES * SNAPSHOT_TICKS + 1):
        feed.note(read_pulse())
    return feed


def demo_app(
    macs: int,
    *,
    seed: int = 1,
    now_us: int | None = None,
    origin: str = "",
    spread_degrees: float = SPREAD_DEGREES,
    market: MarketFacts | None = None,
) -> FastAPI:
    """The pages, the snapshot and the stream over `demo_feed`."""
    feed = demo_feed(macs, seed=seed, now_us=now_us, spread_degrees=spread_degrees, market=market)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        ticking = asyncio.create_task(feed.run())
        yield
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(make_router(feed, origin=origin))
    return app


def _wall_us() -> int:
    return time.time_ns() // 1000
