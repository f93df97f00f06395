"""Macs that failed lately, and jobs that may be at fault, as placement sees them."""

from __future__ import annotations

import pytest

from coordinator.placement.match import match
from coordinator.placement.types import HostFacts, NotPlaced, Placed, RejectReason
from tests.unit.placement.test_match import make_host, make_job, make_slot

BUSY = (make_slot(live=1),)
IDLE = (make_slot(),)


@pytest.mark.parametrize(
    ("host", "is_kept_apart", "reason"),
    [
        (make_host(standing="paused", slots=IDLE), False, "paused_after_faults"),
        (make_host(standing="on_probation", slots=BUSY), False, "on_probation"),
        (make_host(is_kept_apart=True, slots=BUSY), False, "kept_apart"),
        (make_host(slots=BUSY), True, "kept_apart"),
    ],
)
def test_each_gate_has_its_reason_and_time_opens_it(
    host: HostFacts, is_kept_apart: bool, reason: RejectReason
) -> None:
    found = match(make_job(is_kept_apart=is_kept_apart), [host])
    assert isinstance(found, NotPlaced)
    assert (found.rejected, found.is_ever) == ({reason: 1}, True)


@pytest.mark.parametrize(
    ("host", "is_kept_apart"),
    [
        (make_host(standing="on_probation", slots=IDLE), False),
        (make_host(standing="on_probation"), True),
        (make_host(slots=IDLE), True),
        (make_host(slots=BUSY), False),
    ],
)
def test_a_host_with_nothing_at_work_takes_one(host: HostFacts, is_kept_apart: bool) -> None:
    assert isinstance(match(make_job(is_kept_apart=is_kept_apart), [host]), Placed)


def test_a_sound_host_goes_before_a_faster_one_that_pauses() -> None:
    hosts = [make_host("fast", bandwidth_gb=800, standing="paused"), make_host("slow", bandwidth_gb=60)]
    found = match(make_job(), hosts)
    assert isinstance(found, Placed)
    assert found.node_id == "node_slow"
