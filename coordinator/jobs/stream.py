"""One job's answer as its readers see it: an append-only list of deltas that many may follow.

The relay appends and never waits; each reader goes at its own pace from any offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from coordinator.answer import LoggedToken
from coordinator.errors import ApiError

StreamPhase = Literal["queued", "accepted", "ended"]
KEEP_ALIVE: Final = None


@dataclass(frozen=True)
class Delta:
    """Text made by the tokens up to (not including) offset `end`; `text` may be empty.

    `cuts` are (offset, characters, log probabilities) at the tokens in its middle, so that a reader
    can go on behind any token.
    """

    end: int
    text: str
    logprobs: tuple[LoggedToken, ...] = ()
    cuts: tuple[tuple[int, int, int], ...] = ()

    def behind(self, offset: int) -> Delta:
        """What of it lies behind the token offset; all of it for an offset before it."""
        for at, characters, logged in self.cuts:
            if at == offset:
                return Delta(self.end, self.text[characters:], self.logprobs[logged:])
        return self


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
        self.cut: ApiError | None = None
        self._version = 0
        self._followers = 0
        self._taken_end = 0
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def received_end(self) -> int:
        """How many tokens of the answer have gone, or are on their way, to somebody who follows it."""
        return self.deltas[-1].end if self._followers and self.deltas else self._taken_end

    def accept(self) -> None:
        """A host has taken the job: from now on the answer may begin at any time."""
        if self.phase == "queued":
            self.phase = "accepted"
            self._notify()

    def append(self, delta: Delta) -> None:
        """Add what a chunk of tokens made."""
        self.deltas.append(delta)
        self._notify()

    def replace(self, deltas: Sequence[Delta], *, taken_end: int | None = None) -> None:
        """Put these in place of all deltas; readers go on behind what they have had.

        `taken_end`: how many tokens readers had before this process knew the job.
        """
        self.deltas[:] = deltas
        self._version += 1
        self._taken_end = self._taken_end if taken_end is None else taken_end
        self._notify()

    def cut_off(self, error: ApiError) -> None:
        """Send every reader away with this error. The job itself goes on elsewhere, or later."""
        self.cut = error
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
            async with asyncio.timeout(timeout_seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def wait_accepted(self, timeout_seconds: float) -> bool:
        """Wait until a host took the job or it ended; False when the time is over first.

        Raises `ApiError` if the readers are sent away.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while self.phase == "queued":
            if self.cut is not None:
                raise self.cut
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self._changed(left):
                return self.phase != "queued"
        return True

    async def wait_ended(self) -> Ending:
        """Wait for the end. Raises `ApiError` if the readers are sent away."""
        while self.ending is None:
            if self.cut is not None:
                raise self.cut
            await self._changed(None)
        return self.ending

    async def read(
        self, *, after: int = 0, keep_alive_seconds: float
    ) -> AsyncIterator[Delta | Ending | None]:
        """Yield what lies behind the token offset `after`, then the ending.

        Yields None after each `keep_alive_seconds` in which there was nothing to say. Raises
        `ApiError` if the readers are sent away.
        """
        offset, index, version = after, 0, self._version
        self._followers += 1
        try:
            while True:
                while index < len(self.deltas):
                    delta, index = self.deltas[index], index + 1
                    if delta.end <= offset:
                        continue
                    delta, offset = delta.behind(offset), delta.end
                    self._taken_end = max(self._taken_end, offset)
                    yield delta
                    if version != self._version:
                        index, version = 0, self._version
                if self.ending is not None:
                    yield self.ending
                    return
                if self.cut is not None:
                    raise self.cut
                if not await self._changed(keep_alive_seconds):
                    yield KEEP_ALIVE
                if version != self._version:
                    index, version = 0, self._version
        finally:
            self._followers -= 1
