"""The period that a question about money is for: a month of UTC, or two moments. No clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Query

from coordinator import errors
from coordinator.numbers import Whole
from ledger.views import month_bounds_us

EVERYTHING_US: Final = 2**62
# The end of 9999-12 is no date any more.
MONTH_PATTERN: Final = re.compile(r"^(19[7-9]\d|[2-8]\d\d\d)-(0[1-9]|1[0-2])$", re.ASCII)

MonthText = Annotated[str | None, Query()]
SinceUs = Annotated[Whole | None, Query(ge=0, le=EVERYTHING_US)]
UntilUs = Annotated[Whole | None, Query(ge=0, le=EVERYTHING_US)]


@dataclass(frozen=True)
class Period:
    """From `since_us` (included) to `until_us` (excluded), UTC microseconds; `month` if it is one."""

    since_us: int
    until_us: int
    month: str | None = None

    @property
    def field(self) -> str:
        """The parameter to name when the period is at fault."""
        return "since_us" if self.month is None else "month"


def read_period(month: str | None, since_us: int | None, until_us: int | None, *, now_us: int) -> Period:
    """The period that is asked for, ended by now: a month that still runs ends now.

    Without any of the three, all until now. Raises 400 naming the field: a month beside a bound, a
    month that is malformed or has not begun, an end before the beginning.
    """
    end_us = now_us + 1
    if month is None:
        until = min(EVERYTHING_US if until_us is None else until_us, end_us)
        since = min(since_us or 0, end_us)
        if until < since:
            raise errors.invalid_value("until_us", "must not be before since_us")
        return Period(since, until)
    if since_us is not None or until_us is not None:
        raise errors.invalid_value("month", "give a month or since_us and until_us, not both")
    if not MONTH_PATTERN.fullmatch(month):
        raise errors.invalid_value("month", "write it as 2026-03 (UTC)")
    since, until = month_bounds_us(month)
    if since > now_us:
        raise errors.invalid_value("month", "it has not begun yet (UTC)")
    return Period(since, min(until, end_us), month)
