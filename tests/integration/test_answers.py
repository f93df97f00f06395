"""What submitters get: chats and completions, whole and streamed, and what they pay."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, chat, completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, fee_of, price_of
from tests.fixtures.scripted_node import NewNode, ScriptedNode, always

pytestmark = pytest.mark.anyio

CHAT_PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_chat_is_answered_whole(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    asked = asyncio.create_task(sam.post("/v1/chat/completions", json=chat("hi")))
    offer = await node.offered()
    assert list(offer.prompt_ids) == coordinator.shelf.tokenizer.encode(CHAT_PROMPT).ids
    assert offer.max_tokens == 8
    assert offer.prefix_ids == ()
    await node.answer(offer, "hello")
    answer = await asked
    assert answer.status_code == 200
    body = answer.json()
    job_id = answer.headers["x-job-id"]
    assert body["id"] == job_id.replace("job_", "chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert coordinator.shelf.card.revision.startswith(body["system_fingerprint"].removeprefix("fp_"))
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "hello"
    assert choice["finish_reason"] == "stop"
    prompt_tokens = len(offer.prompt_ids)
    assert body["usage"]["prompt_tokens"] == prompt_tokens
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == prompt_tokens + 5
    assert answer.headers["x-mlxnet-charge-umlx"] == str(price_of(prompt_tokens, 5))


async def test_money_moves_as_computed_by_hand(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("seven77")
    answer = await sam.post("/v1/completions", json=completion("twelve bytes", max_tokens=9))
    assert answer.status_code == 200
    charge = 12 * 2 + 7 * 5
    assert charge == price_of(12, 7)
    balances = coordinator.balances()
    assert balances["Sam"] == (RICH_UMLX - charge, 0)
    assert balances["Ada"] == (charge - fee_of(charge), 0)
    assert balances["fee"] == (fee_of(charge), 0)
    job = (await sam.get(f"/v1/jobs/{answer.headers['x-job-id']}")).json()
    assert job["state"] == "done"
    assert job["bound_umlx"] == str(12 * 2 + 9 * 5)
    assert job["charge_umlx"] == str(charge)
    (attempt,) = job["attempts"]
    assert attempt["state"] == "done"
    assert attempt["delivered_tokens"] == 7
    assert attempt["share_umlx"] == str(charge - fee_of(charge))
    coordinator.check_books()


async def test_a_short_job_costs_the_minimum(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("b")
    answer = await sam.post("/v1/completions", json=completion("a", max_tokens=1))
    assert answer.headers["x-mlxnet-charge-umlx"] == "20"
    assert coordinator.posted("Sam") == RICH_UMLX - 20
    coordinator.check_books()


async def test_a_stream_has_role_deltas_finish_usage_and_done_in_this_order(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("abc")
    body = chat("hi", stream=True, stream_options={"include_usage": True})
    reading = await Reading(sam, "POST", "/v1/chat/completions", json=body).whole()
    assert reading.status == 200
    *chunks, done = reading.events
    assert done.data == "[DONE]"
    assert {chunk.data["id"] for chunk in chunks} == {reading.job_id.replace("job_", "chatcmpl-")}
    assert {chunk.data["object"] for chunk in chunks} == {"chat.completion.chunk"}
    first, *deltas, last, usage = (chunk.data for chunk in chunks)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [delta["choices"][0]["delta"]["content"] for delta in deltas] == ["a", "b", "c"]
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert [chunk["usage"] for chunk in (first, *deltas, last)] == [None] * 5
    assert [chunk.id for chunk in chunks] == ["0", "1", "2", "3", "3", "3"]


async def test_a_stream_without_usage_ends_with_the_finish(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("ab")
    reading = await Reading(sam, "POST", "/v1/completions", json=completion(stream=True)).whole()
    kinds = [event.data if event.data == "[DONE]" else event.data["object"] for event in reading.events]
    assert kinds == ["text_completion"] * 3 + ["[DONE]"]
    assert reading.text == "ab"
    assert reading.finish_reason == "stop"
    assert all("usage" not in event.data for event in reading.events)
    assert all(event.data["id"] == reading.job_id.replace("job_", "cmpl-") for event in reading.events[:-1])


async def test_an_answer_streams_while_it_is_made(node: ScriptedNode, sam: httpx2.AsyncClient) -> None:
    reading = Reading(sam, "POST", "/v1/completions", json=completion(stream=True))
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "a")
    await reading.until_text("a")
    await node.say(offer, "b", offset=1)
    await reading.until_text("ab")
    await node.finish(offer, "ab", "eos")
    assert (await reading.whole()).finish_reason == "stop"


async def test_characters_cut_into_tokens_come_whole(node: ScriptedNode, sam: httpx2.AsyncClient) -> None:
    node.behaviour = always("aé漢😀")
    body = completion(stream=True, max_tokens=20)
    reading = await Reading(sam, "POST", "/v1/completions", json=body).whole()
    assert [text for _, text in reading.deltas] == ["a", "é", "漢", "😀"]
    assert [event_id for event_id, _ in reading.deltas] == ["1", "3", "6", "10"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_stop_string_across_chunks_ends_the_job(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient, is_streamed: bool
) -> None:
    body = completion("abc", stop=["END"], stream=is_streamed, max_tokens=50)
    reading = Reading(sam, "POST", "/v1/completions", json=body)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "fine EN")
    await node.chunk(offer, 7, coordinator.shelf.ids("D more"))
    cancel = await node.expect(wire.Cancel)
    assert (cancel.job_id, cancel.fence, cancel.reason) == (offer.job_id, offer.fence, "stop_string")
    settled = await node.expect(wire.Settled)
    assert settled.job_id == offer.job_id
    await reading.whole()
    job = (await sam.get(f"/v1/jobs/{offer.job_id}")).json()
    assert (job["state"], job["finish_reason"], job["output_tokens"]) == ("done", "stop", 8)
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(3, 8)
    if is_streamed:
        assert (reading.text, reading.finish_reason) == ("fine ", "stop")
    coordinator.check_books()


async def test_max_tokens_is_told_to_the_node_and_reported(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion(max_tokens=3)))
    offer = await node.offered()
    assert offer.max_tokens == 3
    await node.answer(offer, "xyz", "length")
    (choice,) = (await asked).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("xyz", "length")


async def test_logprobs_are_relayed(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    asked = asyncio.create_task(sam.post("/v1/chat/completions", json=chat(logprobs=True, top_logprobs=2)))
    offer = await node.offered()
    assert offer.top_logprobs == 2
    (x,) = coordinator.shelf.ids("x")
    (y,) = coordinator.shelf.ids("y")
    logprob = wire.TokenLogprob(logprob=-0.25, top=((x, -0.25), (y, -1.5)))
    await node.accept(offer)
    await node.chunk(offer, 0, [x], logprobs=(logprob,))
    await node.finish(offer, [x], "eos")
    (choice,) = (await asked).json()["choices"]
    (entry,) = choice["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("x", -0.25, [120])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [("x", -0.25), ("y", -1.5)]


async def test_an_answer_without_a_token_is_an_answer(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("")
    answer = await sam.post("/v1/completions", json=completion("x" * 30))
    assert answer.json()["choices"][0]["text"] == ""
    charge = price_of(30, 0)
    assert coordinator.posted("Ada") == charge - fee_of(charge)
    coordinator.check_books()


async def test_two_owners_are_paid_for_their_own_jobs(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    for owner in ("Ada", "Bo"):
        (await new_node(owner)).behaviour = always("abcd", pause_seconds=0.1)
    answers = await asyncio.gather(
        *(sam.post("/v1/completions", json=completion("ten bytes.")) for _ in range(6))
    )
    assert [answer.status_code for answer in answers] == [200] * 6
    charge = price_of(10, 4)
    balances = coordinator.balances()
    assert balances["Sam"] == (RICH_UMLX - 6 * charge, 0)
    assert balances["Ada"][0] + balances["Bo"][0] == 6 * (charge - fee_of(charge))
    assert balances["Ada"][0] == balances["Bo"][0]
    coordinator.check_books()


async def test_an_asynchronous_answer_is_kept_until_it_is_fetched(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    body: dict[str, Any] = {"kind": "chat.completions", "request": chat("hi")}
    submitted = await sam.post("/v1/jobs", json=body)
    assert submitted.status_code == 202
    job_id = submitted.json()["id"]
    early = await sam.get(f"/v1/jobs/{job_id}/result")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "job_not_ended")
    await node.answer(await node.offered(), "later")
    await node.expect(wire.Settled)
    result = await sam.get(f"/v1/jobs/{job_id}/result")
    assert result.status_code == 200
    assert result.json()["choices"][0]["message"]["content"] == "later"
    assert result.json()["id"] == job_id.replace("job_", "chatcmpl-")
    await wait_until(lambda: not payload_rows(coordinator), "the result to be dropped")
    again = await sam.get(f"/v1/jobs/{job_id}/result")
    assert (again.status_code, again.json()["error"]["code"]) == (410, "result_gone")


def payload_rows(coordinator: Coordinator) -> int:
    with coordinator.database.read() as session:
        return len(session.connection().exec_driver_sql("SELECT * FROM job_payloads").all())
