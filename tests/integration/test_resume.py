"""Answers that go on: after a crash of the coordinator, on the same Mac or another, to the token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from coordinator.jobs import prefixes
from coordinator.jobs.models import Job, JobPayload
from coordinator.jobs.prefixes import Prefix
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, chat, completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator, price_of
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.attempts import ask, attempts, who_is_asked

pytestmark = pytest.mark.anyio

TEXT = "aé漢b😀c, and so on"


def stored(coordinator: Coordinator, job_id: str) -> Prefix | None:
    with coordinator.database.read() as session:
        return prefixes.load(session, job_id, coordinator.runtime.payloads)


async def until_stored(coordinator: Coordinator, job_id: str, tokens: int) -> None:
    def is_there() -> bool:
        found = stored(coordinator, job_id)
        return found is not None and len(found.token_ids) == tokens

    await wait_until(is_there, f"{tokens} tokens to be stored")


def store_no_more(coordinator: Coordinator) -> None:
    """From here on delivered tokens are in memory only, as those of the last second are."""

    async def nothing() -> int:
        return 0

    coordinator.runtime.prefix_writer.flush = nothing


async def crash(coordinator: Coordinator) -> None:
    """Stop and start with nothing said and nothing stored on the way, as after a loss of power."""
    store_no_more(coordinator)
    await asyncio.to_thread(coordinator.stop)
    await asyncio.to_thread(coordinator.start)


@contextlib.asynccontextmanager
async def asking(coordinator: Coordinator) -> AsyncGenerator[httpx2.AsyncClient]:
    async with coordinator.client("Sam") as client:
        yield client


async def broken(reading: Reading) -> None:
    """Wait for the end of a stream that its coordinator broke off."""
    with contextlib.suppress(httpx2.TransportError, ExceptionGroup):
        await reading.whole()


async def job_of(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/v1/jobs/{job_id}")).json()
    return found


def queued(coordinator: Coordinator) -> int:
    with coordinator.database.read() as session:
        return len(session.scalars(select(Job.id).where(Job.state == "queued")).all())


# -- after a crash -------------------------------------------------------------------------------


async def test_a_mac_that_comes_back_goes_on_and_nothing_is_read_twice(
    coordinator: Coordinator, node: ScriptedNode
) -> None:
    async with asking(coordinator) as sam:
        reading = ask(sam, prompt="0123456789")
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await reading.until_text("abc")
        await until_stored(coordinator, offer.job_id, 3)
        await crash(coordinator)
        await broken(reading)
    await node.close()
    await node.connect(wire.LiveAttempt(job_id=offer.job_id, fence=1, offset=5))
    resume = await node.expect(wire.Resume)
    assert (resume.job_id, resume.fence, resume.offset) == (offer.job_id, 1, 3)
    async with asking(coordinator) as sam:
        rest = Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events", headers={"Last-Event-ID": "3"})
        await node.chunk(offer, 3, coordinator.shelf.ids("de"))
        await node.finish(offer, "abcde", "eos")
        await rest.whole()
        assert (rest.text, rest.finish_reason) == ("de", "stop")
        assert attempts(coordinator.database, offer.job_id) == [(1, "done", "stop", 5)]
        assert (await job_of(sam, offer.job_id))["attempts"][0]["node_signature"]
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(10, 5)
    assert coordinator.runtime.endings.health.get(node.node_id.removeprefix("node_")) is None
    coordinator.check_books()


async def test_a_mac_that_does_not_come_back_is_followed_by_another_and_not_blamed(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(restart_grace_seconds=1.0)
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    async with asking(coordinator) as sam:
        reading = ask(sam, prompt="0123456789")
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await reading.until_text("abc")
        await until_stored(coordinator, offer.job_id, 3)
        await crash(coordinator)
        await broken(reading)
    await node.close()
    other = ScriptedNode(coordinator, "Bo", name="Other")
    await other.enrol()
    await other.connect()
    again = await other.offered()
    assert (again.fence, again.prefix_ids) == (2, coordinator.shelf.ids("abc"))
    async with asking(coordinator) as sam:
        rest = Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events?after=1")
        await other.answer(again, "de")
        assert (await rest.whole()).text == "bcde"
        assert attempts(coordinator.database, offer.job_id) == [
            (1, "lost", "coordinator_restarted", 3),
            (2, "done", "stop", 2),
        ]
        job = await job_of(sam, offer.job_id)
        assert (job["output_tokens"], job["charge_umlx"]) == (5, str(price_of(10, 5)))
    assert not coordinator.runtime.endings.health.get(node.node_id.removeprefix("node_"))
    await other.close()
    coordinator.check_books()


async def test_a_mac_that_stopped_as_an_earlier_coordinator_asked_is_not_blamed(
    coordinator: Coordinator, node: ScriptedNode
) -> None:
    async with asking(coordinator) as sam:
        reading = ask(sam, prompt="0123456789")
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await reading.until_text("abc")
        await until_stored(coordinator, offer.job_id, 3)
        # It told the Mac to stop, and died before the job's end was on record.
        await crash(coordinator)
        await broken(reading)
    await node.connect(wire.LiveAttempt(job_id=offer.job_id, fence=1, offset=3))
    _ = await node.expect(wire.Resume)
    await node.finish(offer, "abc", "cancelled")
    again = await node.offered()
    assert (again.fence, again.prefix_ids) == (2, coordinator.shelf.ids("abc"))
    async with asking(coordinator) as sam:
        rest = Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events?after=3")
        await node.answer(again, "de")
        assert (await rest.whole()).text == "de"
        assert attempts(coordinator.database, offer.job_id) == [
            (1, "lost", "coordinator_restarted", 3),
            (2, "done", "stop", 2),
        ]
    assert not coordinator.runtime.endings.health.get(node.node_id.removeprefix("node_"))
    coordinator.check_books()


async def test_what_was_sent_but_not_stored_is_made_again_and_not_said_twice(
    coordinator: Coordinator, node: ScriptedNode
) -> None:
    async with asking(coordinator) as sam:
        reading = ask(sam, prompt="0123456789", max_tokens=20)
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await reading.until_text("abc")
        await until_stored(coordinator, offer.job_id, 3)
        store_no_more(coordinator)
        await node.say(offer, "def", offset=3)
        await reading.until_text("abcdef")
        await crash(coordinator)
        await broken(reading)
    await node.close()
    await node.connect()  # it has forgotten: everything behind the stored prefix is made again
    again = await node.offered()
    assert (again.fence, again.prefix_ids) == (2, coordinator.shelf.ids("abc"))
    async with asking(coordinator) as sam:
        rest = Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events?after=6")
        await node.accept(again)
        await node.chunk(again, 0, coordinator.shelf.ids("defg"))  # a chunk over the reader's place
        await node.finish(again, "defg")
        await rest.whole()
        assert (rest.text, rest.finish_reason) == ("g", "stop")
        whole = await Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events").whole()
        assert whole.text == "abcdefg"
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(10, 7)
    coordinator.check_books()


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 8, 10])
async def test_characters_stop_strings_and_log_probabilities_survive_the_seam(
    coordinator: Coordinator, node: ScriptedNode, cut: int
) -> None:
    """Cuts in the middle of characters, and of the stop string, which begins before the seam."""
    ids = coordinator.shelf.ids(TEXT)
    scores = tuple(wire.TokenLogprob(logprob=-index / 8, top=((65, -0.5),)) for index in range(len(ids)))
    body = chat(max_tokens=60, stream=True, stop=["😀c,"], logprobs=True, top_logprobs=1)

    async def answer(offer: wire.Offer, start: int, end: int, before: int) -> None:
        await node.chunk(offer, start - before, ids[start:end], logprobs=scores[start:end])

    async with asking(coordinator) as sam:
        unbroken = Reading(sam, "POST", "/v1/chat/completions", json=body)
        offer = await node.offered()
        await node.accept(offer)
        await answer(offer, 0, len(ids), 0)
        await unbroken.whole()
        reading = Reading(sam, "POST", "/v1/chat/completions", json=body)
        offer = await node.offered()
        await node.accept(offer)
        await answer(offer, 0, cut, 0)
        await until_stored(coordinator, offer.job_id, cut)
        await crash(coordinator)
        await broken(reading)
    await node.close()
    await node.connect()
    again = await node.offered()
    assert again.prefix_ids == ids[:cut]
    await node.accept(again)
    await answer(again, cut, len(ids), cut)
    async with asking(coordinator) as sam:
        whole = await Reading(sam, "GET", f"/v1/jobs/{offer.job_id}/events").whole()
    assert (whole.text, whole.finish_reason) == ("aé漢b", "stop")
    assert logged(whole) == logged(unbroken)
    assert whole.events[-2].data["usage"]["completion_tokens"] == len("aé漢b😀c,".encode())
    coordinator.check_books()


def logged(reading: Reading) -> list[Any]:
    return [
        entry
        for event in reading.events
        for choice in event.choices
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]


async def test_a_key_joins_its_job_again_after_a_crash(coordinator: Coordinator, node: ScriptedNode) -> None:
    headers = {"Idempotency-Key": "one"}
    async with asking(coordinator) as sam:
        first = asyncio.create_task(sam.post("/v1/completions", json=completion(), headers=headers))
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "ab")
        await until_stored(coordinator, offer.job_id, 2)
        await crash(coordinator)
        with contextlib.suppress(httpx2.TransportError):
            answer = await first
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "coordinator_restarting")
            assert answer.headers["x-should-retry"] == "false"
    await node.close()
    await node.connect(wire.LiveAttempt(job_id=offer.job_id, fence=1, offset=2))
    await node.expect(wire.Resume)
    async with asking(coordinator) as sam:
        second = asyncio.create_task(sam.post("/v1/completions", json=completion(), headers=headers))
        await asyncio.sleep(0.3)
        await node.say(offer, "cd", offset=2)
        await node.finish(offer, "abcd")
        answer = await second
        assert answer.headers["idempotency-hit"] == "true"
        assert answer.headers["x-job-id"] == offer.job_id
        assert answer.json()["choices"][0]["text"] == "abcd"
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(3, 4)
    coordinator.check_books()


@pytest.mark.parametrize("is_kept", [False, True])
async def test_an_answer_that_nobody_comes_back_for_ends_unless_it_was_to_go_on(
    start_coordinator: StartCoordinator, is_kept: bool
) -> None:
    coordinator = start_coordinator(rejoin_seconds=1.0)
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    headers = {"x-mlxnet-on-disconnect": "continue" if is_kept else "cancel"}
    body = completion("0123456789", stream=True)
    async with asking(coordinator) as sam:
        reading = Reading(sam, "POST", "/v1/completions", json=body, headers=headers)
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await until_stored(coordinator, offer.job_id, 3)
        await crash(coordinator)
        await broken(reading)
    await node.close()
    await node.connect(wire.LiveAttempt(job_id=offer.job_id, fence=1, offset=3))
    await node.expect(wire.Resume)
    if is_kept:
        await asyncio.sleep(2)
        assert not node.has(wire.Cancel)
        await node.finish(offer, "abc")
        await node.expect(wire.Settled)
    else:
        assert (await node.expect(wire.Cancel)).reason == "client"
        await node.expect(wire.Settled)
    with coordinator.database.read() as session:
        job = session.get_one(Job, offer.job_id)
        state = (job.state, job.error_code, job.charge_umlx)
        assert session.scalars(select(JobPayload.part)).all() == []
    charge = price_of(10, 3)
    assert state == (("done", None, charge) if is_kept else ("cancelled", "submitter_gone", charge))
    await node.close()
    coordinator.check_books()


async def test_a_job_that_waited_in_the_queue_waits_on(coordinator: Coordinator, new_node: NewNode) -> None:
    async with asking(coordinator) as sam:
        body = {"kind": "completions", "request": completion()}
        job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
        again = {"json": completion(stream=True), "headers": {"idempotency-key": "one"}}
        reading = Reading(sam, "POST", "/v1/completions", **again)
        await wait_until(lambda: queued(coordinator) == 2, "both to wait")
        await crash(coordinator)
        await broken(reading)
    node = await new_node()
    await node.answer(await node.offered(), "ok")
    async with asking(coordinator) as sam:
        # Nobody waits for the other one yet: it runs when it is asked for.
        await asyncio.sleep(0.5)
        assert not node.has(wire.Offer)
        reading = Reading(sam, "POST", "/v1/completions", **again)
        await node.answer(await node.offered(), "ok")
        assert (await reading.whole()).text == "ok"
        result = await sam.get(f"/v1/jobs/{job_id}/result")
        assert result.json()["choices"][0]["text"] == "ok"
    await wait_until(lambda: coordinator.balances()["Sam"][1] == 0, "the holds to end")
    coordinator.check_books()


# -- stopping in good order ----------------------------------------------------------------------


async def test_a_coordinator_that_is_told_to_stop_lets_answers_end(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(drain_seconds=10.0)
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    async with asking(coordinator) as sam:
        reading = ask(sam)
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "ab")
        await reading.until_text("ab")
        stopping = asyncio.create_task(asyncio.to_thread(coordinator.stop))
        runtime = coordinator.runtime
        await wait_until(lambda: runtime.is_draining, "it to drain")
        refused = await sam.post("/v1/completions", json=completion())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "coordinator_restarting")
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("2", "true")
        await node.say(offer, "cd", offset=2)
        await node.finish(offer, "abcd")
        await reading.whole()
        assert (reading.text, reading.finish_reason) == ("abcd", "stop")
        await asyncio.wait_for(stopping, 5)
    await node.close()


async def test_readers_that_are_sent_away_are_told_where_to_go_on(
    coordinator: Coordinator, node: ScriptedNode
) -> None:
    async with asking(coordinator) as sam:
        lines: list[str] = []

        async def read() -> None:
            async with sam.stream("POST", "/v1/completions", json=completion(stream=True)) as response:
                lines.extend([line async for line in response.aiter_lines()])

        reading = asyncio.create_task(read())
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "ab")
        live = coordinator.runtime.jobs.get(offer.job_id)
        assert live is not None
        await wait_until(lambda: len(live.token_ids) == 2, "the tokens")
        await asyncio.to_thread(coordinator.stop)
        await asyncio.wait_for(reading, 5)
    assert "retry: 2000" in lines
    assert lines[-2] == "data: [DONE]"
    assert f"/v1/jobs/{offer.job_id}/events" in lines[-4]
    assert '"coordinator_restarting"' in lines[-4]
    await asyncio.to_thread(coordinator.start)
    found = stored(coordinator, offer.job_id)
    assert found is not None, "it was stored on the way"
    assert found.token_ids == coordinator.shelf.ids("ab")


# -- in the middle -------------------------------------------------------------------------------


async def test_events_behind_any_offset_are_exactly_the_rest(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    """All tokens come in one chunk, and the answer ends in the middle of a character."""
    ids = (*coordinator.shelf.ids(TEXT), *coordinator.shelf.ids("漢")[:2])
    reading = Reading(sam, "POST", "/v1/completions", json=completion(stream=True, max_tokens=60))
    offer = await node.offered()
    await node.accept(offer)
    await node.chunk(offer, 0, ids)
    await node.finish(offer, ids)
    await reading.whole()
    raw = TEXT.encode() + "漢".encode()[:2]
    whole = raw.decode("utf-8", "replace")
    assert reading.text == whole
    path = f"/v1/jobs/{offer.job_id}/events"
    for after in range(len(ids) + 1):
        shown = raw[:after].decode("utf-8", "ignore")
        rest = await Reading(sam, "GET", f"{path}?after={after}").whole()
        assert shown + rest.text == whole, after
        assert rest.finish_reason == "stop"
    last_id = reading.events[-2].id
    assert last_id is not None
    again = await Reading(sam, "GET", path, headers={"Last-Event-ID": last_id}).whole()
    assert (again.text, again.finish_reason) == ("", "stop"), "the last character is not said twice"


async def test_an_answer_nobody_has_seen_is_made_anew_if_it_is_not_proven(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion("0123456789")))
    liar, offer = await who_is_asked(*nodes)
    await liar.accept(offer)
    await liar.say(offer, "lies")
    await liar.finish(offer, "lies", signature=liar.sign(b"something else"))
    honest, again = await who_is_asked(*nodes)
    assert (again.prefix_ids, again.max_tokens) == ((), 8)
    await honest.answer(again, "truth")
    answer = await asked
    assert answer.json()["choices"][0]["text"] == "truth"
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert attempts(coordinator.database, offer.job_id) == [
        (1, "failed", "result_not_proven", 0),
        (2, "done", "stop", 5),
    ]
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(10, 5)
    assert coordinator.balances()[liar.owner] == (0, 0)
    coordinator.check_books()


async def test_a_whole_answer_that_is_not_proven_is_made_anew(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion(max_tokens=4)))
    liar, offer = await who_is_asked(*nodes)
    await liar.accept(offer)
    await liar.say(offer, "lies")
    await liar.finish(offer, "lies", "length", output_digest="0" * 64)
    honest, again = await who_is_asked(*nodes)
    await honest.answer(again, "true", "length")
    answer = await asked
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "true")
    coordinator.check_books()


async def test_prefixes_are_stored_encrypted_many_in_one_write_and_only_if_they_changed(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(prefix_seconds=0.5)
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    async with asking(coordinator) as sam:
        readings = [ask(sam, prompt=f"{number}" * 10) for number in range(5)]
        offers = [await node.offered() for _ in readings]
        for offer in offers:
            await node.accept(offer)
        await asyncio.sleep(0.3)  # the accepts are on record
        before = coordinator.runtime.commits.writes
        for offer in offers:
            await node.say(offer, "secret")
        for offer in offers:
            await until_stored(coordinator, offer.job_id, 6)
        assert coordinator.runtime.commits.writes <= before + 2
        before = coordinator.runtime.commits.writes
        await asyncio.sleep(1.2)
        assert coordinator.runtime.commits.writes == before, "nothing changed"
        with coordinator.database.read() as session:
            rows = session.scalars(select(JobPayload).where(JobPayload.part == "prefix")).all()
            plain = bytes(coordinator.shelf.ids("secret")), b"secret"
            assert len(rows) == 5
            assert not any(text in row.ciphertext for row in rows for text in plain)
        for offer in offers:
            await node.finish(offer, "secret")
        for reading in readings:
            await reading.whole()
    with coordinator.database.read() as session:
        assert session.scalars(select(JobPayload.part)).all() == []
    await node.close()
    coordinator.check_books()
