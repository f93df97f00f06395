"""The shell around the node's core: carries out its instructions, feeds it what happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, final

import structlog

from node_agent.attempt_book import CoreSettings
from node_agent.children import RunnerHost, fetch_model
from node_agent.events import (
    CloseRunner,
    Drained,
    DrainRequested,
    Event,
    FactsMeasured,
    FetchEnded,
    FetchModel,
    FrameReceived,
    Instruction,
    Lane,
    LimitRunner,
    LinkDown,
    LinkUp,
    SelfTestEnded,
    Send,
    StartRun,
    StartRunner,
    StartSelfTest,
    StopRun,
    StopSelfTest,
    Tick,
)
from node_agent.habit_book import HabitBook
from node_agent.hardware.facts import free_disk_bytes, free_memory_bytes, version_of
from node_agent.hardware.self_test_child import run_self_test
from node_agent.identity import Identity
from node_agent.link import Link
from node_agent.models.store import ModelStore
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import hello_statement
from node_agent.runner.process import RunnerProcess
from node_agent.settings import LinkSettings, NodeConfig
from node_agent.state import NodeState
from node_agent.status import HeldModel, Status, write_status

log = structlog.get_logger()

T = TypeVar("T")

TICK_SECONDS: Final = 0.25
STATUS_SECONDS: Final = 1.0
CAPABILITIES: Final = ("chat", "completion", "logprobs", "resume", "self_test")


@dataclass(frozen=True)
class NodeParts:
    """What an agent is made of; decided at the edge, before it runs."""

    home: Path
    config: NodeConfig
    identity: Identity
    hardware: wire.Hardware
    store: ModelStore
    core: CoreSettings
    link: LinkSettings
    device: str | None = None


def hello_of(
    parts: NodeParts,
    challenge: wire.Challenge,
    *,
    slots: tuple[wire.SlotReport, ...] = (),
    live: tuple[wire.LiveAttempt, ...] = (),
) -> wire.Hello:
    """The signed answer to a challenge."""
    identity, audience = parts.identity, parts.config.coordinator
    statement = hello_statement(audience=audience, node_id=identity.node_id, nonce=challenge.nonce)
    return wire.Hello(
        node_id=identity.node_id,
        public_key=identity.public_key,
        nonce=challenge.nonce,
        signature=identity.sign(statement),
        agent_version=version_of("mlx-network"),
        mlx_version=version_of("mlx"),
        mlx_lm_version=version_of("mlx-lm"),
        capabilities=CAPABILITIES,
        device=parts.device,
        hardware=parts.hardware,
        slots=slots,
        live=live,
    )


@dataclass
class _Once(Generic[T]):
    """What was said last on this socket."""

    said: T | None = None

    def if_new(self, value: T) -> T | None:
        """The value if it must be said, else None."""
        if value == self.said:
            return None
        self.said = value
        return value


@dataclass
class _Said:
    """What the coordinator knows already, on this socket."""

    on_disk: _Once[tuple[str, ...]] = field(default_factory=_Once[tuple[str, ...]])
    survival: _Once[tuple[float, ...]] = field(default_factory=_Once[tuple[float, ...]])


@final
class Agent:
    """One node while it runs. Use `run` once, inside an event loop."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._core = NodeState(parts.core, parts.identity.sign)
        self._link = Link(parts.config.coordinator, self, parts.link)
        self._hosts: dict[int, RunnerHost] = {}
        self._host_tasks: dict[int, asyncio.Task[None]] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._self_test: asyncio.Task[None] | None = None
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._disk_free_bytes = 0
        self._habits = HabitBook(parts.home, is_told=parts.config.share_habits)
        self._said = _Said()
        self._heartbeat_seconds = 5.0
        self._welcomed = asyncio.Event()
        self._done: asyncio.Future[None] | None = None

    # -- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until a signal asks for the end, then leave in order.

        Raises `RefusedError` if the coordinator does not want this node.
        """
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        parts = (self._link.run(), self._tick(), self._beat(), self._show())
        tasks = [self._watched(asyncio.create_task(part)) for part in parts]
        try:
            await self._done
            await self._link.close()
        finally:
            await self._end(tasks)

    def drain(self) -> None:
        """Stop between two tokens, hand back what runs, say goodbye. May be repeated."""
        if self._core.draining is None:
            log.info("draining", attempts=self._core.live_count)
        self._dispatch(DrainRequested())

    def _watched(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A fault in any part ends the agent with that fault, never half of it in silence."""
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._side_tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        self._habits.look(time.time(), is_lent=False)
        await asyncio.gather(*(host.close() for host in self._hosts.values()))
        rest = [*tasks, *self._fetches.values(), *self._host_tasks.values(), *self._side_tasks]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        write_status(self._parts.home, self._status("stopped"))

    # -- the core --------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        try:
            for instruction in self._core.handle(event, time.monotonic()):
                self._perform(instruction)
        except Exception as error:
            # A fault of the core must end the agent even out of a callback that nobody awaits.
            self._fail(error)
            raise

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message=message, lane=lane):
                self._link.send(message, lane)
            case StartRun(generation=generation, run=run):
                self._hosts[generation].run(run)
            case StopRun(generation=generation, key=key):
                self._hosts[generation].stop(key)
            case LimitRunner(generation=generation, memory_bytes=memory_bytes):
                self._hosts[generation].limit(memory_bytes)
            case StartRunner():
                self._start_runner(instruction)
            case CloseRunner(generation=generation):
                self._aside(self._hosts[generation].close())
            case FetchModel():
                self._fetch(instruction)
            case StartSelfTest():
                self._self_test = self._aside(self._measure_memory(instruction))
            case StopSelfTest():
                if self._self_test is not None:
                    self._self_test.cancel()
            case Drained():
                if self._done is not None and not self._done.done():
                    self._done.set_result(None)

    def _aside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._watched(asyncio.create_task(work))
        self._side_tasks.add(task)
        return task

    async def _measure_memory(self, start: StartSelfTest) -> None:
        accelerated = self._parts.hardware.accelerated
        result = await run_self_test(start.test, start.size_bytes, accelerated=accelerated)
        self._dispatch(SelfTestEnded(start.test.nonce, result))

    def _start_runner(self, start: StartRunner) -> None:
        log.info("runner_starting", card=start.card.id)
        process = RunnerProcess(
            accelerated=self._parts.hardware.accelerated,
            width=self._parts.core.width,
            memory_bytes=self._parts.core.lent_bytes,
        )
        host = RunnerHost(start.generation, process, start.folder, self._dispatch)
        self._hosts[start.generation] = host
        task = self._watched(asyncio.create_task(host.serve()))
        self._host_tasks[start.generation] = task
        task.add_done_callback(lambda _: self._forget_host(start.generation))

    def _forget_host(self, generation: int) -> None:
        self._hosts.pop(generation, None)
        self._host_tasks.pop(generation, None)

    def _fetch(self, fetch: FetchModel) -> None:
        revision, store = fetch.card.revision, self._parts.store
        folder = store.folder_of(fetch.card)
        if folder is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._dispatch, FetchEnded(revision, folder))
        elif revision not in self._fetches:
            log.info("fetch_starting", card=fetch.card.id)
            work = fetch_model(fetch.card, store.cache, store.models_dir, self._dispatch)
            task = self._watched(asyncio.create_task(work))
            self._fetches[revision] = task
            task.add_done_callback(lambda _: self._fetches.pop(revision, None))

    # -- the link's owner ------------------------------------------------------------------------

    def hello(self, challenge: wire.Challenge) -> wire.Hello:
        core = self._core
        return hello_of(self._parts, challenge, slots=core.slots(), live=core.live())

    def on_link_up(self, welcome: wire.Welcome) -> None:
        log.info("link_up", coordinator=self._parts.config.coordinator, name=welcome.name)
        self._heartbeat_seconds = max(welcome.heartbeat_seconds, TICK_SECONDS)
        self._said = _Said()
        self._dispatch(LinkUp())
        self._welcomed.set()

    def on_link_down(self, silent_seconds: float) -> None:
        self._welcomed.clear()
        self._dispatch(LinkDown(silent_seconds))

    def on_frame(self, message: wire.ToNode) -> None:
        fetch_bytes = 0
        if isinstance(message, wire.SelfTest):
            self._measure()
        if isinstance(message, wire.Offer | wire.Hold):
            self._measure()
            fetch_bytes = self._parts.store.disk_bytes_needed(message.card)
        self._dispatch(FrameReceived(message, fetch_bytes))

    def _measure(self) -> int:
        free = free_memory_bytes()
        self._disk_free_bytes = free_disk_bytes(self._parts.store.cache)
        self._dispatch(FactsMeasured(free_bytes=free, disk_free_bytes=self._disk_free_bytes))
        return free

    # -- clocks ----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._dispatch(Tick())

    async def _beat(self) -> None:
        while True:
            await self._welcomed.wait()
            free = min(self._measure(), self._parts.core.lent_bytes)
            on_disk = await asyncio.to_thread(self._parts.store.on_disk)
            heartbeat = wire.Heartbeat(
                mode=self._core.mode,
                free_bytes=free,
                slots=self._core.slots(),
                live=self._core.live(),
                disk_free_bytes=self._disk_free_bytes,
                on_disk=self._said.on_disk.if_new(on_disk[: wire.MODELS_ON_DISK_MAX]),
                survival=self._said.survival.if_new(self._habits.told()) or None,
            )
            self._link.send(heartbeat, Lane.CONTROL)
            await asyncio.sleep(self._heartbeat_seconds)

    async def _show(self) -> None:
        shown: Status | None = None
        while True:
            self._habits.look(time.time(), is_lent=self._core.draining is None)
            # Idle models give way to the owner's programs whether or not there is a coordinator.
            self._measure()
            status = self._status(self._core.mode if self._link.is_up else "connecting")
            if status != shown:
                shown = status
                with contextlib.suppress(OSError):  # a full disk must not end the work
                    write_status(self._parts.home, status)
            await asyncio.sleep(STATUS_SECONDS)

    def _held(self) -> tuple[HeldModel, ...]:
        """Every model that is loaded or will be, the last used first."""
        keeper, book = self._core.keeper, self._core.book
        return tuple(
            HeldModel(
                card_id=slot.card.id,
                phase=slot.phase.value,
                bytes=slot.child_bytes,
                at_work=keeper.is_ready(slot.revision) and book.is_at_work(slot),
            )
            for slot in reversed(keeper.others(None))
        )

    def _status(self, state: str) -> Status:
        held = self._held()
        return Status(
            pid=os.getpid(),
            state=state,
            coordinator=self._parts.config.coordinator,
            name=self._parts.config.name,
            card_id=held[0].card_id if held else None,
            card_phase=held[0].phase if held else None,
            models=held,
            attempts=self._core.live_count,
            unsettled=len(self._core.book.attempts) - self._core.live_count,
        )
