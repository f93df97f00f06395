"""What tests of explanations, quotes and tallies share."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from typer.testing import CliRunner, Result

from coordinator.cli import app
from node_agent.protocol import messages as wire
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import Coordinator
from tests.fixtures.scripted_node import ScriptedNode


async def ran(coordinator: Coordinator, *arguments: str, who: str = "Sam") -> Result:
    """A command's outcome, run beside the event loop that holds the node's socket."""
    access = ["--url", coordinator.url, "--api-key", coordinator.people[who].key]
    return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *access])


async def submitted(client: httpx2.AsyncClient, **changes: Any) -> str:
    answer = await client.post("/v1/jobs", json={"kind": "completions", "request": completion(**changes)})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


async def explained(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/jobs/{job_id}/explanation")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def away(coordinator: Coordinator, node: ScriptedNode) -> None:
    """Its owner comes back, and the coordinator knows."""
    await node.send(wire.Heartbeat(mode="away", free_bytes=node.hardware.lent_bytes, slots=()))
    channel = coordinator.runtime.fleet.get(node.node_id)
    assert channel is not None
    await wait_until(lambda: channel.mode == "away", "the owner to be there")


async def looked_at(coordinator: Coordinator, *job_ids: str) -> None:
    looks = coordinator.runtime.dispatcher.last_look
    await wait_until(lambda: all(job_id in looks for job_id in job_ids), "a look at the jobs")


def asked(body: dict[str, Any], kind: str = "completions") -> dict[str, Any]:
    return {"kind": kind, "request": body}
