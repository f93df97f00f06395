"""A Mac is timed while nothing but answers is made on it, with as many at once as there were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from coordinator import clock
from coordinator.catalogue.cards import load_catalogue
from coordinator.live import LiveAttempt, LiveJob
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.pace_book import PaceBook
from node_agent.protocol.messages import Hardware
from node_agent.sizing import speed
from node_agent.sizing.work import machine_of, work_of

GIB = 1 << 30
MAC = Hardware(
    chip="Apple M2",
    gpu_cores=10,
    memory_bytes=24 * GIB,
    lent_bytes=16 * GIB,
    bandwidth_bytes_per_second=100_000_000_000,
    accelerated=True,
)
FOUND = load_catalogue().known("llama-3.1-8b-4bit")
assert FOUND is not None
CARD = FOUND
PROMPT = 4000
TRUE = 0.6  # how fast the Mac is, against the forecast
SLACK = 0.09  # steps of 5 %, and the draw towards 1


class Socket:
    """Closes, and says nothing."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        pass


@dataclass
class Job:
    """What the book looks at of a job under way."""

    job_id: str
    attempt: LiveAttempt
    token_ids: list[int] = field(default_factory=list[int])
    card: object = CARD
    work: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(prompt_ids=(1,) * PROMPT))

    @property
    def live(self) -> LiveJob:
        return cast("LiveJob", cast("Any", self))


class World:
    """One Mac, the book, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.channels = Fleet()
        self.book = PaceBook(self.channels)
        self.changed: list[str] = []
        self.book.on_change = self.changed.append
        channel = Channel(
            node_id="node_1",
            owner_id="acct_1",
            device="device",
            name="Mac",
            public_key="k",
            hardware=MAC,
            socket=cast("WebSocket", cast("Any", Socket())),
            number=1,
        )
        assert asyncio.run(self.channels.add(channel))

    def begin(self, job_id: str, *, is_loaded: bool = False) -> Job:
        answered: asyncio.Future[Any] = cast("Any", None)
        attempt = LiveAttempt(1, "node_1", "device", 60.0, answered, begun_at=self.now)
        job = Job(job_id, attempt)
        self.book.began(job.live, attempt, is_loaded=is_loaded)
        return job

    def receive(self, job: Job, tokens: int = 1) -> None:
        job.attempt.last_token_at = self.now
        job.attempt.received.extend([1] * tokens)
        job.token_ids.extend([1] * tokens)
        self.book.arrived(job.live, job.attempt)

    def step(self, *jobs: Job, times: int = 40) -> None:
        """As the Mac truly decodes."""
        machine = machine_of(MAC, decode_factor=TRUE)
        for _ in range(times):
            self.now += speed.step_seconds(
                work_of(CARD), machine, context_tokens=PROMPT + 20, batch=len(jobs)
            )
            for job in jobs:
                self.receive(job)

    def end(self, job: Job) -> None:
        self.book.left(job.live, job.attempt)

    def pace(self) -> float:
        return self.book.of("device").decode_factor


@pytest.fixture
def world() -> Iterator[World]:
    made: list[World] = []
    with clock.replaced_by(clock.Sources(monotonic=lambda: made[0].now if made else 1000.0)):
        made.append(World())
        yield made[0]


def test_a_mac_is_timed_alone_and_in_company(world: World) -> None:
    for _ in range(5):
        one, two = world.begin("job_1"), world.begin("job_2")
        world.now += 30
        world.receive(one)
        world.now += 30
        world.receive(two)
        world.step(one, two)
        world.end(one)
        world.step(two)
        world.end(two)
    pace = world.book.of("device")
    assert pace.decode_seen == 9  # of 15, the last ones
    assert pace.decode_factor == pytest.approx(TRUE, abs=SLACK)
    assert set(world.changed) == {"device"}
    # A Mac that stays as it is is stored now and then, so that what is known of it does not grow old.
    told = len(world.changed)
    for _ in range(30):
        world.now += 3600
        one = world.begin("job_3")
        world.receive(one)
        world.step(one)
        world.end(one)
    assert told < len(world.changed) < told + 8


def test_a_slow_mac_that_gets_no_work_is_given_the_benefit_of_the_doubt(world: World) -> None:
    for _ in range(9):
        one = world.begin("job_1")
        world.receive(one)
        world.step(one)
        world.end(one)
    assert world.pace() < TRUE + SLACK
    world.now += 48 * 3600
    assert world.pace() == 1.0
    # What it does then is not weighed against what it did once.
    one = world.begin("job_2")
    world.receive(one)
    world.step(one)
    world.end(one)
    assert world.book.of("device").decode_seen == 1


def test_while_a_prompt_is_read_nobody_is_timed(world: World) -> None:
    one = world.begin("job_1")
    world.receive(one)
    two = world.begin("job_2")
    world.step(one)  # between two chunks of the other's prompt, say
    world.end(two)
    assert world.book.of("device").decode_seen == 0
    world.step(one)
    world.end(one)
    assert world.book.of("device").decode_seen == 1


def test_what_comes_late_for_want_of_a_socket_says_nothing(world: World) -> None:
    one = world.begin("job_1", is_loaded=True)
    world.receive(one)
    world.step(one)
    world.book.interrupted("node_1")
    world.now += 60
    world.step(one)
    world.end(one)
    assert world.book.of("device").decode_seen == 0


def test_a_prompt_read_alone_by_a_loaded_model_is_timed(world: World) -> None:
    plain = speed.prefill_seconds(CARD, PROMPT, MAC)
    for is_loaded, company, seen in [(True, False, 1), (False, False, 1), (True, True, 1)]:
        one = world.begin("job_1", is_loaded=is_loaded)
        others = [world.begin("job_2")] if company else []
        world.now += plain / TRUE
        world.receive(one)
        for job in [one, *others]:
            world.end(job)
        assert world.book.of("device").prefill_seen == seen
    for _ in range(8):
        one = world.begin("job_1", is_loaded=True)
        world.now += plain / TRUE
        world.receive(one)
        world.end(one)
    assert world.book.of("device").prefill_factor == pytest.approx(TRUE, abs=SLACK)


def test_an_attempt_that_is_over_is_timed_no_more(world: World) -> None:
    one = world.begin("job_1")
    world.receive(one)
    world.end(one)
    world.end(one)
    world.step(one)
    assert world.book.of("device").decode_seen == 0
    # Nothing of it is kept.
    two = world.begin("job_1")
    world.receive(two)
    world.step(one)
    world.end(one)
    world.step(two)
    world.end(two)
    assert world.book.of("device").decode_seen == 1
