"""Nodes that lie, misbehave or go silent, and what the network does about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from node_agent.protocol import messages as wire
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import (
    RICH_UMLX,
    Coordinator,
    StartCoordinator,
    fee_of,
    price_of,
)
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.attempts import ask, attempts, close, connected, device_of, who_is_asked

pytestmark = pytest.mark.anyio


FAILURES: tuple[wire.FailureCode, ...] = ("runner_crashed", "runner_stalled")

LIES: dict[str, Callable[[ScriptedNode], dict[str, Any]]] = {
    "signature": lambda node: {"signature": node.sign(b"something else")},
    "fewer": lambda _node: {"token_count": 2},
    "length": lambda _node: {"finish_reason": "length"},
    "digest": lambda _node: {"output_digest": "0" * 64},
    "cancelled": lambda _node: {"finish_reason": "cancelled"},
}


@pytest.mark.parametrize("lie", list(LIES))
async def test_a_result_that_is_not_proven_is_not_paid(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, lie: str
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam, prompt="0123456789")
    liar, offer = await who_is_asked(*nodes)
    await liar.accept(offer)
    await liar.say(offer, "abc")
    await liar.finish(offer, "abc", **LIES[lie](liar))
    honest, again = await who_is_asked(*nodes)
    assert honest is not liar
    await honest.answer(again, "defg")
    await reading.whole()
    assert reading.finish_reason == "stop"
    assert attempts(coordinator.database, offer.job_id)[0][1] == "failed"
    charge = price_of(10, 4)
    assert coordinator.posted(liar.owner) == 0
    assert coordinator.posted(honest.owner) == charge - fee_of(charge)
    assert coordinator.posted("Sam") == RICH_UMLX - charge
    coordinator.check_books()


async def test_a_claim_of_more_tokens_than_were_sent_is_never_paid(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(progress_floor_seconds=1.0)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam, prompt="0123456789")
        liar, offer = await who_is_asked(*nodes)
        await liar.accept(offer)
        await liar.say(offer, "ab")
        await liar.finish(offer, "ab", token_count=1_000_000)
        assert (await liar.expect(wire.Resume)).offset == 2
        honest, again = await who_is_asked(*nodes)
        await honest.answer(again, "cd")
        assert (await reading.whole()).text == "abcd"
        job = (await sam.get(f"/v1/jobs/{offer.job_id}")).json()
    assert job["output_tokens"] == 4
    assert job["charge_umlx"] == str(price_of(10, 4))
    await close(*nodes)
    coordinator.check_books()


async def test_ids_that_the_model_does_not_have_fail_the_attempt(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(attempts_max=2)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        first, offer = await who_is_asked(*nodes)
        await first.accept(offer)
        await first.chunk(offer, 0, [512])
        second, again = await who_is_asked(*nodes)
        await second.accept(again)
        await second.chunk(again, 0, [-1])
        await second.expect(wire.Cancel)
        await reading.whole()
    assert (reading.text, reading.events[-1].data) == ("", "[DONE]")
    assert reading.events[-2].data["error"]["code"] == "host_lost"
    assert attempts(coordinator.database, offer.job_id) == [
        (1, "failed", "bad_chunk", 0),
        (2, "failed", "bad_chunk", 0),
    ]
    await close(*nodes)
    assert coordinator.posted("Sam") == RICH_UMLX
    coordinator.check_books()


@pytest.mark.parametrize("lie", ["too many", "behind the end"])
async def test_a_node_that_does_not_stop_is_not_paid(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, lie: str
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam, prompt="0123456789", max_tokens=4)
    liar, offer = await who_is_asked(*nodes)
    await liar.accept(offer)
    await liar.say(offer, "ab")
    if lie == "too many":
        more = coordinator.shelf.ids("cdefgh")
    else:
        more = (offer.stop_token_ids[0], *coordinator.shelf.ids("c"))
    await liar.chunk(offer, 2, more)
    assert (await liar.expect(wire.Cancel)).job_id == offer.job_id
    honest, again = await who_is_asked(*nodes)
    assert honest is not liar
    await honest.answer(again, "wxyz"[: again.max_tokens])
    await reading.whole()
    assert reading.finish_reason in {"length", "stop"}
    reason = "too_many_tokens" if lie == "too many" else "bad_chunk"
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("failed", reason)
    charge = price_of(10, again.max_tokens)
    assert coordinator.posted(liar.owner) == 0
    assert coordinator.posted("Sam") == RICH_UMLX - charge
    coordinator.check_books()


async def test_what_a_node_sends_behind_its_decline_is_nothing(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    first, offer = await who_is_asked(*nodes)
    await first.send(wire.Decline(job_id=offer.job_id, fence=offer.fence, reason="busy"))
    await first.chunk(offer, 0, coordinator.shelf.ids("no"))
    await first.finish(offer, "no")
    second, again = await who_is_asked(*nodes)
    assert second is not first
    await second.answer(again, "yes")
    assert (await reading.whole()).text == "yes"
    assert coordinator.posted(first.owner) == 0
    coordinator.check_books()


async def test_a_node_that_dies_after_the_last_token_leaves_a_whole_answer(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam, max_tokens=4)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "abcd")
    await reading.until_text("abcd")
    await node.drop()
    await reading.whole()
    assert (reading.text, reading.finish_reason) == ("abcd", "length")
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(3, 4)
    coordinator.check_books()


async def test_silence_loses_the_lease(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(progress_floor_seconds=1.0)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        first, offer = await who_is_asked(*nodes)
        await first.accept(offer)
        await first.say(offer, "a")
        second, again = await who_is_asked(*nodes)
        assert (await first.expect(wire.Cancel)).reason == "lost"
        await second.answer(again, "b")
        assert (await reading.whole()).text == "ab"
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("lost", "node_silent")
    await close(*nodes)


async def test_when_nobody_goes_on_the_stream_ends_with_an_error(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(resume_wait_seconds=1.0)
    (node,) = await connected(coordinator, "Ada")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "ab")
        await reading.until_text("ab")
        await node.drop()
        await reading.whole()
        assert reading.events[-1].data == "[DONE]"
        assert reading.events[-2].data["error"]["code"] == "host_lost"
        job = (await sam.get(f"/v1/jobs/{offer.job_id}")).json()
        # What was delivered is paid for, also when nobody goes on.
        charge_umlx = price_of(job["prompt_tokens"], 2)
        assert (job["state"], job["charge_umlx"]) == ("failed", str(charge_umlx))
        assert coordinator.posted("Ada") == charge_umlx - fee_of(charge_umlx)
    coordinator.check_books()


async def test_a_job_fails_after_too_many_attempts(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(attempts_max=2)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
        for code in FAILURES:
            node, offer = await who_is_asked(*nodes)
            await node.accept(offer)
            await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code=code))
        answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "host_lost")
    assert answer.headers["x-should-retry"] == "false"
    assert [row[1:3] for row in attempts(coordinator.database, answer.headers["x-job-id"])] == [
        ("failed", code) for code in FAILURES
    ]
    await close(*nodes)
    coordinator.check_books()


async def refuse(node: ScriptedNode, offer: wire.Offer) -> None:
    await node.accept(offer)
    await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="request_invalid"))
    await node.expect(wire.Settled)


@pytest.mark.parametrize("macs", [1, 2])
async def test_a_request_that_two_runs_refuse_is_the_submitters_fault(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, macs: int
) -> None:
    nodes = [await new_node(owner) for owner in ("Ada", "Bo")[:macs]]
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
    first, offer = await who_is_asked(*nodes)
    await refuse(first, offer)
    second, again = await who_is_asked(*nodes)
    assert (second is first) == (macs == 1)
    await refuse(second, again)
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_invalid")
    assert coordinator.runtime.endings.health.get(device_of(first)) is None
    assert coordinator.posted("Sam") == RICH_UMLX
    coordinator.check_books()


async def test_who_refuses_what_another_mac_answers_is_at_fault(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    liar, offer = await who_is_asked(*nodes)
    await refuse(liar, offer)
    honest, again = await who_is_asked(*nodes)
    assert honest is not liar
    await honest.answer(again, "fine")
    assert (await reading.whole()).text == "fine"
    record = coordinator.runtime.endings.health.get(device_of(liar))
    assert record is not None
    assert record.last_fault == "request_invalid"


async def test_an_empty_answer_makes_no_faults_forgotten(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(fault_pause_seconds=0.2)
    (node,) = await connected(coordinator, "Ada")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        offer = await node.offered()
        await node.accept(offer)
        await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="runner_crashed"))
        await node.expect(wire.Settled)
        await node.answer(await node.offered(), "")
        assert (await reading.whole()).text == ""
        health = coordinator.runtime.endings.health
        assert health.get(device_of(node)) is not None
        reading = ask(sam, prompt="once more")
        await node.answer(await node.offered(), "ok")
        assert (await reading.whole()).text == "ok"
        assert health.get(device_of(node)) is None
    await close(node)
    coordinator.check_books()


# -- the socket ----------------------------------------------------------------------------------


async def test_frames_that_are_none_close_the_socket(node: ScriptedNode) -> None:
    await node.send_raw('{"type": "from_the_future", "x": 1}')
    assert (await node.expect(wire.Unsupported)).message_type == "from_the_future"
    await node.send_raw('{"type": "chunk", "job_id": 1}')
    assert await node.wait_closed() == 4400


async def test_an_unknown_or_wrongly_signed_node_is_refused(coordinator: Coordinator) -> None:
    stranger = ScriptedNode(coordinator, "Ada", name="stranger")
    with pytest.raises(AssertionError, match="no Welcome"):
        await stranger.connect(seconds=0.5)
    assert await stranger.wait_closed() == 4401
    thief, victim = (ScriptedNode(coordinator, "Ada", name=name) for name in ("thief", "victim"))
    await victim.enrol()
    thief.node_id = victim.node_id
    with pytest.raises(AssertionError, match="no Welcome"):
        await thief.connect(seconds=0.5)
    assert await thief.wait_closed() == 4401


async def test_a_newer_socket_of_a_node_replaces_the_older(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    twin = ScriptedNode(coordinator, "Ada", name="twin")
    twin.key, twin.public_key, twin.node_id = node.key, node.public_key, node.node_id
    await twin.connect()
    assert await node.wait_closed() == 4409
    reading = ask(sam)
    await twin.answer(await twin.offered(), "ok")
    assert (await reading.whole()).text == "ok"
    await twin.close()
    await wait_until(lambda: not coordinator.runtime.fleet.channels, "the fleet to be empty")
