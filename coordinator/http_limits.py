"""uvicorn's fast HTTP protocol with bounds on the size and the time of a request's head."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 64 << 10  # ten times what browsers and clients send
HEAD_SECONDS_MAX: Final = 30.0  # 64 KiB at 17 kbit/s; a slower one holds a connection for nothing
TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedHttpProtocol(HttpToolsProtocol):
    """The parser below takes heads of any size, at a cost that grows with their square, for ever.

    A connection has `head_seconds_max` from its beginning to its first whole head, and from any byte
    that comes while nothing is being answered to the next one. Between requests, uvicorn's own
    `timeout_keep_alive` closes it; bodies have a limit of their own where they are read.
    """

    head_seconds_max: float = HEAD_SECONDS_MAX
    _head_bytes: int = 0
    _is_in_head: bool = True
    _cutting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection ends."""
        self._head_came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head_bytes, self._is_in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._is_in_head = False
        self._head_came()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes from the socket; the connection is closed when a head grows beyond the bound."""
        if self._is_in_head and self._head_bytes + len(data) > HEAD_BYTES_MAX and b"\r\n\r\n" not in data:
            self._refuse(TOO_LARGE)
            return
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
        if not self._is_answering():
            self._await_head()

    def _await_head(self) -> None:
        # A socket that became a WebSocket is no longer ours.
        is_ours = not self.transport.is_closing() and self.transport.get_protocol() is self
        if self._cutting is None and is_ours:
            self._cutting = self.loop.call_later(self.head_seconds_max, self._cut)

    def _head_came(self) -> None:
        if self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None

    def _cut(self) -> None:
        self._cutting = None
        if self._is_in_head and self._head_bytes:
            self._refuse(TOO_SLOW)
        else:
            self.transport.close()

    def _is_answering(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
