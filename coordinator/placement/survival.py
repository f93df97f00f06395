"""How likely an owner stays away, hour by hour of the week, in half a byte an hour.

A node sends for each of the week's 168 hours the chance that its owner, away when the hour begins,
is still away when it ends. Kept are rates of return in 15 steps, each 2.25 times the last, rounded
up; step 0 stands for "not known" and counts as `PRIOR_STAY_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

HOURS: Final = 168
HOUR_SECONDS: Final = 3600.0
CURVE_BYTES: Final = HOURS // 2
# Desktop Macs whose owners send nothing: between a working day and a lunch break.
PRIOR_STAY_SECONDS: Final = 4 * HOUR_SECONDS
LONGEST_STAY_SECONDS: Final = 365 * 24 * HOUR_SECONDS
STEP: Final = 2.25
LEVELS: Final = 16
# A look further ahead than this adds nothing: the job is long over.
HORIZON_HOURS: Final = 24

# Returns a second, by step.
RATES: Final[NDArray[np.float64]] = np.array(
    [1 / PRIOR_STAY_SECONDS, *(STEP**k / LONGEST_STAY_SECONDS for k in range(LEVELS - 1))]
)


def packed(chances: Sequence[float]) -> NDArray[np.uint8]:
    """The curve as 84 bytes, two hours each, the earlier one in the low half.

    Raises `ValueError` unless there are 168 chances from 0 to 1; none at all means "not known".
    """
    if not chances:
        return np.zeros(CURVE_BYTES, dtype=np.uint8)
    if len(chances) != HOURS or not all(0 <= chance <= 1 for chance in chances):
        raise ValueError("survival: give 168 chances from 0 to 1, one for each hour of the week")
    rates = [-log(max(chance, 1e-12)) / HOUR_SECONDS for chance in chances]
    levels = 1 + np.searchsorted(RATES[1:], np.array(rates) * (1 - 1e-12))
    levels = np.minimum(levels, LEVELS - 1).astype(np.uint8)
    return (levels[0::2] | (levels[1::2] << 4)).astype(np.uint8)


def return_rates(
    curves: NDArray[np.uint8],
    week_seconds: float,
    ahead_seconds: float,
    *,
    rows: NDArray[np.intp] | None = None,
) -> NDArray[np.float64]:
    """Mean returns a second of each host's owner over the time ahead.

    `curves` has 84 rows and a column a host; `rows` are the hosts that are asked for, None: all.
    At most the next 24 hours are looked at.
    """
    ahead = min(max(ahead_seconds, 1.0), HORIZON_HOURS * HOUR_SECONDS)
    found = np.zeros(curves.shape[1] if rows is None else len(rows))
    at, end = week_seconds, week_seconds + ahead
    while at < end:
        hour = int(at // HOUR_SECONDS)
        until = min((hour + 1) * HOUR_SECONDS, end)
        pair = curves[hour % HOURS // 2]
        pair = pair if rows is None else pair[rows]
        levels = pair >> 4 if hour % 2 else pair & 15
        found += (until - at) / ahead * RATES[levels]
        at = until
    return found
