"""Scenes lived through under each policy, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

import numpy as np

from coordinator.placement.types import Policy
from node_agent.sizing import memory
from tests.benchmarks.placement import bound
from tests.benchmarks.placement.parts import Parts, mean_parts
from tests.benchmarks.placement.policies import Ours, baselines
from tests.benchmarks.placement.scenes import (
    BANDS,
    HOUR,
    MODELS,
    Job,
    Mac,
    Scene,
    model,
    some_jobs,
    some_macs,
)
from tests.benchmarks.placement.traces import Request
from tests.benchmarks.placement.world import World

OURS: Final = "ours"
HEALTHY_SECONDS: Final = HOUR / 2
SAMPLE: Final = 600  # jobs that the load is reckoned from
WARM_SHARE: Final = 0.2  # of a scene's time


@dataclass(frozen=True)
class Outcome:
    """One policy on one scene: seconds of completion, and shares as fractions.

    `growth` is the mean of the later half of the jobs over that of the earlier one; `parts` are the
    mean's, and `best_alone` what the jobs would take alone on the best Mac for each; `loads` those for
    a job, `held` those that a plan asked for.
    """

    name: str
    mean: float
    p95: float
    misses: float
    wait_max: float
    served: float
    wasted: float
    loads: int
    held: int
    ends: float
    growth: float
    parts: Parts
    best_alone: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """All policies on one scene at one load, and the bound of the mean."""

    name: str
    load: float
    jobs: int
    seconds: float
    outcomes: tuple[Outcome, ...]
    bound: float

    @property
    def ours(self) -> Outcome:
        """Our own."""
        return next(one for one in self.outcomes if one.name == OURS)

    @property
    def others(self) -> list[Outcome]:
        """The baselines."""
        return [one for one in self.outcomes if one.name != OURS]

    def ratio_to_best(self) -> float:
        """The worse of mean and p95 against the best baseline's."""
        means = self.ours.mean / min(one.mean for one in self.others)
        return max(means, self.ours.p95 / min(one.p95 for one in self.others))

    def gain_vs_median(self) -> float:
        """The lesser of the gains in mean and p95 against the baselines' median."""
        mean = 1 - self.ours.mean / float(np.median([one.mean for one in self.others]))
        return min(mean, 1 - self.ours.p95 / float(np.median([one.p95 for one in self.others])))


def scene_at(
    load: float, *, seed: int, macs: int, jobs: int, trace: Sequence[Request] | None = None
) -> Scene:
    """A scene whose jobs come at that load: the share of all Macs' lent time, in full batches, that
    the best division of the work would take. The fleet is the same at every load."""
    fleet = some_macs(seed, macs)
    sample = some_jobs(seed, SAMPLE, 1.0, trace)
    _, shared = bound.job_tables(sample, np.ones(bound.KINDS))
    rate = 1.0
    for _ in range(3):
        seconds = jobs / rate
        a_second = bound.supply(fleet, seconds) / seconds
        rate = load / bound.load_of(shared, a_second * len(sample))
    drawn = some_jobs(seed, jobs, rate, trace)
    return Scene(fleet, drawn, drawn[-1].at, WARM_SHARE * drawn[-1].at)


def compare(name: str, load: float, scene: Scene, pool: Executor | None = None) -> Comparison:
    """Every policy on the same scene; `pool` has processes that share the work."""
    names = (OURS, *baselines())
    if pool is None:
        outcomes = tuple(outcome(each, scene) for each in names)
    else:
        outcomes = tuple(pool.map(outcome, names, [scene] * len(names)))
    counted = [job for job in scene.jobs if job.at >= scene.warm]
    kinds, factors = bound.kinds_of(scene.macs)
    alone, shared = bound.job_tables(counted, np.ones(bound.KINDS))
    end = max(one.ends for one in outcomes)
    least = bound.least_mean_seconds(
        alone[:, kinds] / factors[:, None],
        shared[:, kinds] / factors[:, None],
        bound.supply_of(scene.macs, scene.warm, end, kinds, factors),
    )
    return Comparison(name, load, len(counted), scene.seconds, outcomes, least)


def outcome(name: str, scene: Scene) -> Outcome:
    """What became of the counted jobs of a scene. Raises `AssertionError` if one never ended."""
    world = World(scene, Ours() if name == OURS else baselines()[name]())
    world.run()
    unfinished = sum(task.done is None for task in world.tasks)
    if unfinished:
        raise AssertionError(f"{name}: {unfinished} jobs never ended")
    tasks = [task for task in world.tasks if task.job.at >= scene.warm]
    seconds = np.array([(task.done or 0.0) - task.job.at for task in tasks])
    # A submitter who waits a minute, and then as long as a usual Mac takes.
    late = [s > 60 + task.job.answer / 10 for s, task in zip(seconds, tasks, strict=True)]
    fitting = [host for host in world.hosts if fits_any(host.mac) and is_healthy(host.mac, scene.seconds)]
    half = len(seconds) // 2
    return Outcome(
        name=name,
        mean=float(seconds.mean()),
        p95=float(np.percentile(seconds, 95)),
        misses=float(np.mean(late)),
        wait_max=max(task.waited for task in tasks),
        served=sum(host.served > 0 for host in fitting) / max(len(fitting), 1),
        wasted=float(np.mean([1 - used / lent for _, used, lent in world.given])) if world.given else 0.0,
        loads=len(world.given),
        held=world.held,
        ends=world.now,
        growth=float(seconds[half:].mean() / seconds[:half].mean()),
        parts=mean_parts([task.parts for task in tasks]),
        best_alone=best_alone(scene, [task.job for task in tasks]),
    )


def best_alone(scene: Scene, jobs: Sequence[Job]) -> float:
    """Mean seconds of jobs each alone on the Mac that is fastest for it."""
    kinds, factors = bound.kinds_of(scene.macs)
    alone, _ = bound.job_tables(jobs, np.ones(bound.KINDS))
    return float((alone[:, kinds, 0] / factors).min(axis=1).mean())


def fits_any(mac: Mac) -> bool:
    """Whether some job of the scenes fits the Mac."""
    least = min(memory.needed_bytes(model(name), context_tokens=4096, width=1) for name, _ in MODELS)
    return least <= mac.hardware.lent_bytes


def is_healthy(mac: Mac, seconds: float) -> bool:
    """Lent for half an hour at least of the time."""
    lent = sum(max(min(end, seconds) - max(start, 0.0), 0.0) for start, end in mac.spans)
    return lent >= min(HEALTHY_SECONDS, seconds / 2)


@dataclass(frozen=True)
class Light:
    """An hour of three jobs an hour for each fitting Mac: who served, and what that cost."""

    shares: dict[str, float]
    without_fitting: float
    mean: float
    mean_without: float

    @property
    def least(self) -> float:
        """The share of the worst size band."""
        return min(self.shares.values())


def light(seed: int, macs: int) -> Light:
    """Ours with and without the guaranteed share of trials, on the same hour."""
    fleet = some_macs(seed, macs)
    fitting = [mac for mac in fleet if fits_any(mac)]
    rate = 3 * len(fitting) / HOUR
    jobs = tuple(job for job in some_jobs(seed, 6 * macs, rate) if job.at <= HOUR)
    scene = Scene(fleet, jobs, HOUR)
    world, plain = World(scene, Ours()), World(scene, Ours(Policy(hungry_after=1e12)))
    world.run()
    plain.run()
    shares: dict[str, float] = {}
    for low, high in BANDS:
        band = [
            host
            for host in world.hosts
            if low <= host.mac.gib < high and fits_any(host.mac) and is_healthy(host.mac, HOUR)
        ]
        if band:
            shares[f"{low}-{high} GiB"] = sum(host.served > 0 for host in band) / len(band)
    return Light(shares, 1 - len(fitting) / len(fleet), _mean(world), _mean(plain))


def _mean(world: World) -> float:
    return float(np.mean([task.done - task.job.at for task in world.tasks if task.done is not None]))
