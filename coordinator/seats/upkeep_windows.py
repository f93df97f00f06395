"""Upkeep that owners announce: updates, a move. Two hours a week of it count as kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.ids import new_id
from coordinator.nodes.models import Node
from coordinator.seats.keeping import week_of
from coordinator.seats.models import UpkeepWindow
from ledger.ratecard import RateCard
from ledger.seats import WEEK_US

AHEAD_MAX: Final = 16
"""Windows of one node that have not ended."""


def announce(
    session: Session, node: Node, *, starts_in_seconds: int, seconds: int, card: RateCard, now_us: int
) -> UpkeepWindow:
    """Note a window that begins from now on. The node's row is the lock: the caller holds it.

    Raises 400 if the weeks that it touches would have more than the card allows, 409 for too many.
    """
    allowed = card.seats.upkeep_seconds_per_week
    if seconds > allowed:
        raise errors.invalid_value("seconds", f"at most {allowed} seconds of upkeep count in a week")
    start_us = now_us + starts_in_seconds * 1_000_000
    end_us = start_us + seconds * 1_000_000
    ahead = windows(session, node.id, since_us=min(now_us, week_of(start_us)))
    if sum(window.end_us > now_us for window in ahead) >= AHEAD_MAX:
        raise errors.conflict(
            "too_many_windows", f"{AHEAD_MAX} windows are announced already; cancel one that has not begun"
        )
    for week_us in range(week_of(start_us), end_us, WEEK_US):
        used = used_seconds([(window.start_us, window.end_us) for window in ahead], week_us)
        wanted = used_seconds([(start_us, end_us)], week_us)
        if used + wanted > allowed:
            raise errors.invalid_value(
                "seconds", f"of the {allowed} seconds of that week {max(0, allowed - used)} are left"
            )
    window = UpkeepWindow(
        id=new_id("upkeep"), node_id=node.id, announced_us=now_us, start_us=start_us, end_us=end_us
    )
    session.add(window)
    session.flush()
    return window


def cancel(session: Session, node: Node, window_id: str, *, now_us: int) -> UpkeepWindow:
    """Take back a window that has not begun. Raises 404, 409."""
    window = session.get(UpkeepWindow, window_id)
    if window is None or window.node_id != node.id:
        raise errors.not_found("upkeep", window_id)
    if window.start_us <= now_us:
        raise errors.conflict("upkeep_begun", "This upkeep has begun; it ends by itself.")
    session.delete(window)
    session.flush()
    return window


def windows(session: Session, node_id: str, *, since_us: int) -> Sequence[UpkeepWindow]:
    """Windows of a node that end after a moment, in the order of time."""
    return session.scalars(
        select(UpkeepWindow)
        .where(UpkeepWindow.node_id == node_id, UpkeepWindow.end_us > since_us)
        .order_by(UpkeepWindow.start_us, UpkeepWindow.id)
    ).all()


def used_seconds(spans: Sequence[tuple[int, int]], week_us: int) -> int:
    """Seconds of (start, end) within the week that begins at `week_us`; overlaps count each. Pure."""
    end_us = week_us + WEEK_US
    return sum(max(0, min(end, end_us) - max(start, week_us)) for start, end in spans) // 1_000_000
