"""How much paid work there is: what was asked and paid lately, and how busy it keeps the Macs.

Public work waits for a quiet hour, and everyone may see the figures, so they are read at most twice
a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from coordinator import clock
from coordinator.db import Database
from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import Node
from ledger.pricing import PER_MILLION
from ledger.ratecard import DAY_US, HOUR_US
from node_agent.protocol.ids import make_id

KEEP_SECONDS: Final = 30.0
ATTEMPT_US_MAX: Final = 6 * HOUR_US
"""No attempt of an answer runs longer; what was offered before is not looked at."""
CONNECTED: Final = ("ready", "busy", "draining")


@dataclass(frozen=True)
class Paid:
    """Jobs that were charged to submitters, the tokens that they read and wrote, the charges in uMLX."""

    jobs: int
    tokens: int
    charged_umlx: int


@dataclass(frozen=True)
class Demand:
    """Paid work of jobs made in the last day and in the last 30, and the part of the connected
    Macs' last hour that went into it (ppm).
    """

    day: Paid
    month: Paid
    paid_busy_ppm: int


def read_demand(session: Session, now_us: int) -> Demand:
    """The demand at this moment; work for oneself and public work are none."""
    return Demand(
        _paid_since(session, now_us - DAY_US),
        _paid_since(session, now_us - 30 * DAY_US),
        _paid_busy_ppm(session, now_us),
    )


def first_id(prefix: str, at_us: int) -> str:
    """The least id that can have been made at that time: ids sort by it, so it needs no index."""
    return make_id(prefix, unix_ms=max(0, at_us) // 1000, random_bytes=bytes(10))


def busy_us(intervals: Iterable[tuple[int, int]]) -> int:
    """Microseconds in which at least one interval (start, end) ran; overlaps count once."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _paid_since(session: Session, since_us: int) -> Paid:
    jobs, tokens, charged = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(Job.prompt_tokens + Job.output_tokens), 0),
            func.coalesce(func.sum(Job.charge_umlx), 0),
        ).where(Job.id >= first_id("job", since_us), Job.charge_umlx > 0, Job.payer.startswith("user:"))
    ).one()
    return Paid(jobs, int(tokens), int(charged))


def _paid_busy_ppm(session: Session, now_us: int) -> int:
    since_us = now_us - HOUR_US
    rows = session.execute(
        select(Attempt.node_id, Attempt.accepted_us, Attempt.offered_us, Attempt.ended_us)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            Attempt.id >= first_id("att", now_us - ATTEMPT_US_MAX),
            or_(Attempt.ended_us.is_(None), Attempt.ended_us > since_us),
            Attempt.is_linked.is_(False),
            Job.payer.startswith("user:"),
        )
    )
    work: dict[str, list[tuple[int, int]]] = {}
    for node_id, accepted_us, offered_us, ended_us in rows:
        if accepted_us is None and ended_us is not None:
            continue  # declined, or never answered: nothing ran
        start_us = max(since_us, offered_us if accepted_us is None else accepted_us)
        work.setdefault(node_id, []).append((start_us, min(now_us, now_us if ended_us is None else ended_us)))
    connected = session.scalars(select(Node.id).where(Node.state.in_(CONNECTED), Node.revoked_us.is_(None)))
    fleet = {*connected, *work}
    if not fleet:
        return 0
    return sum(map(busy_us, work.values())) * PER_MILLION // (len(fleet) * HOUR_US)


@final
class DemandGauge:
    """The demand, read anew when it is older than `keep_seconds`. Thread safe."""

    def __init__(self, database: Database, *, keep_seconds: float = KEEP_SECONDS) -> None:
        self._database: Final = database
        self._keep_seconds: Final = keep_seconds
        self._lock: Final = threading.Lock()
        self._read_at = -keep_seconds
        self._demand: Demand | None = None

    def demand(self) -> Demand:
        """The demand now, or a little ago. Blocking."""
        # Others wait for the one that reads: they would only read the same.
        with self._lock:
            if self._demand is None or clock.monotonic() - self._read_at >= self._keep_seconds:
                with self._database.read() as session:
                    self._demand = read_demand(session, self._database.now_us(session))
                self._read_at = clock.monotonic()
            return self._demand
