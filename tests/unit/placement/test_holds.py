"""Which host is kept free for a job that has waited too long, and how many jobs share it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.fleet import Fleet
from coordinator.placement.queue import place_queue, release_holds
from coordinator.placement.types import HostFacts, JobFacts, NotPlaced, SlotFacts
from tests.unit.placement.test_match import make_host

SMALL, LARGE, THIRD = "llama-3.2-3b-4bit", "llama-3.1-8b-4bit", "qwen2.5-14b-4bit"


def overdue(name: str, number: int = 0) -> JobFacts:
    card = load_catalogue().known(name)
    assert card is not None
    return JobFacts(f"job_{name}_{number}", card, 50, 100, card_revision=name, waited_seconds=500.0 - number)


def host(name: str, model: str, live: int, *, seat: float, idle: float, width: int = 4) -> HostFacts:
    slot = SlotFacts(f"slot_{name}", model, 11 << 30, width, 8192, live, is_warm=True)
    made = make_host(name, lent_gib=12, slots=(slot,))
    return replace(
        made,
        hardware=made.hardware.model_copy(update={"width": width}),
        seat_free_seconds=seat,
        idle_in_seconds=idle,
    )


def held(fleet: Fleet, *jobs: JobFacts) -> list[str]:
    """The host that is held for each of the jobs, none of which finds a place."""
    found = place_queue(jobs, fleet)
    assert all(isinstance(entry.decision.choice, NotPlaced) for entry in found)
    rows = {entry.job.job_id: entry.held_row for entry in found}
    return [fleet.node_id(rows[job.job_id]) if rows[job.job_id] >= 0 else "" for job in jobs]


def fleet_of(*hosts: HostFacts) -> Fleet:
    fleet = Fleet()
    for each in hosts:
        _ = fleet.put(each)
    return fleet


def test_a_seat_that_becomes_free_goes_before_a_host_that_must_be_emptied() -> None:
    fleet = fleet_of(
        host("full", LARGE, 4, seat=50.0, idle=90.0), host("other", SMALL, 1, seat=5.0, idle=5.0)
    )
    assert held(fleet, overdue(LARGE)) == ["node_full"]
    assert held(fleet, overdue(THIRD)) == ["node_other"]


def test_of_full_hosts_the_one_with_the_next_seat_is_held() -> None:
    """Not the one that will be empty first."""
    fleet = fleet_of(host("a", LARGE, 4, seat=50.0, idle=60.0), host("b", LARGE, 4, seat=5.0, idle=90.0))
    assert held(fleet, overdue(LARGE)) == ["node_b"]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_host_is_held_for_as_many_jobs_of_a_model_as_it_has_seats(width: int) -> None:
    fleet = fleet_of(
        host("a", SMALL, 1, seat=5.0, idle=5.0, width=width),
        host("b", SMALL, 1, seat=9.0, idle=9.0, width=width),
    )
    jobs = [overdue(LARGE, number) for number in range(2 * width + 1)]
    expected = ["node_a"] * width + ["node_b"] * width + [""]
    assert held(fleet, *jobs) == expected
    # The next look counts anew.
    assert held(fleet, *jobs) == expected
    release_holds(fleet)
    assert not fleet.held_for


def test_a_host_is_not_held_for_two_models() -> None:
    fleet = fleet_of(host("a", SMALL, 1, seat=5.0, idle=5.0), host("b", SMALL, 1, seat=9.0, idle=9.0))
    jobs = (overdue(LARGE), overdue(THIRD, 1), overdue(LARGE, 2))
    assert held(fleet, *jobs) == ["node_a", "node_b", "node_a"]
