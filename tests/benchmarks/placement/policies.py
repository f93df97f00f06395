"""Our placement and four others. All pass the same gates, see the same loaded models and forecasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.placement.fairness import Decayed, in_order, work_of_job
from coordinator.placement.gates import ABLE, Look, look_at
from coordinator.placement.match import Decision, choice_at, decide
from coordinator.placement.queue import hold_for, release_holds
from coordinator.placement.slots import NOBODY
from coordinator.placement.types import NotPlaced, Outlook, Placed, Policy
from tests.benchmarks.placement.holding import hold_what_is_asked
from tests.benchmarks.placement.world import Task, World

LOOKED_AT: Final = 40  # jobs of the queue that are decided on after each event
NEEDS_MAX: Final = 64  # of jobs that wait, whose memory is kept free
Rank = Callable[[Look, NDArray[np.intp], Random], NDArray[np.float64]]


@dataclass
class Ours:
    """The network's own, as the dispatcher would use it."""

    policy: Policy = field(default_factory=Policy)
    usage: Decayed = field(default_factory=Decayed)
    seconds: list[float] = field(default_factory=list[float])
    needs: dict[str, int] = field(default_factory=dict[str, int])
    plan: Callable[[World], object] | None = hold_what_is_asked

    def place(self, world: World) -> None:
        """The queue in fair order, each choice seen by the next."""
        fleet, outlook = world.fleet, self._outlook(world)
        facts = {name: world.facts(task) for name, task in world.queue.items()}
        release_holds(fleet)
        order = in_order(facts.values(), self.usage.all(now_seconds=world.now))
        # Of one kind of job the first that finds nothing speaks for those behind it.
        hopeless: dict[str, int] = {}
        looks = 0
        for job in order:
            if hopeless.get(job.revision, job.tokens + 1) <= job.tokens:
                continue
            looks += 1
            if looks > LOOKED_AT:
                break
            found = decide(job, fleet, policy=self.policy, outlook=outlook, now_seconds=world.now)
            if isinstance(found.choice, Placed):
                self.usage.add(job.submitter_id, work_of_job(job), now_seconds=world.now)
                world.start(world.queue[job.job_id], found.choice, found.row, found.slot)
                continue
            if "better_soon" in found.choice.rejected:
                _ = self.needs.pop(job.job_id, None)
            else:
                self.needs[job.job_id] = found.choice.needed_bytes
            if job.is_overdue:
                _ = hold_for(fleet, found)
            self._claim(world, found, found.choice)
            if not found.choice.rejected.keys() & {"better_soon"}:
                hopeless[job.revision] = job.tokens

    def _outlook(self, world: World) -> Outlook:
        """With the memory needed by jobs that found no host at their last look, not by choice."""
        self.needs = {name: need for name, need in self.needs.items() if name in world.queue}
        largest = sorted(self.needs.values(), reverse=True)[:NEEDS_MAX]
        return Outlook(big_needs=tuple(largest), week_seconds=world.now % 604_800)

    @staticmethod
    def _claim(world: World, found: Decision, choice: NotPlaced) -> None:
        """A job that waits for a host is behind it in the eyes of the next, until the next look."""
        if choice.soonest_node_id is None or choice.soonest_seconds is None:
            return
        (row,) = world.fleet.rows_of(frozenset((choice.soonest_node_id,)))
        ends = world.now + choice.soonest_seconds
        world.fleet.expect_free(row, seat_at=ends, idle_at=max(ends, float(world.fleet.idle_at[row])))
        world.claimed.add(row)


@dataclass
class Pushed:
    """Each job in the order of arrival to the host that ranks lowest, if one can take it now."""

    rank: Rank
    random: Random = field(default_factory=lambda: Random(7))
    plan: None = None

    def place(self, world: World) -> None:
        """As many as find a host."""
        hopeless: dict[str, int] = {}
        looks = 0
        for task in list(world.queue.values()):
            job = world.facts(task)
            if hopeless.get(job.revision, job.tokens + 1) <= job.tokens:
                continue
            looks += 1
            if looks > LOOKED_AT:
                break
            look = look_at(job, world.fleet, now_seconds=world.now)
            able = np.flatnonzero(look.code == ABLE)
            if not len(able):
                hopeless[job.revision] = job.tokens
                continue
            ranks = self.rank(look, able, self.random)
            row = int(able[np.lexsort((world.fleet.tie[able], look.total[able], ranks))[0]])
            world.start(task, choice_at(look, row, now_seconds=world.now), row, int(look.seat[row]))


@dataclass
class Pulled:
    """Each host with a free seat takes the oldest job that it can, of its loaded model first."""

    random: Random = field(default_factory=lambda: Random(7))
    plan: None = None

    def place(self, world: World) -> None:
        """Hosts come in random order; each takes jobs until it has none that it could take."""
        looks: dict[str, Look] = {}
        jobs: list[Task] = []
        hopeless: dict[str, int] = {}
        for task in world.queue.values():
            job = world.facts(task)
            if hopeless.get(job.revision, job.tokens + 1) <= job.tokens:
                continue
            if len(jobs) == LOOKED_AT:
                break
            looks[job.job_id] = look_at(job, world.fleet, now_seconds=world.now)
            if (looks[job.job_id].code == ABLE).any():
                jobs.append(task)
            else:
                hopeless[job.revision] = job.tokens
        able = {name: look.code == ABLE for name, look in looks.items()}
        rows = [
            row for row, host in enumerate(world.hosts) if host.is_lent and any(a[row] for a in able.values())
        ]
        self.random.shuffle(rows)
        for row in rows:
            mine = [task for task in jobs if task.job.name in world.queue and able[task.job.name][row]]
            if not mine:
                continue
            warm = [task for task in mine if looks[task.job.name].seat[row] != NOBODY]
            task = (warm or mine)[0]
            look = looks[task.job.name]
            world.start(task, choice_at(look, row, now_seconds=world.now), row, int(look.seat[row]))


def fewest_attempts(look: Look, able: NDArray[np.intp], random: Random) -> NDArray[np.float64]:
    """Least loaded first, among equals at random."""
    noise = np.array([random.random() for _ in able])
    return look.fleet.live[able] + noise / 2


def soonest_done(look: Look, able: NDArray[np.intp], random: Random) -> NDArray[np.float64]:
    """Fastest first: the least forecast, loading included."""
    return look.total[able]


def tightest_memory(look: Look, able: NDArray[np.intp], random: Random) -> NDArray[np.float64]:
    """Best fit: the least memory lent beyond what is needed."""
    return (look.fleet.lent[able] - look.needed).astype(np.float64)


def baselines() -> dict[str, Callable[[], Pushed | Pulled]]:
    """The four others by name; each call makes one anew."""
    return {
        "first-come pull": Pulled,
        "least loaded": lambda: Pushed(fewest_attempts),
        "fastest first": lambda: Pushed(soonest_done),
        "best fit by memory": lambda: Pushed(tightest_memory),
    }
