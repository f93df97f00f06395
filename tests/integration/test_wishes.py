"""What a submitter wishes of the Macs: it is kept, or the request is refused at once with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from coordinator.jobs.models import Job
from coordinator.nodes.models import Node
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import place_statement
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode

pytestmark = pytest.mark.anyio


async def served_by(node: ScriptedNode, sam: httpx2.AsyncClient, **headers: str) -> httpx2.Response:
    """The answer to a request with these headers, which this Mac is offered."""
    named = {f"x-mlxnet-{name.replace('_', '-')}": text for name, text in headers.items()}
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion(), headers=named))
    await node.answer(await node.offered(), "ok")
    return await asked


async def refused(sam: httpx2.AsyncClient, **headers: str) -> tuple[int, dict[str, Any]]:
    named = {f"x-mlxnet-{name.replace('_', '-')}": text for name, text in headers.items()}
    answer = await sam.post("/v1/completions", json=completion(), headers=named)
    return answer.status_code, answer.json()["error"]


def held(coordinator: Coordinator, name: str) -> int:
    return coordinator.balances()[name][1]


async def test_ones_own_macs_are_free_even_without_a_token(
    coordinator: Coordinator, new_node: NewNode
) -> None:
    coordinator.add_person("Nil")
    _ = await new_node("Ada")
    own = await new_node("Nil")
    async with coordinator.client("Nil") as nil:
        answer = await served_by(own, nil, own="only")
        assert (answer.status_code, answer.headers["x-mlxnet-charge-umlx"]) == (200, "0")
        job_id = answer.headers["x-job-id"]
        status, error = await refused(nil)
        assert (status, error["code"]) == (402, "insufficient_balance")
    with coordinator.database.read() as session:
        job = session.get_one(Job, job_id)
        assert (job.hold_id, job.bound_umlx, job.charge_umlx) == (None, 0, 0)
    coordinator.check_books()


async def test_ones_own_macs_are_preferred(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    _ = [await new_node("Ada"), await new_node("Bo")]
    own = await new_node("Sam")
    answer = await served_by(own, sam, own="prefer")
    assert answer.headers["x-mlxnet-charge-umlx"] == "0"
    assert coordinator.posted("Sam") == RICH_UMLX
    coordinator.check_books()


async def test_a_named_mac_and_a_country_are_kept_to(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    ada, bo = await new_node("Ada"), await new_node("Bo")
    for node in (ada, bo, ada):
        assert (await served_by(node, sam, nodes=node.node_id)).status_code == 200
    async with coordinator.client(None) as anybody:
        statement = place_statement(
            audience=coordinator.url, node_id=bo.node_id, sequence=1, kind="country", country="PL", cell=""
        )
        chosen = await anybody.post(
            "/nodes/v1/place",
            json={"sequence": 1, "kind": "country", "country": "PL"},
            headers={"Authorization": f"MLX-Node {bo.node_id} {bo.sign(statement)}"},
        )
        assert chosen.status_code == 200, chosen.text
    table = coordinator.runtime.dispatcher.book.table
    await wait_until(lambda: table.region_number("PL") >= 0, "placement to know the country")
    for _ in range(3):
        assert (await served_by(bo, sam, regions="DE,PL")).status_code == 200
    assert not ada.has(wire.Offer)
    coordinator.check_books()


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"own": "only"}, "not_own"),
        ({"nodes": "node_" + "0" * 64}, "not_named"),
        ({"regions": "PK"}, "other_region"),
        ({"min_tokens_per_second": "9999"}, "too_slow"),
    ],
)
async def test_a_wish_that_no_mac_can_fulfil_is_refused_at_once(
    coordinator: Coordinator,
    node: ScriptedNode,
    sam: httpx2.AsyncClient,
    headers: dict[str, str],
    reason: str,
) -> None:
    book = coordinator.runtime.dispatcher.book
    await wait_until(lambda: book.row(node.node_id) is not None, "the node to be seen")
    status, error = await refused(sam, **headers)
    assert (status, error["code"]) == (422, "job_unservable")
    assert f"1 {reason}" in error["message"]
    assert not node.has(wire.Offer)
    coordinator.check_books()


async def test_the_price_has_the_submitters_limit(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    status, error = await refused(sam, max_charge_umlx="5")
    assert (status, error["code"], error["param"]) == (402, "charge_above_limit", "x-mlxnet-max-charge-umlx")
    answer = await served_by(node, sam, max_charge_umlx="100000")
    assert answer.status_code == 200
    coordinator.check_books()


async def test_a_job_that_has_not_begun_by_its_deadline_ends(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    body = {"kind": "completions", "request": completion()}
    job_id = (await sam.post("/v1/jobs", json=body, headers={"x-mlxnet-deadline": "1"})).json()["id"]

    def has_ended() -> bool:
        with coordinator.database.read() as session:
            return session.get_one(Job, job_id).state == "expired"

    await wait_until(has_ended, "the job to end")
    found = (await sam.get(f"/v1/jobs/{job_id}")).json()
    assert (found["error"], found["charge_umlx"]) == ("no_host_available", "0")
    await wait_until(lambda: held(coordinator, "Sam") == 0, "its hold to end")
    coordinator.check_books()


async def test_a_mac_that_has_just_gone_may_come_back(coordinator: Coordinator, new_node: NewNode) -> None:
    """Between its leaving and the record of it, it is neither connected nor known to be away."""
    named, other = await new_node(), await new_node("Bo")
    book = coordinator.runtime.dispatcher.book
    await wait_until(lambda: book.table.count == 2, "the table of Macs")
    await named.close()
    await wait_until(lambda: book.row(named.node_id) is None, "it is gone")

    def is_marked() -> bool:
        with coordinator.database.read() as session:
            return session.get_one(Node, named.node_id).state == "offline"

    await wait_until(is_marked, "its leaving on record")
    with coordinator.database.write() as session:
        node = session.get_one(Node, named.node_id)
        node.state, node.seen_us = "ready", 0
    async with coordinator.client("Sam") as sam:
        body = {"kind": "completions", "request": completion()}
        asked = await sam.post("/v1/jobs", json=body, headers={"x-mlxnet-nodes": named.node_id})
        assert asked.status_code == 202, asked.text
        stranger = "node_" + "0" * 64
        refused = await sam.post("/v1/jobs", json=body, headers={"x-mlxnet-nodes": stranger})
        assert refused.status_code == 422, refused.text
    assert not other.has(wire.Offer)


async def test_wishes_survive_a_restart(start_coordinator: StartCoordinator) -> None:
    """They lie with the request: the Mac that is named is asked, not the one that is there first."""
    coordinator = start_coordinator()
    named = ScriptedNode(coordinator, "Ada", name="Named")
    other = ScriptedNode(coordinator, "Bo", name="Other")
    for node in (named, other):
        await node.enrol()
    await other.connect()
    await named.connect()
    async with coordinator.client("Sam") as sam:
        body = {"kind": "completions", "request": completion()}
        await named.close()
        headers = {"x-mlxnet-nodes": named.node_id}
        asked = await sam.post("/v1/jobs", json=body, headers=headers)
        assert asked.status_code == 202, asked.text
    await other.close()
    await asyncio.to_thread(coordinator.stop)
    await asyncio.to_thread(coordinator.start)
    await other.connect()
    await named.connect()
    offer = await named.offered()
    assert offer.job_id == asked.json()["id"]
    assert not other.has(wire.Offer)
    await named.answer(offer, "ok")
    for node in (named, other):
        await node.close()
