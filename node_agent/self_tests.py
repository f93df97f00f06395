"""When a node measures its memory: only when asked, and only while nothing else is done. Pure."""

from __future__ import annotations

from typing import Final, final

from node_agent.events import Instruction, Lane, SelfTestEnded, Send, StartSelfTest, StopSelfTest
from node_agent.protocol import messages as wire

ARRAY_BYTES_MAX: Final = 1 << 30  # ten times the largest cache of any chip
ARRAY_BYTES_MIN: Final = 64 << 20  # less would measure a cache
AVAILABLE_PARTS: Final = 8  # of what a model could have, for one array; the test holds two
FREE_PARTS: Final = 3  # of what is free beside models that are idle


@final
class SelfTests:
    """At most one test at a time; what must be done is appended to `out`."""

    def __init__(self, out: list[Instruction]) -> None:
        self._out = out
        self._running: StartSelfTest | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that is free again as soon as the test is stopped."""
        return 2 * self._running.size_bytes if self._running is not None else 0

    def ask(self, test: wire.SelfTest, *, is_idle: bool, available_bytes: int, free_bytes: int) -> None:
        """Begin, unless something runs or too little memory is free; the coordinator asks again."""
        size_bytes = min(ARRAY_BYTES_MAX, available_bytes // AVAILABLE_PARTS, free_bytes // FREE_PARTS)
        if is_idle and self._running is None and size_bytes >= ARRAY_BYTES_MIN:
            self._running = StartSelfTest(test, size_bytes)
            self._out.append(self._running)

    def keep_only_if(self, is_idle: bool) -> None:
        """Jobs go first, and a result without a link is nobody's."""
        if self._running is not None and not is_idle:
            self._running = None
            self._out.append(StopSelfTest())

    def ended(self, event: SelfTestEnded) -> None:
        """Say what was found, if this is the test that was asked for."""
        if self._running is None or event.nonce != self._running.test.nonce:
            return
        self._running = None
        if event.result is not None:
            self._out.append(Send(event.result, Lane.CONTROL))
