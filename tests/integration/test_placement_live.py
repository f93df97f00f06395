"""The running coordinator places with the whole matcher: fair, spread, never more than fits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from sqlalchemy import func, select, update

from coordinator.commits import GroupCommit
from coordinator.db import Database, make_engine
from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import DispatcherLease, Slot
from coordinator.placement.fleet import Fleet
from coordinator.placement.queue import Entry
from coordinator.placement.types import Forecast, JobFacts, NotPlaced, Placed
from coordinator.reservations import Reservations, Wanted
from node_agent.protocol import messages as wire
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, Shelf, StartCoordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode, always
from tests.integration.attempts import ask
from tests.integration.test_reservations import NODE, SLOT, fill, seen

pytestmark = pytest.mark.anyio

SECOND = Forecast(0.0, 0.5, 0.5, 20.0)
WIDTH = 4


async def a_mac(
    coordinator: Coordinator, owner: str, *, times_as_fast: int = 1, width: int = 8
) -> ScriptedNode:
    """A node of that width whose memory is so many times as fast, connected."""
    node = ScriptedNode(coordinator, owner, name=f"{owner} {times_as_fast}")
    bandwidth = times_as_fast * node.hardware.bandwidth_bytes_per_second
    node.hardware = node.hardware.model_copy(update={"width": width, "bandwidth_bytes_per_second": bandwidth})
    await node.enrol()
    await node.connect()
    return node


async def submit(coordinator: Coordinator, name: str, count: int) -> list[str]:
    """So many asynchronous jobs at once; their ids."""
    client = coordinator.client(name)
    body = {"kind": "completions", "request": completion()}
    answers = await asyncio.gather(*(client.post("/v1/jobs", json=body) for _ in range(count)))
    assert {answer.status_code for answer in answers} == {202}, answers[0].text
    return [answer.json()["id"] for answer in answers]


def states(coordinator: Coordinator, job_ids: Sequence[str]) -> Counter[str]:
    with coordinator.database.read() as session:
        return Counter(session.scalars(select(Job.state).where(Job.id.in_(job_ids))))


async def close(*nodes: ScriptedNode) -> None:
    for node in nodes:
        await node.close()


# -- no overbooking, spread ----------------------------------------------------------------------


async def test_a_hundred_jobs_at_once_fill_no_mac_beyond_its_width_and_use_all(
    coordinator: Coordinator, closing_clients: None
) -> None:
    coordinator.add_person("Sue", RICH_UMLX)
    nodes = [await a_mac(coordinator, "Ada", times_as_fast=3, width=WIDTH)]
    nodes += [await a_mac(coordinator, "Bo", width=WIDTH) for _ in range(4)]
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: Counter[str] = Counter()

    async def behave(node: ScriptedNode, offer: wire.Offer) -> None:
        running[node.node_id] += 1
        most[node.node_id] = max(most[node.node_id], running[node.node_id])
        await node.accept(offer)
        await asyncio.sleep(0.05)
        await node.say(offer, "abc")
        running[node.node_id] -= 1
        done[node.node_id] += 1
        await node.finish(offer, "abc", "eos")

    for node in nodes:
        node.behaviour = behave
    halves = await asyncio.gather(submit(coordinator, "Sam", 50), submit(coordinator, "Sue", 50))
    job_ids = halves[0] + halves[1]
    await wait_until(lambda: states(coordinator, job_ids)["done"] == 100, "all to be done", 90)
    assert max(most.values()) <= WIDTH
    # The fast one is the best for each job taken by itself.
    assert len(done) == len(nodes)
    assert sum(done.values()) == 100
    with coordinator.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Attempt)) == 100
        assert set(session.scalars(select(Slot.live))) == {0}
    coordinator.check_books()
    await close(*nodes)


def test_two_dispatchers_at_once_take_no_seat_twice(
    database: Database, database_url: str, shelf: Shelf
) -> None:
    fill(database, shelf, jobs=60, width=25)
    other = Database(make_engine(database_url))
    writers = [GroupCommit(database), GroupCommit(other)]
    dispatchers = [Reservations(writer) for writer in writers]
    found: list[list[str]] = [[], []]

    def run(which: int) -> None:
        for first in range(0, 60, 6):
            group = [
                Wanted(f"job_{number}", shelf.card, Placed(NODE, SLOT, None, SECOND))
                for number in range(first, first + 6)
            ]
            reserved = dispatchers[which].reserve(group)
            found[which] += [
                one.job_id for one, seat in zip(group, reserved, strict=True) if seat is not None
            ]

    threads = [threading.Thread(target=run, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, live, attempts = seen(database)
    # One of them had the lease all the time: no run of 60 takes the five seconds that it lasts.
    assert sorted(len(jobs) for jobs in found) == [0, 25]
    assert live == {SLOT: 25}
    assert len({attempt.job_id for attempt in attempts}) == len(attempts) == 25
    for writer in writers:
        writer.stop()
    other.close()


async def test_a_dispatcher_that_lost_its_lease_places_nothing_until_it_has_it_again(
    coordinator: Coordinator, closing_clients: None
) -> None:
    node = await a_mac(coordinator, "Ada")
    node.behaviour = always("abc")
    (first,) = await submit(coordinator, "Sam", 1)
    await wait_until(lambda: states(coordinator, [first])["done"], "the first job to be done")

    def lease(**values: object) -> None:
        with coordinator.database.write() as session:
            _ = session.execute(update(DispatcherLease).values(**values))

    now_us = coordinator.database.now_us
    with coordinator.database.read() as session:
        epoch = session.scalars(select(DispatcherLease.epoch)).one()
        until_us = now_us(session) + 4_000_000
    lease(holder="another", epoch=epoch + 1, expires_us=until_us)
    (second,) = await submit(coordinator, "Sam", 1)
    await wait_until(lambda: states(coordinator, [second])["done"], "the lease to be taken again", 30)
    with coordinator.database.read() as session:
        offered_us = session.scalars(select(Attempt.offered_us).where(Attempt.job_id == second)).all()
        found = session.scalars(select(DispatcherLease)).one()
        assert (found.holder != "another", found.epoch) == (True, epoch + 2)
    assert len(offered_us) == 1
    assert offered_us[0] >= until_us
    await close(node)


# -- fair ----------------------------------------------------------------------------------------


async def test_who_used_least_is_next_however_many_jobs_another_has_queued(
    coordinator: Coordinator, closing_clients: None
) -> None:
    coordinator.add_person("Sue", RICH_UMLX)
    node = await a_mac(coordinator, "Ada", width=1)
    many = await submit(coordinator, "Sam", 20)
    begun = await node.offered()
    assert begun.job_id in many
    (one,) = await submit(coordinator, "Sue", 1)
    await node.answer(begun, "abc")
    assert (await node.offered()).job_id == one
    await close(node)


async def test_use_and_work_given_are_known_again_after_a_restart(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator()
    node = await a_mac(coordinator, "Ada")
    node.behaviour = always("abc")
    job_ids = await submit(coordinator, "Sam", 5)
    await wait_until(lambda: states(coordinator, job_ids)["done"] == 5, "all to be done")
    account_id = coordinator.people["Sam"].account_id

    def used() -> float:
        shares = coordinator.runtime.dispatcher.shares
        return shares.used.of(account_id, now_seconds=asyncio.get_running_loop().time())

    before = used()
    assert before > 0
    for client in coordinator.clients:
        await client.aclose()
    coordinator.clients.clear()
    await node.close()
    coordinator.stop()
    _ = coordinator.start()
    again = ScriptedNode(coordinator, "Ada", name="again")
    again.key, again.public_key, again.node_id = node.key, node.public_key, node.node_id
    await again.connect()
    book = coordinator.runtime.dispatcher.book
    await wait_until(lambda: book.row(node.node_id) is not None, "the node to be in the table")
    assert used() == pytest.approx(before, rel=0.05)
    row = book.row(node.node_id)
    assert row is not None
    assert book.table.given[row] > 0
    await close(again)


# -- the table is kept ---------------------------------------------------------------------------


async def test_the_table_follows_what_nodes_say_and_do(coordinator: Coordinator, new_node: NewNode) -> None:
    node = await new_node()
    book = coordinator.runtime.dispatcher.book

    def reasons() -> set[str]:
        job = JobFacts(job_id="", card=coordinator.shelf.card, prompt_tokens=1, max_tokens=1)
        choice = coordinator.runtime.dispatcher.judge(job)
        return set(choice.rejected) if isinstance(choice, NotPlaced) else set()

    await wait_until(lambda: book.row(node.node_id) is not None, "the node to be seen")
    assert not reasons()
    await node.send(wire.Heartbeat(mode="away", free_bytes=1 << 30))
    await wait_until(lambda: reasons() == {"owner_present"}, "its owner to be seen")
    await node.send(wire.Heartbeat(mode="ready", free_bytes=1 << 10))
    await wait_until(lambda: reasons() == {"memory_free_short"}, "its memory to be seen")
    await node.send(wire.Heartbeat(mode="ready", free_bytes=1 << 30))
    await wait_until(lambda: not reasons(), "it to be free again")
    await node.close()
    await wait_until(lambda: book.row(node.node_id) is None, "it to be gone")
    assert book.table.count == 0


async def test_observers_see_every_decision_and_one_that_fails_stops_nothing(
    coordinator: Coordinator, new_node: NewNode, closing_clients: None
) -> None:
    seen_by: list[tuple[str, str | None, int]] = []

    def watch(entry: Entry, fleet: Fleet) -> None:
        choice = entry.decision.choice
        where = choice.node_id if isinstance(choice, Placed) else None
        seen_by.append((entry.job.job_id, where, fleet.count))

    def fail(_entry: Entry, _fleet: Fleet) -> None:
        raise RuntimeError("a fault of this test")

    coordinator.runtime.dispatcher.observers += [fail, watch]
    async with coordinator.client("Sam") as sam:
        reading = ask(sam)
        await wait_until(lambda: seen_by, "a decision without a node")
        assert {where for _, where, _ in seen_by} == {None}
        node = await new_node()
        await node.answer(await node.offered(), "abc")
        _ = await reading.whole()
    assert seen_by[-1] == (reading.job_id, node.node_id, 1)
    assert "a fault of this test" in coordinator.logs.getvalue()


async def test_times_are_forecast_from_how_long_answers_were_lately(
    start_coordinator: StartCoordinator, closing_clients: None
) -> None:
    coordinator = start_coordinator(residency_seconds=0.2)
    node = await a_mac(coordinator, "Ada")
    node.behaviour = always("ab")
    residency = coordinator.runtime.dispatcher.residency
    job = JobFacts(job_id="", card=coordinator.shelf.card, prompt_tokens=3, max_tokens=400)
    job_ids = await submit(coordinator, "Sam", 19)
    await wait_until(lambda: states(coordinator, job_ids)["done"] == 19, "all to be done")
    steps = residency.steps
    await wait_until(lambda: residency.steps >= steps + 2, "a step that has seen them")
    assert residency.expect(job).answer_tokens == 400  # too few to tell
    job_ids += await submit(coordinator, "Sam", 1)
    await wait_until(lambda: residency.expect(job) != job, "the length of answers to be known")
    # Two of eight tokens were made.
    assert residency.expect(job).answer_tokens == 100
    forecasts = [coordinator.runtime.dispatcher.judge(one) for one in (job, residency.expect(job))]
    longest, usual = (found.forecast for found in forecasts if isinstance(found, Placed))
    assert usual.decode_seconds == pytest.approx(longest.decode_seconds / 4, rel=0.05)
    await close(node)
