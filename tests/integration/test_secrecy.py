"""Prompts and answers: in memory and encrypted only, and gone when nobody needs them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx2
import pytest
from sqlalchemy import MetaData, select

from coordinator import upkeep
from coordinator.jobs.models import JobPayload
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, chat, completion, wait_until
from tests.fixtures.coordinator import Coordinator, StartCoordinator
from tests.fixtures.scripted_node import ScriptedNode, always

pytestmark = pytest.mark.anyio

ASKED = "purple-elephant-question"
SAID = "silver-tortoise"


def everything_stored(coordinator: Coordinator) -> bytes:
    """Every value of every column of every table, bytes as they are."""
    metadata = MetaData()
    metadata.reflect(coordinator.database.engine)
    found: list[bytes] = []
    with coordinator.database.read() as session:
        for table in metadata.sorted_tables:
            for row in session.execute(select(table)).all():
                found += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    assert len(found) > 100
    return b"\n".join(found)


def check_secret(coordinator: Coordinator, logged: str) -> None:
    stored = everything_stored(coordinator)
    for secret in (ASKED, SAID):
        assert secret.encode() not in stored
        assert secret not in logged
        # As token ids, as they go over the wire and into the payload.
        ids = ", ".join(map(str, coordinator.shelf.ids(secret)))
        assert ids.encode() not in stored
        assert ids.replace(" ", "") not in logged.replace(" ", "")


async def test_no_text_is_logged_or_stored_in_the_open(
    coordinator: Coordinator,
    node: ScriptedNode,
    sam: httpx2.AsyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"kind": "chat.completions", "request": chat(ASKED, max_tokens=40)}
    job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, SAID)
    assert [row.part for row in payloads(coordinator)] == ["request"]
    check_secret(coordinator, coordinator.logs.getvalue())
    await node.finish(offer, SAID, "eos")
    await node.expect(wire.Settled)
    assert [row.part for row in payloads(coordinator)] == ["result"]
    check_secret(coordinator, coordinator.logs.getvalue())
    fetched = await sam.get(f"/v1/jobs/{job_id}/result")
    assert fetched.json()["choices"][0]["message"]["content"] == SAID
    await wait_until(lambda: not payloads(coordinator), "the payload to go")
    check_secret(coordinator, coordinator.logs.getvalue() + own_lines(caplog))


async def test_refused_broken_and_failed_requests_reveal_nothing_either(
    coordinator: Coordinator,
    node: ScriptedNode,
    sam: httpx2.AsyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    bad: list[dict[str, Any]] = [
        completion(ASKED, max_tokens=10_000),
        completion(ASKED, temperature=ASKED),
        {"model": "tiny", "prompt": {"x": ASKED}},
        chat(ASKED, stop=[ASKED] * 5),
    ]
    for body in bad:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        answer = await sam.post(path, json=body)
        assert answer.status_code == 400
        assert ASKED not in answer.text
    reading = Reading(sam, "POST", "/v1/completions", json=completion(ASKED, stream=True, max_tokens=40))
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, SAID)
    await reading.until_text(SAID)
    await node.chunk(offer, len(SAID), [9999])
    await reading.leave()
    await wait_until(lambda: not payloads(coordinator), "the payload to go")
    await asyncio.sleep(0.1)
    check_secret(coordinator, coordinator.logs.getvalue() + own_lines(caplog))


async def test_a_result_that_nobody_fetches_is_dropped_in_time(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(result_keep_seconds=0.5)
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    node.behaviour = always(SAID)
    async with coordinator.client("Sam") as sam:
        body = {"kind": "completions", "request": completion(ASKED, max_tokens=40)}
        job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
        await node.expect(wire.Settled)
        assert upkeep.drop_old_results(coordinator.database) == 0
        await asyncio.sleep(0.6)
        assert upkeep.drop_old_results(coordinator.database) == 1
        gone = await sam.get(f"/v1/jobs/{job_id}/result")
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "result_gone")
    await node.close()


def payloads(coordinator: Coordinator) -> list[JobPayload]:
    with coordinator.database.read() as session:
        return list(session.scalars(select(JobPayload)).all())


def own_lines(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged outside of the tests' own client and socket."""
    others = ("httpx2", "httpcore2", "websockets.client", "asyncio")
    return "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith(others))
