"""What each submitter used lately and what each node was given, so that turns are fair.

Both are sums that halve in a day. A job is charged to its submitter when it is first placed, as
long as it is expected to be, and corrected when it ends, by what it came to. At the start of a process both are
worked out from the jobs and attempts of the last days.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from coordinator.db import database_now_us
from coordinator.jobs.models import Attempt, Job
from coordinator.live import LiveJob
from coordinator.placement.fairness import HALF_LIFE_SECONDS, Decayed, work_of_job
from coordinator.placement.types import JobFacts
from node_agent.protocol.cards import ModelFacts

HISTORY_SECONDS: Final = 2 * HALF_LIFE_SECONDS  # what is older counts for less than a quarter
HOUR_US: Final = 3_600_000_000
DAY_MS: Final = 86_400_000
FORECAST_MS_MAX: Final = 3_600_000  # of one attempt: a forecast that is further off was no forecast


@final
class FairShares:
    """Used by submitter, in bytes read. On the event loop's thread, but for `load`."""

    def __init__(self) -> None:
        self.used: Final = Decayed()
        self._charged: Final[dict[str, float]] = {}

    def charge(self, job: JobFacts, *, now: float) -> None:
        """A job was placed: it counts as long as is expected, once, however often it is placed."""
        work = work_of_job(job)
        before = self._charged.get(job.job_id, 0.0)
        if work > before:
            self._charged[job.job_id] = work
            self.used.add(job.submitter_id, work - before, now_seconds=now)

    def settle(self, live: LiveJob, *, now: float) -> None:
        """A job ended: it counts as what it came to."""
        charged = self._charged.pop(live.job_id, None)
        if charged is not None:
            came_to = JobFacts(
                job_id=live.job_id,
                card=live.card,
                prompt_tokens=len(live.work.prompt_ids),
                max_tokens=len(live.token_ids),
            )
            self.used.add(live.account_id, work_of_job(came_to) - charged, now_seconds=now)

    def load(self, session: Session, cards: Mapping[str, ModelFacts], given: Decayed, *, now: float) -> None:
        """Work both sums out from what is on record; `cards` by id, `now` monotonic seconds.

        In steps of an hour, which is less than the sums tell apart.
        """
        now_us = database_now_us(session)
        since_us = now_us - round(HISTORY_SECONDS * 1e6)
        jobs = session.execute(
            select(
                Job.account_id,
                Job.card_id,
                func.max(Job.created_us),
                func.sum(Job.prompt_tokens),
                func.sum(Job.output_tokens),
            )
            .where(Job.id > first_id("job", since_us), Job.created_us > since_us, Job.output_tokens > 0)
            .group_by(Job.account_id, Job.card_id, Job.created_us // HOUR_US)
        ).all()
        attempts = session.execute(
            select(
                Attempt.node_id,
                func.max(Attempt.offered_us),
                func.sum(
                    case((Attempt.forecast_ms > FORECAST_MS_MAX, FORECAST_MS_MAX), else_=Attempt.forecast_ms)
                ),
            )
            .where(Attempt.id > first_id("att", since_us), Attempt.offered_us > since_us)
            .group_by(Attempt.node_id, Attempt.offered_us // HOUR_US)
        ).all()
        for account_id, card_id, at_us, prompt_tokens, output_tokens in jobs:
            card = cards.get(card_id)
            if card is None:
                continue
            done = JobFacts(
                job_id="", card=card, prompt_tokens=int(prompt_tokens), max_tokens=int(output_tokens)
            )
            self.used.add(account_id, _left(work_of_job(done), now_us - at_us), now_seconds=now)
        for node_id, at_us, forecast_ms in attempts:
            given.add(node_id, _left(float(forecast_ms) / 1000, now_us - at_us), now_seconds=now)


def first_id(prefix: str, since_us: int) -> str:
    """Less than every id that was made after that moment, a day of wrong clocks allowed: ids begin
    with their time, so that the table need not be read from its beginning."""
    return f"{prefix}_{max(since_us // 1000 - DAY_MS, 0):012x}"


def _left(amount: float, age_us: int) -> float:
    return amount * 0.5 ** (max(age_us, 0) / 1e6 / HALF_LIFE_SECONDS)
