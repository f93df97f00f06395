"""uvicorn's fast HTTP protocol with a bound on the size of a request's head."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 64 << 10  # ten times what browsers and clients send
REFUSAL: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class LimitedHttpProtocol(HttpToolsProtocol):
    """The parser below takes heads of any size, at a cost that grows with their square."""

    _head_bytes: int = 0
    _is_in_head: bool = True

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head_bytes, self._is_in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._is_in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes from the socket; the connection is closed when a head grows beyond the bound."""
        if self._is_in_head and self._head_bytes + len(data) > HEAD_BYTES_MAX and b"\r\n\r\n" not in data:
            self._refuse()
            return
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(REFUSAL)
            self.transport.close()
