"""What tests of attempts share: asking, finding who was asked, and what is on record."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from coordinator.db import Database
from coordinator.jobs.models import Attempt
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, completion
from tests.fixtures.coordinator import Coordinator
from tests.fixtures.scripted_node import ScriptedNode


def device_of(node: ScriptedNode) -> str:
    """The device that a scripted node's faults are counted for."""
    return node.node_id.removeprefix("node_")


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


async def connected(coordinator: Coordinator, *owners: str) -> list[ScriptedNode]:
    nodes = [ScriptedNode(coordinator, owner, name=f"{owner}s Mac") for owner in owners]
    for node in nodes:
        await node.enrol()
        await node.connect()
    return nodes


async def close(*nodes: ScriptedNode) -> None:
    for node in nodes:
        await node.close()
