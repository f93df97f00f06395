"""Time that Macs stood ready, added up by slots of ten minutes. Pure: what was seen and when, in.

Seconds come from a clock that only goes forward, and are put on the calendar only beyond what is
counted already. So a wall clock that jumps back makes nothing count twice, one that jumps ahead
adds nothing, and no slot ever holds more than its own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

from ledger.ratecard import SLOT_US

GAP_SECONDS_MAX: Final = 15.0
"""A longer time in which nobody looked is nobody's: this process was stopped or held up."""

SLOT_SECONDS: Final = SLOT_US // 1_000_000


@dataclass(frozen=True)
class Sight:
    """A Mac as it is just now. `is_busy`: it serves a paid job of a stranger; `is_linked_busy`: only
    jobs of its owner or of somebody who looks like the same person.
    """

    node_id: str
    is_present: bool
    is_busy: bool = False
    is_linked_busy: bool = False
    has_demanded_model: bool = False


@dataclass
class Tally:
    """One Mac in one slot, microseconds."""

    node_id: str
    slot_start_us: int
    present_us: int = 0
    busy_us: int = 0
    linked_busy_us: int = 0
    demanded_us: int = 0


@dataclass(frozen=True)
class Stood:
    """A tally in whole seconds, rounded down, as it is stored."""

    node_id: str
    slot_start_us: int
    present_seconds: int
    busy_seconds: int
    linked_busy_seconds: int
    has_demanded_model: bool


def slot_of(at_us: int) -> int:
    """The start of the slot that holds a moment (UTC microseconds)."""
    return at_us // SLOT_US * SLOT_US


@final
class StandingBook:
    """What this process has seen. `observe` often; what it counted stays until it is forgotten."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._sights: dict[str, Sight] = {}
        self._seen_seconds: float | None = None
        self._reached_us = 0

    @property
    def reached_us(self) -> int:
        """All time before this is counted; what comes later goes behind it."""
        return self._reached_us

    def observe(self, sights: Iterable[Sight], *, wall_us: int, monotonic_seconds: float) -> None:
        """The time since the last look belongs to each Mac that was present then and still is.

        A Mac that is named and not present gets a tally of zero: somebody looked.
        """
        now = {sight.node_id: sight for sight in sights}
        before, seen = self._sights, self._seen_seconds
        self._sights, self._seen_seconds = now, monotonic_seconds
        if seen is None or not 0 < monotonic_seconds - seen <= GAP_SECONDS_MAX:
            self._reached_us = max(self._reached_us, wall_us)
            return
        start_us = max(self._reached_us, wall_us - round((monotonic_seconds - seen) * 1e6))
        if wall_us <= start_us:
            return
        self._reached_us = wall_us
        for slot_start_us, part_us in _parts(start_us, wall_us):
            for sight in now.values():
                earlier = before.get(sight.node_id)
                self._add(sight, earlier, slot_start_us, part_us)

    def _add(self, sight: Sight, earlier: Sight | None, slot_start_us: int, part_us: int) -> None:
        key = (sight.node_id, slot_start_us)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(*key)
        if earlier is None or not (earlier.is_present and sight.is_present):
            return
        tally.present_us += part_us
        tally.demanded_us += part_us * earlier.has_demanded_model
        if earlier.is_busy:
            tally.busy_us += part_us
        elif earlier.is_linked_busy:
            tally.linked_busy_us += part_us

    def stood(self) -> list[Stood]:
        """All that is counted and not forgotten, each slot as a whole."""
        return [_stood(tally) for tally in self._tallies.values()]

    def forget(self, stood: Iterable[Stood], *, before_us: int) -> None:
        """Drop stored slots that ended by a moment, at the latest `reached_us` as it was when `stood`
        was taken: nothing is added to them any more."""
        for row in stood:
            if row.slot_start_us + SLOT_US <= before_us:
                self._tallies.pop((row.node_id, row.slot_start_us), None)


def _parts(start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    """A time cut at the slots' bounds: (start of the slot, microseconds in it)."""
    while start_us < end_us:
        slot_start_us = slot_of(start_us)
        cut_us = min(end_us, slot_start_us + SLOT_US)
        yield slot_start_us, cut_us - start_us
        start_us = cut_us


def _stood(tally: Tally) -> Stood:
    return Stood(
        node_id=tally.node_id,
        slot_start_us=tally.slot_start_us,
        present_seconds=tally.present_us // 1_000_000,
        busy_seconds=tally.busy_us // 1_000_000,
        linked_busy_seconds=tally.linked_busy_us // 1_000_000,
        # Loaded for a moment is not ready: for at least half of the time that it was there.
        has_demanded_model=2 * tally.demanded_us >= tally.present_us > 0,
    )
