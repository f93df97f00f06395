"""The watch over standing Macs: real sockets and jobs, and a day of it by a clock that tests move."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final, cast

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.websockets import WebSocket

from coordinator import clock
from coordinator.accounts.service import create_account
from coordinator.db import Database, DatabaseUnavailable
from coordinator.live import LiveJobs
from coordinator.nodes import service as nodes
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.models import Node
from coordinator.seats.models import SelfTest, StandingTime
from coordinator.seats.watch import StandingWatch
from coordinator.settings import Settings
from ledger.ratecard import SLOT_US
from node_agent.protocol import messages as wire
from node_agent.protocol.ids import node_id_of
from node_agent.protocol.signing import encode_bytes, enrolment_statement, hello_statement
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import Coordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.macs import MONDAY_US, Macs
from tests.integration.records import error_of

pytestmark = pytest.mark.anyio


# -- with real sockets ---------------------------------------------------------------------------


def times(coordinator: Coordinator, node_id: str) -> tuple[int, int, int]:
    """(present, busy, linked busy) seconds over all slots."""
    with coordinator.database.read() as session:
        rows = session.scalars(select(StandingTime).where(StandingTime.node_id == node_id)).all()
    return (
        sum(row.present_seconds for row in rows),
        sum(row.busy_seconds for row in rows),
        sum(row.linked_busy_seconds for row in rows),
    )


async def set_modes(coordinator: Coordinator, modes: dict[ScriptedNode, wire.NodeMode]) -> None:
    """Have nodes say how they are, and wait until it is known."""
    for node, mode in modes.items():
        await node.send(wire.Heartbeat(mode=mode, free_bytes=1 << 30))

    def is_known() -> bool:
        found = {node: coordinator.runtime.fleet.get(node.node_id) for node in modes}
        return all(channel is not None and channel.mode == modes[node] for node, channel in found.items())

    await wait_until(is_known, "the modes to be known")


async def test_what_was_seen_is_stored_when_the_coordinator_stops(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    began = clock.monotonic()
    ready, busy, own, away = [await new_node(owner) for owner in ("Ada", "Ada", "Pat", "Ada")]
    for asker, worker in ((sam, busy), (coordinator.client("Pat"), own)):
        others: dict[ScriptedNode, wire.NodeMode] = dict.fromkeys((ready, busy, own, away), "draining")
        await set_modes(coordinator, {**others, worker: "ready"})
        answer = await asker.post("/v1/jobs", json={"kind": "completions", "request": completion()})
        assert answer.status_code in {200, 202}, answer.text
        await worker.accept(await worker.offered())
    await set_modes(coordinator, dict.fromkeys((ready, busy, own), "ready"))
    await set_modes(coordinator, {away: "away"})
    at = clock.monotonic()
    await wait_until(lambda: clock.monotonic() - at > 4, "some seconds", seconds=20)
    coordinator.stop()
    coordinator.start()
    found = {node: times(coordinator, node.node_id) for node in (ready, busy, own, away)}
    passed = clock.monotonic() - began
    for node in (ready, busy, own):
        assert 2 <= found[node][0] <= passed
    assert found[ready][1:] == (0, 0)
    assert found[busy][1] >= 2
    assert found[busy][2] == 0
    assert found[own][2] >= 2
    assert found[own][1] == 0
    assert found[away][0] <= 2  # before it said so


# -- which Mac it is -----------------------------------------------------------------------------


def test_a_device_is_what_enrolment_and_hello_say(database: Database) -> None:
    key = Ed25519PrivateKey.generate()
    public_key = encode_bytes(key.public_key().public_bytes_raw())
    node_id = node_id_of(key.public_key().public_bytes_raw())
    hardware = wire.Hardware(memory_bytes=1, lent_bytes=1, bandwidth_bytes_per_second=1)
    settings, nonce = Settings(), "n" * 32

    def sign(statement: bytes) -> str:
        return encode_bytes(key.sign(statement))

    def enrol(session: Session, device: str | None) -> Node:
        statement = enrolment_statement(audience=settings.origin, public_key=public_key, nonce=nonce)
        request = nodes.EnrolmentRequest(
            public_key=public_key,
            nonce=nonce,
            signature=sign(statement),
            name="Mac",
            device=device,
            hardware=hardware,
        )
        started = nodes.start_enrolment(session, request, settings=settings)
        session.flush()
        return nodes.approve(session, owner.id, started.code)

    def hello(session: Session, device: str | None) -> Node:
        statement = hello_statement(audience=settings.origin, node_id=node_id, nonce=nonce)
        message = wire.Hello(
            node_id=node_id,
            public_key=public_key,
            nonce=nonce,
            signature=sign(statement),
            agent_version="test",
            device=device,
            hardware=hardware,
        )
        return nodes.admit_hello(session, message, settings=settings, unknown=1, revoked=2)

    with database.write() as session:
        owner = create_account(session, "Ada")
        assert enrol(session, None).device == node_id.removeprefix("node_")
        nodes.revoke(session, node_id)
        assert enrol(session, "a" * 64).device == "a" * 64
        # An older node does not say; what it was enrolled as stays.
        assert hello(session, None).device == "a" * 64
        assert hello(session, "b" * 64).device == "b" * 64


# -- over HTTP -----------------------------------------------------------------------------------


async def test_a_seat_is_asked_for_over_http(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    ada, path = coordinator.client("Ada"), f"/v1/nodes/{node.node_id}/seat"
    asked = await ada.put(path, json={"seat": "ultra"})
    assert asked.status_code == 200, asked.text
    found = asked.json()
    assert (found["wanted_seat"], found["next_seat"]) == ("ultra", "dedicated")
    missing = {one["condition"]: one for one in found["failing"]}
    assert set(missing) == {"self_tests", "lent_memory", "checks_passed"}
    assert missing["self_tests"]["needed"] == "3 warm self-tests"
    assert (await ada.get(path)).json()["promised_seconds_per_day"] == 72_000
    assert found["earned"] == {"today_umlx": "0", "this_week_umlx": "0", "last_30_days_umlx": "0"}
    assert error_of(await sam.get(path)) == (404, "node_not_found", None)
    assert error_of(await sam.put(path, json={"seat": "idle"})) == (404, "node_not_found", None)
    back = (await ada.put(path, json={"seat": "idle"})).json()
    assert (back["next_seat"], back["failing"], back["owner_may_interrupt"]) == ("idle", [], True)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"seat": "throne"}, "invalid_value", "seat"),
        ({}, "missing_required_parameter", "seat"),
        ({"seat": None}, "missing_required_parameter", "seat"),
        ({"seat": "idle", "extra": 1}, "unknown_parameter", "extra"),
        (
            {"seat": "dedicated", "promised_seconds_per_day": 86_401},
            "invalid_value",
            "promised_seconds_per_day",
        ),
        ({"seat": "dedicated", "promised_days": "7"}, "invalid_value", "promised_days"),
    ],
)
async def test_a_bad_wish_is_refused_naming_the_field(
    coordinator: Coordinator,
    node: ScriptedNode,
    sam: httpx2.AsyncClient,
    body: dict[str, Any],
    code: str,
    param: str,
) -> None:
    answer = await coordinator.client("Ada").put(f"/v1/nodes/{node.node_id}/seat", json=body)
    assert error_of(answer) == (400, code, param)


async def test_upkeep_over_http(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    ada, path = coordinator.client("Ada"), f"/v1/nodes/{node.node_id}/upkeep"
    made = await ada.post(path, json={"starts_in_seconds": 600, "seconds": 3600})
    assert made.status_code == 201, made.text
    window = made.json()
    assert window["end_us"] - window["start_us"] == 3600 * 10**6
    assert [one["id"] for one in (await ada.get(path)).json()["windows"]] == [window["id"]]
    too_long = await ada.post(path, json={"starts_in_seconds": 600, "seconds": 7201})
    assert error_of(too_long) == (400, "invalid_value", "seconds")
    before = await ada.post(path, json={"starts_in_seconds": -1, "seconds": 60})
    assert error_of(before) == (400, "invalid_value", "starts_in_seconds")
    assert error_of(await sam.delete(f"{path}/{window['id']}"))[1] == "node_not_found"
    assert (await ada.delete(f"{path}/{window['id']}")).json()["cancelled"]
    assert error_of(await ada.delete(f"{path}/{window['id']}"))[:2] == (404, "upkeep_not_found")


async def test_a_removed_mac_has_no_seat_to_ask_for(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    ada = coordinator.client("Ada")
    assert (await ada.delete(f"/v1/nodes/{node.node_id}")).status_code == 200
    answer = await ada.put(f"/v1/nodes/{node.node_id}/seat", json={"seat": "dedicated"})
    assert error_of(answer) == (404, "node_not_found", None)


# -- by a clock that tests move ------------------------------------------------------------------

CARD_ID: Final = "tiny"


class Watched:
    """A watch over channels whose sockets are never written to, and the time that it lives in."""

    def __init__(self, macs: Macs) -> None:
        self.macs = macs
        self.monotonic = 5000.0
        self.fleet = Fleet()
        self.watch = self.new_watch()

    def new_watch(self) -> StandingWatch:
        return StandingWatch(
            self.macs.database,
            self.fleet,
            LiveJobs(),
            suspect_seconds=15.0,
            always_demanded=lambda: CARD_ID,
        )

    def connect(self, node_id: str) -> Channel:
        node = self.macs.node(node_id)
        slot = wire.SlotReport(card_id=CARD_ID, card_revision="r", bytes=1, width=1, live=0)
        channel = Channel(
            node_id=node_id,
            owner_id=node.account_id,
            device=node.device,
            name="Mac",
            public_key="k",
            hardware=wire.Hardware(
                chip="Apple M4",
                gpu_cores=10,
                memory_bytes=1 << 34,
                lent_bytes=1 << 34,
                bandwidth_bytes_per_second=1,
            ),
            socket=cast("WebSocket", None),
            slots=(slot,),
            connected_at=self.monotonic,
        )
        self.fleet.channels[node_id] = channel
        return channel

    async def run(self, seconds: int, *, silent: bool = False) -> None:
        """Seconds of the watch's own loop: a look each second, a store each minute."""
        for second in range(seconds):
            if second % 60 == 0:
                await self.watch.store()
                self.watch.look()
            self.pass_time(1, silent=silent)
            self.watch.look()

    def pass_time(self, seconds: float, *, silent: bool = False) -> None:
        self.monotonic += seconds
        self.macs.now_us += round(seconds * 1e6)
        for channel in self.fleet.channels.values():
            if not silent:
                channel.heard_at = self.monotonic

    def rows(self, node_id: str) -> dict[int, tuple[int, bool]]:
        """(seconds present, demanded model loaded) by slot, counted from Monday's first."""
        with self.macs.database.read() as session:
            found = session.scalars(select(StandingTime).where(StandingTime.node_id == node_id))
            return {
                (row.slot_start_us - MONDAY_US) // SLOT_US: (row.present_seconds, row.has_demanded_model)
                for row in found
            }


@pytest.fixture
def watched(database_url: str) -> Generator[Watched]:
    macs = Macs(database_url)
    found = Watched(macs)
    sources = replace(clock.Sources(), monotonic=lambda: found.monotonic)
    with clock.replaced_by(sources):
        yield found
    macs.database.close()


async def test_slots_fill_up_and_a_restart_goes_on(watched: Watched) -> None:
    node_id = watched.macs.add("Ada")
    watched.connect(node_id)
    await watched.run(900)
    await watched.watch.finish()
    assert watched.rows(node_id) == {0: (600, True), 1: (300, True)}
    watched.watch = watched.new_watch()
    await watched.run(300)
    for _ in range(2):
        await watched.watch.finish()
        assert watched.rows(node_id) == {0: (600, True), 1: (600, True)}


async def test_a_silent_mac_is_not_there(watched: Watched) -> None:
    node_id = watched.macs.add("Ada")
    watched.connect(node_id)
    await watched.run(60)
    await watched.run(120, silent=True)
    await watched.watch.store()
    assert 60 <= watched.rows(node_id)[0][0] <= 76


async def test_a_promised_mac_that_is_away_is_noted_as_missing(watched: Watched) -> None:
    promised, idle = watched.macs.add("Ada"), watched.macs.add("Bo")
    watched.macs.ask(promised, "dedicated")
    await watched.run(90)
    await watched.watch.store()
    assert watched.rows(promised) == {0: (0, False)}
    assert watched.rows(idle) == {}


async def test_the_databases_clock_set_back_stores_nothing_twice(watched: Watched) -> None:
    node_id = watched.macs.add("Ada")
    watched.connect(node_id)
    await watched.run(300)
    watched.macs.now_us -= 120_000_000
    await watched.run(120)
    await watched.watch.store()
    assert watched.rows(node_id)[0][0] == 300
    await watched.run(60)
    await watched.watch.store()
    assert watched.rows(node_id)[0][0] == 360


async def test_what_could_not_be_stored_is_stored_later(watched: Watched) -> None:
    node_id = watched.macs.add("Ada")
    watched.connect(node_id)
    await watched.run(30)
    watched.macs.is_away = True
    with pytest.raises(DatabaseUnavailable):
        await watched.watch.store()
    await watched.watch.finish()
    watched.macs.is_away = False
    await watched.watch.store()
    assert watched.rows(node_id)[0][0] == 30


async def test_an_idle_mac_is_tested_and_the_result_stored(watched: Watched) -> None:
    node_id = watched.macs.add("Ada", tests=())
    channel = watched.connect(node_id)
    await watched.run(125)
    (challenge,) = [m for m in channel._control if isinstance(m, wire.SelfTest)]  # pyright: ignore[reportPrivateUsage]
    channel.self_test = wire.SelfTestResult(
        nonce=challenge.nonce, bandwidth_bytes_per_second=10**13 // 4, is_warm=True, seconds=4.0
    )
    await watched.run(61)
    await watched.watch.store()
    with watched.macs.database.read() as session:
        (row,) = session.scalars(select(SelfTest).where(SelfTest.node_id == node_id)).all()
    assert (row.bandwidth_bytes_per_second, row.is_warm) == (120 * 10**9, True)
    # Another process knows of it from the database, and does not ask at once.
    watched.watch = watched.new_watch()
    before = len(channel._control)  # pyright: ignore[reportPrivateUsage]
    await watched.run(300)
    assert len(channel._control) == before  # pyright: ignore[reportPrivateUsage]
