"""Requests that are refused, repeated or too many: nothing is left behind by any of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select

from coordinator.nodes.models import Node
from ledger.models import journal
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, chat, completion, wait_until
from tests.fixtures.coordinator import (
    CONTEXT_TOKENS,
    RICH_UMLX,
    Coordinator,
    StartCoordinator,
    price_of,
)
from tests.fixtures.scripted_node import NewNode, ScriptedNode, always
from tests.integration.records import NOTHING, error_of, rows

pytestmark = pytest.mark.anyio


# -- refusals ------------------------------------------------------------------------------------

BAD: list[tuple[str, Any, tuple[int, str, str | None]]] = [
    ("/v1/chat/completions", b"", (400, "malformed_json", None)),
    ("/v1/chat/completions", b"{", (400, "malformed_json", None)),
    ("/v1/chat/completions", b"[]", (400, "malformed_json", None)),
    ("/v1/chat/completions", b'{"model": "tiny", "model": "tiny"}', (400, "malformed_json", None)),
    ("/v1/chat/completions", b'\xff{"model": "tiny"}', (400, "malformed_json", None)),
    ("/v1/chat/completions", {"model": "tiny"}, (400, "missing_required_parameter", "messages")),
    ("/v1/chat/completions", chat(temprature=1), (400, "unknown_parameter", "temprature")),
    ("/v1/chat/completions", chat(temperature=3), (400, "invalid_value", "temperature")),
    ("/v1/chat/completions", chat(max_tokens=0), (400, "invalid_value", "max_tokens")),
    ("/v1/chat/completions", chat(logit_bias={"512": 1}), (400, "invalid_value", "logit_bias")),
    ("/v1/completions", completion(prompt=[512]), (400, "invalid_value", "prompt")),
    ("/v1/completions", completion(stop=[""]), (400, "invalid_value", "stop[0]")),
    ("/v1/jobs", {"kind": "embeddings", "request": {}}, (400, "invalid_value", "kind")),
    ("/v1/jobs", {"kind": "completions"}, (400, "missing_required_parameter", "request")),
    (
        "/v1/jobs",
        {"kind": "completions", "request": completion(stream=True)},
        (400, "invalid_value", "request.stream"),
    ),
    ("/v1/jobs", {"kind": "completions", "request": {}, "x": 1}, (400, "unknown_parameter", "x")),
    ("/v1/nodes/approve", {}, (400, "missing_required_parameter", "code")),
    ("/v1/nodes/approve", {"code": None}, (400, "missing_required_parameter", "code")),
    ("/v1/nodes/approve", {"code": 5}, (400, "invalid_value", "code")),
    ("/v1/nodes/approve", {"code": "AAAA-AAAA", "x": 1}, (400, "unknown_parameter", "x")),
    ("/v1/nodes/approve", b"[]", (400, "malformed_json", None)),
    ("/v1/nodes/approve", b"{", (400, "malformed_json", None)),
    ("/v1/nodes/approve", b'{"code": "a", "code": "b"}', (400, "malformed_json", None)),
    ("/nodes/v1/enrolments", {}, (400, "missing_required_parameter", "public_key")),
    ("/v1/transfers", {"to": "Pat"}, (400, "missing_required_parameter", "amount_umlx")),
    (
        "/v1/transfers",
        {"to": "Pat", "amount_umlx": None},
        (400, "missing_required_parameter", "amount_umlx"),
    ),
    ("/v1/transfers", {"to": "Pat", "amount_umlx": 1, "note": None}, (400, "invalid_value", "note")),
]


async def test_malformed_requests_name_the_field_and_leave_nothing(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    for path, body, expected in BAD:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await sam.post(path, content=content)
        assert error_of(answer) == expected, (path, body)
    assert rows(coordinator) == NOTHING
    answer = await sam.post("/v1/nodes/approve", content=b"[]")
    assert "must be an object" in answer.json()["error"]["message"]


async def test_a_needed_field_inside_another_is_named_when_it_is_absent(
    coordinator: Coordinator,
) -> None:
    operator = coordinator.client("Operator")
    for budget in ({"id": "budget_" + "0" * 32}, {"id": "budget_" + "0" * 32, "purpose": None}):
        answer = await operator.post("/v1/budgets", json={"kind": "budget", "budget": budget})
        assert error_of(answer) == (400, "missing_required_parameter", "budget.purpose")
    answer = await operator.post("/v1/vouchers", json={"days": 1, "amount_umlx": None})
    assert error_of(answer) == (400, "missing_required_parameter", "amount_umlx")


async def test_a_needed_parameter_of_an_address_is_named_when_it_is_absent(
    sam: httpx2.AsyncClient,
) -> None:
    answer = await sam.get("/v1/ledger/inclusion")
    assert error_of(answer) == (400, "missing_required_parameter", "seq")


async def test_an_unknown_model_is_told_what_is_nearest(sam: httpx2.AsyncClient) -> None:
    answer = await sam.post("/v1/completions", json=completion(model="tinny"))
    assert error_of(answer) == (404, "model_not_found", "model")
    assert "Nearest: tiny" in answer.json()["error"]["message"]


async def test_a_prompt_over_the_context_is_refused(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    for prompt, max_tokens in (("x" * CONTEXT_TOKENS, 1), ("x" * (CONTEXT_TOKENS - 8), 9)):
        answer = await sam.post("/v1/completions", json=completion(prompt, max_tokens=max_tokens))
        assert error_of(answer) == (400, "context_length_exceeded", "prompt")
        assert str(CONTEXT_TOKENS) in answer.json()["error"]["message"]
    assert rows(coordinator) == NOTHING


async def test_a_prompt_of_megabytes_is_told_what_to_do(sam: httpx2.AsyncClient) -> None:
    for path, body, param in (
        ("/v1/completions", completion("x" * 3_000_000), "prompt"),
        ("/v1/chat/completions", chat(messages=[{"role": "user", "content": "x" * 3_000_000}]), "messages"),
        ("/v1/jobs", {"kind": "completions", "request": completion("x" * 3_000_000)}, "prompt"),
    ):
        answer = await sam.post(path, json=body)
        assert error_of(answer) == (400, "context_length_exceeded", param)
        message = answer.json()["error"]["message"]
        assert f"{CONTEXT_TOKENS} tokens; the prompt has at least" in message
        assert "Shorten the prompt" in message
    answer = await sam.post("/v1/completions", json=completion("x" * 9_000_000))
    assert error_of(answer) == (413, "body_too_large", None)
    assert str(8 << 20) in answer.json()["error"]["message"]


async def test_the_whole_context_can_be_used(node: ScriptedNode, sam: httpx2.AsyncClient) -> None:
    node.behaviour = always("x")
    body = completion("x" * (CONTEXT_TOKENS - 8), max_tokens=8)
    assert (await sam.post("/v1/completions", json=body)).status_code == 200


async def test_a_balance_too_small_leaves_nothing(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    pat = coordinator.client("Pat")
    body = completion("abc", max_tokens=11)
    assert price_of(3, 11) == 61  # one more than Pat has
    refused = await pat.post("/v1/completions", json=body)
    assert error_of(refused) == (402, "insufficient_balance", None)
    assert "61 uMLX" in refused.json()["error"]["message"]
    assert rows(coordinator) == NOTHING
    with coordinator.database.read() as session:
        posted = session.scalar(
            select(func.count())
            .select_from(journal)
            .where(journal.c.kind == "open_hold", journal.c.result == "posted")
        )
        assert posted == 0
    node.behaviour = always("ok")
    body["max_tokens"] = 10
    assert (await pat.post("/v1/completions", json=body)).status_code == 200
    coordinator.check_books()


async def test_two_jobs_cannot_spend_the_same_money(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    pat = coordinator.client("Pat")
    body = completion("abc", max_tokens=6)  # 36 of Pat's 60
    node.behaviour = always("okokok", pause_seconds=0.3)
    answers = await asyncio.gather(*(pat.post("/v1/completions", json=body) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 402, 402, 402]
    coordinator.check_books()


async def test_a_body_over_the_limit_is_refused_wherever_it_goes(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(body_bytes_max=2000)
    async with coordinator.client("Sam") as sam:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/jobs", "/v1/nodes/approve"):
            answer = await sam.post(path, content=b"x" * 2001)
            assert error_of(answer) == (413, "body_too_large", None), path
            message = answer.json()["error"]["message"]
            assert "more than 2000 bytes" in message and "shorter prompt" in message
        answer = await sam.post("/v1/completions", content=chunked(b"x" * 300, 10))
        assert error_of(answer) == (413, "body_too_large", None)
        assert (await sam.post("/v1/completions", content=b"x" * 2000)).status_code == 400
    async with coordinator.client(None) as anybody:
        answer = await anybody.post("/nodes/v1/enrolments", content=b"x" * 2001)
        assert error_of(answer) == (413, "body_too_large", None)
        answer = await anybody.post("/nodes/v1/enrolments", content=chunked(b"x" * 300, 10))
        assert error_of(answer) == (413, "body_too_large", None)


async def chunked(part: bytes, count: int) -> AsyncIterator[bytes]:
    """A body whose length is not declared."""
    for _ in range(count):
        yield part


async def test_nobody_takes_it_in_time(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    headers = {"x-mlxnet-max-wait": "0.3"}
    answer = await sam.post("/v1/completions", json=completion(), headers=headers)
    assert error_of(answer) == (503, "no_host_available", None)
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-should-retry"] == "true"
    job = (await sam.get(f"/v1/jobs/{answer.headers['x-job-id']}")).json()
    assert (job["state"], job["charge_umlx"], job["attempts"]) == ("expired", "0", [])
    assert coordinator.posted("Sam") == RICH_UMLX
    assert rows(coordinator)["payloads"] == 0
    coordinator.check_books()


async def test_a_wait_that_is_no_number_of_seconds_is_refused(sam: httpx2.AsyncClient) -> None:
    for wait in ("soon", "-1", "nan", "1e9"):
        answer = await sam.post("/v1/completions", json=completion(), headers={"x-mlxnet-max-wait": wait})
        assert error_of(answer) == (400, "invalid_value", "x-mlxnet-max-wait")


async def test_a_job_that_no_host_could_ever_take_is_refused_at_once(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    small = ScriptedNode(coordinator, "Ada", name="small", lent_bytes=1 << 20)
    await small.enrol()
    await small.connect()
    await wait_until(lambda: coordinator.runtime.dispatcher.book.table.count, "the Mac to be known")
    for path, body in (
        ("/v1/completions", completion()),
        ("/v1/completions", completion(stream=True)),
        ("/v1/chat/completions", chat(stream=True)),
        ("/v1/jobs", {"kind": "completions", "request": completion()}),
        ("/v1/quotes", {"kind": "completions", "request": completion()}),
    ):
        answer = await sam.post(path, json=body)
        assert error_of(answer) == (422, "job_unservable", "model"), path
        assert f"the largest Mac lends {1 << 20} bytes" in answer.json()["error"]["message"]
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-should-retry"] == "false"
    assert rows(coordinator) == NOTHING
    await small.close()


async def test_a_job_waits_for_a_large_mac_that_was_here_lately(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await node.close()
    small = ScriptedNode(coordinator, "Ada", name="small", lent_bytes=1 << 20)
    await small.enrol()
    await small.connect()
    book = coordinator.runtime.dispatcher.book
    await wait_until(lambda: book.row(small.node_id) is not None, "the small Mac to be known")
    await wait_until(lambda: book.row(node.node_id) is None, "the large Mac to go")
    await wait_until(lambda: state_of(coordinator, node.node_id) == "offline", "that to be written")
    answer = await sam.post("/v1/jobs", json={"kind": "completions", "request": completion()})
    assert answer.status_code == 202
    await small.close()


def state_of(coordinator: Coordinator, node_id: str) -> str:
    with coordinator.database.read() as session:
        return session.get_one(Node, node_id).state


async def test_a_model_that_is_known_and_not_pinned_is_told_as_such(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    for answer in (
        await sam.post("/v1/chat/completions", json=chat(model="llama-3.1-405b")),
        await sam.post("/v1/chat/completions", json=chat(model="llama-3.1-405b", stream=True)),
        await sam.post(
            "/v1/jobs", json={"kind": "chat.completions", "request": chat(model="llama-3.1-405b")}
        ),
        await sam.get("/v1/models/llama-3.1-405b"),
    ):
        assert error_of(answer) == (404, "model_not_served", "model")
        message = answer.json()["error"]["message"]
        assert "'llama-3.1-405b-4bit' is in the catalogue and not served" in message
        assert "mlx-network catalogue add mlx-community/" in message


# -- repeated ------------------------------------------------------------------------------------


async def test_the_same_key_and_body_is_the_same_job(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("once")
    headers = {"Idempotency-Key": "k-1"}
    first = await sam.post("/v1/completions", json=completion(), headers=headers)
    again = await sam.post("/v1/completions", json=completion(), headers=headers)
    assert first.status_code == again.status_code == 200
    assert again.content == first.content
    assert again.headers["x-job-id"] == first.headers["x-job-id"]
    assert (first.headers.get("idempotency-hit"), again.headers["idempotency-hit"]) == (None, "true")
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(3, 4)
    assert rows(coordinator)["jobs"] == 1
    other = await sam.post("/v1/completions", json=completion("abd"), headers=headers)
    assert error_of(other) == (409, "idempotency_key_reused", None)
    coordinator.check_books()


async def test_a_job_that_no_mac_took_frees_its_key(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    """Its submitter is told to try again, and tries with the same key."""
    headers = {"Idempotency-Key": "k-1", "x-mlxnet-max-wait": "1"}
    first = await sam.post("/v1/completions", json=completion(), headers=headers)
    assert error_of(first)[:2] == (503, "no_host_available")
    node = await new_node()
    node.behaviour = always("once")
    again = await sam.post("/v1/completions", json=completion(), headers=headers)
    assert again.status_code == 200, again.text
    assert again.headers["x-job-id"] != first.headers["x-job-id"]
    third = await sam.post("/v1/completions", json=completion(), headers=headers)
    assert third.headers["x-job-id"] == again.headers["x-job-id"]
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(3, 4)
    coordinator.check_books()


async def test_a_key_belongs_to_its_account(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("ok")
    headers = {"Idempotency-Key": "k-1"}
    body = completion(max_tokens=2)
    first = await sam.post("/v1/completions", json=body, headers=headers)
    other = await coordinator.client("Pat").post("/v1/completions", json=body, headers=headers)
    assert other.status_code == 200
    assert other.headers["x-job-id"] != first.headers["x-job-id"]


async def test_simultaneous_duplicates_are_one_job(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("once", pause_seconds=0.2)
    for number in range(5):
        headers = {"Idempotency-Key": f"k-{number}"}
        answers = await asyncio.gather(
            *(sam.post("/v1/completions", json=completion(), headers=headers) for _ in range(6))
        )
        assert [answer.status_code for answer in answers] == [200] * 6, [a.text for a in answers]
        assert len({answer.content for answer in answers}) == 1
    assert rows(coordinator)["jobs"] == 5
    assert coordinator.posted("Sam") == RICH_UMLX - 5 * price_of(3, 4)
    coordinator.check_books()


async def test_a_duplicate_that_leaves_does_not_end_the_job_of_the_other(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    headers = {"Idempotency-Key": "k"}
    body = completion(stream=False)
    first = Reading(sam, "POST", "/v1/completions", json=body, headers=headers)
    offer = await node.offered()
    await node.accept(offer)
    staying = asyncio.create_task(sam.post("/v1/completions", json=body, headers=headers))
    await asyncio.sleep(0.3)
    await first.leave()
    await asyncio.sleep(0.3)
    assert not node.has(wire.Cancel)
    await node.say(offer, "still")
    await node.finish(offer, "still", "eos")
    answer = await staying
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "still")


async def test_too_many_jobs_at_once_are_refused(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(jobs_per_account_max=2)
    body = {"kind": "completions", "request": completion()}
    async with coordinator.client("Sam") as sam:
        answers = [await sam.post("/v1/jobs", json=body) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 429]
        assert int(answers[2].headers["retry-after"]) >= 1
        job_id = answers[0].json()["id"]
        assert (await sam.post(f"/v1/jobs/{job_id}/cancel")).json()["state"] == "cancelled"
        assert (await sam.post("/v1/jobs", json=body)).status_code == 202
