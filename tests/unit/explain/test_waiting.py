"""When the turn of a waiting job comes: seats in order, jobs ahead, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.jobs.waiting import AHEAD_MAX, Seats, ahead_of, forecast, seats_of
from coordinator.placement.fleet import Fleet
from coordinator.placement.match import decide
from coordinator.placement.types import Forecast, HostFacts, JobFacts, NotPlaced
from node_agent.sizing import memory
from tests.unit.placement.test_match import CARD, GIB, make_host, make_job, make_slot


def full(name: str, *, free_in: float | None, width: int = 8, **changes: object) -> HostFacts:
    slot = make_slot(slot_id=f"slot_{name}", live=width, width=width)
    host = make_host(name, slots=(slot,), seat_free_seconds=free_in, **changes)  # pyright: ignore[reportArgumentType]
    return replace(host, hardware=host.hardware.model_copy(update={"width": width}))


def seats(job: JobFacts, *hosts: HostFacts) -> tuple[Seats, Fleet]:
    fleet = Fleet()
    for host in hosts:
        _ = fleet.put(host, now_seconds=50.0)
    decision = decide(job, fleet, now_seconds=50.0)
    assert isinstance(decision.choice, NotPlaced)
    return seats_of(job, decision, fleet, now_seconds=50.0), fleet


def found(job: JobFacts, ahead: list[JobFacts], *hosts: HostFacts) -> Forecast | None:
    here, fleet = seats(job, *hosts)
    return forecast(here, ahead_of(ahead, fleet), answer_tokens=job.answer_tokens)


def test_alone_it_begins_when_the_first_seat_is_free() -> None:
    one = found(make_job(), [], full("a", free_in=9.0), full("b", free_in=4.0))
    assert one is not None
    assert (one.wait_seconds, one.load_seconds) == (pytest.approx(4.0), 0.0)
    assert one.tokens_per_second == pytest.approx(100 / one.decode_seconds)
    assert one.total_seconds == pytest.approx(4.0 + one.prefill_seconds + one.decode_seconds)


def test_jobs_ahead_take_the_seats_that_come_first() -> None:
    ahead = [make_job(job_id=f"job_{n}", max_tokens=1000) for n in range(3)]
    hosts = (full("a", free_in=9.0, width=1), full("b", free_in=4.0, width=1))
    waits = [one.wait_seconds for n in range(4) if (one := found(make_job(), ahead[:n], *hosts)) is not None]
    assert len(waits) == 4
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(4.0)
    assert waits[2] > 9.0
    # Eight seats follow one another eight times as fast.
    wide = found(make_job(), ahead, full("b", free_in=4.0))
    narrow = found(make_job(), ahead, full("b", free_in=4.0, width=1))
    assert wide is not None
    assert narrow is not None
    assert narrow.wait_seconds - 4 == pytest.approx(8 * (wide.wait_seconds - 4))


def test_a_job_that_does_not_fit_these_hosts_is_in_nobodys_way() -> None:
    small = memory.needed_bytes(CARD, context_tokens=200, width=1)
    host = full("a", free_in=4.0, width=1, lent_gib=(small + 1000) / GIB)
    long = make_job(job_id="job_0", prompt_tokens=4000, max_tokens=4000)
    one = found(make_job(), [long, long], host)
    assert one is not None
    assert one.wait_seconds == pytest.approx(4.0)


def test_where_nobody_says_when_a_seat_is_free_there_is_no_forecast() -> None:
    assert found(make_job(), [], full("a", free_in=None), make_host("b", mode="away")) is None
    known = found(make_job(), [], full("a", free_in=None), full("b", free_in=3.0))
    assert known is not None
    assert known.wait_seconds == pytest.approx(3.0)


def test_a_mac_that_works_on_another_model_is_waited_for_and_loads() -> None:
    busy = make_host("a", slots=(make_slot("0" * 64, live=1),), idle_in_seconds=6.0)
    one = found(make_job(), [], busy)
    assert one is not None
    assert one.wait_seconds == pytest.approx(6.0)
    assert one.load_seconds > 0


def test_of_a_very_long_queue_the_rest_counts_like_its_beginning() -> None:
    job = make_job()
    here, fleet = seats(job, full("a", free_in=1.0, width=1))
    ahead = ahead_of([make_job(job_id=f"job_{n}") for n in range(AHEAD_MAX + 100)], fleet)
    assert len(ahead) == AHEAD_MAX
    part = forecast(here, ahead, answer_tokens=100)
    whole = forecast(here, ahead, further=AHEAD_MAX, answer_tokens=100)
    assert part is not None
    assert whole is not None
    assert whole.wait_seconds - 1 == pytest.approx(2 * (part.wait_seconds - 1))


@given(
    free=st.lists(st.floats(0, 100), min_size=1, max_size=5),
    ahead=st.integers(0, 8),
)
def test_more_jobs_ahead_never_bring_it_forward(free: list[float], ahead: int) -> None:
    job = make_job(is_overdue=True)
    here, fleet = seats(job, *(full(f"{n}", free_in=seconds) for n, seconds in enumerate(free)))
    before = ahead_of([make_job(job_id=f"job_{n}") for n in range(ahead + 1)], fleet)
    fewer = forecast(here, before[:ahead], answer_tokens=100)
    more = forecast(here, before, answer_tokens=100)
    assert fewer is not None
    assert more is not None
    assert min(free) - 1e-9 <= fewer.wait_seconds <= more.wait_seconds + 1e-9
