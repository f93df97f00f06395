"""What the bench stands on: its worlds end, repeat, and beat no bound; its loads are what they say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tests.benchmarks.placement import bound
from tests.benchmarks.placement.deciding import measure
from tests.benchmarks.placement.policies import Ours, Pulled, Pushed, baselines
from tests.benchmarks.placement.replay import compare, scene_at
from tests.benchmarks.placement.scenes import Scene, some_jobs, some_macs
from tests.benchmarks.placement.world import World

MAKERS: dict[str, Callable[[], Ours | Pushed | Pulled]] = {"ours": Ours, **baselines()}


def small_scene(seed: int = 3) -> Scene:
    macs = some_macs(seed, 10)
    jobs = some_jobs(seed, 60, 0.4)
    return Scene(macs, jobs, jobs[-1].at)


@pytest.mark.parametrize("name", MAKERS)
def test_every_job_ends_under_every_policy_and_the_same_way_twice(name: str) -> None:
    ends: list[list[float | None]] = []
    for _ in range(2):
        world = World(small_scene(), MAKERS[name]())
        world.run()
        assert not any(host.tasks for host in world.hosts)
        assert all(int(live) == 0 for live in world.fleet.live[: world.fleet.rows])
        ends.append([task.done for task in world.tasks])
    assert None not in ends[0]
    assert ends[0] == ends[1]


def test_no_policy_beats_the_bound() -> None:
    found = compare("small", 0.6, small_scene(5))
    assert found.bound > 0
    assert all(one.mean >= found.bound for one in found.outcomes)


def test_the_bound_is_met_where_it_can_be_worked_out_by_hand() -> None:
    """Four jobs, two kinds, no batches: the programme's optimum is found by trying all divisions."""
    alone = np.array([[4.0, 10.0], [4.0, 8.0], [4.0, 12.0], [4.0, 9.0]])
    capacity = np.array([8.0, 100.0])
    tables = np.repeat(alone[:, :, None], bound.WIDTH, axis=2)
    best = min(
        sum(alone[job, kind] for job, kind in enumerate(kinds))
        for kinds in product((0, 1), repeat=4)
        if sum(alone[job, 0] for job, kind in enumerate(kinds) if kind == 0) <= capacity[0]
    )
    found = bound.least_mean_seconds(tables, tables, capacity)
    assert best / 4 * 0.99 <= found <= best / 4 + 1e-9


def test_load_is_the_share_of_lent_time_that_the_work_would_take() -> None:
    shared = np.full((10, 1, bound.WIDTH), 3.0)
    assert bound.load_of(shared, np.array([60.0])) == pytest.approx(0.5)
    two = np.full((10, 2, bound.WIDTH), 3.0)
    assert bound.load_of(two, np.array([60.0, 60.0])) == pytest.approx(0.25, rel=0.05)


def test_a_scene_at_twice_the_load_has_its_jobs_in_half_the_time() -> None:
    calm, busy = (scene_at(load, seed=2, macs=12, jobs=400) for load in (0.3, 0.6))
    assert calm.seconds / busy.seconds == pytest.approx(2, rel=0.35)


def test_timing_measures_what_it_says() -> None:
    found = measure(200, decisions=20)
    assert 0 < found.p50_ms <= found.p99_ms
    assert 0 < found.bytes_per_host < 1000
