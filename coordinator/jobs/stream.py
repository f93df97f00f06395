"""One job's answer as its readers see it: an append-only list of deltas that many may follow.

The relay appends and never waits; each reader goes at its own pace from any offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal

from coordinator.answer import LoggedToken
from coordinator.errors import ApiError

StreamPhase = Literal["queued", "accepted", "ended"]
KEEP_ALIVE: Final = None


@dataclass(frozen=True)
class Delta:
    """Text made by the tokens up to (not including) offset `end`; `text` may be empty."""

    end: int
    text: str
    logprobs: tuple[LoggedToken, ...] = ()


@dataclass(frozen=True)
class Ending:
    """How a job ended, once its end is committed. `error` is None for a good end."""

    finish_reason: Literal["stop", "length"] | None
    prompt_tokens: int
    output_tokens: int
    charge_umlx: int
    error: ApiError | None = None


class JobStream:
    """Deltas, then one ending. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.phase: StreamPhase = "queued"
        self.ending: Ending | None = None
        self.readers = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def accept(self) -> None:
        """A host has taken the job: from now on the answer may begin at any time."""
        if self.phase == "queued":
            self.phase = "accepted"
            self._notify()

    def append(self, delta: Delta) -> None:
        """Add what a chunk of tokens made."""
        self.deltas.append(delta)
        self._notify()

    def end(self, ending: Ending) -> None:
        """Close the stream; called after the job's end is committed."""
        self.ending = ending
        self.phase = "ended"
        self._notify()

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _changed(self, timeout_seconds: float | None) -> bool:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_seconds)
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def wait_accepted(self, timeout_seconds: float) -> bool:
        """Wait until a host took the job or it ended; False when the time is over first."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while self.phase == "queued":
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self._changed(left):
                return self.phase != "queued"
        return True

    async def wait_ended(self) -> Ending:
        """Wait for the end."""
        while self.ending is None:
            await self._changed(None)
        return self.ending

    async def read(
        self, *, after: int = 0, keep_alive_seconds: float
    ) -> AsyncIterator[Delta | Ending | None]:
        """Yield the deltas that end behind offset `after`, then the ending.

        Yields None after each `keep_alive_seconds` in which there was nothing to say.
        """
        index = 0
        while index < len(self.deltas) and self.deltas[index].end <= after:
            index += 1
        while True:
            while index < len(self.deltas):
                yield self.deltas[index]
                index += 1
            if self.ending is not None:
                yield self.ending
                return
            if not await self._changed(keep_alive_seconds):
                yield KEEP_ALIVE
