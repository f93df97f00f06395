"""A TCP proxy between nodes and coordinator whose connections can be cut or made to go silent."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Final, final

CHUNK_BYTES: Final = 1 << 16
TICK_SECONDS: Final = 0.05
# Closing with this option sends a reset instead of an orderly end.
RESET: Final = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class Link:
    """Two joined sockets. Nothing passes before `silent_until` (monotonic seconds)."""

    node: socket.socket
    coordinator: socket.socket
    silent_until: float = 0.0
    opened_at: float = field(default_factory=time.monotonic)

    def close(self) -> None:
        """Reset both sides."""
        for end in (self.node, self.coordinator):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.close()


@final
class Proxy:
    """Listens on `port` of this machine and joins each caller to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self._listener: Final = socket.create_server(("127.0.0.1", 0))
        self.port: Final[int] = self._listener.getsockname()[1]
        self.target_port: Final = target_port
        self._links: Final[list[Link]] = []
        self._lock: Final = threading.Lock()
        self._is_open = True
        self._refuse_until = 0.0
        self._accepting: Final = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while self._is_open:
            try:
                node, _ = self._listener.accept()
            except OSError:
                return
            if time.monotonic() < self._refuse_until:
                node.close()
                continue
            try:
                coordinator = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
            except OSError:
                node.close()
                continue
            link = Link(node, coordinator)
            with self._lock:
                self._links.append(link)
            threading.Thread(target=self._carry, args=(link,), daemon=True).start()

    def _carry(self, link: Link) -> None:
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError, ValueError):
            selector.register(link.node, selectors.EVENT_READ, link.coordinator)
            selector.register(link.coordinator, selectors.EVENT_READ, link.node)
            is_open = True
            while is_open:
                while time.monotonic() < link.silent_until:
                    time.sleep(TICK_SECONDS)
                for key, _ in selector.select(TICK_SECONDS):
                    source = key.fileobj
                    if not isinstance(source, socket.socket):
                        continue
                    data = source.recv(CHUNK_BYTES)
                    if not data:
                        is_open = False
                        break
                    key.data.sendall(data)
        with self._lock:
            if link in self._links:
                self._links.remove(link)
        for end in (link.node, link.coordinator):
            with contextlib.suppress(OSError):
                end.close()

    def links(self) -> list[Link]:
        """The connections that are open now, oldest first."""
        with self._lock:
            return list(self._links)

    def cut(self, links: list[Link], *, refuse_seconds: float = 0.0) -> None:
        """Reset these connections, and refuse new ones for a while."""
        self._refuse_until = time.monotonic() + refuse_seconds
        for link in links:
            link.close()

    def silence(self, links: list[Link], seconds: float) -> None:
        """Let nothing pass for a while: to both sides as if the other were dead, without a word."""
        for link in links:
            link.silent_until = time.monotonic() + seconds

    def close(self) -> None:
        """Stop listening and cut everything."""
        self._is_open = False
        self._listener.close()
        for link in self.links():
            link.close()
