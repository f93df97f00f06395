"""Explanations, quotes, and what a Mac was looked at for, over HTTP, for whom they are meant."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner, Result

from coordinator.cli import app
from coordinator.jobs.models import Job
from coordinator.jobs.quotes import HEADER
from coordinator.nodes.why import NONCE_HEADER
from coordinator.policy.models import RateCardRow
from ledger.ratecard import CARD
from node_agent.cli import app as node_app
from node_agent.identity import Identity
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import why_statement
from node_agent.settings import NodeConfig, save_config
from node_agent.why_cli import WhyError, ask_why, why_lines
from tests.fixtures.asking import chat, completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator, price_of
from tests.fixtures.scripted_node import NewNode, ScriptedNode, always
from tests.integration.records import NOTHING, error_of, rows

pytestmark = pytest.mark.anyio


@pytest.fixture
def coordinator(start_coordinator: StartCoordinator) -> Coordinator:
    """One that waits for silent Macs however slow this machine is: what a test sees is its own doing."""
    return start_coordinator(node_suspect_seconds=600.0, node_lost_seconds=900.0, offer_seconds_max=60.0)


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


# -- explanations ----------------------------------------------------------------------------------


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
    assert "attempt 1 on a Mac with M4, 2 GB: declined (busy): the Mac declined the offer" in shown.output
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


# -- quotes ----------------------------------------------------------------------------------------


def asked(body: dict[str, Any], kind: str = "completions") -> dict[str, Any]:
    return {"kind": kind, "request": body}


async def test_a_quote_tells_price_time_and_kind_of_mac_and_costs_nothing(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await wait_until(lambda: coordinator.runtime.fleet.channels, "a Mac")
    await wait_until(lambda: coordinator.runtime.dispatcher.book.table.count, "the table of Macs")
    found = (await sam.post("/v1/quotes", json=asked(completion("abcdef", max_tokens=10)))).json()
    assert (found["prompt_tokens"], found["max_tokens"]) == (6, 10)
    assert found["bound_umlx"] == found["expected_umlx"] == str(price_of(6, 10))
    assert (found["expected_output_tokens"], found["expected_from_jobs"]) == (10, 0)
    assert found["mac"] == {"chip": "M4", "memory_gib": 2}
    parts = found["forecast"]["seconds"]
    assert parts["total"] == pytest.approx(
        sum(parts[name] for name in ("wait", "load", "prefill", "decode")), abs=0.005
    )
    assert found["forecast"]["ends_in_seconds"] == parts["total"] > 0
    assert rows(coordinator) == NOTHING
    assert coordinator.balances()["Sam"] == (RICH_UMLX, 0)
    shown = await ran(coordinator, "quote", "hi there", "--model", "tiny", "--max-tokens", "8")
    assert "costs at most" in shown.output
    assert "on a Mac with M4" in shown.output


async def test_the_expected_price_follows_the_askers_own_answers(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("four")
    for _ in range(5):
        assert (await sam.post("/v1/completions", json=completion(max_tokens=50))).status_code == 200
    found = (await sam.post("/v1/quotes", json=asked(completion("abc", max_tokens=50)))).json()
    assert (found["expected_output_tokens"], found["expected_from_jobs"]) == (4, 5)
    assert (found["expected_umlx"], found["bound_umlx"]) == (str(price_of(3, 4)), str(price_of(3, 50)))
    pat = (await coordinator.client("Pat").post("/v1/quotes", json=asked(completion(max_tokens=50)))).json()
    assert pat["expected_from_jobs"] == 0


async def test_a_quote_holds_for_the_request_that_names_it(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("four")
    quote = (await sam.post("/v1/quotes", json=asked(chat(), "chat.completions"))).json()
    headers = {HEADER: quote["id"]}
    answer = await sam.post("/v1/chat/completions", json=chat(), headers=headers)
    assert answer.status_code == 200
    assert int(answer.headers["x-mlxnet-charge-umlx"]) <= int(quote["bound_umlx"])
    streamed = await sam.post("/v1/chat/completions", json=chat(stream=True), headers=headers)
    assert streamed.status_code == 200
    queued = await sam.post("/v1/jobs", json=asked(chat(), "chat.completions"), headers=headers)
    assert (queued.status_code, queued.json()["bound_umlx"]) == (202, quote["bound_umlx"])


async def test_a_quote_keeps_its_rate_card_when_a_new_one_comes_into_force(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    quote = (await sam.post("/v1/quotes", json=asked(completion()))).json()
    assert quote["rate_card"] == CARD.id
    dearer = replace(CARD, version=CARD.version + 1, fees=replace(CARD.fees, fee_ppm=200_000))
    with coordinator.database.write() as session:
        row = RateCardRow(id=dearer.id, version=dearer.version, body=dearer.body, announced_us=0)
        row.effective_us = coordinator.database.now_us(session)
        session.add(row)
    with_it = await sam.post("/v1/jobs", json=asked(completion()), headers={HEADER: quote["id"]})
    without = await sam.post("/v1/jobs", json=asked(completion()))
    with coordinator.database.read() as session:
        jobs = [session.get_one(Job, answer.json()["id"]) for answer in (with_it, without)]
        assert [(job.rate_card_id, job.fee_ppm) for job in jobs] == [
            (CARD.id, CARD.fees.fee_ppm),
            (dearer.id, 200_000),
        ]


async def test_a_quote_follows_the_wishes_of_its_request(
    coordinator: Coordinator, node: ScriptedNode, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    await wait_until(lambda: coordinator.runtime.dispatcher.book.table.count, "the table of Macs")
    only_own = {"x-mlxnet-own": "only"}
    refused = await sam.post("/v1/quotes", json=asked(completion()), headers=only_own)
    assert error_of(refused) == (422, "job_unservable", "model")
    assert "1 not_own (the submitter wants Macs of their own; allow others' Macs)" in refused.text
    found = await coordinator.client("Ada").post("/v1/quotes", json=asked(completion()), headers=only_own)
    assert (found.json()["bound_umlx"], found.json()["expected_umlx"]) == ("0", "0")
    fast = {"x-mlxnet-min-tokens-per-second": "10000"}
    refused = await sam.post("/v1/completions", json=completion(), headers=fast)
    assert error_of(refused) == (422, "job_unservable", "model")
    odd = await sam.post("/v1/quotes", json=asked(completion()), headers={"x-mlxnet-own": "mine"})
    assert error_of(odd) == (400, "invalid_value", "x-mlxnet-own")


async def test_a_quote_that_is_altered_or_anothers_is_refused(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    quote_id = (await sam.post("/v1/quotes", json=asked(completion()))).json()["id"]
    middle = len(quote_id) // 2
    altered = quote_id[:middle] + ("A" if quote_id[middle] != "A" else "B") + quote_id[middle + 1 :]
    bad = (
        altered,
        quote_id[:-1],
        quote_id + "A",
        quote_id + "=",
        "quote_",
        "quote_!",
        "x" * 3000,
        quote_id[6:],
    )
    for wrong in bad:
        for path, body in (
            ("/v1/completions", completion()),
            ("/v1/completions", completion(stream=True)),
            ("/v1/jobs", asked(completion())),
        ):
            answer = await sam.post(path, json=body, headers={HEADER: wrong})
            assert error_of(answer) == (400, "invalid_value", HEADER), wrong
    pat = coordinator.client("Pat")
    answer = await pat.post("/v1/completions", json=completion(), headers={HEADER: quote_id})
    assert error_of(answer) == (400, "invalid_value", HEADER)
    assert rows(coordinator) == NOTHING


def ended(coordinator: Coordinator, quote_id: str) -> str:
    """The same quote as it would be if its minute were over."""
    quotes = coordinator.runtime.quotes
    return quotes.id_of(replace(quotes.read(quote_id), expires_us=1))


async def test_a_quote_ends(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    quote = (await sam.post("/v1/quotes", json=asked(completion()))).json()
    with coordinator.database.read() as session:
        now_us = coordinator.database.now_us(session)
    assert 0 < quote["expires_us"] - now_us <= 60_000_000 == quote["valid_seconds"] * 1_000_000
    for path, body in (("/v1/completions", completion()), ("/v1/jobs", asked(completion()))):
        answer = await sam.post(path, json=body, headers={HEADER: ended(coordinator, quote["id"])})
        assert error_of(answer) == (409, "quote_expired", None)
        assert "POST /v1/quotes again" in answer.json()["error"]["message"]
    assert rows(coordinator) == NOTHING


async def test_an_ended_quote_does_not_keep_a_repeated_request_from_its_job(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    quote_id = (await sam.post("/v1/quotes", json=asked(completion()))).json()["id"]
    headers = {HEADER: quote_id, "Idempotency-Key": "k-1"}
    first = await sam.post("/v1/jobs", json=asked(completion()), headers=headers)
    assert first.status_code == 202, first.text
    headers[HEADER] = ended(coordinator, quote_id)
    again = await sam.post("/v1/jobs", json=asked(completion()), headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])


async def test_a_repeated_request_gets_its_job_when_the_macs_that_could_are_gone(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = await sam.post("/v1/jobs", json=asked(completion()), headers=headers)
    small = await new_node(lent_bytes=1 << 20)
    book = coordinator.runtime.dispatcher.book
    await wait_until(lambda: book.row(small.node_id) is not None, "the table of Macs")
    again = await sam.post("/v1/jobs", json=asked(completion()), headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    other = await sam.post("/v1/jobs", json=asked(completion()))
    assert error_of(other) == (422, "job_unservable", "model")


async def test_a_quote_is_refused_for_what_its_request_would_be(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(quotes_per_minute_max=6)
    async with coordinator.client("Sam") as sam:
        bad: list[tuple[Any, tuple[int, str, str | None]]] = [
            ({"kind": "embeddings", "request": {}}, (400, "invalid_value", "kind")),
            ({"kind": "completions"}, (400, "missing_required_parameter", "request")),
            (asked(completion(model="none")), (404, "model_not_found", "model")),
            (asked(completion(model="llama-3.1-405b")), (404, "model_not_served", "model")),
            (asked(completion(max_tokens=0)), (400, "invalid_value", "max_tokens")),
            (asked(completion("x" * 9000)), (400, "context_length_exceeded", "prompt")),
        ]
        for body, expected in bad:
            answer = await sam.post("/v1/quotes", json=body)
            assert error_of(answer) == expected, body
        assert error_of(await sam.post("/v1/quotes", json=asked(completion())))[1] == "rate_limited"


# -- what a Mac was looked at for ------------------------------------------------------------------


async def why_of(client: httpx2.AsyncClient, node: ScriptedNode) -> dict[str, Any]:
    answer = await client.get(f"/v1/nodes/{node.node_id}/why")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_owner_is_told_what_a_mac_was_looked_at_for(
    coordinator: Coordinator, node: ScriptedNode, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    ada = coordinator.client("Ada")
    assert (await why_of(ada, node))["seen"] == 0
    node.behaviour = always("x")
    assert (await sam.post("/v1/completions", json=completion())).status_code == 200
    await away(coordinator, node)
    job_id = await submitted(sam)
    await looked_at(coordinator, job_id)
    found = await why_of(ada, node)
    assert (found["seen"], found["taken"], found["state"]) == (2, 1, "away")
    (reason,) = found["rejected"]
    assert (reason["reason"], reason["jobs"], reason["can_change"]) == ("owner_present", 1, True)
    assert sum(hour["seen"] for hour in found["hours"]) == 2
    for other in ("Bo", "Sam", "Operator"):
        refused = await coordinator.client(other).get(f"/v1/nodes/{node.node_id}/why")
        assert error_of(refused) == (404, "node_not_found", None)


async def test_a_refused_job_shows_how_much_more_memory_would_have_brought_it(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    small = await new_node(lent_bytes=1 << 20)
    await wait_until(lambda: coordinator.runtime.dispatcher.book.table.count, "the table of Macs")
    for _ in range(3):
        answer = await sam.post("/v1/completions", json=completion())
        assert error_of(answer) == (422, "job_unservable", "model")
    ada = coordinator.client("Ada")
    found = await why_of(ada, small)
    assert (found["seen"], found["lend_more"]) == (1, [{"gib": 1, "jobs": 1}])
    assert "--lend-gib" in found["rejected"][0]["change"]


async def test_the_mac_itself_asks_with_its_key(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("x")
    assert (await sam.post("/v1/completions", json=completion())).status_code == 200
    identity = Identity(node.key)

    def ask(who: Identity) -> Any:
        with httpx2.Client(timeout=10, trust_env=False) as client:
            return ask_why(client, coordinator.url, who)

    found = await asyncio.to_thread(ask, identity)
    assert (found.seen, found.taken, found.name) == (1, 1, node.name)
    assert any("seen 1, taken 1" in line for line in why_lines(found))
    stranger = ScriptedNode(coordinator, "Bo", name="stranger")
    with pytest.raises(WhyError, match="not enrolled here"):
        await asyncio.to_thread(ask, Identity(stranger.key))


async def test_the_command_on_the_mac(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient, tmp_path: Path
) -> None:
    await away(coordinator, node)
    await looked_at(coordinator, await submitted(sam))
    home = tmp_path / "node"
    config = NodeConfig(coordinator=coordinator.url, node_id=node.node_id, name=node.name)
    save_config(home, config)
    (home / "node.key").write_bytes(node.key.private_bytes_raw())
    (home / "node.key").chmod(0o600)
    shown = await asyncio.to_thread(CliRunner().invoke, node_app, ["why", "--home", str(home)])
    assert shown.exit_code == 0, shown.output
    assert "seen in the last 24 hours" in shown.output
    assert "1 x owner_present: its owner uses it" in shown.output
    assert "to change: leave it idle for longer" in shown.output
    found = await asyncio.to_thread(CliRunner().invoke, node_app, ["why", "--home", str(home), "--json"])
    assert (json.loads(found.output)["seen"], json.loads(found.output)["taken"]) == (1, 0)
    nowhere = await asyncio.to_thread(CliRunner().invoke, node_app, ["why", "--home", str(tmp_path / "none")])
    assert nowhere.exit_code == 1


async def test_a_wrong_proof_tells_nothing(coordinator: Coordinator, node: ScriptedNode) -> None:
    anybody = coordinator.client(None)
    path = "/nodes/v1/why"
    first = await anybody.get(path)
    assert first.status_code == 401
    nonce = first.headers["www-authenticate"].partition('"')[2].rstrip('"')
    statement = why_statement(audience=coordinator.url, node_id=node.node_id, nonce=nonce)
    good = {"Authorization": f"MLX-Node {node.node_id} {node.sign(statement)}", NONCE_HEADER: nonce}
    assert (await anybody.get(path, headers=good)).status_code == 200
    stranger = ScriptedNode(coordinator, "Bo", name="stranger")
    forged = good | {"Authorization": f"MLX-Node {node.node_id} {stranger.sign(statement)}"}
    assert (await anybody.get(path, headers=forged)).status_code == 403
    for changes in ({NONCE_HEADER: nonce[:-1] + "A"}, {NONCE_HEADER: "x"}, {NONCE_HEADER: ""}):
        assert (await anybody.get(path, headers=good | changes)).status_code in {401, 403}
    other = (await anybody.get(path)).headers["www-authenticate"].partition('"')[2].rstrip('"')
    assert (await anybody.get(path, headers=good | {NONCE_HEADER: other})).status_code == 403
