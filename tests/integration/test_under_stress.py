"""Many jobs at once, two dispatchers, restarts and a database that fails: nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx2
import psycopg
import pytest
from sqlalchemy import Connection, event, func, select, update
from sqlalchemy.exc import OperationalError

from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import DispatcherLease, Slot
from coordinator.placement.types import Forecast, Placed, SlotPlan
from coordinator.reservations import Reservations, Wanted
from ledger import store_postgresql
from ledger.store import Changes
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, completion, wait_until
from tests.fixtures.coordinator import (
    RICH_UMLX,
    Coordinator,
    StartCoordinator,
    fee_of,
    price_of,
)
from tests.fixtures.scripted_node import Behaviour, NewNode, ScriptedNode, always

pytestmark = pytest.mark.anyio

WIDTH = 8
JOBS = 100


def states(coordinator: Coordinator) -> dict[str, int]:
    with coordinator.database.read() as session:
        return Counter(session.scalars(select(Job.state)).all())


# -- many jobs -----------------------------------------------------------------------------------


async def test_a_hundred_jobs_overbook_no_slot_and_the_books_agree(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(jobs_per_account_max=2 * JOBS, max_wait_seconds=60.0)
    live: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def counting() -> Behaviour:
        async def behave(node: ScriptedNode, offer: wire.Offer) -> None:
            live[node.name] += 1
            most[node.name] = max(most[node.name], live[node.name])
            await node.accept(offer)
            await node.say(offer, "ab")
            await asyncio.sleep(0.02)
            await node.say(offer, "cd", offset=2)
            # Its seat is free from the moment at which the coordinator can know of the end.
            live[node.name] -= 1
            await node.finish(offer, "abcd", "eos")

        return behave

    nodes: list[ScriptedNode] = []
    for owner in ("Ada", "Bo"):
        node = ScriptedNode(coordinator, owner, name=owner)
        await node.enrol()
        await node.connect()
        node.behaviour = counting()
        nodes.append(node)
    async with coordinator.client("Sam") as sam:
        answers = await asyncio.gather(
            *(sam.post("/v1/completions", json=completion(f"{n:010}")) for n in range(JOBS))
        )
    assert Counter(answer.status_code for answer in answers) == {200: JOBS}
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {"abcd"}
    assert all(count <= WIDTH for count in most.values()), most
    assert sum(most.values()) > WIDTH, "both nodes worked at once"
    assert states(coordinator) == {"done": JOBS}
    with coordinator.database.read() as session:
        assert session.scalars(select(Slot.width)).all() == [WIDTH, WIDTH]
        assert session.scalars(select(Slot.live)).all() == [0, 0]
        assert session.scalar(select(func.count()).select_from(Attempt)) == JOBS
    charge = price_of(10, 4)
    balances = coordinator.balances()
    assert balances["Sam"] == (RICH_UMLX - JOBS * charge, 0)
    assert balances["Ada"][0] + balances["Bo"][0] == JOBS * (charge - fee_of(charge))
    assert min(balances["Ada"][0], balances["Bo"][0]) > 0
    coordinator.check_books()
    for node in nodes:
        await node.close()


async def test_jobs_that_are_cancelled_while_they_are_placed_keep_the_books_right(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(jobs_per_account_max=200)
    node = ScriptedNode(coordinator, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    node.behaviour = always("abcd")
    async with coordinator.client("Sam") as sam:

        async def submit_and_cancel(number: int) -> None:
            body = {"kind": "completions", "request": completion(f"{number:03}")}
            job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
            await asyncio.sleep(number % 7 / 200)
            ended = (await sam.post(f"/v1/jobs/{job_id}/cancel")).json()
            assert ended["state"] in {"done", "cancelled"}

        await asyncio.gather(*(submit_and_cancel(number) for number in range(40)))
    assert set(states(coordinator)) <= {"done", "cancelled"}
    with coordinator.database.read() as session:
        assert set(session.scalars(select(Slot.live)).all()) <= {0}
        running = select(func.count()).select_from(Attempt).where(Attempt.ended_us.is_(None))
        assert session.scalar(running) == 0
    coordinator.check_books()
    await node.close()


# -- the dispatcher's lease ----------------------------------------------------------------------


async def test_of_two_dispatchers_only_the_holder_of_the_lease_reserves(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    node = ScriptedNode(coordinator, "Ada", name="enrolled, not connected")
    await node.enrol()
    placed = Placed(node.node_id, None, SlotPlan(1 << 20, 2, 512, ()), Forecast(0, 0, 1, 1))

    async def wanted() -> Wanted:
        body = {"kind": "completions", "request": completion()}
        job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
        return Wanted(job_id, coordinator.shelf.card, placed)

    older, newer = (Reservations(coordinator.runtime.commits) for _ in range(2))
    (first,) = older.reserve([await wanted()])
    assert first is not None
    with coordinator.database.read() as session:
        (slot_id,) = session.scalars(select(Slot.id)).all()
    placed = Placed(node.node_id, slot_id, None, Forecast(0, 0, 1, 1))
    job = await wanted()
    assert newer.reserve([job]) == [None]
    with coordinator.database.write() as session:
        session.execute(update(DispatcherLease).values(expires_us=1))
    (second,) = newer.reserve([job])
    assert second is not None
    assert older.reserve([await wanted()]) == [None], "its lease was taken over"
    newer.release_lease()
    assert older.reserve([await wanted()]) == [None], "both seats are taken"
    with coordinator.database.read() as session:
        lease = session.scalars(select(DispatcherLease)).one()
        assert lease.epoch == 3
        assert session.scalars(select(Slot.live)).all() == [2]


# -- restarts ------------------------------------------------------------------------------------


async def test_after_a_restart_jobs_of_both_kinds_go_on_and_are_charged_once(
    coordinator: Coordinator, new_node: NewNode
) -> None:
    node = await new_node()
    sam = coordinator.client("Sam")
    body = {"kind": "completions", "request": completion("asynchronous", max_tokens=20)}
    running = (await sam.post("/v1/jobs", json=body)).json()["id"]
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "goes o")
    waiting = Reading(sam, "POST", "/v1/completions", json=completion("synchronous", stream=True))
    other = await node.offered()
    await node.accept(other)
    await node.say(other, "ab")
    await waiting.until_text("ab")
    await asyncio.to_thread(coordinator.stop)
    await waiting.whole()
    assert waiting.events[-2].data["error"]["code"] == "coordinator_restarting"
    await sam.aclose()
    await asyncio.to_thread(coordinator.start)
    with coordinator.database.read() as session:
        expires_us = session.scalars(select(DispatcherLease.expires_us)).one()
        assert expires_us == 0, "the one that stopped gave up its lease"
    await node.close()
    await node.connect()
    sam = coordinator.client("Sam")
    rest = Reading(sam, "GET", f"/v1/jobs/{other.job_id}/events?after=2")
    for _ in range(2):
        again = await node.offered()
        is_first = again.job_id == running
        prefix = "goes o" if is_first else "ab"
        assert (again.fence, again.prefix_ids) == (2, coordinator.shelf.ids(prefix))
        await node.answer(again, "n" if is_first else "cd")
        await node.expect(wire.Settled, job_id=again.job_id)
    assert (await rest.whole()).text == "cd"
    result = await sam.get(f"/v1/jobs/{running}/result")
    assert result.json()["choices"][0]["text"] == "goes on"
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(12, 7) - price_of(11, 4)
    coordinator.check_books()
    await sam.aclose()


async def test_a_node_that_comes_back_with_a_job_that_ended_is_told_to_forget(
    coordinator: Coordinator, new_node: NewNode
) -> None:
    node = await new_node()
    async with coordinator.client("Sam") as sam:
        asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
        offer = await node.offered()
        await node.accept(offer)
        await sam.post(f"/v1/jobs/{offer.job_id}/cancel")
        assert (await asked).status_code == 409
    await node.expect(wire.Settled)
    await asyncio.to_thread(coordinator.stop)
    await asyncio.to_thread(coordinator.start)
    await node.close()
    node.unread.clear()
    await node.connect(wire.LiveAttempt(job_id=offer.job_id, fence=offer.fence, offset=3))
    assert (await node.expect(wire.Cancel)).job_id == offer.job_id
    assert (await node.expect(wire.Settled)).job_id == offer.job_id
    coordinator.check_books()


# -- the database --------------------------------------------------------------------------------


class FailingDatabase:
    """Makes the next statements that have `part` in them fail as a broken connection would."""

    def __init__(self, coordinator: Coordinator, part: str, times: int) -> None:
        self.left = times
        self._part = part
        self._engine = coordinator.database.engine
        event.listen(self._engine, "before_cursor_execute", self._fail)
        # On PostgreSQL the ledger speaks to the driver itself, out of the engine's hearing.
        self._write = store_postgresql.write
        store_postgresql.write = self._fail_or_write

    def _fail(self, _c: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if self.left and self._part in statement:
            self.left -= 1
            raise OperationalError(statement, parameters, Exception("connection lost"))

    def _fail_or_write(self, connection: Connection, changes: Changes) -> None:
        if self.left and self._part == "INSERT INTO ledger_journal":
            self.left -= 1
            raise psycopg.OperationalError("connection lost")
        self._write(connection, changes)

    def stop(self) -> None:
        event.remove(self._engine, "before_cursor_execute", self._fail)
        store_postgresql.write = self._write


@pytest.mark.parametrize("part", ["INSERT INTO attempts", "UPDATE slots", "UPDATE jobs"])
async def test_a_job_is_placed_although_the_database_fails(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient, part: str
) -> None:
    failing = FailingDatabase(coordinator, part, times=3)
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
    await node.answer(await node.offered(), "ok")
    assert (await asked).json()["choices"][0]["text"] == "ok"
    failing.stop()
    assert failing.left == 0
    coordinator.check_books()


async def test_a_reservation_whose_commit_was_not_confirmed_is_undone(
    coordinator: Coordinator,
    node: ScriptedNode,
    sam: httpx2.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection breaks right after the commit: it happened, and nobody was told."""
    broken: list[str] = []
    engine = coordinator.database.engine
    commit = engine.dialect.do_commit

    def note(connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        connection.info["reserves"] = "INSERT INTO attempts" in statement or connection.info.get("reserves")

    def do_commit(connection: Any) -> None:
        commit(connection)
        if connection.info.pop("reserves", False) and not broken:
            broken.append("once")
            raise OperationalError("COMMIT", {}, Exception("connection lost"))

    event.listen(engine, "before_cursor_execute", note)
    monkeypatch.setattr(engine.dialect, "do_commit", do_commit)
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
    offer = await node.offered()
    event.remove(engine, "before_cursor_execute", note)
    assert (broken, offer.fence) == (["once"], 2)
    await node.answer(offer, "ok")
    assert (await asked).json()["choices"][0]["text"] == "ok"
    with coordinator.database.read() as session:
        found = session.scalars(select(Attempt.reason).order_by(Attempt.fence)).all()
        assert found == ["offer_not_sent", "stop"]
        assert session.scalars(select(Slot.live)).all() == [0]
    coordinator.check_books()


@pytest.mark.parametrize("prefix", ["UPDATE jobs", "INSERT INTO ledger_journal", "DELETE FROM job_payloads"])
async def test_an_end_is_written_again_until_it_is_committed(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient, prefix: str
) -> None:
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion("0123456789")))
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "abcd")
    await wait_until(lambda: started(coordinator, offer.job_id), "the accept to be recorded")
    failing = FailingDatabase(coordinator, prefix, times=2)
    await node.finish(offer, "abcd", "eos")
    answer = await asked
    failing.stop()
    assert failing.left == 0
    assert answer.status_code == 200
    assert answer.headers["x-mlxnet-charge-umlx"] == str(price_of(10, 4))
    assert coordinator.posted("Sam") == RICH_UMLX - price_of(10, 4)
    assert "end_retried" in coordinator.logs.getvalue()
    coordinator.check_books()


def started(coordinator: Coordinator, job_id: str) -> bool:
    with coordinator.database.read() as session:
        return session.get_one(Job, job_id).started_us is not None


async def test_an_attempts_end_is_on_record_before_that_of_its_job(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    body = completion("0123456789", stream=True)
    reading = Reading(sam, "POST", "/v1/completions", json=body)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, "abc")
    await reading.until_text("abc")
    await wait_until(lambda: started(coordinator, offer.job_id), "the accept to be recorded")
    failing = FailingDatabase(coordinator, "UPDATE attempts", times=1)
    await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    await node.expect(wire.Settled)
    job = (await sam.post(f"/v1/jobs/{offer.job_id}/cancel")).json()
    failing.stop()
    assert (failing.left, job["state"]) == (0, "cancelled")
    (attempt,) = job["attempts"]
    assert (attempt["state"], attempt["delivered_tokens"]) == ("reclaimed", 3)
    charge = price_of(10, 3)
    assert coordinator.posted("Ada") == charge - fee_of(charge)
    coordinator.check_books()
    await reading.whole()


async def test_a_submit_that_fails_leaves_nothing_and_says_so(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    failing = FailingDatabase(coordinator, "INSERT INTO ledger_journal", times=1)
    answer = await sam.post("/v1/completions", json=completion())
    failing.stop()
    assert answer.status_code in {500, 503}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert states(coordinator) == {}
    coordinator.check_books()


async def test_readiness_follows_the_database(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    assert (await sam.get("/readyz")).status_code == 200
    assert (await sam.get("/healthz")).text == "ok\n"
