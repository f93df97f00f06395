"""Nodes that decline, die, come back, lie or misbehave: the submitter sees one clean answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from coordinator.db import Database
from coordinator.jobs.models import Attempt
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, completion, wait_until
from tests.fixtures.coordinator import (
    RICH_UMLX,
    Coordinator,
    StartCoordinator,
    fee_of,
    price_of,
)
from tests.fixtures.scripted_node import NewNode, ScriptedNode

pytestmark = pytest.mark.anyio


async def who_is_asked(*nodes: ScriptedNode) -> tuple[ScriptedNode, wire.Offer]:
    """The node that gets the next offer."""
    async with asyncio.timeout(15):
        while True:
            for node in nodes:
                if node.has(wire.Offer):
                    return node, await node.offered()
            await asyncio.sleep(0.01)


def attempts(database: Database, job_id: str) -> list[tuple[int, str, str | None, int]]:
    """(fence, state, reason, delivered tokens) of the job's attempts."""
    with database.read() as session:
        rows = session.query(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.fence).all()
        return [(row.fence, row.state, row.reason, row.delivered_tokens) for row in rows]


def ask(sam: httpx2.AsyncClient, **changes: Any) -> Reading:
    return Reading(sam, "POST", "/v1/completions", json=completion(stream=True, **changes))


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


async def connected(coordinator: Coordinator, *owners: str) -> list[ScriptedNode]:
    nodes = [ScriptedNode(coordinator, owner, name=f"{owner}s Mac") for owner in owners]
    for node in nodes:
        await node.enrol()
        await node.connect()
    return nodes


async def close(*nodes: ScriptedNode) -> None:
    for node in nodes:
        await node.close()


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
    await node.finish(offer, "abcdef", "length")
    await reading.whole()
    assert (reading.text, reading.finish_reason) == ("abcdef", "length")
    assert attempts(coordinator.database, offer.job_id) == [(1, "done", "length", 6)]
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


# -- nodes at fault ------------------------------------------------------------------------------


LIES: dict[str, Callable[[ScriptedNode], dict[str, Any]]] = {
    "signature": lambda node: {"signature": node.sign(b"something else")},
    "fewer": lambda _node: {"token_count": 2},
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


async def test_a_node_that_does_not_stop_is_stopped(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = ask(sam, prompt="0123456789", max_tokens=4)
    offer = await node.offered()
    await node.accept(offer)
    await node.chunk(offer, 0, coordinator.shelf.ids("abcdefgh"))
    await node.finish(offer, "abcdefgh")
    assert (await node.expect(wire.Cancel)).job_id == offer.job_id
    await node.expect(wire.Settled)
    await reading.whole()
    assert (reading.text, reading.finish_reason) == ("abcd", "length")
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(10, 4)
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


async def test_no_progress_loses_the_lease(start_coordinator: StartCoordinator) -> None:
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
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("lost", "no_progress")
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
        assert (job["state"], job["charge_umlx"]) == ("failed", "0")
    coordinator.check_books()


async def test_a_job_fails_after_too_many_attempts(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(attempts_max=2)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
        for _ in range(2):
            node, offer = await who_is_asked(*nodes)
            await node.accept(offer)
            await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="runner_crashed"))
        answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "host_lost")
    assert answer.headers["x-should-retry"] == "false"
    assert [row[1:3] for row in attempts(coordinator.database, answer.headers["x-job-id"])] == [
        ("failed", "runner_crashed")
    ] * 2
    await close(*nodes)
    coordinator.check_books()


async def test_a_request_that_the_runner_refuses_is_the_submitters_fault(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
    offer = await node.offered()
    await node.accept(offer)
    await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="request_invalid"))
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_invalid")
    await node.expect(wire.Settled)
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
