"""The embedded coordinator's timer: runs the upkeep table on one background thread, no broker."""

from __future__ import annotations

import threading
import time
from typing import Final

import structlog

from coordinator.runtime import Runtime
from coordinator.upkeep import SCHEDULE, Chore

log = structlog.get_logger()


class TimerThread:
    """Runs each chore at its interval, one at a time; a failing chore is logged and tried again."""

    def __init__(self, runtime: Runtime, schedule: tuple[Chore, ...] = SCHEDULE) -> None:
        self._runtime: Final = runtime
        self._schedule: Final = schedule
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Begin; the first round is one interval away."""
        self._thread.start()

    def stop(self) -> None:
        """End after the chore that is running. Blocking."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        due = {chore.name: time.monotonic() + chore.every_seconds for chore in self._schedule}
        while True:
            wait = max(0.0, min(due.values()) - time.monotonic())
            if self._stopping.wait(wait):
                return
            for chore in self._schedule:
                if due[chore.name] <= time.monotonic():
                    self._do(chore)
                    due[chore.name] = time.monotonic() + chore.every_seconds

    def _do(self, chore: Chore) -> None:
        try:
            count = chore.run(self._runtime.database, self._runtime.settings)
        except Exception:
            log.exception("chore_failed", chore=chore.name)
        else:
            if count:
                log.info("chore_done", chore=chore.name, count=count)
