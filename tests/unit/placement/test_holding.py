"""The bench's worlds hold what the plan says, from what was asked until then alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.placement.policies import Ours
from tests.benchmarks.placement.replay import scene_at
from tests.benchmarks.placement.scenes import HORIZON, Job, Scene, some_macs
from tests.benchmarks.placement.world import PLAN_SECONDS, World

COMES = 9.5 * 60  # when the second Mac comes


def few_jobs() -> Scene:
    """A job now and then for one Mac; a second one of the same kind comes later and holds nothing."""
    like = next(mac for mac in some_macs(4, 60) if mac.gib == 16 and mac.is_dedicated)
    macs = tuple(
        replace(like, name=f"node_{n}", first_model=None, spans=((COMES * n, HORIZON),)) for n in range(2)
    )
    jobs = tuple(
        Job(f"job_{n}", 8.0 * n, "llama-3.1-8b-4bit", 300, 60, 60, 2000, f"acct_{n % 3}") for n in range(150)
    )
    return Scene(macs, jobs, jobs[-1].at)


def test_an_idle_mac_loads_what_was_asked_within_a_minute() -> None:
    world, plain = World(few_jobs(), Ours()), World(few_jobs(), Ours(plan=None))
    for each in (world, plain):
        each.run(until=COMES + PLAN_SECONDS)
    assert [host.model for host in world.hosts] == ["llama-3.1-8b-4bit"] * 2
    assert [host.model for host in plain.hosts] == ["llama-3.1-8b-4bit", ""]
    for each in (world, plain):
        each.run()
        assert all(task.done is not None for task in each.tasks)


def test_the_plan_knows_nothing_of_what_is_to_come() -> None:
    """The same until now, another model from now on: the same Macs hold the same."""
    one = few_jobs()
    other = replace(
        one,
        jobs=tuple(
            job if job.at <= COMES + PLAN_SECONDS else replace(job, model="qwen3-32b-4bit")
            for job in one.jobs
        ),
    )
    found: list[list[str]] = []
    for scene in (one, other):
        world = World(scene, Ours())
        world.run(until=COMES + PLAN_SECONDS)
        assert world.held == 1
        found.append([host.model for host in world.hosts])
    assert found[0] == found[1]


def test_a_mac_dwells_on_what_it_was_told_to_hold() -> None:
    world = World(few_jobs(), Ours())
    told: list[int] = []
    load = world.load

    def note(host: object, name: str) -> None:
        told.append(getattr(host, "row", -1))
        load(next(one for one in world.hosts if one is host), name)

    world.load = note  # type: ignore[method-assign]
    world.run()
    assert told
    assert len(set(told)) == len(told)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_parts_of_a_completion_are_all_of_it(seed: int) -> None:
    world = World(scene_at(0.7, seed=seed, macs=10, jobs=120), Ours())
    world.run()
    for task in world.tasks:
        parts = task.parts
        whole = parts.waiting + parts.loading + parts.reading_others + parts.prompt
        whole += parts.alone + parts.beside + parts.returned
        assert task.done is not None
        # A task that an owner's return interrupts loses what it had of its prompt, and less than a token.
        assert whole == pytest.approx(task.done - task.job.at, rel=1e-3, abs=0.1)
