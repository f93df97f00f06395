"""The table of hosts follows sockets, slots and time, and is never built anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from coordinator import clock
from coordinator.fleet_book import LEFT_LATELY_SECONDS, FleetBook
from coordinator.live import LiveAttempt, LiveJob, LiveJobs
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.health_book import HealthBook
from coordinator.nodes.pace_book import PaceBook
from coordinator.placement.reject import CODES
from coordinator.placement.types import SlotFacts
from coordinator.settings import Settings
from node_agent.protocol.messages import Hardware, Heartbeat, NodeMode, SlotReport

GIB = 1 << 30
SLOT = SlotFacts("slot_1", "r1", 4 * GIB, 8, 4096, 2, is_warm=False)
DAY_SECONDS = 86_400.0


class Socket:
    async def close(self, code: int, reason: str) -> None: ...


class World:
    """A fleet of channels, the book on it, and a clock that the test moves."""

    def __init__(self, home: Path) -> None:
        self.now = 1000.0
        self.settings = Settings(home=home)
        self.channels = Fleet()
        self.health = HealthBook(self.settings)
        self.paces = PaceBook(self.channels)
        self.jobs = LiveJobs()
        self.book = self.new_book()

    def new_book(self) -> FleetBook:
        return FleetBook(
            settings=self.settings,
            channels=self.channels,
            jobs=self.jobs,
            health=self.health,
            paces=self.paces,
            revisions=("0123456789abcdef-one", "fedcba9876543210-two"),
        )

    def come(self, node_id: str) -> Channel:
        channel = Channel(
            node_id=node_id,
            owner_id="acct_1",
            device=f"device of {node_id}",
            name="Mac",
            public_key="k",
            hardware=Hardware(memory_bytes=32 * GIB, lent_bytes=16 * GIB, bandwidth_bytes_per_second=10**11),
            socket=cast("WebSocket", cast("Any", Socket())),
            number=self.channels.number_socket(),
        )
        assert asyncio.run(self.channels.add(channel))
        return channel

    def look(self, *slots: SlotFacts) -> list[str]:
        """What a look does first; every node has these slots."""
        marked = self.book.take_marked(self.now)
        self.book.refresh(marked, dict.fromkeys(marked, slots), self.now)
        return marked

    def row(self, node_id: str) -> int:
        row = self.book.row(node_id)
        assert row is not None
        return row

    def code(self, node_id: str) -> int:
        return int(self.book.table.code[self.row(node_id)])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made: list[World] = []
    with clock.replaced_by(clock.Sources(monotonic=lambda: made[0].now if made else 1000.0)):
        made.append(World(tmp_path))
        yield made[0]


def beat(
    mode: NodeMode = "ready", *, free_bytes: int = 20 * GIB, slots: tuple[SlotReport, ...] = ()
) -> Heartbeat:
    return Heartbeat(mode=mode, free_bytes=free_bytes, slots=slots)


def test_only_what_changed_is_read_and_written(world: World) -> None:
    one, _ = world.come("node_1"), world.come("node_2")
    assert world.look() == ["node_1", "node_2"]
    assert world.look() == []
    one.take(beat())
    assert world.look() == ["node_1"]
    one.take(beat(free_bytes=20 * GIB + 4096))
    assert world.look() == []
    one.take(beat(mode="busy"))
    assert world.look() == ["node_1"]
    assert world.channels.remove(one)
    assert world.look() == ["node_1"]
    assert (world.book.row("node_1"), world.book.table.count) == (None, 1)


def test_who_comes_or_goes_at_this_moment_is_unsettled(world: World) -> None:
    channel = world.come("node_1")
    assert world.book.unsettled() == ["node_1"]
    _ = world.look()
    assert world.book.unsettled() == []
    assert world.channels.remove(channel)
    _ = world.look()
    assert world.book.unsettled() == ["node_1"]
    world.now += LEFT_LATELY_SECONDS + 1
    other = world.come("node_2")
    _ = world.look()
    assert world.channels.remove(other)
    _ = world.look()
    assert world.book.unsettled() == ["node_2"]


def test_a_closed_socket_is_offline_before_it_is_gone(world: World) -> None:
    channel = world.come("node_1")
    _ = world.look()
    asyncio.run(channel.close(1000, "over"))
    assert world.look() == ["node_1"]
    assert world.code("node_1") == CODES["offline"]


def test_silence_and_the_end_of_a_pause_are_noticed_without_an_event(world: World) -> None:
    silent, failing = world.come("node_1"), world.come("node_2")
    _ = world.look()
    world.health.note_fault(failing.device, "runner_crashed", begun_at=0.0)
    for _ in range(16):
        world.now += 1.0
        failing.heard_at = world.now
        _ = world.look()
    assert world.code("node_1") == CODES["suspect"]
    assert world.code("node_2") == CODES["paused_after_faults"]
    world.now += world.settings.fault_pause_seconds
    silent.heard_at = failing.heard_at = world.now
    _ = world.look()
    assert (world.code("node_1"), world.code("node_2")) == (0, 0)


def test_nothing_that_was_missed_stays_wrong_for_long(world: World) -> None:
    channel = world.come("node_1")
    _ = world.look()
    channel.mode = "away"  # and nobody says so
    world.now += 11.0
    channel.heard_at = world.now
    assert world.look() == ["node_1"]
    assert world.code("node_1") == CODES["owner_present"]


def test_slots_come_from_the_database_and_warmth_from_the_node(world: World) -> None:
    channel = world.come("node_1")
    _ = world.look(SLOT)
    slots = world.book.table.slots
    (number,) = slots.of_model("r1")
    assert (slots.slot_id(number), slots.live[number], bool(slots.warm[number])) == ("slot_1", 2, False)
    report = SlotReport(card_id="m", card_revision="r1", bytes=4 * GIB, width=8, live=2)
    channel.take(beat(free_bytes=3 * GIB, slots=(report,)))
    _ = world.look(SLOT)
    (number,) = slots.of_model("r1")
    assert bool(slots.warm[number])
    # What its own model holds is free for slots.
    assert world.book.table.limit[world.row("node_1")] == 7 * GIB


class Under:
    """A job under way: what the book asks of one."""

    def __init__(self, attempt: LiveAttempt) -> None:
        self.attempt = attempt
        self.ended_at: float | None = None
        self.job_id, self.is_kept_apart = "job_1", False

    def seconds_left(self, now: float, wall_us: int) -> float | None:
        """As forecast."""
        return None if self.attempt.ends_at is None else self.attempt.ends_at - now


def test_prompts_that_are_being_read_are_told_until_a_token_comes(world: World) -> None:
    _ = world.come("node_1")
    answered: Any = None
    attempt = LiveAttempt(1, "node_1", "device", 60.0, answered, begun_at=world.now)
    attempt.ends_at, attempt.read_at = world.now + 20.0, world.now + 8.0
    _ = world.jobs.add(cast("LiveJob", cast("Any", Under(attempt))))
    _ = world.look(SLOT)
    slots = world.book.table.slots
    (number,) = slots.of_model("r1")
    assert slots.clear_at[number] == world.now + 8.0
    attempt.first_token_us = 1
    world.book.mark("node_1")
    _ = world.look(SLOT)
    (number,) = slots.of_model("r1")
    assert slots.clear_at[number] == world.now


def test_hunger_grows_only_while_a_node_could_work_and_does_not(world: World) -> None:
    channel = world.come("node_1")
    _ = world.look()

    def hunger() -> float:
        return world.now - float(world.book.table.fed_at[world.row("node_1")])

    world.now += 100.0
    assert hunger() == 100.0
    channel.take(beat(mode="away"))
    _ = world.look()
    world.now += 1000.0
    channel.take(beat(mode="ready"))
    channel.heard_at = world.now
    _ = world.look()
    assert hunger() == 100.0
    assert world.channels.remove(channel)
    _ = world.look()
    world.now += 1000.0
    _ = world.come("node_1")
    _ = world.look(SLOT)
    assert hunger() == 100.0
    world.now += 50.0
    world.book.mark("node_1")
    _ = world.look()  # its attempts have ended; until now it had work
    assert hunger() == 0.0


def test_work_given_halves_in_a_day_whether_the_node_is_there_or_not(world: World) -> None:
    channel = world.come("node_1")
    _ = world.look()
    world.book.table.give(world.row("node_1"), 80.0, now_seconds=world.now)
    assert world.channels.remove(channel)
    _ = world.look()
    world.now += DAY_SECONDS
    channel = world.come("node_1")
    _ = world.look()
    given = world.book.table.given
    assert given[world.row("node_1")] == pytest.approx(40.0)
    world.now += DAY_SECONDS
    channel.heard_at = world.now
    _ = world.look()
    assert given[world.row("node_1")] == pytest.approx(20.0)
    world.book.take_back("node_1", 5.0)
    _ = world.look()
    assert given[world.row("node_1")] == pytest.approx(15.0)


def test_an_end_that_is_overdue_says_nothing_any_more(world: World) -> None:
    _ = world.come("node_1")
    _ = world.look()
    table, row = world.book.table, world.row("node_1")
    table.expect_free(row, seat_at=world.now + 5.0, idle_at=world.now + 50.0)
    world.now += 10.0
    world.book.refresh([], {}, world.now)
    assert table.seat_at[row] == float("inf")
    assert table.idle_at[row] == 1050.0


def test_what_is_on_disk_is_told_by_the_beginnings_of_revisions(world: World) -> None:
    channel = world.come("node_1")
    one, two = "0123456789abcdef-one", "fedcba9876543210-two"
    table = world.book.table
    _ = world.look()
    # One that says nothing has all, as far as anybody knows.
    assert bool(table.has_model(one)[world.row("node_1")])
    channel.take(beat().model_copy(update={"on_disk": ("0123456789abcdef", "aaaaaaaaaaaaaaaa")}))
    assert world.look() == ["node_1"]
    row = world.row("node_1")
    assert (bool(table.has_model(one)[row]), bool(table.has_model(two)[row])) == (True, False)
    # What is left out is as before.
    channel.take(beat())
    world.book.mark("node_1")
    _ = world.look()
    assert not table.has_model(two)[world.row("node_1")]


def test_an_owners_habits_reach_the_table(world: World) -> None:
    channel = world.come("node_1")
    _ = world.look()
    assert not world.book.table.has_curves
    channel.take(beat().model_copy(update={"survival": (0.5,) * 168}))
    assert world.look() == ["node_1"]
    assert world.book.table.has_curves
    assert world.book.table.curves[:, world.row("node_1")].any()


def test_a_host_that_is_held_stays_held_when_it_is_written_anew(world: World) -> None:
    channel = world.come("node_1")
    _ = world.look()
    world.book.table.hold(world.row("node_1"), is_held=True)
    channel.take(beat(free_bytes=GIB))
    assert world.look() == ["node_1"]
    assert world.code("node_1") == CODES["held_for_older"]
    world.book.table.hold(world.row("node_1"), is_held=False)
    world.book.mark("node_1")
    _ = world.look()
    assert world.code("node_1") == 0
