"""How many enrolments one address may start: without it, a few seconds of anybody's fill the table."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, final

ADDRESSES_MAX: Final = 10_000  # a few megabytes; beyond it the longest silent are forgotten


@final
class EnrolmentLimit:
    """A sliding window an address, in memory only. Thread safe; time is passed in."""

    def __init__(self, *, starts_max: int, window_seconds: float) -> None:
        self._starts_max: Final = starts_max
        self._window_seconds: Final = window_seconds
        self._starts: Final[dict[str, deque[float]]] = {}
        self._lock: Final = threading.Lock()

    def wait_seconds(self, address: str, now: float) -> float:
        """0, and the start is counted; or how long this address must wait. `now` is monotonic."""
        with self._lock:
            starts = self._starts.pop(address, deque())
            while starts and starts[0] <= now - self._window_seconds:
                starts.popleft()
            self._starts[address] = starts
            while len(self._starts) > ADDRESSES_MAX:
                del self._starts[next(iter(self._starts))]
            if len(starts) >= self._starts_max:
                return starts[0] + self._window_seconds - now
            starts.append(now)
            return 0.0
