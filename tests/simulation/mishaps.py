"""What befalls the coordinator's transactions: errors for a while, and a death at one of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, final

from coordinator.db import DatabaseBusy, DatabaseFull, DatabaseUnavailable

READ_ERROR_CHANCE: Final = 0.3


@final
class Mishap:
    """Implements `process.Mishaps`. `committed` is called after each commit that took place."""

    def __init__(self, draws: Random, committed: Callable[[], None], die: Callable[[], None]) -> None:
        self._draws: Final = draws
        self._committed: Final = committed
        self._die: Final = die
        self._windows: list[int] = []
        self._deaths: list[tuple[int, bool]] = []
        self.injected = 0

    @property
    def is_at_work(self) -> bool:
        """Whether transactions may fail just now."""
        return bool(self._windows)

    def begin_errors(self, amount: int) -> None:
        """From now on some transactions fail; `amount` says how."""
        self._windows.append(amount)

    def end_errors(self, amount: int) -> None:
        """That is over."""
        if amount in self._windows:
            self._windows.remove(amount)

    def die_at_commit(self, amount: int) -> None:
        """The process dies at one of the next commits, just before or just after it."""
        self._deaths.append((amount % 8, amount % 2 == 0))

    def calm(self) -> None:
        """Nothing more befalls."""
        self._windows.clear()
        self._deaths.clear()

    def on_read(self) -> None:
        """A read may find no database."""
        for amount in self._windows:
            if self._is_late(amount) and self._draws.random() < READ_ERROR_CHANCE:
                self._raise(2)

    def before_commit(self) -> None:
        """A commit may be refused."""
        self._count_down(is_before=True)
        for amount in self._windows:
            if self._draws.random() < self._chance(amount) and not self._is_late(amount):
                self._raise(amount)

    def after_commit(self) -> None:
        """The answer to a commit may be lost: only a lost connection does that."""
        self._committed()
        self._count_down(is_before=False)
        for amount in self._windows:
            if self._is_late(amount) and self._draws.random() < self._chance(amount):
                self._raise(2)

    def _is_late(self, amount: int) -> bool:
        return amount & 8 > 0

    def _chance(self, amount: int) -> float:
        return (0.2, 0.6, 1.0)[(amount >> 4) % 3] if not self._is_late(amount) else 0.5

    def _raise(self, amount: int) -> None:
        self.injected += 1
        kind = (DatabaseBusy, DatabaseFull, DatabaseUnavailable)[amount % 3]
        raise kind("injected")

    def _count_down(self, *, is_before: bool) -> None:
        for death in list(self._deaths):
            left, dies_before = death
            if dies_before != is_before:
                continue
            self._deaths.remove(death)
            if left:
                self._deaths.append((left - 1, dies_before))
            else:
                self._deaths.clear()
                self._die()
