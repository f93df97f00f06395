"""Leases end when they should and not before: closed sockets, silence, our own absence, the queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from coordinator import clock
from coordinator.jobs.models import Job
from coordinator.placement.types import JobFacts, NotPlaced
from node_agent.protocol import messages as wire
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator, price_of
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.attempts import ask, attempts, close, connected, who_is_asked

pytestmark = pytest.mark.anyio

# A tenth of the clocks that are the default, all of them.
TENTH: dict[str, Any] = {
    "heartbeat_seconds": 0.5,
    "node_suspect_seconds": 1.5,
    "node_lost_seconds": 3.0,
    "socket_grace_seconds": 0.2,
}


@contextlib.asynccontextmanager
async def beating(*nodes: ScriptedNode) -> AsyncGenerator[None]:
    """Heartbeats of these nodes while the block runs."""

    async def beat(node: ScriptedNode) -> None:
        while True:
            with contextlib.suppress(Exception):
                await node.send(wire.Heartbeat(mode="ready", free_bytes=1 << 30))
            await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(beat(node)) for node in nodes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def faults_of(coordinator: Coordinator, node: ScriptedNode) -> int:
    health = coordinator.runtime.endings.health.get(node.node_id.removeprefix("node_"))
    return health.faults if health is not None else 0


def is_lost(coordinator: Coordinator, job_id: str) -> bool:
    return attempts(coordinator.database, job_id)[-1][1] == "lost"


# -- a socket that closes ------------------------------------------------------------------------


async def test_a_closed_socket_is_followed_by_another_mac_within_three_seconds(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(socket_grace_seconds=2.0)  # the default
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        first, offer = await who_is_asked(*nodes)
        await first.accept(offer)
        await first.say(offer, "ab")
        await reading.until_text("ab")
        await first.drop()
        lost_at = time.monotonic()
        (second,) = (node for node in nodes if node is not first)
        again = await second.offered()
        await second.accept(again)
        await second.say(again, "c")
        await reading.until_text("abc")
        assert 1.9 < time.monotonic() - lost_at < 3.0
        await first.connect(wire.LiveAttempt(job_id=offer.job_id, fence=1, offset=4))
        assert (await first.expect(wire.Cancel)).reason == "lost"
        assert (await first.expect(wire.Settled)).fence == 1
        await second.finish(again, "c")
        assert (await reading.whole()).text == "abc"
    assert attempts(coordinator.database, offer.job_id)[0] == (1, "lost", "node_lost", 2)
    assert faults_of(coordinator, first) == 0
    await close(*nodes)
    coordinator.check_books()


async def test_an_offer_that_was_lost_with_its_socket_comes_again(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam)
    offer = await node.offered()
    await node.drop()
    await node.connect()
    again = await node.offered()
    assert again == offer
    await node.answer(again, "ok")
    assert (await reading.whole()).text == "ok"
    assert attempts(coordinator.database, offer.job_id) == [(1, "done", "stop", 2)]
    assert faults_of(coordinator, node) == 0


async def test_a_network_that_loses_every_mac_before_its_first_token_ends_the_job(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(socket_grace_seconds=0.1, losses_max=3)
    (node,) = await connected(coordinator, "Ada")
    async with coordinator.client("Sam") as sam:
        asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
        for _ in range(3):
            offer = await node.offered()
            await node.accept(offer)
            await node.drop()
            await wait_until(partial(is_lost, coordinator, offer.job_id), "it to be lost")
            await node.connect()
        answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "host_lost")
    await close(node)
    coordinator.check_books()


async def test_sleep_is_no_fault_and_is_told_as_such(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "a")
    await first.send(wire.Goodbye(reason="sleep"))
    await first.close()
    second, again = await who_is_asked(*nodes)
    await second.answer(again, "b")
    assert (await reading.whole()).text == "ab"
    assert attempts(coordinator.database, offer.job_id)[0] == (1, "lost", "asleep", 1)
    assert faults_of(coordinator, first) == 0
    owner = coordinator.client(first.owner)

    async def shown() -> dict[str, Any]:
        found: dict[str, Any] = (await owner.get("/v1/nodes")).json()["data"][0]
        return found

    for _ in range(50):
        if (await shown())["state"] == "asleep":
            break
        await asyncio.sleep(0.05)
    assert ((await shown())["state"], (await shown())["why"]) == ("asleep", "it sleeps")
    await first.connect()
    assert ((await shown())["state"], (await shown())["why"]) == ("ready", None)


# -- silence -------------------------------------------------------------------------------------


async def test_silence_makes_suspect_then_lost_and_is_nobodys_fault(
    start_coordinator: StartCoordinator,
) -> None:
    """The socket stays open, as it does when a network dies: only the frames stop."""
    coordinator = start_coordinator(**TENTH)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam, coordinator.client() as _:
        async with beating(*nodes):
            reading = ask(sam)
            first, offer = await who_is_asked(*nodes)
            await first.accept(offer)
            await first.say(offer, "ab")
            await reading.until_text("ab")
            await asyncio.sleep(3.2)
            assert len(attempts(coordinator.database, offer.job_id)) == 1, "its heart beats"
        (second,) = (node for node in nodes if node is not first)
        silent_at = time.monotonic()
        async with beating(second):
            again = await second.offered()
            await second.accept(again)
            await second.say(again, "c")
            await reading.until_text("abc")
            # The last heartbeat was sent up to 0.3 s before.
            assert 2.6 < time.monotonic() - silent_at < 4.0
            assert await first.wait_closed() == 4408
            await second.finish(again, "c")
            await reading.whole()
    assert attempts(coordinator.database, offer.job_id)[0] == (1, "lost", "node_silent", 2)
    assert faults_of(coordinator, first) == 0
    await first.connect()
    await close(*nodes)
    coordinator.check_books()


async def test_a_suspect_mac_is_offered_nothing(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(node_suspect_seconds=0.5, max_wait_seconds=2.0)
    (node,) = await connected(coordinator, "Ada")
    job = JobFacts(job_id="", card=coordinator.shelf.card, prompt_tokens=1, max_tokens=1)

    def is_suspect() -> bool:
        # Silence is looked for once a second.
        verdict = coordinator.runtime.dispatcher.judge(job)
        return isinstance(verdict, NotPlaced) and "suspect" in verdict.rejected

    await wait_until(is_suspect, "the Mac to be suspected")
    async with coordinator.client("Sam") as sam, coordinator.client("Ada") as ada:
        found = (await ada.get("/v1/nodes")).json()["data"][0]
        assert (found["state"], found["why"][:18]) == ("suspect", "nothing was heard ")
        answer = await sam.post("/v1/completions", json=completion())
        assert answer.status_code == 503
        assert "1 suspect" in answer.json()["error"]["message"]
        assert not node.has(wire.Offer)
        asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
        async with beating(node):
            await node.answer(await node.offered(), "ok")
            assert (await asked).status_code == 200
    await close(node)


async def test_a_silent_mac_that_leaves_an_offer_unanswered_is_not_at_fault(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(offer_seconds_max=0.5)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        silent, _ = await who_is_asked(*nodes)
        other, again = await who_is_asked(*nodes)
        assert other is not silent
        await other.answer(again, "ok")
        assert (await reading.whole()).text == "ok"
        assert faults_of(coordinator, silent) == 0
        async with beating(*nodes):
            reading = ask(sam)
            mute, _ = await who_is_asked(*nodes)
            other, again = await who_is_asked(*nodes)
            await other.answer(again, "ok")
            assert (await reading.whole()).text == "ok"
        assert faults_of(coordinator, mute) == 1, "it spoke, and did not answer"
    await close(*nodes)


async def test_our_own_absence_ends_no_lease(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "ab")
    await reading.until_text("ab")
    leases = coordinator.runtime.relay.leases
    away_seconds = 1000.0
    leases.pause(away_seconds)
    leases.sweep(clock.monotonic() + away_seconds)
    assert len(attempts(coordinator.database, offer.job_id)) == 1
    await node.drop()
    await node.connect()  # it had waited in vain, and gave the attempt up
    again = await node.offered()
    assert again.prefix_ids == coordinator.shelf.ids("ab")
    await node.answer(again, "cd")
    assert (await reading.whole()).text == "abcd"
    assert faults_of(coordinator, node) == 0
    coordinator.check_books()


# -- progress ------------------------------------------------------------------------------------


async def test_ticks_of_reading_and_tokens_keep_a_lease_and_mere_heartbeats_do_not(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(progress_floor_seconds=1.0)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam, beating(*nodes):
        reading = ask(sam)
        first, offer = await who_is_asked(*nodes)
        assert offer.progress_deadline_seconds == pytest.approx(1.0)
        await first.accept(offer)
        for done in range(5):
            tick = wire.Progress(job_id=offer.job_id, fence=1, phase="prefill", done=done, total=9)
            await first.send(tick)
            await asyncio.sleep(0.5)
        for offset, letter in enumerate("abcd"):
            await first.say(offer, letter, offset=offset)
            await asyncio.sleep(0.5)
        assert len(attempts(coordinator.database, offer.job_id)) == 1
        stuck_at = time.monotonic()
        second, again = await who_is_asked(*nodes)
        assert 0.4 < time.monotonic() - stuck_at < 2.0
        await second.answer(again, "e")
        assert (await reading.whole()).text == "abcde"
    assert attempts(coordinator.database, offer.job_id)[0] == (1, "lost", "no_progress", 4)
    assert faults_of(coordinator, first) == 1
    await close(*nodes)


async def test_cancel_reaches_the_mac_at_once(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    for _ in range(5):
        reading = ask(sam, prompt="x" * 20, max_tokens=50)
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await reading.until_text("abc")
        cancelled = asyncio.create_task(sam.post(f"/v1/jobs/{offer.job_id}/cancel"))
        await node.expect(wire.Cancel)
        assert (await cancelled).json()["charge_umlx"] == str(price_of(20, 3))
        await reading.whole()
    assert coordinator.posted("Sam") == RICH_UMLX - 5 * price_of(20, 3)
    coordinator.check_books()


# -- the queue -----------------------------------------------------------------------------------


async def test_a_job_that_nobody_can_take_ends_before_its_hold_does(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator()
    assert coordinator.settings.queue_seconds_max < coordinator.settings.hold_seconds / 2
    async with coordinator.client("Sam") as sam:
        body = {"kind": "completions", "request": completion()}
        job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
        assert coordinator.balances()["Sam"][1] > 0
        older_us = int((coordinator.settings.queue_seconds_max + 60) * 1e6)
        with coordinator.database.write() as session:
            session.execute(update(Job).values(created_us=Job.created_us - older_us))
        await wait_until(lambda: coordinator.balances()["Sam"][1] == 0, "the hold to be released")
        job = (await sam.get(f"/v1/jobs/{job_id}")).json()
        assert (job["state"], job["error"], job["charge_umlx"]) == ("expired", "no_host_available", "0")
        result = await sam.get(f"/v1/jobs/{job_id}/result")
        assert (result.status_code, result.json()["error"]["code"]) == (409, "no_host_available")
    coordinator.check_books()


async def test_every_replica_is_told_of_a_new_job_and_of_no_replay(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    topics: list[str] = []

    def note(topic: str) -> None:
        topics.append(topic)

    coordinator.runtime.publish_later = note
    body = {"kind": "completions", "request": completion()}
    for _ in range(2):
        answer = await sam.post("/v1/jobs", json=body, headers={"Idempotency-Key": "one"})
        assert answer.status_code == 202
        assert topics == ["dispatch"]
