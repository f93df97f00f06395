"""The socket to the coordinator: dialled, challenged, kept alive, and dialled again."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from node_agent.events import Lane
from node_agent.protocol import messages as wire
from node_agent.settings import LinkSettings

log = structlog.get_logger()

SOCKET_PATH: Final = "/nodes/v1/socket"
CLOSE_UNKNOWN_NODE: Final = 4401
CLOSE_REVOKED: Final = 4403
CLOSE_REPLACED: Final = 4409
CLOSE_PROTOCOL: Final = 4426
FLUSH_SECONDS: Final = 2.0
# A socket that lived this long was a good one: the next loss starts with the shortest wait.
STEADY_SECONDS: Final = 10.0

_REFUSALS: Final = {
    CLOSE_UNKNOWN_NODE: "does not know this node's key. Run: mlx-node leave, then mlx-node join",
    CLOSE_REVOKED: "has revoked this node. Ask its operator, or run: mlx-node leave",
    CLOSE_REPLACED: "has another connection with this node's key. Stop the other process; a copy"
    " of a home folder on another machine must join under a key of its own",
    CLOSE_PROTOCOL: "speaks another protocol version. Upgrade: pip install -U 'mlx-network[node]'",
}


class RefusedError(Exception):
    """The coordinator does not want this node; dialling again would not help."""


class LinkLostError(Exception):
    """The socket is gone or never came; the text says why."""


class LinkOwner(Protocol):
    """Who uses the link. All calls come from the event loop and must not block."""

    def hello(self, challenge: wire.Challenge) -> wire.Hello: ...

    def on_link_up(self, welcome: wire.Welcome) -> None: ...

    def on_link_down(self, silent_seconds: float) -> None: ...

    def on_frame(self, message: wire.ToNode) -> None: ...


def socket_url(origin: str) -> str:
    """The WebSocket address that belongs to an http or https origin."""
    scheme, _, rest = origin.partition("://")
    return f"{'wss' if scheme == 'https' else 'ws'}://{rest}{SOCKET_PATH}"


def backoff_seconds(
    failures: int, settings: LinkSettings, draw: Callable[[], float] = random.random
) -> float:
    """Wait before the next try after so many failures in a row: full jitter below a bound.

    After a first failure the bound is `first_wait_seconds_max`; then it starts at
    `backoff_seconds_min` and doubles up to `backoff_seconds_max`. A wait drawn from all of it keeps
    a fleet from coming back at once.
    """
    if failures <= 1:
        return draw() * settings.first_wait_seconds_max
    doublings = min(failures - 2, 30)
    bound = min(settings.backoff_seconds_max, settings.backoff_seconds_min * 2.0**doublings)
    return draw() * bound


@final
class Link:
    """Two lanes of frames over a socket that comes and goes."""

    def __init__(self, origin: str, owner: LinkOwner, settings: LinkSettings) -> None:
        self._origin = origin
        self._owner = owner
        self._settings = settings
        self._control: deque[wire.Message] = deque()
        self._data: deque[wire.Message] = deque()
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._is_up = False
        self._is_closing = False
        self._heard_at = 0.0
        self._socket: ClientConnection | None = None

    @property
    def is_up(self) -> bool:
        return self._is_up

    def send(self, message: wire.Message, lane: Lane) -> None:
        """Queue a frame; without a socket it is dropped, as the next one starts with `resume`."""
        if not self._is_up:
            return
        (self._control if lane is Lane.CONTROL else self._data).append(message)
        self._wake.set()
        if len(self._data) > self._settings.data_frames_max and self._socket is not None:
            # Its writer is stuck in a send, so a polite close would be stuck behind it.
            log.warning("link_overflow", frames=len(self._data))
            self._data.clear()
            self._socket.transport.abort()

    async def run(self) -> None:
        """Hold a socket until `close`. Raises `RefusedError` if the coordinator says never."""
        failures = 0
        while not self._is_closing:
            began = time.monotonic()
            try:
                await self._hold_one()
                reason = "closed"
            except (LinkLostError, OSError, WebSocketException) as error:
                reason = _reason_of(error, self._origin)
            except ImportError as error:
                raise RefusedError(f"the proxy cannot be used: {error}") from error
            if self._is_closing:
                return
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            wait_seconds = backoff_seconds(failures, self._settings)
            log.warning("link_lost", reason=reason, retry_in_seconds=round(wait_seconds, 2))
            await asyncio.sleep(wait_seconds)

    async def close(self) -> None:
        """Send what is queued, within two seconds, and end `run`."""
        self._is_closing = True
        self._wake.set()
        if self._is_up:
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    _ = await self._flushed.wait()
            except TimeoutError:
                log.warning("link_flush_timeout", frames=len(self._control) + len(self._data))
        if self._socket is not None:
            await self._socket.close()

    async def _hold_one(self) -> None:
        async with connect(
            socket_url(self._origin),
            compression=None,
            max_size=wire.FRAME_BYTES_MAX,
            ping_interval=None,  # `_keep_alive` does it, and knows when something was heard
            close_timeout=FLUSH_SECONDS,
        ) as socket:
            self._socket = socket
            try:
                async with asyncio.timeout(self._settings.challenge_seconds):
                    welcome = await self._introduce(socket)
                self._heard_at = time.monotonic()
                self._control.clear()
                self._data.clear()
                self._is_up = True
                self._owner.on_link_up(welcome)
                await self._carry(socket)
            except TimeoutError:
                raise LinkLostError("no challenge and welcome in time") from None
            finally:
                self._socket = None
                if self._is_up:
                    self._is_up = False
                    self._owner.on_link_down(time.monotonic() - self._heard_at)

    async def _introduce(self, socket: ClientConnection) -> wire.Welcome:
        challenge = _parse(await socket.recv())
        if not isinstance(challenge, wire.Challenge):
            raise LinkLostError("the first frame was not a challenge")
        await socket.send(wire.encode(self._owner.hello(challenge)))
        welcome = _parse(await socket.recv())
        if not isinstance(welcome, wire.Welcome):
            raise LinkLostError("the hello was not answered by a welcome")
        return welcome

    async def _carry(self, socket: ClientConnection) -> None:
        """Write and ping in tasks of their own, read here: none waits for another."""
        asides = [asyncio.create_task(work) for work in (self._write(socket), self._keep_alive(socket))]
        try:
            async for frame in socket:
                self._heard_at = time.monotonic()
                self._hear(frame)
            # A normal close ends the loop silently; its code may still be a refusal.
            raise LinkLostError(f"closed with code {socket.close_code}")
        finally:
            for task in asides:
                task.cancel()
            await asyncio.gather(*asides, return_exceptions=True)

    async def _keep_alive(self, socket: ClientConnection) -> None:
        """Ping, and give the socket up when no answer comes: a dead network closes nothing."""
        while True:
            await asyncio.sleep(self._settings.ping_seconds)
            pong = await socket.ping()
            try:
                async with asyncio.timeout(self._settings.pong_seconds):
                    _ = await pong
            except TimeoutError:
                log.warning("link_silent", seconds=round(time.monotonic() - self._heard_at, 1))
                # A polite close would wait for the same dead network.
                socket.transport.abort()
                return
            self._heard_at = time.monotonic()

    def _hear(self, frame: str | bytes) -> None:
        try:
            message = wire.parse_to_node(frame)
        except wire.UnknownTypeError as error:
            self.send(wire.Unsupported(message_type=error.message_type), Lane.CONTROL)
        except wire.MalformedFrameError as error:
            log.warning("frame_malformed", reason=str(error))
        else:
            self._owner.on_frame(message)

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            while lane := self._control or self._data:
                await socket.send(wire.encode(lane.popleft()))
            if self._is_closing:
                self._flushed.set()
                return
            self._wake.clear()
            await self._wake.wait()


def _parse(frame: str | bytes) -> wire.ToNode:
    try:
        return wire.parse_to_node(frame)
    except wire.MalformedFrameError as error:
        raise LinkLostError(str(error)) from None


def _reason_of(error: Exception, origin: str) -> str:
    """Why a socket was lost, in words. Raises `RefusedError` if it is for good."""
    if isinstance(error, ConnectionClosed) and error.rcvd is not None:
        refusal = _REFUSALS.get(error.rcvd.code)
        if refusal is not None:
            raise RefusedError(f"{origin} {refusal}") from error
    return f"{type(error).__name__}: {error}"
