"""What the bench stands on: its worlds end, repeat, and beat no bound; its loads are what they say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.placement import bound
from tests.benchmarks.placement.deciding import measure
from tests.benchmarks.placement.policies import Ours, Pulled, Pushed, baselines
from tests.benchmarks.placement.replay import compare, light, scene_at
from tests.benchmarks.placement.scenes import Scene, some_jobs, some_macs
from tests.benchmarks.placement.traces import ENVIRONMENT, read_trace, trace_files
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


def some_trace(folder: Path, count: int = 80) -> Path:
    rows = [f"2023-11-16 18:15:{n // 2:02}.{n % 2 * 5}000000,{100 + 37 * n},{5 + n}" for n in range(count)]
    path = folder / "made.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


@pytest.mark.parametrize(("seed", "load"), [(1, 0.1), (2, 0.6), (3, 0.6), (4, 0.9)])
@pytest.mark.parametrize("is_trace", [False, True])
def test_no_policy_beats_the_bound(tmp_path: Path, seed: int, load: float, *, is_trace: bool) -> None:
    trace = read_trace(some_trace(tmp_path), 80) if is_trace else None
    found = compare("small", load, scene_at(load, seed=seed, macs=8, jobs=80, trace=trace))
    assert 0 < found.jobs < 80
    assert found.bound > 0
    assert len(found.outcomes) == 5
    assert all(one.mean >= found.bound for one in found.outcomes)


def test_a_trace_keeps_its_rhythm_and_lengths_at_any_rate(tmp_path: Path) -> None:
    trace = read_trace(some_trace(tmp_path), 60)
    slow, fast = (some_jobs(1, 60, rate, trace) for rate in (0.5, 2.0))
    assert slow[-1].at == pytest.approx(120)
    assert [job.at for job in slow] == pytest.approx([4 * job.at for job in fast])
    assert [(job.prompt, job.answer) for job in slow] == [(one.prompt, one.answer) for one in trace]


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("TIMESTAMP,Tokens\n2023-11-16 18:15:46,3\n")
    with pytest.raises(ValueError, match="ContextTokens"):
        _ = read_trace(path, 10)
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n")
    with pytest.raises(ValueError, match="two requests"):
        _ = read_trace(path, 10)


def test_traces_are_looked_for_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert trace_files() == []
    made = some_trace(tmp_path)
    assert trace_files() == [made]


def test_the_fleet_is_the_same_at_every_load_and_a_larger_one_holds_the_smaller() -> None:
    calm, busy = (scene_at(load, seed=2, macs=9, jobs=100) for load in (0.2, 0.8))
    assert calm.macs == busy.macs == some_macs(2, 12)[:9]


def test_jobs_come_at_the_rate_that_was_asked_for() -> None:
    assert some_jobs(5, 200, 0.4)[-1].at == pytest.approx(500)


def test_an_hour_of_few_jobs_reaches_small_macs_at_a_bounded_price() -> None:
    found = light(3, 60)
    reached = sum(found.shares.values()) / len(found.shares)
    assert reached >= 0.9
    assert found.mean <= 2 * found.mean_without


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
    assert calm.seconds / busy.seconds == pytest.approx(2, rel=0.15)


def test_timing_measures_what_it_says() -> None:
    found = measure(200, decisions=20)
    assert 0 < found.p50_ms <= found.p99_ms
    assert 0 < found.bytes_per_host < 1000
