"""Which queued jobs are looked at now: all of them in fair order, a bounded part at a time.

A *round* is one pass over the whole queue. A short queue is one round a look; of a long one each
look takes the first part, in the order of that moment, of those that this round has not looked at
yet. So no job is passed over, however many stand before it, and what is held for overdue jobs is
held for a whole round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from coordinator.placement.fairness import in_order
from coordinator.placement.types import JobFacts

# A decision takes about 0.1 us a host and as much as for so many hosts beside: a look about 0.2 s.
HOSTS_A_DECISION: Final = 2000
HOSTS_A_LOOK: Final = 2_000_000
PART_MIN, PART_MAX = 20, 1000


@final
class QueueBook:
    """What this round has looked at, and how far the database's queue was read."""

    def __init__(self, overdue_seconds: float) -> None:
        self._overdue_seconds: Final = overdue_seconds
        self._seen: Final[set[str]] = set()
        self.after: tuple[int, str] = (-1, "")
        """When the last job that was read was created, and its id; reading goes on behind it."""
        self.unsure: Final[set[str]] = set()
        """Jobs that the database did not let us reserve for: until it is read that they are queued."""

    def next_part(
        self, jobs: Sequence[JobFacts], usage: Mapping[str, float], *, hosts: int
    ) -> tuple[list[JobFacts], bool, bool]:
        """The jobs to decide now, whether a round begins with them, and whether it ends with them."""
        order = in_order(jobs, usage, overdue_seconds=self._overdue_seconds)
        is_first = not self._seen
        left = [job for job in order if job.job_id not in self._seen]
        part = left[: part_of(hosts)]
        is_last = len(part) == len(left)
        if is_last:
            self._seen.clear()
        else:
            self._seen.update(job.job_id for job in part)
        return part, is_first, is_last

    def was_read(self, page: Sequence[tuple[str, int]], *, is_whole: bool) -> None:
        """A page of the database's queue, each job with when it was created, was read."""
        self.unsure.difference_update(job_id for job_id, _ in page)
        if is_whole or not page:
            self.after = (-1, "")
        else:
            job_id, created_us = page[-1]
            self.after = (created_us, job_id)


def part_of(hosts: int) -> int:
    """How many jobs one look decides over so many hosts."""
    return min(max(HOSTS_A_LOOK // (hosts + HOSTS_A_DECISION), PART_MIN), PART_MAX)
