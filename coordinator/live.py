"""The jobs under way in this process: their delivered prefix, their readers, their attempt.

Everything here lives in memory only and on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

from coordinator import clock
from coordinator.answer import AnswerText
from coordinator.jobs.schemas import Work
from coordinator.jobs.stream import Ending, JobStream
from coordinator.placement.types import JobFacts
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard


@dataclass
class LiveAttempt:
    """The attempt whose frames count; its chunks' offsets count from its own first token."""

    fence: int
    node_id: str
    deadline_seconds: float
    answered: asyncio.Future[wire.DeclineReason | None]
    received: list[int] = field(default_factory=list[int])
    last_progress_at: float = field(default_factory=clock.monotonic)
    progress: wire.Progress | None = None
    accepted_us: int | None = None
    first_token_us: int | None = None
    gone_since: float | None = None
    is_proven: bool = True


@dataclass
class LiveJob:
    """One job under way, with everything secret about it: in memory only."""

    job_id: str
    account_id: str
    card: ModelCard
    work: Work
    is_async: bool
    answer: AnswerText
    make_result: Callable[[JobStream, Ending], bytes] | None = None
    stream: JobStream = field(default_factory=JobStream)
    token_ids: list[int] = field(default_factory=list[int])
    attempt: LiveAttempt | None = None
    failed_attempts: int = 0
    unproven_tokens: int = 0  # relayed, but from an attempt whose result did not hold
    late: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """(fence, node) of attempts whose whole result came after they were lost."""
    waiting_since: float | None = None  # monotonic; set while the job looks for another host
    requeueing: asyncio.Task[None] | None = None
    excluded: dict[str, float] = field(default_factory=dict[str, float])
    is_ending: bool = False
    ended_at: float | None = None

    @property
    def has_proven_tokens(self) -> bool:
        """Whether something was delivered that is paid for, however the job ends."""
        return len(self.token_ids) > self.unproven_tokens

    def facts(self, now: float) -> JobFacts:
        """What placement decides from; `now` is monotonic seconds."""
        return JobFacts(
            job_id=self.job_id,
            card=self.card,
            prompt_tokens=len(self.work.prompt_ids),
            max_tokens=self.work.max_tokens,
            excluded_node_ids=frozenset(n for n, until in self.excluded.items() if until > now),
        )


@final
class LiveJobs:
    """The jobs under way, and those that ended lately and can still be read."""

    def __init__(self) -> None:
        self._jobs: Final[dict[str, LiveJob]] = {}

    def __iter__(self) -> Iterator[LiveJob]:
        """Over a copy: whoever walks may add and drop."""
        return iter(list(self._jobs.values()))

    def add(self, live: LiveJob) -> LiveJob:
        """The job as it is carried: `live`, unless it was carried already."""
        return self._jobs.setdefault(live.job_id, live)

    def get(self, job_id: str) -> LiveJob | None:
        """The job, or None."""
        return self._jobs.get(job_id)

    def drop(self, live: LiveJob) -> None:
        """Forget a job."""
        self._jobs.pop(live.job_id, None)

    def on_node(self, node_id: str) -> Iterator[tuple[LiveJob, LiveAttempt]]:
        """The jobs whose attempt runs on this node and that are not ending."""
        for live in self:
            attempt = live.attempt
            if attempt is not None and attempt.node_id == node_id and not live.is_ending:
                yield live, attempt

    def attempts_by_node(self) -> dict[str, int]:
        """How many attempts run on each node."""
        counts: dict[str, int] = {}
        for live in self._jobs.values():
            if live.attempt is not None:
                counts[live.attempt.node_id] = counts.get(live.attempt.node_id, 0) + 1
        return counts

    def forecast_seconds(self, unknown_seconds: float) -> float:
        """When the first seat may come free, from the progress of what runs; a guess, no promise.

        `unknown_seconds` where nothing runs that could tell.
        """
        now = clock.wall_us()
        left = [unknown_seconds]
        for live in self._jobs.values():
            first_us = live.attempt.first_token_us if live.attempt is not None else None
            if first_us is not None and live.token_ids:
                per_token = (now - first_us) / 1e6 / len(live.token_ids)
                left.append(per_token * (live.work.max_tokens - len(live.token_ids)))
        return min(left)
