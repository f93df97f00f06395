"""Held sockets: one channel a connected node, and the fleet of them in this process.

A channel has one writer task with a control lane ahead of the data lane, so that a cancel never
waits behind offers. Reading never waits for anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from coordinator import clock
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import encode_bytes

log = structlog.get_logger()

CLOSE_TRY_LATER: Final = 1013
CLOSE_BAD_FRAME: Final = 4400
CLOSE_UNKNOWN_NODE: Final = 4401
CLOSE_REVOKED: Final = 4403
CLOSE_SILENT: Final = 4408
CLOSE_REPLACED: Final = 4409
CLOSE_PROTOCOL: Final = 4426
HELLO_SECONDS_MAX: Final = 10.0  # a node answers the challenge at once; this frees dead sockets
DATA_FRAMES_MAX: Final = 256  # more offers than a node has seats mean that it does not read


FREE_STEP_BITS: Final = 28  # a change of free memory or disk of less than 256 MiB is no news


def _tell_nobody(_node_id: str) -> None:
    """A channel that no fleet has taken in yet."""


@dataclass
class Channel:
    """A node's socket and the last that it said of itself.

    What a node may leave out is None until it says it: `free_bytes` of memory, `disk_free_bytes`,
    and the beginnings of the revisions that lie `on_disk`. `survival` is its owner's habits.
    """

    node_id: str
    owner_id: str
    device: str
    name: str
    public_key: str
    hardware: wire.Hardware
    socket: WebSocket
    region: str = ""  # the country that its owner shows on the map, if any
    mode: wire.NodeMode = "ready"
    number: int = 0  # of its challenge: a node's later socket has the higher one
    free_bytes: int | None = None
    disk_free_bytes: int | None = None
    on_disk: frozenset[str] | None = None
    survival: tuple[float, ...] = ()
    changed_at: float = float("-inf")  # when it was first heard that other models are loaded
    slots: tuple[wire.SlotReport, ...] = ()
    holds: dict[str, wire.HoldReport] = field(default_factory=dict[str, wire.HoldReport])
    heard_at: float = field(default_factory=clock.monotonic)
    connected_at: float = field(default_factory=clock.monotonic)
    self_test: wire.SelfTestResult | None = None  # the latest that nobody has taken up yet
    is_closed: bool = False
    goodbye: wire.Goodbye | None = None
    on_news: Callable[[str], None] = _tell_nobody
    _control: deque[wire.Message] = field(default_factory=deque[wire.Message])
    _data: deque[wire.Message] = field(default_factory=deque[wire.Message])
    _has_work: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, message: wire.Message) -> bool:
        """Queue a frame; False if the channel is closed or does not drain."""
        if self.is_closed:
            return False
        is_data = isinstance(message, wire.Offer | wire.Hold)
        if is_data and len(self._data) >= DATA_FRAMES_MAX:
            return False
        (self._data if is_data else self._control).append(message)
        self._has_work.set()
        return True

    def is_warm(self, card_revision: str) -> bool:
        """Whether the node says that this model is loaded."""
        return any(slot.card_revision == card_revision for slot in self.slots)

    def take(self, beat: wire.Heartbeat) -> None:
        """Note what the node says; whoever places work is told if that changes anything for it."""
        before = self._facts()
        if {slot.card_revision for slot in self.slots} != {slot.card_revision for slot in beat.slots}:
            self.changed_at = clock.monotonic()
        self.mode, self.free_bytes, self.slots = beat.mode, beat.free_bytes, beat.slots
        if beat.disk_free_bytes is not None:
            self.disk_free_bytes = beat.disk_free_bytes
        if beat.on_disk is not None:
            self.on_disk = frozenset(beat.on_disk)
        if beat.survival is not None:
            self.survival = beat.survival
        if self._facts() != before:
            self.on_news(self.node_id)

    def _facts(self) -> tuple[object, ...]:
        steps = [
            None if free is None else free >> FREE_STEP_BITS
            for free in (self.free_bytes, self.disk_free_bytes)
        ]
        loaded = frozenset(slot.card_revision for slot in self.slots)
        return self.mode, *steps, loaded, self.on_disk, self.survival

    async def write_forever(self) -> None:
        """Send what is queued until the task is cancelled or the socket breaks."""
        while True:
            while self._control or self._data:
                lane = self._control or self._data
                await self.socket.send_text(wire.encode(lane.popleft()))
            self._has_work.clear()
            await self._has_work.wait()

    async def close(self, code: int, reason: str) -> None:
        """Close the socket; safe to call twice."""
        if not self.is_closed:
            self.is_closed = True
            self.on_news(self.node_id)
            with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
                await self.socket.close(code, reason)


class FrameHandler(Protocol):
    """Who deals with what a node says about attempts."""

    def node_connected(self, channel: Channel, live: Iterable[wire.LiveAttempt]) -> None:
        """The node is there, with these attempts."""
        ...

    def node_disconnected(self, channel: Channel, *, goodbye: wire.Goodbye | None) -> None:
        """The node's socket is gone, in good order if it said goodbye."""
        ...

    def frame(self, channel: Channel, message: wire.ToCoordinator) -> None:
        """A frame about an attempt."""
        ...


class Fleet:
    """The channels of this process. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.on_change: Callable[[], None] = lambda: None
        # Called with the id of each node that came, went, or said something new of itself.
        self.on_news: Callable[[str], None] = _tell_nobody
        self._sockets = itertools.count(1)

    def number_socket(self) -> int:
        """The number of a socket that is challenged now."""
        return next(self._sockets)

    def get(self, node_id: str) -> Channel | None:
        """The node's open channel, or None."""
        return self.channels.get(node_id)

    async def add(self, channel: Channel) -> bool:
        """Take over from an older socket of the same node. False, and this one closed, if it is the
        older one itself: hellos may be admitted in another order than they were sent.
        """
        other = self.channels.get(channel.node_id)
        if other is not None and other.number > channel.number:
            await channel.close(CLOSE_TRY_LATER, "a newer socket of this node is there")
            return False
        self.channels[channel.node_id] = channel
        channel.on_news = self.on_news
        self.on_news(channel.node_id)
        if other is not None:
            await other.close(CLOSE_REPLACED, "a newer socket of this node took over")
        self.on_change()
        return True

    def remove(self, channel: Channel) -> bool:
        """Forget the channel; False if a newer one had already taken its place."""
        if self.channels.get(channel.node_id) is not channel:
            return False
        del self.channels[channel.node_id]
        self.on_news(channel.node_id)
        self.on_change()
        return True


def make_nonce() -> str:
    """A challenge: 32 random bytes, base64url."""
    return encode_bytes(clock.random_bytes(32))


def choose_protocol(hello: wire.Hello) -> wire.Version | None:
    """The highest version that both sides speak, or None."""
    ours_low, ours_high = (wire.PROTOCOL_MAJOR, 0), (wire.PROTOCOL_MAJOR, wire.PROTOCOL_MINOR)
    chosen = min(ours_high, hello.protocol_max)
    return chosen if chosen >= max(ours_low, hello.protocol_min) else None


async def receive_hello(socket: WebSocket, nonce: str) -> wire.Hello | None:
    """Challenge the socket and read its hello. None (and the socket closed) if it is not one."""
    await socket.send_text(wire.encode(wire.Challenge(nonce=nonce)))
    try:
        async with asyncio.timeout(HELLO_SECONDS_MAX):
            frame = await socket.receive_text()
        message = wire.parse_to_coordinator(frame)
    except (TimeoutError, wire.MalformedFrameError, KeyError, WebSocketDisconnect):
        message = None
    if not isinstance(message, wire.Hello) or message.nonce != nonce:
        with contextlib.suppress(RuntimeError, OSError):
            await socket.close(CLOSE_BAD_FRAME, "expected a hello with the challenge's nonce")
        return None
    return message


async def read_frames(channel: Channel, handler: FrameHandler, on_emptied: Callable[[Channel], None]) -> None:
    """Hand every frame to `handler` until the socket closes; a goodbye is left in the channel.

    `on_emptied` is called when the node has lost what it had loaded, as after a crash.
    """
    while True:
        try:
            text = await channel.socket.receive_text()
            message = wire.parse_to_coordinator(text)
        except (WebSocketDisconnect, KeyError, RuntimeError):
            return
        except wire.UnknownTypeError as error:
            channel.send(wire.Unsupported(message_type=error.message_type))
            continue
        except wire.MalformedFrameError as error:
            log.warning("bad_frame", node_id=channel.node_id, error=str(error))
            await channel.close(CLOSE_BAD_FRAME, "malformed frame")
            return
        channel.heard_at = clock.monotonic()
        match message:
            case wire.Heartbeat():
                was_loaded = bool(channel.slots)
                channel.take(message)
                if was_loaded and not channel.slots:
                    on_emptied(channel)
            case wire.HoldReport():
                channel.holds[message.card_id] = message
            case wire.SelfTestResult():
                channel.self_test = message
            case wire.Goodbye():
                channel.goodbye = message
            case wire.Hello():
                await channel.close(CLOSE_BAD_FRAME, "hello comes once")
                return
            case wire.Unsupported():
                log.warning("node_lacks_message", node_id=channel.node_id, type=message.message_type)
            case _:
                handler.frame(channel, message)
