"""Connections between Macs and the coordinator: in order, late, and gone without a word.

A `Cable` is a Mac's way to the internet. While it is cut nothing arrives; what was sent arrives
when it is mended, unless an end has given up by then, as TCP would have it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from starlette.websockets import WebSocketDisconnect

from tests.simulation.loop import VirtualLoop

CLOSE_NORMAL: Final = 1000
CLOSE_ABNORMAL: Final = 1006
CLOSE_ERROR: Final = 1011
# The server pings each 20 s and waits as long for the answer; the node 5 s and then 10 s.
SERVER_SILENCE_SECONDS: Final = (20.0, 40.0)
NODE_SILENCE_SECONDS: Final = (10.0, 15.0)


class Far(Protocol):
    """The node's side of a connection."""

    def heard(self, socket: Socket, text: str) -> None:
        """A frame has come."""
        ...

    def closed(self, socket: Socket, code: int) -> None:
        """The connection is gone."""
        ...


@final
class Cable:
    """A Mac's way to the internet."""

    def __init__(self) -> None:
        self.is_cut = False
        self.sockets: Final[list[Socket]] = []

    def cut(self) -> None:
        """From now on nothing arrives."""
        if not self.is_cut:
            self.is_cut = True
            for socket in list(self.sockets):
                socket.fall_silent()

    def mend(self) -> None:
        """What was held up arrives."""
        if self.is_cut:
            self.is_cut = False
            for socket in list(self.sockets):
                socket.flow()


@final
class _Pipe:
    """One direction: what is put in comes out later, in the same order."""

    def __init__(self, socket: Socket, latency: Callable[[], float], out: Callable[[Any], None]) -> None:
        self._socket = socket
        self._latency = latency
        self._out = out
        self._items: deque[Any] = deque()
        self._due = 0.0
        self._arrived = 0

    def put(self, item: Any) -> None:
        loop = self._socket.loop
        self._items.append(item)
        self._due = max(self._due, loop.time() + self._latency())
        _ = loop.after(self._due - loop.time(), self._arrive)

    def _arrive(self) -> None:
        self._arrived += 1
        self.flow()

    def flow(self) -> None:
        while self._arrived and not self._socket.is_silent:
            self._arrived -= 1
            self._out(self._items.popleft())


@final
class Socket:
    """One connection; `server` is what the coordinator holds of it."""

    def __init__(self, loop: VirtualLoop, cable: Cable, far: Far, draws: random.Random, app: Any) -> None:
        self.loop: Final = loop
        self.cable: Final = cable
        self.draws: Final = draws
        self.silent_since = math.inf
        self.is_lost = False  # silently: nothing arrives any more, whatever the cable does
        self._far: Final = far
        self._is_far_open = True
        self._is_far_frozen = False
        self.server: Final = ServerSocket(self, app)
        low, spread = draws.uniform(0.001, 0.05), draws.choice((0.002, 0.02, 0.02, 0.2, 3.0))
        latency = lambda: low + draws.random() * spread
        self._up: Final = _Pipe(self, latency, self.server.arrive)
        self._down: Final = _Pipe(self, latency, self._arrive_down)
        cable.sockets.append(self)

    @property
    def is_silent(self) -> bool:
        """Whether nothing arrives on either end."""
        return self.is_lost or self.cable.is_cut

    def lose(self) -> None:
        """Half open: both ends think that it lives, and nothing arrives."""
        self.is_lost = True
        self.fall_silent()

    def fall_silent(self) -> None:
        """Each end finds out by itself, by its pings."""
        self.silent_since = min(self.silent_since, self.loop.time())
        for give_up, seconds in (
            (self._far_gives_up, NODE_SILENCE_SECONDS),
            (self._server_gives_up, SERVER_SILENCE_SECONDS),
        ):
            _ = self.loop.after(self.draws.uniform(*seconds), self._still_silent, give_up)

    def freeze_far(self) -> None:
        """The node answers no ping for a while."""
        self._is_far_frozen = True
        _ = self.loop.after(self.draws.uniform(*SERVER_SILENCE_SECONDS), self._still_frozen)

    def _still_frozen(self) -> None:
        if self._is_far_frozen:
            self._server_gives_up()
            self._down.put(CLOSE_ABNORMAL)

    def thaw_far(self) -> None:
        """It answers again."""
        self._is_far_frozen = False

    def _still_silent(self, give_up: Callable[[], None]) -> None:
        if self.is_silent:
            give_up()

    def flow(self) -> None:
        """The cable is mended. An end that has given up answers with a reset."""
        if not self.is_silent:
            self.silent_since = math.inf
        self._up.flow()
        self._down.flow()
        if not self._is_far_open:
            self._server_gives_up()
        if self.server.is_over:
            self._far_gives_up()

    def _far_gives_up(self) -> None:
        if self._is_far_open:
            self._is_far_open = False
            self._far.closed(self, CLOSE_ABNORMAL)
            self._forget()

    def _server_gives_up(self) -> None:
        self.server.break_off()
        self._forget()

    def _forget(self) -> None:
        if not self._is_far_open and self.server.is_over and self in self.cable.sockets:
            self.cable.sockets.remove(self)

    # -- the node's end --------------------------------------------------------------------------

    def send_up(self, text: str) -> None:
        """A frame from the node."""
        if self._is_far_open:
            self._up.put(text)

    def close_far(self, code: int) -> None:
        """The node closes its end, or died; the other hears of it if anything still arrives."""
        if self._is_far_open:
            self._is_far_open = False
            self._up.put(code)
            self._forget()

    def _arrive_down(self, item: str | int) -> None:
        if not self._is_far_open:
            return
        if isinstance(item, int):
            self._is_far_open = False
            self._far.closed(self, item)
            self._forget()
        else:
            self._far.heard(self, item)

    # -- the coordinator's end -------------------------------------------------------------------

    def send_down(self, item: str | int) -> None:
        """A frame from the coordinator, or the code with which it closes."""
        self._down.put(item)
        if isinstance(item, int):
            self._forget()


@final
class ServerSocket:
    """As much of a WebSocket as the coordinator's endpoint uses."""

    def __init__(self, socket: Socket, app: Any) -> None:
        self._socket: Final = socket
        self.app: Final = app
        self._frames: deque[str | int] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_closing = False
        self.is_over = False
        self.on_read: Callable[[str], None] = lambda _: None  # with each frame, just before it is handled

    def arrive(self, item: str | int) -> None:
        """A frame from the node, or the code with which its end closed."""
        if self.is_over:
            return
        if isinstance(item, int):
            self.is_over = True
        self._frames.append(item)
        self._wake()

    def break_off(self) -> None:
        """The connection is gone, and nobody said so."""
        self.arrive(CLOSE_ABNORMAL)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def accept(self) -> None:
        """The connection is taken."""

    async def receive_text(self) -> str:
        """The next frame. Raises `WebSocketDisconnect`."""
        while not self._frames:
            self._waiter = self._socket.loop.create_future()
            await self._waiter
        item = self._frames[0]
        if isinstance(item, int):
            raise WebSocketDisconnect(item)
        _ = self._frames.popleft()
        self.on_read(item)
        return item

    async def send_text(self, text: str) -> None:
        """Queue a frame. Raises as a closed socket does."""
        if self.is_over or self._is_closing:
            raise WebSocketDisconnect(CLOSE_ABNORMAL)
        self._socket.send_down(text)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close from this side; frames that are here already can still be read."""
        del reason
        if self._is_closing:
            raise RuntimeError("closed already")
        self._is_closing = True
        if not self.is_over:
            self._socket.send_down(code)
            # The other side answers the close, or the wait for its answer runs out.
            _ = self._socket.loop.after(self._socket.draws.uniform(0.01, 10.0), self.break_off)

    async def end(self, code: int) -> None:
        """The endpoint has returned: close what it left open."""
        if not self._is_closing:
            await self.close(code)

    def die(self, code: int) -> None:
        """The process has ended; its system closes the connection."""
        if not self.is_over:
            self.arrive(code)
            self._socket.send_down(code)
