"""The live picture: what is sent when, encoded once, and no reader able to hold up another."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from web_world.demo_terms import DEMO_TERMS
from web_world.feed import QUEUE_FRAMES, SNAPSHOT_TICKS, Feed, Standing
from web_world.privacy import HOUR_US, Spot
from web_world.source import MacFacts, Place, Pulse, WorldFacts

pytestmark = pytest.mark.anyio

NOW_US = 500_000 * HOUR_US


class World:
    """A network that a test changes by hand."""

    def __init__(self, *macs: MacFacts) -> None:
        self.macs = list(macs)
        self.pulse = Pulse(connected=len(macs))
        self.now_us = NOW_US
        self.reads = 0
        self.feed = Feed(self.facts, lambda: self.pulse)

    def facts(self) -> WorldFacts:
        self.reads += 1
        return WorldFacts(self.now_us, tuple(self.macs), DEMO_TERMS)


def mac(index: int, place: Place | None = None) -> MacFacts:
    return MacFacts(f"mac{index}", f"owner{index}", NOW_US, place or Place())


def decoded(frame: bytes) -> tuple[str, Any]:
    event, data = frame.decode().strip().split("\n")
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_the_snapshot_is_made_once_a_minute_and_for_newcomers_of_a_small_network() -> None:
    world = World(mac(1))
    for tick in range(SNAPSHOT_TICKS):
        await world.feed.tick(tick)
    assert world.reads == 1
    await world.feed.tick(SNAPSHOT_TICKS)
    assert world.reads == 2
    world.macs.append(mac(2))
    world.pulse = Pulse(connected=2)
    await world.feed.tick(SNAPSHOT_TICKS + 1)
    assert (await world.feed.view()).lights == 2


async def test_readers_get_the_figures_and_word_of_a_new_snapshot() -> None:
    world = World(mac(1), mac(2))
    with world.feed.reading() as queue:
        assert queue is not None
        world.pulse = Pulse(busy=frozenset({"mac1"}), connected=2, jobs_ended=3, tokens_relayed=500)
        await world.feed.tick(0)
        first, second = decoded(queue.get_nowait()), decoded(queue.get_nowait())
    assert first == ("snapshot", {"etag": (await world.feed.encoded()).etag})
    assert second == ("totals", {"working": 1, "jobs": 0, "tokens": 0})


async def test_all_readers_share_one_frame_and_a_slow_one_loses_the_oldest() -> None:
    world = World(mac(1))
    with world.feed.reading() as quick, world.feed.reading() as slow:
        assert quick is not None
        assert slow is not None
        await world.feed.tick(1)
        frames = [quick.get_nowait(), quick.get_nowait()]
        for tick in range(2, 6):
            await world.feed.tick(tick)
            frames.append(quick.get_nowait())
        kept = [slow.get_nowait() for _ in range(slow.qsize())]
    assert len(kept) == QUEUE_FRAMES
    assert all(one is other for one, other in zip(kept, frames[-QUEUE_FRAMES:], strict=True))


async def test_minutes_count_what_ended_in_them() -> None:
    world = World(mac(1))
    for tick in range(2 * SNAPSHOT_TICKS + 1):
        world.pulse = Pulse(connected=1, jobs_ended=2 * tick, tokens_relayed=100 * tick)
        await world.feed.tick(tick)
    minutes = (await world.feed.view()).minutes
    assert minutes.jobs[-3:] == (None, 24, 24)
    assert minutes.tokens[-2:] == (1200, 1200)


async def test_a_lone_place_silences_the_networks_work() -> None:
    world = World(mac(1, Place("country", "PL")))
    with world.feed.reading() as queue:
        assert queue is not None
        world.pulse = Pulse(busy=frozenset({"mac1"}), connected=1, jobs_ended=3)
        await world.feed.tick(0)
        frames = [decoded(queue.get_nowait()) for _ in range(queue.qsize())]
    assert frames[-1] == ("totals", {"working": None, "jobs": None, "tokens": None})
    view = await world.feed.view()
    assert (view.busy, view.figures) == (None, None)
    assert set(view.minutes.jobs) == {None}
    assert world.feed.light_of("mac1") == Spot("alone", "PL")


async def test_a_reading_that_fails_is_tried_again() -> None:
    world = World(mac(1))

    def broken() -> WorldFacts:
        raise ConnectionError

    feed = Feed(broken, lambda: world.pulse)
    running = asyncio.create_task(feed.run())
    await asyncio.sleep(0.05)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_stream_begins_with_when_to_come_back() -> None:
    world = World(mac(1))
    frames = world.feed.frames()
    assert await anext(frames) == b"retry: 10000\n\n"
    waiting = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    await world.feed.tick(0)
    assert decoded(await waiting)[0] == "snapshot"
    await frames.aclose()


async def test_streams_end_when_the_process_does() -> None:
    world = World(mac(1))
    frames = world.feed.frames()
    _ = await anext(frames)
    world.feed.end()
    assert [frame async for frame in frames] == []
    assert [frame async for frame in world.feed.frames()] == [b"retry: 60000\n\n"]


async def test_a_settled_job_is_told_to_the_minute_and_only_where_work_may_be_told() -> None:
    world = World(mac(1), mac(2))
    assert await world.feed.standing() == Standing(NOW_US, None)
    world.now_us += 60_000_000
    world.pulse = Pulse(connected=2, jobs_ended=4)
    for tick in range(SNAPSHOT_TICKS + 1):
        await world.feed.tick(tick)
    settled = Standing(NOW_US, NOW_US + 60_000_000)
    assert await world.feed.standing() == settled
    world.now_us += 60_000_000
    await world.feed.renew()
    assert await world.feed.standing() == settled
    world.macs.append(mac(3, Place("country", "PL")))
    world.now_us += HOUR_US
    await world.feed.renew()
    assert await world.feed.standing() == Standing(NOW_US, None)
