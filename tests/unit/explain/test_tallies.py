"""Tallies: each job once a Mac, whatever rows, hours and waits do to it, in bounded memory."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from coordinator.nodes import tallies as module
from coordinator.nodes.tallies import COLUMNS, HOUR_US, Tallies, Tally
from coordinator.nodes.why import lend_more_json, why_json
from coordinator.placement.fleet import Fleet
from coordinator.placement.match import decide
from coordinator.placement.queue import Entry, place_queue
from coordinator.placement.types import JobFacts, NotPlaced, Placed
from tests.unit.placement.test_match import CARD, GIB, make_host, make_job, make_slot


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.now_us = 100 * HOUR_US

    def __call__(self) -> int:
        return self.now_us


def observe(tallies: Tallies, fleet: Fleet, job: JobFacts) -> Placed | NotPlaced:
    decision = decide(job, fleet)
    tallies(Entry(job, decision, decision.slot), fleet)
    return decision.choice


def total(found: list[Tally]) -> tuple[int, int, dict[str, int]]:
    rejected: dict[str, int] = {}
    for hour in found:
        for reason, count in hour.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
    return sum(h.seen for h in found), sum(h.taken for h in found), rejected


def test_a_waiting_job_counts_once_however_often_it_is_looked_at() -> None:
    fleet, tallies = Fleet(), Tallies(Clock())
    row = fleet.put(make_host("a", mode="away"))
    for _ in range(5):
        assert isinstance(observe(tallies, fleet, make_job()), NotPlaced)
    assert total(tallies.of("node_a")) == (1, 0, {"owner_present": 1})
    # When it is placed there after all, that is what it counts as.
    fleet.replace(row, make_host("a"))
    assert isinstance(observe(tallies, fleet, make_job()), Placed)
    assert total(tallies.of("node_a")) == (1, 1, {})
    # Its attempt is lost, and it is decided again: a second look, and no third one while it waits.
    fleet.replace(row, make_host("a", mode="away"))
    observe(tallies, fleet, make_job())
    assert total(tallies.of("node_a")) == (1, 1, {})
    fleet.replace(row, make_host("a"))
    observe(tallies, fleet, make_job())
    assert total(tallies.of("node_a")) == (2, 2, {})


def test_a_host_that_came_later_sees_the_job_that_it_takes() -> None:
    fleet, tallies = Fleet(), Tallies(Clock())
    _ = fleet.put(make_host("a", mode="away"))
    observe(tallies, fleet, make_job())
    _ = fleet.put(make_host("b"))
    observe(tallies, fleet, make_job())
    assert total(tallies.of("node_a")) == (1, 0, {"owner_present": 1})
    assert total(tallies.of("node_b")) == (1, 1, {})


def test_counts_follow_the_host_and_not_its_row() -> None:
    fleet, tallies = Fleet(), Tallies(Clock())
    row = fleet.put(make_host("a", mode="away"))
    observe(tallies, fleet, make_job(job_id="job_1"))
    fleet.remove(row)
    assert fleet.put(make_host("b", mode="draining")) == row
    observe(tallies, fleet, make_job(job_id="job_2"))
    other = fleet.put(make_host("a", mode="away"))
    assert other != row
    observe(tallies, fleet, make_job(job_id="job_3"))
    assert total(tallies.of("node_a")) == (2, 0, {"owner_present": 2})
    assert total(tallies.of("node_b")) == (2, 0, {"draining": 2})
    assert tallies.of("node_c") == []


def test_hours_are_kept_for_a_day() -> None:
    clock = Clock()
    fleet, tallies = Fleet(), Tallies(clock)
    _ = fleet.put(make_host("a", mode="away"))
    for hour in range(30):
        clock.now_us = (100 + hour) * HOUR_US + 5
        for n in range(hour + 1):
            observe(tallies, fleet, make_job(job_id=f"job_{hour}_{n}"))
    found = tallies.of("node_a")
    assert [one.start_us // HOUR_US for one in found] == list(range(105, 130))
    assert [one.seen for one in found] == list(range(6, 31))
    clock.now_us -= 10 * HOUR_US  # set back: what comes now belongs to the hour that runs
    observe(tallies, fleet, make_job(job_id="job_late"))
    assert tallies.of("node_a")[-1].seen == 31
    clock.now_us += 100 * HOUR_US
    assert tallies.of("node_a") == []


def test_a_job_placed_in_another_hour_is_seen_again() -> None:
    clock = Clock()
    fleet, tallies = Fleet(), Tallies(clock)
    row = fleet.put(make_host("a", mode="away"))
    observe(tallies, fleet, make_job())
    clock.now_us += HOUR_US
    fleet.replace(row, make_host("a"))
    observe(tallies, fleet, make_job())
    first, second = tallies.of("node_a")
    assert (first.seen, first.taken, first.rejected) == (1, 0, {"owner_present": 1})
    assert (second.seen, second.taken, second.rejected) == (1, 1, {})


def test_taken_and_reasons_are_what_was_seen_in_a_long_random_day() -> None:
    draw, clock = random.Random(5), Clock()
    fleet, tallies = Fleet(), Tallies(clock)
    modes = ("ready", "away", "draining")
    hosts = [make_host(f"{n:02}", bandwidth_gb=draw.choice((50, 100, 400))) for n in range(20)]
    rows = [fleet.put(host) for host in hosts]
    placed: set[str] = set()
    takes = 0
    for step in range(300):
        n = draw.randrange(20)
        changed = replace(
            hosts[n],
            mode=draw.choice(modes),
            slots=(make_slot(slot_id=f"s{n}", live=8),) if draw.random() < 0.5 else (),
        )
        fleet.replace(rows[n], changed)
        jobs = [make_job(job_id=f"job_{draw.randrange(200)}") for _ in range(3)]
        fresh = {job.job_id: job for job in jobs if job.job_id not in placed}
        for entry in place_queue(fresh.values(), fleet):
            tallies(entry, fleet)
            if isinstance(entry.decision.choice, Placed):
                placed.add(entry.job.job_id)
                takes += 1
        if step % 40 == 39:
            clock.now_us += HOUR_US
    found = [total(tallies.of(host.node_id)) for host in hosts]
    assert sum(taken for _, taken, _ in found) == takes > 20
    for seen, taken, rejected in found:
        assert seen == taken + sum(rejected.values())


def test_more_lent_memory_and_the_jobs_that_it_would_have_brought() -> None:
    tallies, fleet = Tallies(Clock()), Fleet()
    job = make_job(prompt_tokens=100, max_tokens=100)
    _ = fleet.put(make_host("small", lent_gib=0.25))
    _ = fleet.put(make_host("large", lent_gib=64))
    for n in range(3):
        observe(tallies, fleet, replace(job, job_id=f"job_{n}"))
    (hour,) = tallies.of("node_small")
    assert (hour.rejected, hour.short[0], sum(hour.short)) == ({"memory_lent_short": 3}, 3, 3)
    assert sum(tallies.of("node_large")[0].short) == 0
    view = why_json([hour], since_us=0, lent_bytes=GIB // 4)
    assert view["lend_more"] == [{"gib": 1, "jobs": 3}]
    assert lend_more_json([2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9]) == [{"gib": 1, "jobs": 2}, {"gib": 4, "jobs": 5}]


def test_a_refused_job_counts_once_for_each_submitter_and_size() -> None:
    tallies, fleet = Tallies(Clock()), Fleet()
    _ = fleet.put(make_host("small", lent_gib=0.25))
    for submitter in ("acct_1", "acct_2"):
        for _ in range(10):
            tallies.count_refused(make_job(job_id="", submitter_id=submitter), fleet)
    assert total(tallies.of("node_small")) == (2, 0, {"memory_lent_short": 2})


def test_memory_is_bounded_however_many_jobs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CODES_BYTES_MAX", 2000)
    monkeypatch.setattr(module, "JOBS_MAX", 50)
    tallies, fleet = Tallies(Clock()), Fleet()
    rows = [fleet.put(make_host(f"{n:02}", mode="away")) for n in range(20)]
    for n in range(200):
        observe(tallies, fleet, make_job(job_id=f"job_{n}"))
        assert tallies.nbytes() < 20 * 1.25 * (COLUMNS * 4 + 16) + 2000 + 20
    assert total(tallies.of("node_00"))[0] == 200
    # What is no longer remembered is seen again, and the sums stay right.
    fleet.replace(rows[0], make_host("00"))
    observe(tallies, fleet, make_job(job_id="job_190"))
    seen, taken, rejected = total(tallies.of("node_00"))
    assert (taken, seen) == (1, taken + sum(rejected.values()))


def test_a_hundred_thousand_hosts_take_few_bytes_each() -> None:
    clock = Clock()
    fleet, tallies = Fleet(100_000), Tallies(clock)
    host = make_host()
    for n in range(100_000):
        _ = fleet.put(replace(host, node_id=f"node_{n}", mode=("ready", "away")[n % 2]))
    for hour in range(3):
        clock.now_us += HOUR_US
        for n in range(4):
            observe(tallies, fleet, make_job(job_id=f"job_{hour}_{n}"))
    _ = tallies.of("node_1")
    # 208 bytes for the hour that runs, some of it room to grow; 15 for each past one here.
    assert tallies.nbytes() / 100_000 < 1.25 * (COLUMNS * 4 + 16) + 3 * 24
    assert sum(hour.seen for hour in tallies.of("node_99999")) == 12
    assert np.all([hour.rejected == {"owner_present": 4} for hour in tallies.of("node_99999")])


def test_the_card_of_the_tests_needs_what_they_say() -> None:
    assert 0.25 * GIB < CARD.weights_bytes < GIB
