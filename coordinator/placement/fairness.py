"""Who comes first: decayed use between submitters, and age above all. Pure.

A submitter's use is the work done for it, halved every `half_life_seconds`. The queue goes to the
one that used least, its oldest job first, and counts that job as used before the next is chosen: a
thousand jobs of one submitter do not stand before another's first. A job older than
`OVERDUE_SECONDS` goes before all that are not, the oldest first, whoever sent it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from coordinator.placement.types import JobFacts
from node_agent.sizing.memory import weights_bytes

HALF_LIFE_SECONDS: Final = 24 * 3600.0
# Within the longest wait of a connection, 300 s. Measured where more comes than a fleet keeps up with: with
# 120 s so many jobs are overdue that hosts which are kept free for them cost all more than they gain.
OVERDUE_SECONDS: Final = 240.0


def work_of_job(job: JobFacts) -> float:
    """How much a job takes from all, in bytes read: the measure that no choice of host changes.

    Weights once for each answer token; a prompt's tokens share reads, sixteen to one.
    """
    return weights_bytes(job.card) * (job.answer_tokens + job.prompt_tokens / 16)


@final
class Decayed:
    """Sums that halve with time, by key. Only sums that are a millionth of the largest are dropped."""

    def __init__(self, half_life_seconds: float = HALF_LIFE_SECONDS) -> None:
        if half_life_seconds <= 0:
            raise ValueError("half_life_seconds must be positive")
        self._half_life = half_life_seconds
        self._entries: dict[str, tuple[float, float]] = {}

    def add(self, key: str, amount: float, *, now_seconds: float) -> None:
        """Count `amount` at that moment; a negative one takes back what was not done after all."""
        self._entries[key] = (max(self.of(key, now_seconds=now_seconds) + amount, 0.0), now_seconds)

    def of(self, key: str, *, now_seconds: float) -> float:
        """What is left of a key's sum."""
        value, since = self._entries.get(key, (0.0, now_seconds))
        return value * 0.5 ** (max(now_seconds - since, 0.0) / self._half_life)

    def all(self, *, now_seconds: float) -> dict[str, float]:
        """What is left of every sum; what has become nothing is forgotten."""
        found = {key: self.of(key, now_seconds=now_seconds) for key in self._entries}
        least = max(found.values(), default=0.0) * 1e-6
        for key in [key for key, value in found.items() if value <= least]:
            del self._entries[key]
        return {key: value for key, value in found.items() if value > least}


def in_order(
    jobs: Iterable[JobFacts],
    usage: Mapping[str, float],
    *,
    overdue_seconds: float = OVERDUE_SECONDS,
    work: Callable[[JobFacts], float] = work_of_job,
) -> list[JobFacts]:
    """The queue in the order in which it is to be placed; overdue jobs are marked as such.

    `usage` by submitter is in the unit of `work`. Among equals the longest waiting goes first, then
    the lower id, so that the order of `jobs` does not matter.
    """
    marked = [replace(job, is_overdue=job.waited_seconds >= overdue_seconds) for job in jobs]
    overdue = sorted((job for job in marked if job.is_overdue), key=_age)
    by_submitter: dict[str, list[JobFacts]] = defaultdict(list)
    for job in sorted((job for job in marked if not job.is_overdue), key=_age, reverse=True):
        by_submitter[job.submitter_id].append(job)
    return overdue + _interleaved(by_submitter, usage, work)


def _age(job: JobFacts) -> tuple[float, str]:
    return (-job.waited_seconds, job.job_id)


def _interleaved(
    by_submitter: Mapping[str, list[JobFacts]],
    usage: Mapping[str, float],
    work: Callable[[JobFacts], float],
) -> list[JobFacts]:
    """The next job is always one of who used least, those chosen here included."""
    heap = [(usage.get(name, 0.0), _age(waiting[-1]), name) for name, waiting in by_submitter.items()]
    heapq.heapify(heap)
    found: list[JobFacts] = []
    while heap:
        used, _, name = heapq.heappop(heap)
        waiting = by_submitter[name]
        job = waiting.pop()
        found.append(job)
        if waiting:
            heapq.heappush(heap, (used + work(job), _age(waiting[-1]), name))
    return found


def position(job_id: str, order: Sequence[JobFacts], unservable: frozenset[str] = frozenset()) -> int:
    """How many jobs that can be served at all stand before this one.

    Raises `ValueError` if it does not stand in the queue.
    """
    before = 0
    for job in order:
        if job.job_id == job_id:
            return before
        before += job.job_id not in unservable
    raise ValueError(f"{job_id} is not queued")
