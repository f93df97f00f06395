"""The clocks and the randomness of ids: the one place here that asks this machine for them.

A simulation puts its own in their place for as long as it runs; nothing else may.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sources:
    """Where time and randomness come from."""

    monotonic: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
    random_bytes: Callable[[int], bytes] = secrets.token_bytes


_sources = Sources()


def monotonic() -> float:
    """Seconds of a clock that only goes forward; only differences mean anything."""
    return _sources.monotonic()


def wall_us() -> int:
    """This machine's wall clock in UTC microseconds; it may jump."""
    return _sources.wall_ns() // 1000


def random_bytes(count: int) -> bytes:
    """Fresh randomness, `count` bytes of it."""
    return _sources.random_bytes(count)


@contextlib.contextmanager
def replaced_by(sources: Sources) -> Generator[None]:
    """Ask these instead while the block runs. For the whole process; blocks do not overlap."""
    global _sources  # noqa: PLW0603
    before, _sources = _sources, sources
    try:
        yield
    finally:
        _sources = before
