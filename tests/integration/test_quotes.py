"""Quotes: what they tell, how long they hold, and that nobody can make one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from coordinator.jobs.models import Job
from coordinator.jobs.quotes import HEADER
from coordinator.policy.models import RateCardRow
from ledger.ratecard import CARD
from tests.fixtures.asking import chat, completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator, price_of
from tests.fixtures.scripted_node import NewNode, ScriptedNode, always
from tests.integration.asking_why import asked, ran
from tests.integration.records import NOTHING, error_of, rows

pytestmark = pytest.mark.anyio


@pytest.fixture
def coordinator(start_coordinator: StartCoordinator) -> Coordinator:
    """One that waits for silent Macs however slow this machine is: what a test sees is its own doing."""
    return start_coordinator(node_suspect_seconds=600.0, node_lost_seconds=900.0, offer_seconds_max=60.0)


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
