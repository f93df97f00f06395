"""Submitters who cancel, leave, come back, or read from where they were."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.types import Message

from coordinator.openai.streaming import EventStreamResponse
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, chat, completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator, price_of
from tests.fixtures.scripted_node import ScriptedNode, always

pytestmark = pytest.mark.anyio


async def job_of(sam: httpx2.AsyncClient, job_id: str) -> dict[str, object]:
    answer = await sam.get(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def wait_state(coordinator: Coordinator, job_id: str, state: str) -> None:
    def is_there() -> bool:
        with coordinator.database.read() as session:
            query = "SELECT state FROM jobs WHERE id = '" + job_id + "'"
            return session.connection().exec_driver_sql(query).scalar_one() == state

    await wait_until(is_there, f"{job_id} to be {state}")


# -- cancelling ----------------------------------------------------------------------------------


async def test_cancel_while_queued(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    body = {"kind": "completions", "request": completion()}
    job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
    cancelled = await sam.post(f"/v1/jobs/{job_id}/cancel")
    assert cancelled.status_code == 200
    assert (cancelled.json()["state"], cancelled.json()["charge_umlx"]) == ("cancelled", "0")
    assert coordinator.posted("Sam") == RICH_UMLX
    coordinator.check_books()


async def test_cancel_of_a_waiting_request_answers_it(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
    await wait_until(lambda: coordinator.balances()["Sam"][1] > 0, "the hold")
    (job,) = (await sam.get("/v1/jobs")).json()["data"]
    assert (await sam.post(f"/v1/jobs/{job['id']}/cancel")).json()["state"] == "cancelled"
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_cancelled")
    assert answer.headers["x-job-id"] == job["id"]
    coordinator.check_books()


async def test_cancel_before_the_first_token(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = Reading(sam, "POST", "/v1/completions", json=completion(stream=True))
    offer = await node.offered()
    await node.accept(offer)
    cancelled = await sam.post(f"/v1/jobs/{offer.job_id}/cancel")
    assert (cancelled.json()["state"], cancelled.json()["charge_umlx"]) == ("cancelled", "0")
    cancel = await node.expect(wire.Cancel)
    assert (cancel.fence, cancel.reason) == (offer.fence, "client")
    await node.expect(wire.Settled)
    await reading.whole()
    assert [event.data for event in reading.events][-1] == "[DONE]"
    assert reading.events[-2].data["error"]["code"] == "job_cancelled"
    assert coordinator.posted("Ada") == 0
    coordinator.check_books()


async def test_cancel_while_streaming_charges_what_was_relayed(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    body = completion("x" * 20, stream=True, max_tokens=50)
    reading = Reading(sam, "POST", "/v1/completions", json=body)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "five!")
    await reading.until_text("five!")
    cancelled = (await sam.post(f"/v1/jobs/{offer.job_id}/cancel")).json()
    charge = price_of(20, 5)
    assert (cancelled["state"], cancelled["output_tokens"]) == ("cancelled", 5)
    assert cancelled["charge_umlx"] == str(charge)
    assert (await node.expect(wire.Cancel)).reason == "client"
    await node.say(offer, "late", offset=5)  # already on its way: changes nothing
    await node.finish(offer, "five!late", "cancelled")
    await node.expect(wire.Settled)
    await reading.whole()
    assert reading.text == "five!"
    assert coordinator.posted("Sam") == RICH_UMLX - charge
    assert (await job_of(sam, offer.job_id))["charge_umlx"] == str(charge)
    coordinator.check_books()


async def test_cancel_of_an_ended_job_changes_nothing(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("done")
    answer = await sam.post("/v1/completions", json=completion())
    again = await sam.post(f"/v1/jobs/{answer.headers['x-job-id']}/cancel")
    assert (again.status_code, again.json()["state"]) == (200, "done")
    coordinator.check_books()


# -- leaving -------------------------------------------------------------------------------------


async def test_a_reader_that_leaves_ends_the_job(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = Reading(sam, "POST", "/v1/completions", json=completion("x" * 20, stream=True))
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "two")
    await reading.until_text("two")
    left_at = time.monotonic()
    await reading.leave()
    cancel = await node.expect(wire.Cancel)
    assert time.monotonic() - left_at < 2
    assert (cancel.job_id, cancel.reason) == (offer.job_id, "client")
    await wait_state(coordinator, offer.job_id, "cancelled")
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(20, 3)
    coordinator.check_books()


async def test_a_client_that_leaves_an_unstreamed_answer_ends_the_job(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    reading = Reading(sam, "POST", "/v1/completions", json=completion())
    offer = await node.offered()
    await node.accept(offer)
    await reading.leave()
    assert (await node.expect(wire.Cancel, seconds=2)).reason == "client"
    await wait_state(coordinator, offer.job_id, "cancelled")
    assert coordinator.posted("Sam") == RICH_UMLX
    coordinator.check_books()


async def test_a_client_that_leaves_the_queue_leaves_no_job_in_it(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    reading = Reading(sam, "POST", "/v1/completions", json=completion())
    await wait_until(lambda: coordinator.balances()["Sam"][1] > 0, "the hold")
    (job,) = (await sam.get("/v1/jobs")).json()["data"]
    await reading.leave()
    await wait_state(coordinator, job["id"], "cancelled")
    coordinator.check_books()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_job_can_go_on_without_its_client(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient, is_streamed: bool
) -> None:
    headers = {"x-mlxnet-on-disconnect": "continue"}
    body = completion(stream=is_streamed)
    reading = Reading(sam, "POST", "/v1/completions", json=body, headers=headers)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "ab")
    if is_streamed:
        await reading.until_text("ab")
    await reading.leave()
    await asyncio.sleep(0.3)
    assert not node.has(wire.Cancel)
    await node.say(offer, "cd", offset=2)
    await node.finish(offer, "abcd", "eos")
    await wait_state(coordinator, offer.job_id, "done")
    rest = await Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events?after=2").whole()
    assert (rest.text, rest.finish_reason) == ("cd", "stop")
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(3, 4)
    coordinator.check_books()


# -- reading from an offset ----------------------------------------------------------------------


async def test_events_behind_an_offset_are_exactly_the_rest(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    text = "aé漢b😀c"
    node.behaviour = always(text)
    body = chat(max_tokens=30, stream=True)
    first = await Reading(sam, "POST", "/v1/chat/completions", json=body).whole()
    assert first.text == text
    path = f"/v1/jobs/{first.job_id}/events"
    for index, (event_id, _) in enumerate(first.deltas):
        rest = await Reading(sam, "GET", f"{path}?after={event_id}").whole()
        assert rest.deltas == first.deltas[index + 1 :]
        assert rest.finish_reason == "stop"
        by_header = await Reading(sam, "GET", path, headers={"Last-Event-ID": str(event_id)}).whole()
        assert by_header.events == rest.events
    whole = await Reading(sam, "GET", path).whole()
    assert whole.deltas == first.deltas
    assert whole.events[0].data["choices"][0]["delta"]["role"] == "assistant"
    bad = await sam.get(path, headers={"Last-Event-ID": "x"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "Last-Event-ID")


async def test_a_second_reader_follows_a_running_job_from_its_offset(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    first = Reading(sam, "POST", "/v1/completions", json=completion(stream=True))
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "abc")
    await first.until_text("abc")
    second = Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events?after=1")
    await second.until_text("bc")
    await first.leave()
    await asyncio.sleep(0.2)
    assert not node.has(wire.Cancel), "the second reader still reads"
    await node.say(offer, "d", offset=3)
    await second.until_text("bcd")
    await node.finish(offer, "abcd", "eos")
    assert (await second.whole()).finish_reason == "stop"


async def test_events_of_an_asynchronous_job_that_waits(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    body = {"kind": "completions", "request": completion()}
    job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
    reading = Reading(sam, "GET", f"/v1/jobs/{job_id}/events")
    await node.answer(await node.offered(), "here")
    await reading.whole()
    assert (reading.text, reading.job_id) == ("here", job_id)
    await Reading(sam, "GET", f"/v1/jobs/{job_id}/events").leave()
    assert (await sam.get(f"/v1/jobs/{job_id}/result")).status_code == 200


async def test_an_idle_stream_is_kept_alive(node: ScriptedNode, sam: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        lines: list[str] = []

        async def read() -> None:
            async with sam.stream("POST", "/v1/completions", json=completion(stream=True)) as response:
                lines.extend([line async for line in response.aiter_lines()])

        group.create_task(read())
        offer = await node.offered()
        await node.accept(offer)
        await asyncio.sleep(1.2)
        await node.answer(offer, "x")
    assert 1 <= lines.count(": keep-alive") <= 3


async def test_an_ended_stream_is_forgotten_in_time(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(stream_keep_seconds=0.1)
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    node.behaviour = always("x")
    async with coordinator.client("Sam") as sam:
        for is_streamed in (True, False):
            body = completion(stream=is_streamed)
            reading = await Reading(sam, "POST", "/v1/completions", json=body).whole()
            job_id = reading.job_id
            await wait_until(lambda job_id=job_id: coordinator.runtime.jobs.get(job_id) is None, "it")
            gone = await sam.get(f"/v1/jobs/{job_id}/events")
            assert (gone.status_code, gone.json()["error"]["code"]) == (410, "stream_gone")
            assert (await job_of(sam, job_id))["state"] == "done"
    await node.close()


async def test_a_reader_that_takes_nothing_is_cut() -> None:
    """The server's `send` waits while the reader's buffers are full; here it waits for ever."""
    ends: list[bool] = []

    async def events() -> AsyncIterator[bytes]:
        yield b"data: x\n\n"

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    response = EventStreamResponse(events(), headers={}, stall_seconds=0.1, on_end=ends.append)
    async with asyncio.timeout(5):
        await response({"type": "http"}, receive, send)
    assert ends == [True]
