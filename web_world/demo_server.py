"""MLX World over a made-up fleet, without a coordinator: for looking at the pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from fastapi import FastAPI

from web_world.demo import DemoWork, demo_fleet
from web_world.feed import SNAPSHOT_TICKS, TICK_SECONDS, Feed
from web_world.routes import make_router
from web_world.source import SERIES_MINUTES, Checkpoint, Pulse, WorldFacts

CHECKPOINT_ENTRIES = 1_284_331


def demo_feed(macs: int, *, seed: int, now_us: int | None = None) -> Feed:
    """A feed over `macs` made-up Macs, its last thirty minutes filled. A fixed time stands still."""
    fleet = demo_fleet(macs, seed=seed, now_us=now_us or _wall_us())
    work = DemoWork(fleet, seed=seed)

    def read_facts() -> WorldFacts:
        moment_us = now_us or _wall_us()
        checkpoint = Checkpoint(CHECKPOINT_ENTRIES, "0" * 64, moment_us)
        return WorldFacts(now_us=moment_us, macs=fleet, checkpoint=checkpoint)

    def read_pulse() -> Pulse:
        return work.step(TICK_SECONDS)

    feed = Feed(read_facts, read_pulse)
    for _ in range(SERIES_MINUTES * SNAPSHOT_TICKS):
        feed.note(read_pulse())
    return feed


def demo_app(macs: int, *, seed: int = 1, now_us: int | None = None, origin: str = "") -> FastAPI:
    """The pages, the snapshot and the stream over `demo_feed`."""
    feed = demo_feed(macs, seed=seed, now_us=now_us)

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
