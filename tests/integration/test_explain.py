"""Why a job waits or ran where it did, over HTTP and the command line, for whom it is meant."""

from __future__ import annotations

import json

import httpx2
import pytest

from node_agent.protocol import messages as wire
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import Coordinator, StartCoordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode, always
from tests.integration.asking_why import asked, away, explained, looked_at, ran, submitted
from tests.integration.records import error_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def coordinator(start_coordinator: StartCoordinator) -> Coordinator:
    """One that waits for silent Macs however slow this machine is: what a test sees is its own doing."""
    return start_coordinator(node_suspect_seconds=600.0, node_lost_seconds=900.0, offer_seconds_max=60.0)


async def test_a_waiting_job_is_told_its_place_and_what_is_in_the_way(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await away(coordinator, node)
    jobs = [await submitted(sam) for _ in range(3)]
    await looked_at(coordinator, *jobs)
    found = [(await explained(sam, job_id))["waiting"] for job_id in jobs]
    assert [one["position"] for one in found] == [1, 2, 3]
    for one in found:
        assert (one["can_ever_run"], one["hosts"], one["queued"]) == (True, 1, 3)
        assert [(row["reason"], row["hosts"]) for row in one["rejected"]] == [("owner_present", 1)]
        assert one["forecast"] is None  # nobody knows when its owner goes
        assert one["changes"] == [{"reason": None, "hosts": 1, "change": "nothing: it passes by itself"}]
        assert one["needed_bytes"] <= one["largest_lent_bytes"] == node.hardware.lent_bytes
    shown = await ran(coordinator, "explain", jobs[1])
    assert "number 2 of 3 in the queue" in shown.output
    assert "1 x owner_present: its owner uses it" in shown.output


async def test_behind_a_full_mac_the_turn_of_each_job_is_forecast(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    node = ScriptedNode(coordinator, "Ada", name="narrow")
    # So slow that no forecast of a seat ends while the test runs.
    slow = {"width": 1, "bandwidth_bytes_per_second": 10**6}
    node.hardware = node.hardware.model_copy(update=slow)
    await node.enrol()
    await node.connect()
    await submitted(sam, max_tokens=400)
    await node.accept(await node.offered())
    jobs = [await submitted(sam, max_tokens=400) for _ in range(3)]
    await looked_at(coordinator, *jobs)
    found = [(await explained(sam, job_id))["waiting"] for job_id in jobs]
    assert [one["position"] for one in found] == [1, 2, 3]
    assert {row["reason"] for one in found for row in one["rejected"]} == {"slot_full"}
    starts = [one["forecast"]["starts_in_seconds"] for one in found]
    assert 0 < starts[0] < starts[1] < starts[2]
    first = found[0]["forecast"]
    assert first["ends_in_seconds"] == pytest.approx(first["seconds"]["total"])
    assert first["seconds"]["wait"] == first["starts_in_seconds"]
    quote = (await sam.post("/v1/quotes", json=asked(completion(max_tokens=400)))).json()
    assert quote["waiting"]["position"] == 4
    assert quote["forecast"]["starts_in_seconds"] > starts[2] * 0.9
    shown = await ran(coordinator, "explain", jobs[2])
    assert "begins in " in shown.output
    await node.close()


async def test_jobs_that_no_mac_can_run_stand_in_nobodys_way(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    # Its one sequence of the longest context needs more than the second Mac lends.
    large = await new_node()
    await away(coordinator, large)
    long = await submitted(sam, prompt="x" * 400, max_tokens=100)
    await looked_at(coordinator, long)
    least = (await explained(sam, long))["waiting"]["needed_bytes"]
    await large.close()
    await wait_until(lambda: not coordinator.runtime.fleet.channels, "the large Mac to go")
    small = await new_node(lent_bytes=least - 1)
    await away(coordinator, small)
    short = await submitted(sam, max_tokens=1)
    await looked_at(coordinator, long, short)
    looks = coordinator.runtime.dispatcher.last_look
    await wait_until(
        lambda: long in looks and looks[long].rejected.get("memory_lent_short") == 1, "another look"
    )
    never, waits = (await explained(sam, long))["waiting"], (await explained(sam, short))["waiting"]
    assert (never["can_ever_run"], never["position"], never["forecast"]) == (False, None, None)
    assert f"needs {least} bytes" in never["why"]
    assert f"lends {least - 1} bytes" in never["why"]
    assert (waits["position"], waits["queued"], waits["unservable_left_out"]) == (1, 2, 1)


async def test_a_job_that_ran_is_told_why_there_and_how_each_attempt_ended(
    coordinator: Coordinator, node: ScriptedNode, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    other = await new_node("Bo")
    await wait_until(lambda: len(coordinator.runtime.fleet.channels) == 2, "two Macs")
    job_id = await submitted(sam)
    await wait_until(lambda: node.has(wire.Offer) or other.has(wire.Offer), "an offer")
    first, second = (node, other) if node.has(wire.Offer) else (other, node)
    await first.decline(await first.offered(), "busy")
    await second.answer(await second.offered(), "four")
    await second.expect(wire.Settled)
    found = await explained(sam, job_id)
    assert (found["state"], found["waiting"]) == ("done", None)
    one, two = found["attempts"]
    assert (one["state"], one["reason"], one["end"]) == ("declined", "busy", "the Mac declined the offer")
    assert (two["state"], two["delivered_tokens"], two["end"]) == ("done", 4, "it ended well")
    assert two["mac"] == {"chip": "M4", "memory_gib": 2}
    assert one["chosen"]["could_have_taken_it"] == 2
    assert two["chosen"]["why"] == "only_one"
    assert [(row["reason"], row["hosts"]) for row in two["chosen"]["rejected"]] == [("excluded", 1)]
    parts = two["chosen"]["forecast_seconds"]
    assert parts["total"] == pytest.approx(
        sum(parts[name] for name in ("wait", "load", "prefill", "decode")), abs=0.005
    )
    assert two["forecast_seconds"] == pytest.approx(parts["total"], abs=0.002)
    # No Mac and no other person can be recognised.
    whole = json.dumps(found)
    for secret in (node.node_id, other.node_id, node.name, other.name, "acct_"):
        assert secret not in whole
    shown = await ran(coordinator, "explain", job_id)
    assert (
        "attempt 1 on a Mac with M4, 2 GB installed: declined (busy): the Mac declined the offer"
        in shown.output
    )
    assert "why there: it was the only Mac that could take the job at that moment" in shown.output


async def test_what_is_no_longer_remembered_is_said_to_be_gone(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("x")
    assert (await sam.post("/v1/completions", json=completion())).status_code == 200
    job_id = (await sam.get("/v1/jobs")).json()["data"][0]["id"]
    await node.close()
    coordinator.stop()
    coordinator.start()
    (attempt,) = (await explained(sam, job_id))["attempts"]
    assert attempt["chosen"] is None
    assert "no longer remembered" in attempt["chosen_missing"]
    assert attempt["forecast_seconds"] > 0


async def test_an_explanation_is_its_submitters_and_the_operators(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    job_id = await submitted(sam)
    path = f"/v1/jobs/{job_id}/explanation"
    assert error_of(await coordinator.client("Ada").get(path)) == (404, "job_not_found", None)
    assert error_of(await coordinator.client("Pat").get(path)) == (404, "job_not_found", None)
    assert error_of(await coordinator.client(None).get(path))[0] == 401
    assert (await coordinator.client("Operator").get(path)).status_code == 200
    refused = await ran(coordinator, "explain", job_id, who="Pat")
    assert refused.exit_code == 1
