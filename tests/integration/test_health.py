"""Macs that fail get work again by degrees; jobs that fail everywhere are found out."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from coordinator.nodes.models import DeviceHealth
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator, price_of
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.attempts import ask, attempts, close, connected, device_of, who_is_asked

pytestmark = pytest.mark.anyio


def rows(coordinator: Coordinator) -> dict[str, tuple[int, str]]:
    with coordinator.database.read() as session:
        return {row.device: (row.faults, row.last_fault) for row in session.query(DeviceHealth)}


async def crash(node: ScriptedNode, offer: wire.Offer, code: wire.FailureCode = "runner_crashed") -> None:
    await node.accept(offer)
    await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code=code))


async def shown(coordinator: Coordinator, node: ScriptedNode) -> dict[str, Any]:
    async with coordinator.client(node.owner) as owner:
        found: list[dict[str, Any]] = (await owner.get("/v1/nodes")).json()["data"]
    return next(one for one in found if one["id"] == node.node_id)


async def test_after_a_fault_a_mac_pauses_then_gets_one_job_and_then_all(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(fault_pause_seconds=1.5)
    (node,) = await connected(coordinator, "Ada")
    async with coordinator.client("Sam") as sam:
        readings = [ask(sam, prompt="first")]
        offer = await node.offered()
        await crash(node, offer)
        await node.expect(wire.Settled)
        found = await shown(coordinator, node)
        assert found["state"] == "paused"
        assert found["why"].startswith("1 fault, the last: runner_crashed; it gets a job again in ")
        assert found["health"] == {
            "standing": "paused",
            "faults": 1,
            "last_fault": "runner_crashed",
            "work_again_in_seconds": 2,
        }
        readings += [ask(sam, prompt=f"more{number}") for number in range(3)]
        await asyncio.sleep(0.8)
        assert not node.has(wire.Offer), "it pauses"
        job = (await sam.get(f"/v1/jobs/{offer.job_id}")).json()
        assert job["now"]["waiting_because"] == {"excluded": 1}
        probe = await node.offered()
        await node.accept(probe)
        found = await shown(coordinator, node)
        assert (found["state"], found["health"]["work_again_in_seconds"]) == ("on_probation", 0)
        await asyncio.sleep(0.5)
        assert not node.has(wire.Offer), "one job at a time"
        await node.say(probe, "ok")
        await node.finish(probe, "ok")
        rest = [await node.offered() for _ in range(3)]
        assert (await shown(coordinator, node))["health"]["standing"] == "sound"
        for offer in rest:
            await node.answer(offer, "ok")
        assert [(await reading.whole()).text for reading in readings] == ["ok"] * 4
    await wait_until(lambda: rows(coordinator) == {}, "the record to go")
    await close(node)
    coordinator.check_books()


async def test_pauses_double_and_a_restart_remembers_them(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(fault_pause_seconds=1.0, max_wait_seconds=60.0, attempts_max=9)
    (node,) = await connected(coordinator, "Ada")
    sam = coordinator.client("Sam")
    body = {"kind": "completions", "request": completion()}
    job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
    for code in ("runner_crashed", "runner_stalled"):
        await crash(node, await node.offered(), code)
    await wait_until(lambda: rows(coordinator) == {device_of(node): (2, "runner_stalled")}, "the record")
    await sam.aclose()
    await asyncio.to_thread(coordinator.stop)
    await asyncio.to_thread(coordinator.start)
    await node.close()
    await node.connect()
    found = await shown(coordinator, node)
    assert (found["health"]["standing"], found["health"]["faults"]) == ("paused", 2)
    assert "2 faults in a row" in found["why"]
    await node.answer(await node.offered(), "ok")
    await node.expect(wire.Settled, job_id=job_id)
    await wait_until(lambda: rows(coordinator) == {}, "the record to go")
    await close(node)
    coordinator.check_books()


async def test_a_job_that_fails_alike_on_two_macs_is_at_fault_itself(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo"), await new_node("Ada")]
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
    for _ in range(2):
        node, offer = await who_is_asked(*nodes)
        await crash(node, offer, "load_failed")
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "job_fails_alike")
    assert "load_failed" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert not any(node.has(wire.Offer) for node in nodes)
    await wait_until(lambda: rows(coordinator) == {}, "the blame to be given back")
    for node in nodes:
        assert (await shown(coordinator, node))["state"] == "ready"
    assert coordinator.posted("Sam") == RICH_UMLX
    coordinator.check_books()


async def test_who_only_ran_beside_a_job_that_crashes_macs_is_not_taken_for_it(
    start_coordinator: StartCoordinator,
) -> None:
    """Every Mac that runs the poisoned prompt crashes, with all that it has at work."""
    coordinator = start_coordinator(fault_pause_seconds=0.5, max_wait_seconds=60.0)
    nodes = await connected(coordinator, "Ada", "Bo")
    poison = coordinator.shelf.ids("poison")
    at_work: dict[str, list[wire.Offer]] = {node.name: [] for node in nodes}

    async def behave(node: ScriptedNode, offer: wire.Offer) -> None:
        await node.accept(offer)
        at_work[node.name].append(offer)
        await asyncio.sleep(0.3)
        if offer not in at_work[node.name]:
            return
        if offer.prompt_ids == poison:
            dead, at_work[node.name] = at_work[node.name], []
            for each in dead:
                await node.send(wire.Failed(job_id=each.job_id, fence=each.fence, code="runner_crashed"))
            return
        at_work[node.name].remove(offer)
        await node.say(offer, "ok")
        await node.finish(offer, "ok")

    for node in nodes:
        node.behaviour = behave
    async with coordinator.client("Sam") as sam:
        asked = [
            asyncio.create_task(sam.post("/v1/completions", json=completion(prompt)))
            for prompt in ("poison", "innocent", "harmless", "guiltless")
        ]
        answers = [await task for task in asked]
    codes = [answer.status_code for answer in answers]
    assert codes[1:] == [200] * 3
    assert (codes[0], answers[0].json()["error"]["code"]) == (422, "job_fails_alike")
    await close(*nodes)
    coordinator.check_books()


@pytest.mark.parametrize("code", ["download_failed", "reclaimed"])
async def test_what_is_no_fault_leaves_no_record(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, code: wire.FailureCode
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = ask(sam)
    first, offer = await who_is_asked(*nodes)
    await crash(first, offer, code)
    second, again = await who_is_asked(*nodes)
    await second.answer(again, "ok")
    assert (await reading.whole()).text == "ok"
    assert rows(coordinator) == {}
    assert (await shown(coordinator, first))["health"]["standing"] == "sound"


async def test_many_attempts_that_die_of_one_crash_are_one_fault(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    node = await new_node("Ada")
    readings = [ask(sam, prompt=f"{number}") for number in range(4)]
    offers = [await node.offered() for _ in readings]
    for offer in offers:
        await node.accept(offer)
        await node.say(offer, "a")
    for offer in offers:
        await node.send(wire.Failed(job_id=offer.job_id, fence=1, code="runner_crashed"))
    other = await new_node("Bo")
    for _ in offers:
        await other.answer(await other.offered(), "b")
    assert [(await reading.whole()).text for reading in readings] == ["ab"] * 4
    assert rows(coordinator) == {device_of(node): (1, "runner_crashed")}
    coordinator.check_books()


async def test_an_enrolment_anew_forgets_nothing(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    reading = Reading(sam, "POST", "/v1/completions", json=completion("x" * 10, stream=True))
    bad, offer = await who_is_asked(*nodes)
    await crash(bad, offer)
    good, again = await who_is_asked(*nodes)
    await good.answer(again, "ok")
    await reading.whole()
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(10, 2)
    async with coordinator.client(bad.owner) as owner:
        await owner.delete(f"/v1/nodes/{bad.node_id}")
    await bad.wait_closed()
    await bad.enrol()
    await bad.connect()
    assert (await shown(coordinator, bad))["health"]["faults"] == 1
    assert attempts(coordinator.database, offer.job_id)[0][1:3] == ("failed", "runner_crashed")
