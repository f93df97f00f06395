"""Two jobs and a shared one whose every figure is worked out by hand.

One Mac charges 2 uMLX a token in and 5 a token out, at least 20; the fee is a tenth, rounded up.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx2

from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, completion
from tests.fixtures.scripted_node import ScriptedNode, always
from tests.integration.attempts import who_is_asked

# Sam asks Ada's Mac twice: 12 tokens in and 7 out, then 1 in and 1 out at the minimum.
LONG_UMLX = 12 * 2 + 7 * 5  # 59, fee 6, Ada 53
SHORT_UMLX = 20  # fee 2, Ada 18


def this_month() -> str:
    return f"{datetime.now(tz=UTC):%Y-%m}"


def table(rows: list[dict[str, Any]]) -> dict[Any, str]:
    return {row["key"]: row["amount_umlx"] for row in rows}


async def two_jobs(node: ScriptedNode, sam: httpx2.AsyncClient) -> list[str]:
    """The long and the short job; their ids."""
    node.behaviour = always("seven77")
    long = await sam.post("/v1/completions", json=completion("twelve bytes", max_tokens=9))
    node.behaviour = always("b")
    short = await sam.post("/v1/completions", json=completion("a", max_tokens=1))
    assert (long.status_code, short.status_code) == (200, 200)
    return [long.headers["x-job-id"], short.headers["x-job-id"]]


async def shared_job(
    nodes: list[ScriptedNode], sam: httpx2.AsyncClient
) -> tuple[ScriptedNode, ScriptedNode, str]:
    """3 tokens in, 5 out; the first Mac delivers 2 and is lost, the second delivers 3."""
    reading = Reading(sam, "POST", "/v1/completions", json=completion(stream=True, max_tokens=5))
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "ab")
    await reading.until_text("ab")
    await first.close()
    second, offer = await who_is_asked(*[node for node in nodes if node is not first])
    await second.accept(offer)
    await second.say(offer, "cde")
    await second.finish(offer, "cde", "length")
    assert (await reading.whole()).text == "abcde"
    await second.expect(wire.Settled)
    return first, second, reading.job_id
