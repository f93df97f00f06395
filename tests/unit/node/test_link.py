"""The socket: waits, lanes, refusals, and a coordinator that reads slowly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve

from coordinator.settings import Settings
from node_agent import link as link_module
from node_agent.events import Lane
from node_agent.link import Link, RefusedError, backoff_seconds, socket_url
from node_agent.protocol import messages as wire
from node_agent.settings import LinkSettings

FAST = LinkSettings(backoff_seconds_min=0.01, backoff_seconds_max=0.05)
HARDWARE = wire.Hardware(memory_bytes=1, lent_bytes=1, bandwidth_bytes_per_second=1)


class Owner:
    def __init__(self) -> None:
        self.ups = 0
        self.downs = 0
        self.silent_seconds = 0.0
        self.frames: list[wire.ToNode] = []

    def hello(self, challenge: wire.Challenge) -> wire.Hello:
        return wire.Hello(
            node_id="node_x",
            public_key="key",
            nonce=challenge.nonce,
            signature="s",
            agent_version="0",
            hardware=HARDWARE,
        )

    def on_link_up(self, welcome: wire.Welcome) -> None:
        self.ups += 1

    def on_link_down(self, silent_seconds: float) -> None:
        self.downs += 1
        self.silent_seconds = silent_seconds

    def on_frame(self, message: wire.ToNode) -> None:
        self.frames.append(message)


async def welcome(socket: ServerConnection) -> None:
    await socket.send(wire.encode(wire.Challenge(nonce="n" * 20)))
    hello = wire.parse_to_coordinator(await socket.recv())
    assert isinstance(hello, wire.Hello)
    assert hello.nonce == "n" * 20
    await socket.send(wire.encode(wire.Welcome(protocol=(1, 0), heartbeat_seconds=5)))


def origin(server: Server) -> str:
    return f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_socket_urls() -> None:
    assert socket_url("https://net.example") == "wss://net.example/nodes/v1/socket"
    assert socket_url("http://127.0.0.1:8000") == "ws://127.0.0.1:8000/nodes/v1/socket"


def test_waits_double_up_to_the_bound_and_are_drawn_from_all_of_it() -> None:
    settings = LinkSettings()
    bounds = [backoff_seconds(n, settings, draw=lambda: 1.0) for n in range(1, 10)]
    assert bounds == [0.2, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff_seconds(5, settings, draw=lambda: 0.0) == 0.0
    assert backoff_seconds(10**6, settings, draw=lambda: 0.5) == 15.0


def test_it_dials_again_after_a_loss_and_tells_its_owner_each_time() -> None:
    async def work() -> None:
        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            await socket.close(1012)

        owner = Owner()
        async with serve(handler, "127.0.0.1", 0) as server:
            link = Link(origin(server), owner, FAST)
            task = asyncio.create_task(link.run())
            await until(lambda: owner.downs >= 3)
            assert owner.ups >= 3
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(work())


def test_a_lost_socket_is_dialled_again_before_its_work_is_given_away() -> None:
    settings = LinkSettings()
    worst = [backoff_seconds(n, settings, draw=lambda: 1.0) for n in (1, 2)]
    assert sum(worst) < Settings().socket_grace_seconds


def test_a_socket_on_which_nobody_answers_is_given_up() -> None:
    async def work() -> None:
        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            # From here on nothing is read, so that no ping is answered: a network that died.
            socket.transport.pause_reading()
            await over.wait()
            socket.transport.abort()

        over = asyncio.Event()
        settings = LinkSettings(ping_seconds=0.2, pong_seconds=0.3, backoff_seconds_max=0.5)
        owner = Owner()
        async with serve(handler, "127.0.0.1", 0) as server:
            link = Link(origin(server), owner, settings)
            began = asyncio.get_running_loop().time()
            task = asyncio.create_task(link.run())
            await until(lambda: owner.downs)
            assert 0.4 < asyncio.get_running_loop().time() - began < 2
            assert 0.4 < owner.silent_seconds < 2
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            over.set()

    run(work())


def test_an_idle_socket_that_is_answered_stays() -> None:
    async def work() -> None:
        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            await socket.wait_closed()

        settings = LinkSettings(ping_seconds=0.05, pong_seconds=0.5)
        owner = Owner()
        async with serve(handler, "127.0.0.1", 0) as server:
            link = Link(origin(server), owner, settings)
            task = asyncio.create_task(link.run())
            await asyncio.sleep(0.8)
            assert (owner.ups, owner.downs) == (1, 0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(work())


@pytest.mark.parametrize(
    ("code", "words"),
    [(4401, "mlx-node join"), (4403, "revoked"), (4409, "another"), (4426, "Upgrade")],
)
def test_a_refusal_ends_it_and_says_what_to_do(code: int, words: str) -> None:
    async def work() -> None:
        async def handler(socket: ServerConnection) -> None:
            await socket.send(wire.encode(wire.Challenge(nonce="n" * 20)))
            await socket.recv()
            await socket.close(code)

        async with serve(handler, "127.0.0.1", 0) as server:
            with pytest.raises(RefusedError, match=words):
                await Link(origin(server), Owner(), FAST).run()

    run(work())


def test_a_refusal_after_the_welcome_ends_it_too() -> None:
    async def work() -> None:
        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            await socket.close(4403)

        async with serve(handler, "127.0.0.1", 0) as server:
            with pytest.raises(RefusedError, match="revoked"):
                await Link(origin(server), Owner(), FAST).run()

    run(work())


def test_control_frames_overtake_data_when_the_coordinator_reads_slowly() -> None:
    async def work() -> None:
        gate = asyncio.Event()
        received: list[str] = []

        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            await gate.wait()
            async for frame in socket:
                received.append(json.loads(frame)["type"])  # noqa: PERF401

        owner = Owner()
        async with serve(handler, "127.0.0.1", 0, max_queue=1) as server:
            link = Link(origin(server), owner, FAST)
            task = asyncio.create_task(link.run())
            await until(lambda: owner.ups == 1)
            chunk = wire.Chunk(job_id="j" * 200_000, fence=1, offset=0, token_ids=(1,))
            for _ in range(100):
                link.send(chunk, Lane.DATA)
            await asyncio.sleep(0.3)  # the system's buffers fill, the writer waits
            link.send(wire.Accept(job_id="j", fence=1), Lane.CONTROL)
            gate.set()
            await until(lambda: len(received) == 101)
            assert received.index("accept") < 90
            await link.close()
            await asyncio.gather(task, return_exceptions=True)

    run(work())


def test_a_coordinator_that_never_reads_costs_a_bounded_queue() -> None:
    async def work() -> None:
        over = asyncio.Event()

        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            await over.wait()

        owner = Owner()
        settings = FAST.model_copy(update={"data_frames_max": 50})
        async with serve(handler, "127.0.0.1", 0, max_queue=1, close_timeout=0.1) as server:
            link = Link(origin(server), owner, settings)
            task = asyncio.create_task(link.run())
            try:
                await until(lambda: owner.ups == 1)
                chunk = wire.Chunk(job_id="j" * 200_000, fence=1, offset=0, token_ids=(1,))
                for _ in range(40):
                    link.send(chunk, Lane.DATA)
                await asyncio.sleep(0.3)  # the writer is stuck in the middle of a frame
                assert owner.downs == 0
                for _ in range(60):
                    link.send(chunk, Lane.DATA)
                await until(lambda: owner.downs == 1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            finally:
                over.set()  # the server waits for its handlers

    run(work())


def test_unknown_frames_are_answered_and_broken_ones_survived() -> None:
    async def work() -> None:
        answers: list[wire.ToCoordinator] = []

        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            await socket.send("no json")
            await socket.send('{"type": "from_the_future"}')
            await socket.send(wire.encode(wire.Settled(job_id="j", fence=1)))
            answers.append(wire.parse_to_coordinator(await socket.recv()))
            await socket.wait_closed()

        owner = Owner()
        async with serve(handler, "127.0.0.1", 0) as server:
            link = Link(origin(server), owner, FAST)
            task = asyncio.create_task(link.run())
            await until(lambda: answers and owner.frames)
            assert answers == [wire.Unsupported(message_type="from_the_future")]
            assert owner.frames == [wire.Settled(job_id="j", fence=1)]
            await link.close()
            await asyncio.gather(task, return_exceptions=True)

    run(work())


def test_a_link_that_is_cancelled_just_as_the_coordinator_answers_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancel that met a result used to be lost, and the link went on for ever."""

    async def work() -> None:
        async def handler(socket: ServerConnection) -> None:
            await welcome(socket)
            await socket.wait_closed()

        def cancelling(frame: str | bytes) -> wire.ToNode:
            message = parse(frame)
            if isinstance(message, wire.Welcome):
                task.cancel()
            return message

        parse = link_module._parse  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(link_module, "_parse", cancelling)
        async with serve(handler, "127.0.0.1", 0, close_timeout=0.1) as server:
            task = asyncio.create_task(Link(origin(server), Owner(), FAST).run())
            await asyncio.wait([task], timeout=2)
            assert task.cancelled()

    run(work())
