"""Wake-ups inside a process and between replicas over a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from coordinator.wakeups import LocalWakeups, RedisWakeups, Wakeups
from node_agent.protocol import messages as wire
from tests.fixtures.asking import completion
from tests.fixtures.coordinator import StartCoordinator
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.scripted_node import ScriptedNode, always

pytestmark = pytest.mark.anyio

SECONDS_MAX = 10.0


@asynccontextmanager
async def running(*wakeups: Wakeups) -> AsyncGenerator[None]:
    for one in wakeups:
        await one.start()
    yield
    for one in wakeups:
        await one.close()


async def until_woken(speaker: Wakeups, event: asyncio.Event, topic: str = "t") -> float:
    """Seconds until a hint arrives; hints may be lost, so it is said again."""
    began = time.monotonic()
    while not event.is_set():
        assert time.monotonic() - began < SECONDS_MAX, "never woken"
        await speaker.publish(topic)
        try:
            await asyncio.wait_for(event.wait(), 0.1)
        except TimeoutError:
            continue
    event.clear()
    return time.monotonic() - began


async def test_local_wakeups_reach_their_topic_alone() -> None:
    local = LocalWakeups()
    async with (
        running(local),
        local.subscribe("a") as first,
        local.subscribe("a") as second,
        local.subscribe("b") as other,
    ):
        await local.publish("a")
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
    await local.publish("a")


async def test_a_wakeup_reaches_another_replica(redis_server: RedisServer) -> None:
    here, there = RedisWakeups(redis_server.url), RedisWakeups(redis_server.url)
    async with running(here, there), there.subscribe("t") as woken, there.subscribe("u") as other:
        await until_woken(here, woken)
        other.clear()
        for _ in range(20):
            await here.publish("t")
            await asyncio.wait_for(woken.wait(), 2)
            woken.clear()
        assert not other.is_set()


async def test_a_restarted_redis_is_found_again(redis_server: RedisServer) -> None:
    here, there = RedisWakeups(redis_server.url), RedisWakeups(redis_server.url)
    async with running(here, there), there.subscribe("t") as woken:
        await until_woken(here, woken)
        redis_server.stop()
        await here.publish("t")  # lost for the other, and no error
        async with here.subscribe("t") as own:
            await here.publish("t")
            assert own.is_set(), "without Redis the waiters of this process are woken"
        redis_server.start()
        await until_woken(here, woken)


async def test_waiters_are_woken_once_when_redis_comes_back(redis_server: RedisServer) -> None:
    there = RedisWakeups(redis_server.url)
    async with running(there), there.subscribe("t") as woken:
        await until_woken(there, woken)
        redis_server.stop()
        await asyncio.sleep(0.1)
        woken.clear()
        redis_server.start()
        await asyncio.wait_for(woken.wait(), SECONDS_MAX)


async def test_an_idle_subscription_stays_alive(redis_server: RedisServer) -> None:
    there = RedisWakeups(redis_server.url)
    async with running(there), there.subscribe("t") as woken:
        await until_woken(there, woken)
        await asyncio.sleep(0.3)
        woken.clear()
        await asyncio.sleep(6.5)  # longer than the client library's own limit on a read
        assert not woken.is_set(), "it was cut, and all are woken by the next connection"
        await there.publish("t")
        await asyncio.wait_for(woken.wait(), 1)


async def test_a_coordinator_works_with_redis_and_without_it(
    start_coordinator: StartCoordinator, redis_server: RedisServer
) -> None:
    coordinator = start_coordinator(redis_url=SecretStr(redis_server.url))
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    node.behaviour = always("ok")
    async with coordinator.client("Sam") as sam:
        for is_there in (True, False):
            if not is_there:
                redis_server.stop()
            answer = await sam.post("/v1/completions", json=completion())
            body: dict[str, Any] = answer.json()
            assert (answer.status_code, body["choices"][0]["text"]) == (200, "ok")
            await node.expect(wire.Settled)
    await node.close()
    coordinator.check_books()
