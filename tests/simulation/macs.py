"""A simulated Mac: the real core of MLX Node, and around it what the agent's shell does.

The shell dials, beats, ticks and carries out the core's instructions as `node_agent.agent` and
`node_agent.link` do; the runner is scripted. A Mac may crash, freeze, sleep, be cut off, or lie.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, Protocol, final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node_agent.attempt_book import CoreSettings
from node_agent.events import (
    CloseRunner,
    Drained,
    DrainRequested,
    Event,
    FactsMeasured,
    FetchEnded,
    FetchFailed,
    FetchModel,
    FrameReceived,
    Instruction,
    Lane,
    LimitRunner,
    LinkDown,
    LinkUp,
    RunnerExited,
    RunnerSaid,
    SelfTestEnded,
    Send,
    StartRun,
    StartRunner,
    StartSelfTest,
    StopRun,
    StopSelfTest,
    Tick,
)
from node_agent.link import STEADY_SECONDS, backoff_seconds
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.protocol.signing import encode_bytes, hello_statement
from node_agent.settings import LinkSettings
from node_agent.state import NodeState
from tests.simulation.liars import Liar
from tests.simulation.loop import VirtualLoop
from tests.simulation.runners import ScriptedRunner
from tests.simulation.scenario import FaultKind, NodeSpec
from tests.simulation.sockets import Cable, Socket

TICK_SECONDS: Final = 0.25
DIAL_SECONDS_MAX: Final = 10.0
CAPABILITIES: Final = ("chat", "completion", "logprobs", "resume", "self_test")
FOLDER: Final = Path("model")


class World(Protocol):
    """What a Mac needs of the world around it."""

    def draws_of(self, name: str) -> Random:
        """Its own stream of randomness."""
        ...

    def connect(self, mac: Mac) -> Socket | None:
        """A connection to the coordinator, or None if nobody listens."""
        ...

    def tell(self, who: str, what: object) -> None:
        """A line for the story."""
        ...

    def attempts_elsewhere(self, mac: Mac) -> list[tuple[str, int]]:
        """Job and fence of attempts that run on other Macs."""
        ...

    def violate(self, rule: str, why: str) -> None:
        """Something happened that must not."""
        ...

    def refused(self, mac: Mac, code: int) -> None:
        """The coordinator closed the node's socket with this code."""
        ...


@final
class Mac:
    """One Mac and its agent. `dial` opens a connection, or None if nobody listens."""

    def __init__(
        self,
        loop: VirtualLoop,
        spec: NodeSpec,
        *,
        node_id: str,
        key: Ed25519PrivateKey,
        public_key: str,
        origin: str,
        world: World,
    ) -> None:
        self.spec: Final = spec
        self.node_id: Final = node_id
        self.cable: Final = Cable()
        self.socket: Socket | None = None
        self.core: NodeState | None = None
        self.runners: dict[int, ScriptedRunner] = {}
        self._loop: Final = loop
        self._key: Final = key
        self._public_key: Final = public_key
        self._origin: Final = origin
        self._world: Final = world
        self.draws: Final = world.draws_of(f"mac/{spec.index}")
        self.hardware: Final = wire.Hardware(
            chip="Apple M2",
            memory_bytes=spec.lent_bytes * 2,
            lent_bytes=spec.lent_bytes,
            bandwidth_bytes_per_second=spec.bandwidth,
            width=spec.width,
            models_max=spec.models_max,
            accelerated=True,
        )
        self._link_settings: Final = LinkSettings()
        self._life = 0  # counts runs of the agent: calls of an older one come to nothing
        self._is_up = False
        self._failures = 0
        self._dialled_at = 0.0
        self._heard_at = 0.0
        self._self_test = 0
        self._heartbeat_seconds = 5.0
        self._on_disk: set[str] = set()
        self._said: tuple[str, ...] | None = None
        self._is_ticking = False
        self.is_frozen = False
        self._is_asleep = False
        self._slept_seconds = 0.0
        self._slept_since = 0.0
        self._backlog: deque[tuple[int, Callable[[], None]]] = deque()
        self._control: deque[wire.Message] = deque()
        self._data: deque[wire.Message] = deque()
        self._is_flushing = False
        self.fetch_fails = False
        self.is_short_of_memory = False
        self.returned_at: float | None = None
        self.liar: Final = Liar(spec.lie, self) if spec.lie is not None else None

    # -- time on this Mac ------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The agent's monotonic clock, which stands still while the Mac sleeps."""
        slept = self._slept_seconds
        if self._is_asleep:
            slept += self._loop.time() - self._slept_since
        return self._loop.time() - slept

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Run a call of this agent after some seconds, unless the agent has died by then."""
        life = self._life
        _ = self._loop.after(seconds, lambda: self._run(life, call))

    def _run(self, life: int, call: Callable[[], None]) -> None:
        if life != self._life:
            return
        if self.is_frozen or self._is_asleep:
            self._backlog.append((life, call))
        else:
            call()

    def freeze(self, *, is_asleep: bool) -> None:
        """Nothing of it goes on; asleep, its clock stands still, too."""
        if self._is_asleep or self.is_frozen:
            return
        self.is_frozen, self._is_asleep = True, is_asleep
        self._slept_since = self._loop.time()
        if self.socket is not None:
            self.socket.freeze_far()

    def thaw(self) -> None:
        """It goes on with all that waited."""
        if not self.is_frozen:
            return
        if self._is_asleep:
            self._slept_seconds += self._loop.time() - self._slept_since
        self.is_frozen = self._is_asleep = False
        waiting, self._backlog = list(self._backlog), deque()
        for life, call in waiting:
            self._run(life, call)
        if self.socket is not None:
            self.socket.thaw_far()

    # -- the agent's life ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the agent, if it does not run."""
        if self.core is not None:
            return
        self._life += 1
        settings = CoreSettings(
            lent_bytes=self.spec.lent_bytes, width=self.spec.width, models_max=self.spec.models_max
        )
        self.core = NodeState(settings, self.sign)
        self._failures = 0
        self.returned_at = None
        self._world.tell(self.name, "starts")
        self.later(self.draws.uniform(0.0, 1.0), self._dial)

    def crash(self) -> None:
        """Agent and runner die; the system closes the socket, if the Mac is not cut off."""
        if self.core is None:
            return
        self._world.tell(self.name, "crashes")
        self._end()

    def _end(self) -> None:
        self._life += 1
        self.core = None
        self.runners.clear()
        self._is_up = self._is_ticking = self._is_flushing = False
        self.is_frozen = self._is_asleep = False
        self._backlog.clear()
        self._control.clear()
        self._data.clear()
        if self.socket is not None:
            self.socket.close_far(1006)
            self.socket = None

    def owner_returns(self) -> None:
        """The owner is back at the Mac: stop, hand back, close."""
        if self.core is not None and not self.is_frozen and self.core.draining is None:
            self._world.tell(self.name, "owner returns")
            self.returned_at = self._loop.time()
            self.dispatch(DrainRequested("sleep"))

    def repair(self) -> None:
        """Nothing is wrong with this Mac any more."""
        self.thaw()
        self.cable.mend()
        self.fetch_again()
        self.have_memory()
        for runner in self.runners.values():
            runner.is_stalled = False
        self.start()

    def fetch_again(self) -> None:
        """Models can be fetched."""
        self.fetch_fails = False

    def have_memory(self) -> None:
        """Its memory is free."""
        self.is_short_of_memory = False

    def drop_socket(self) -> None:
        """Its network drops the connection and says so to both ends."""
        if self.socket is not None:
            socket = self.socket
            socket.close_far(1006)
            self.closed(socket, 1006)

    def befall_runner(self, kind: FaultKind, seconds: float) -> None:
        """Something goes wrong in the newest of its children."""
        if not self.runners:
            return
        runner = self.runners[max(self.runners)]
        match kind:
            case "runner_crash":
                runner.die("killed by the simulation")
            case "run_failure":
                runner.fail_one()
            case "runner_stall":
                runner.is_stalled = True
                _ = self._loop.after(seconds, runner.go_on)
            case _:
                pass

    @property
    def name(self) -> str:
        return f"mac{self.spec.index}"

    @property
    def running(self) -> int:
        """Runs that compute on this Mac."""
        return sum(runner.running for runner in self.runners.values())

    @property
    def is_reachable(self) -> bool:
        """Whether it has a connection on which something arrives, and can answer."""
        is_heard = self.socket is not None and not self.socket.is_silent
        return self._is_up and is_heard and not self.is_frozen

    @property
    def is_stalled(self) -> bool:
        """Whether one of its children hears nothing."""
        return any(runner.is_stalled for runner in self.runners.values())

    def sign(self, statement: bytes) -> str:
        return encode_bytes(self._key.sign(statement))

    # -- the link --------------------------------------------------------------------------------

    def _dial(self) -> None:
        self._dialled_at = self.now
        if self.cable.is_cut:
            self.later(DIAL_SECONDS_MAX, self._dial_failed)
            return
        self.later(self.draws.uniform(0.01, 0.3), self._connect)

    def _connect(self) -> None:
        self.socket = self._world.connect(self)
        if self.socket is None:
            self._dial_failed()
            return
        socket = self.socket
        self.later(self._link_settings.challenge_seconds, lambda: self._give_up(socket))

    def _give_up(self, socket: Socket) -> None:
        if self.socket is socket and not self._is_up:
            socket.close_far(1000)
            self._lost(socket, 1006)

    def _dial_failed(self) -> None:
        self.socket = None
        is_steady = self.now - self._dialled_at > STEADY_SECONDS
        self._failures = 1 if is_steady else self._failures + 1
        self.later(backoff_seconds(self._failures, self._link_settings, self.draws.random), self._dial)

    def heard(self, socket: Socket, text: str) -> None:
        """A frame has come."""
        self.later(0.0, lambda: self._hear(socket, text))

    def closed(self, socket: Socket, code: int) -> None:
        """The connection is gone."""
        self.later(0.0, lambda: self._lost(socket, code))

    def _lost(self, socket: Socket, code: int) -> None:
        if self.socket is not socket:
            return
        self._world.tell(self.name, f"lost its socket ({code})")
        self._world.refused(self, code)
        was_up, self._is_up = self._is_up, False
        self.socket = None
        if was_up:
            self.dispatch(LinkDown(self._silent_seconds(socket)))
        self._dial_failed()

    def _silent_seconds(self, socket: Socket) -> float:
        """How long nothing was heard: frames, or the answers to its pings."""
        pinged = self._loop.time() - self.draws.random() * self._link_settings.ping_seconds
        heard_at = max(self._heard_at, min(pinged, socket.silent_since))
        return max(0.0, self._loop.time() - heard_at)

    def _hear(self, socket: Socket, text: str) -> None:
        if self.socket is not socket or self.core is None:
            return
        self._heard_at = self._loop.time()
        message = wire.parse_to_node(text)
        match message:
            case wire.Challenge():
                self._control.clear()
                self._data.clear()
                socket.send_up(wire.encode(self._hello(message)))
            case wire.Welcome():
                self._is_up = True
                self._said = None
                self._heartbeat_seconds = max(message.heartbeat_seconds, TICK_SECONDS)
                self._world.tell(self.name, "is connected")
                self.dispatch(LinkUp())
                self._beat(socket)
            case _:
                if isinstance(message, wire.Offer | wire.Hold | wire.SelfTest):
                    self._measure()
                self._world.tell(self.name, message)
                self.dispatch(FrameReceived(message))

    def _hello(self, challenge: wire.Challenge) -> wire.Hello:
        assert self.core is not None
        statement = hello_statement(audience=self._origin, node_id=self.node_id, nonce=challenge.nonce)
        return wire.Hello(
            node_id=self.node_id,
            public_key=self._public_key,
            nonce=challenge.nonce,
            signature=self.sign(statement),
            agent_version="1",
            capabilities=CAPABILITIES,
            device=f"{self.spec.index:064x}",
            hardware=self.hardware,
            slots=self.core.slots(),
            live=self.core.live(),
        )

    def _measure(self) -> int:
        held = sum(runner.held_bytes for runner in self.runners.values())
        free = 64 << 20 if self.is_short_of_memory else self.hardware.memory_bytes - held
        self.dispatch(FactsMeasured(free_bytes=free, disk_free_bytes=1 << 40))
        return free

    def _beat(self, socket: Socket) -> None:
        if self.socket is not socket or self.core is None or not self._is_up:
            return
        free = self._measure()
        beat = wire.Heartbeat(
            mode=self.core.mode, free_bytes=free, slots=self.core.slots(), live=self.core.live()
        )
        self.send(beat.model_copy(update=self._news()), Lane.CONTROL)
        self.later(self._heartbeat_seconds, lambda: self._beat(socket))

    def _news(self) -> dict[str, object]:
        """What only newer agents say: every third Mac is older, every fifth owner has habits."""
        if self.spec.index % 3 == 0:
            return {}
        found: dict[str, object] = {"disk_free_bytes": 1 << 40}
        on_disk = tuple(sorted(self._on_disk))
        if on_disk != self._said:
            self._said = found["on_disk"] = on_disk
            if self.spec.index % 5 == 1:
                found["survival"] = (0.78, 0.5) * (wire.HOURS_OF_WEEK // 2)
        return found

    def send(self, message: wire.Message, lane: Lane) -> None:
        """Queue a frame as the link does: the control lane overtakes."""
        if self._is_up:
            (self._control if lane is Lane.CONTROL else self._data).append(message)
            if not self._is_flushing:
                self._is_flushing = True
                self.later(0.0, self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while lane := self._control or self._data:
            message = lane.popleft()
            told = [message] if self.liar is None else self.liar.instead_of(message)
            for one in told:
                self.send_now(one)

    def elsewhere(self) -> list[tuple[str, int]]:
        """What a liar might know of others' work."""
        return self._world.attempts_elsewhere(self)

    def send_now(self, message: wire.Message | str) -> None:
        """Put a frame on the wire."""
        if self.socket is not None and self._is_up:
            self.socket.send_up(message if isinstance(message, str) else wire.encode(message))

    # -- the core --------------------------------------------------------------------------------

    def dispatch(self, event: Event) -> None:
        """What `Agent._dispatch` does."""
        if self.core is None:
            return
        for instruction in self.core.handle(event, self.now):
            self._perform(instruction)
        self._tick_later()

    def _tick_later(self) -> None:
        # A tick of a core that has nothing to watch does nothing.
        if not self._is_ticking and self.core is not None and (self.core.book.attempts or self.core.draining):
            self._is_ticking = True
            self.later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        self.dispatch(Tick())

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message=message, lane=lane):
                self.send(message, lane)
            case StartRun(generation=generation, run=run):
                self._watch_memory(generation)
                self.runners[generation].run(run)
            case StopRun(generation=generation, key=key):
                self.runners[generation].stop(key)
            case StartRunner(generation=generation, card=card):
                self._start_runner(generation, card)
            case CloseRunner(generation=generation):
                self.runners[generation].close()
            case LimitRunner(generation=generation, memory_bytes=memory_bytes):
                self.runners[generation].limit_bytes = memory_bytes
            case StartSelfTest(test=test):
                self._self_test += 1
                number = self._self_test
                seconds = test.warm_up_seconds + test.measure_seconds
                self.later(seconds, lambda: self._end_self_test(test, number))
            case StopSelfTest():
                self._self_test += 1
            case FetchModel(card=card):
                self._fetch(card.revision)
            case Drained():
                # The link sends what is queued before it closes.
                self._flush()
                self._end()

    def _watch_memory(self, generation: int) -> None:
        """One model is at work; it and those beside it stay within the owner's number and memory."""
        others = [runner for number, runner in self.runners.items() if number != generation]
        held = sum(runner.held_bytes for runner in others)
        if any(runner.running for runner in others):
            self._world.violate("N1 one model at work", self.name)
        if len(others) >= self.spec.models_max:
            self._world.violate("N2 models side by side", f"{self.name}: {len(others) + 1}")
        if others and held + self.runners[generation].limit_bytes > self.spec.lent_bytes:
            self._world.violate("N3 memory of the owner", f"{self.name}: {held} beside the one at work")

    def _end_self_test(self, test: wire.SelfTest, number: int) -> None:
        if number == self._self_test:
            result = wire.SelfTestResult(
                nonce=test.nonce,
                bandwidth_bytes_per_second=self.spec.bandwidth,
                is_warm=True,
                seconds=test.warm_up_seconds + test.measure_seconds,
            )
            self.dispatch(SelfTestEnded(test.nonce, result))

    def _start_runner(self, generation: int, card: ModelCard) -> None:
        def gone(detail: str) -> None:
            if self.runners.pop(generation, None) is not None:
                self.dispatch(RunnerExited(generation, detail))

        self.runners[generation] = ScriptedRunner(
            card,
            limit_bytes=self.spec.lent_bytes,
            tokens_per_second=self.spec.tokens_per_second,
            tokens_per_message=self.spec.tokens_per_message,
            draws=self._world.draws_of(f"runner/{self.spec.index}/{self._life}/{generation}"),
            later=self.later,
            tell=lambda said: self.dispatch(RunnerSaid(generation, said)),
            gone=gone,
        )

    def _fetch(self, revision: str) -> None:
        def end() -> None:
            if self.fetch_fails:
                self.dispatch(FetchFailed(revision, "failed by the simulation"))
            else:
                self._on_disk.add(revision[: wire.REVISION_DIGITS])
                self.dispatch(FetchEnded(revision, FOLDER))

        self.later(self.draws.choice((0.0, 0.0, 3.0)), end)
