"""Sending an endless answer while watching whether anybody still listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class EventStreamResponse(Response):
    """Server-sent events. `on_end` is called once, with True if the reader left or stalled."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        headers: Mapping[str, str],
        stall_seconds: float,
        on_end: Callable[[bool], None],
    ) -> None:
        shown = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **headers,
        }
        self._start: Final = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in shown.items()]
        self._events: Final = events
        self._stall_seconds: Final = stall_seconds
        self._on_end: Final = on_end
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send until the events end, the reader leaves, or it takes nothing for too long."""
        pump = asyncio.create_task(self._pump(send))
        watch = asyncio.create_task(_wait_gone(receive))
        is_gone = False  # also when this server stops: the reader did not leave then
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
            is_gone = not pump.done() or pump.cancelled() or pump.exception() is not None
        finally:
            self._on_end(is_gone)
            for task in (pump, watch):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._start})
        async for event in self._events:
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_gone(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


class ClientGoneError(Exception):
    """The client closed its connection before the answer was ready."""


async def unless_gone(request: Request, work: asyncio.Future[T] | asyncio.Task[T]) -> T:
    """Wait for `work`, but no longer than the client is there. Raises `ClientGoneError`."""
    watch = asyncio.create_task(_wait_gone(request.receive))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientGoneError
    finally:
        watch.cancel()
        if not work.done():
            work.cancel()
