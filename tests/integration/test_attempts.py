"""Nodes that decline, die, come back, lie or misbehave: the submitter sees one clean answer."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from node_agent.protocol import messages as wire
from tests.fixtures.coordinator import (
    RICH_UMLX,
    Coordinator,
    StartCoordinator,
    fee_of,
    price_of,
)
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.attempts import ask, attempts, close, connected, who_is_asked

pytestmark = pytest.mark.anyio


# -- before the first token ----------------------------------------------------------------------


async def test_a_declined_job_goes_to_another_node(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    first, offer = await who_is_asked(*nodes)
    await first.decline(offer, "memory_short")
    second, again = await who_is_asked(*nodes)
    assert second is not first
    assert (again.job_id, again.fence) == (offer.job_id, 2)
    await second.answer(again, "ok")
    assert (await reading.whole()).text == "ok"
    assert attempts(coordinator.database, offer.job_id) == [
        (1, "declined", "memory_short", 0),
        (2, "done", "stop", 2),
    ]
    assert coordinator.posted(first.owner) == 0
    assert coordinator.posted(second.owner) > 0
    coordinator.check_books()


async def test_a_busy_node_is_asked_again_after_a_pause(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam)
    await node.decline(await node.offered(), "busy")
    again = await node.offered()
    assert again.fence == 2
    await node.answer(again, "ok")
    assert (await reading.whole()).text == "ok"


async def test_an_unanswered_offer_goes_to_another_node(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(offer_seconds_max=0.3)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        silent, offer = await who_is_asked(*nodes)
        other, again = await who_is_asked(*nodes)
        assert other is not silent
        await silent.accept(offer)  # too late
        assert (await silent.expect(wire.Cancel)).reason == "lost"
        await other.answer(again, "ok")
        assert (await reading.whole()).text == "ok"
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("lost", "offer_unanswered")
    await close(*nodes)
    coordinator.check_books()


async def test_a_node_that_dies_before_the_first_token_is_replaced(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.drop()
    second, again = await who_is_asked(*nodes)
    assert (second is not first, again.prefix_ids) == (True, ())
    await second.answer(again, "ok")
    assert (await reading.whole()).text == "ok"
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("lost", "node_lost")
    coordinator.check_books()


async def test_a_goodbye_needs_no_grace(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(socket_grace_seconds=60.0)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        first, offer = await who_is_asked(*nodes)
        await first.accept(offer)
        await first.send(wire.Goodbye(reason="shutdown"))
        await first.close()
        second, again = await who_is_asked(*nodes)
        await second.answer(again, "ok")
        assert (await reading.whole()).text == "ok"
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("lost", "node_left")
    await close(*nodes)


async def test_a_removed_node_loses_its_work_at_once(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(socket_grace_seconds=60.0)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        first, offer = await who_is_asked(*nodes)
        await first.accept(offer)
        async with coordinator.client(first.owner) as owner:
            removed = await owner.delete(f"/v1/nodes/{first.node_id}")
            assert removed.status_code == 200
            assert (await owner.get("/v1/nodes")).json()["data"] == []
        assert await first.wait_closed() == 4403
        second, again = await who_is_asked(*nodes)
        await second.answer(again, "ok")
        assert (await reading.whole()).text == "ok"
    await close(*nodes)


# -- in the middle of an answer ------------------------------------------------------------------


async def test_a_node_that_dies_in_the_middle_is_continued_by_another(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam, prompt="0123456789", max_tokens=9)
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "abcd")
    await reading.until_text("abcd")
    await first.drop()
    second, again = await who_is_asked(*nodes)
    assert again.prefix_ids == coordinator.shelf.ids("abcd")
    assert again.prompt_ids == offer.prompt_ids
    assert (again.max_tokens, again.fence) == (5, 2)
    assert again.sampling == offer.sampling
    await second.answer(again, "ef", "eos")
    await reading.whole()
    assert (reading.text, reading.finish_reason) == ("abcdef", "stop")
    charge = price_of(10, 6)
    owners = charge - fee_of(charge)
    assert coordinator.posted("Sam") == RICH_UMLX - charge
    assert coordinator.posted(first.owner) == owners * 4 // 6
    assert coordinator.posted(second.owner) == owners - owners * 4 // 6
    coordinator.check_books()


async def test_a_socket_that_comes_back_in_time_loses_and_doubles_no_token(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "abc")
    await reading.until_text("abc")
    await node.drop()
    await node.connect(wire.LiveAttempt(job_id=offer.job_id, fence=offer.fence, offset=6))
    resume = await node.expect(wire.Resume)
    assert (resume.job_id, resume.fence, resume.offset) == (offer.job_id, offer.fence, 3)
    await node.chunk(offer, 1, coordinator.shelf.ids("bcdef"))  # from further back than asked
    await node.finish(offer, "abcdef", "eos")
    await reading.whole()
    assert (reading.text, reading.finish_reason) == ("abcdef", "stop")
    assert attempts(coordinator.database, offer.job_id) == [(1, "done", "stop", 6)]
    coordinator.check_books()


async def test_a_node_that_forgot_its_attempt_gives_it_up(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "a")
    await reading.until_text("a")
    await first.drop()
    await first.connect()
    second, again = await who_is_asked(*nodes)
    assert second is not first
    await second.answer(again, "b")
    assert (await reading.whole()).text == "ab"
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("lost", "node_restarted")


async def test_chunks_doubled_and_out_of_order_are_put_right(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam)
    offer = await node.offered()
    await node.accept(offer)
    ids = coordinator.shelf.ids("abcdef")
    await node.chunk(offer, 0, ids[:2])
    await node.chunk(offer, 0, ids[:2])
    await node.chunk(offer, 1, ids[1:3])
    await node.chunk(offer, 4, ids[4:])
    assert (await node.expect(wire.Resume)).offset == 3
    await node.finish(offer, ids)
    assert (await node.expect(wire.Resume)).offset == 3
    await node.chunk(offer, 3, ids[3:])
    await node.finish(offer, ids)
    await reading.whole()
    assert reading.text == "abcdef"
    assert [event_id for event_id, _ in reading.deltas] == ["2", "3", "6"]


async def test_an_old_fence_changes_nothing(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    first, offer = await who_is_asked(*nodes)
    await first.decline(offer)
    second, again = await who_is_asked(*nodes)
    await second.accept(again)
    await second.say(again, "new")
    await reading.until_text("new")
    await first.say(offer, "old")
    assert (await first.expect(wire.Cancel)).reason == "lost"
    await first.finish(offer, "old", "eos")
    await first.expect(wire.Settled)
    forged = again.model_copy(update={"fence": 2})  # the live fence, from a node that has it not
    await first.say(forged, "forged", offset=3)
    await first.finish(forged, "forged", "eos")
    await asyncio.sleep(0.2)
    await second.finish(again, "new", "eos")
    assert (await reading.whole()).text == "new"
    assert coordinator.posted(first.owner) == 0
    coordinator.check_books()


async def test_a_finish_is_answered_however_often_it_is_said(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam)
    offer = await node.offered()
    await node.answer(offer, "ok")
    await node.finish(offer, "ok", "eos")
    await reading.whole()
    await node.expect(wire.Settled)
    await node.finish(offer, "ok", "eos")
    assert (await node.expect(wire.Settled)).job_id == offer.job_id
    assert coordinator.runtime.endings.jobs_ended == 1
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(3, 2)
    coordinator.check_books()


async def test_an_owner_who_returns_hands_the_work_back_and_is_paid_for_it(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam, prompt="0123456789")
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "abc")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    second, again = await who_is_asked(*nodes)
    assert again.prefix_ids == coordinator.shelf.ids("abc")
    await second.answer(again, "def")
    assert (await reading.whole()).text == "abcdef"
    assert attempts(coordinator.database, offer.job_id)[0][1:] == ("reclaimed", "owner_returned", 3)
    assert coordinator.posted(first.owner) > 0
    coordinator.check_books()
