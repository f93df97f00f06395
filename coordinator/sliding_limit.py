"""How often one address or account may try something within a time, in memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, final

NAMES_MAX: Final = 10_000  # a few megabytes; beyond it the longest silent are forgotten


@final
class SlidingLimit:
    """A sliding window for each name (an address, an account). Thread safe; time is passed in."""

    def __init__(self, *, tries_max: int, window_seconds: float) -> None:
        self._tries_max: Final = tries_max
        self._window_seconds: Final = window_seconds
        self._tries: Final[dict[str, deque[float]]] = {}
        self._lock: Final = threading.Lock()

    def wait_seconds(self, name: str, now: float) -> float:
        """0, and the try is counted; or how long this name must wait. `now` is monotonic."""
        with self._lock:
            tries = self._tries.pop(name, deque())
            while tries and tries[0] <= now - self._window_seconds:
                tries.popleft()
            self._tries[name] = tries
            while len(self._tries) > NAMES_MAX:
                del self._tries[next(iter(self._tries))]
            if len(tries) >= self._tries_max:
                return tries[0] + self._window_seconds - now
            tries.append(now)
            return 0.0

    def give_back(self, name: str, at: float) -> None:
        """The try that was counted at `at` does not count: where only failures do, it was none."""
        with self._lock:
            tries = self._tries.get(name)
            if tries is not None and at in tries:
                tries.remove(at)
