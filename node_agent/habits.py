"""When this Mac is lent, learnt on the Mac itself: how likely a lent hour ends as it began. Pure.

Hours are those of the week, 168 from Monday 0:00 UTC. Of each the learner counts how often the
Mac was lent when it began, and how often it was still lent when it ended; old counts fade. What
is told of it is rounded to a few steps, and nothing is told before a day's worth of hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Final, final

HOURS: Final = 168
HOUR_SECONDS: Final = 3600
MONDAY_SECONDS: Final = 4 * 86_400  # the first one after 1970 began
# What nothing is known of: owners come back after four hours on average, as others assume too.
NEUTRAL: Final = exp(-1 / 4)
NEUTRAL_WEIGHT: Final = 4.0  # hours that the neutral chance counts for against an hour of the day's own
DAY_WEIGHT: Final = 3.0  # hours that the same hour of all days counts for against this day's own
FADE: Final = 0.85  # of an hour's counts is left a week later: four weeks halve them
LEAST_HOURS: Final = 24.0
# Six steps tell a busy afternoon from a night, and not when somebody got up.
STEPS: Final = (0.25, 0.5, 0.78, 0.92, 0.98, 0.995)
GAP_SECONDS: Final = 300.0  # longer without a look: the Mac slept, or its clock was set


def hour_of_week(unix_seconds: float) -> int:
    """Which hour of the week, 0 to 167."""
    return int((unix_seconds - MONDAY_SECONDS) // HOUR_SECONDS) % HOURS


def _zeros() -> list[float]:
    return [0.0] * HOURS


@final
@dataclass
class Habits:
    """Counts by hour of the week, and the hour that is under way. Times are Unix seconds."""

    began: list[float] = field(default_factory=_zeros)
    stayed: list[float] = field(default_factory=_zeros)
    _lent_since: float | None = None
    _looked_at: float = 0.0

    def look(self, now: float, *, is_lent: bool) -> bool:
        """Note how it is now; called at least every few minutes. Whether a count changed."""
        is_changed = False
        if now < self._looked_at:
            # The clock was set: of the hour under way nothing is known.
            self._lent_since = None
        elif self._lent_since is not None and now - self._looked_at > GAP_SECONDS:
            # It lent until it was last looked at; then it slept, and that ended the hour.
            is_changed = self._end(self._looked_at)
        if self._lent_since is not None:
            is_changed = self._pass_hours(now) or is_changed
            if not is_lent:
                is_changed = self._end(now) or is_changed
        elif is_lent:
            self._lent_since = now
        self._looked_at = now
        return is_changed

    def _pass_hours(self, now: float) -> bool:
        hour = int(self._looked_at // HOUR_SECONDS)
        if int(now // HOUR_SECONDS) == hour:
            return False
        if self._was_lent_at_start(hour):
            self._count(hour, stayed=True)
        return True

    def _end(self, at: float) -> bool:
        hour = int(at // HOUR_SECONDS)
        is_counted = self._was_lent_at_start(hour)
        if is_counted:
            self._count(hour, stayed=False)
        self._lent_since = None
        return is_counted

    def _was_lent_at_start(self, hour: int) -> bool:
        return self._lent_since is not None and self._lent_since <= hour * HOUR_SECONDS

    def _count(self, hour: int, *, stayed: bool) -> None:
        index = hour_of_week(hour * HOUR_SECONDS)
        self.began[index] = self.began[index] * FADE + 1.0
        self.stayed[index] = self.stayed[index] * FADE + float(stayed)

    def chances(self) -> tuple[float, ...]:
        """For each hour of the week the chance that the Mac is still lent when it ends.

        The same hour of all days, drawn to what is usual of owners, and this day's own drawn to
        that: an hour that was never seen says no more than the others do.
        """
        found: list[float] = []
        for index in range(HOURS):
            same = range(index % 24, HOURS, 24)
            stayed, began = sum(self.stayed[at] for at in same), sum(self.began[at] for at in same)
            day = (stayed + NEUTRAL_WEIGHT * NEUTRAL) / (began + NEUTRAL_WEIGHT)
            own = self.stayed[index] + DAY_WEIGHT * day
            found.append(own / (self.began[index] + DAY_WEIGHT))
        return tuple(found)

    def told(self) -> tuple[float, ...]:
        """The chances in few steps, or none at all while too little is known."""
        if sum(self.began) < LEAST_HOURS:
            return ()
        return tuple(rounded(chance) for chance in self.chances())


def rounded(chance: float) -> float:
    """The nearest of the steps, by how fast the hour ends: 0.98 is far from 0.995 for a long job."""
    return min(STEPS, key=lambda step: abs(_pace(step) - _pace(chance)))


def _pace(chance: float) -> float:
    return log(-log(min(max(chance, 1e-6), 1 - 1e-6)))


def are_counts(began: Sequence[float], stayed: Sequence[float]) -> bool:
    """Whether these can be the counts of a week."""
    if len(began) != HOURS or len(stayed) != HOURS:
        return False
    return all(0 <= some <= all_ < 1e6 for some, all_ in zip(stayed, began, strict=True))
