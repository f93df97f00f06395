"""Every reject reason on a fleet of twenty: nineteen alike, one that is different."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from coordinator.placement.fleet import Fleet
from coordinator.placement.match import match
from coordinator.placement.reject import ABLE_REASONS, EXPLAINED, PASSING_REASONS, REASONS
from coordinator.placement.types import HostFacts, JobFacts, NotPlaced, Outlook, Placed, RejectReason
from tests.unit.placement.test_match import CARD, GIB, make_host, make_job, make_slot

AWAY_SOON = tuple(1e-9 for _ in range(168))
AWAY_LONG = tuple(0.999 for _ in range(168))
BUSY_FOR_LONG = (make_slot("0" * 64, live=1),)


@dataclass(frozen=True)
class Case:
    """The odd host and the job; the others' facts; whether the odd one should be the rejected."""

    odd: dict[str, Any]
    job: dict[str, Any] = field(default_factory=dict[str, Any])
    others: dict[str, Any] = field(default_factory=dict[str, Any])
    outlook: Outlook = field(default_factory=Outlook)


CASES: dict[RejectReason, Case] = {
    "context_too_long": Case({}, {"max_tokens": 9000}),
    "excluded": Case({}, {"excluded_node_ids": frozenset({"node_odd"})}),
    "not_named": Case({}, {"only_node_ids": frozenset(f"node_{n:02}" for n in range(19))}),
    "not_own": Case({"owner_id": "acct_2"}, {"own": "only", "submitter_id": "acct_1"}),
    "other_region": Case({"region": "us"}, {"regions": frozenset({"eu"})}, {"region": "eu"}),
    "too_dear": Case({"price_factor_ppm": 2_000_000}, {"price_factor_max_ppm": 1_500_000}),
    "cannot_load_kind": Case({"kinds": frozenset({"embedding"})}),
    "unproven": Case({"is_proven": False}, {"is_sealed": True}),
    "memory_lent_short": Case({"lent_gib": 0.5}),
    "too_slow": Case({"bandwidth_gb": 10}, {"tokens_per_second_min": 50.0}),
    "too_late": Case({"bandwidth_gb": 5}, {"deadline_seconds": 12.0}),
    "model_absent": Case({"on_disk": frozenset()}),
    "disk_short": Case({"on_disk": frozenset(), "network_bytes_per_second": 10**8, "disk_free_bytes": 1000}),
    "offline": Case({"is_online": False}),
    "suspect": Case({"is_suspect": True}),
    "draining": Case({"mode": "draining"}),
    "owner_present": Case({"mode": "away"}),
    "paused_after_faults": Case({"standing": "paused"}),
    "on_probation": Case({"standing": "on_probation", "slots": (make_slot(live=1),)}),
    "kept_apart": Case({"is_kept_apart": True}),
    "held_for_older": Case({"is_held_for_older": True}),
    "memory_free_short": Case({"free_bytes": GIB // 4}),
    "slot_full": Case({"slots": (make_slot(live=8),)}),
    "memory_busy": Case({"slots": BUSY_FOR_LONG}),
    "crowded": Case({"disk_bytes_per_second": 10**6}, {"deadline_seconds": 30.0}),
    "kept_for_big": Case({"lent_gib": 64, "bandwidth_gb": 150}, outlook=Outlook(big_needs=(40 * GIB,))),
    "leaves_soon": Case(
        {"survival": AWAY_SOON, "bandwidth_gb": 20},
        {"max_tokens": 4000},
        {"survival": AWAY_LONG, "bandwidth_gb": 19},
        Outlook(week_seconds=1800.0),
    ),
    "slower": Case({"bandwidth_gb": 20}),
    "less_owed": Case({"given_tokens": 10**6}),
}


def fleet_of_twenty(case: Case) -> list[HostFacts]:
    odd = make_host("odd", **case.odd)
    return [odd, *(make_host(f"{n:02}", **case.others) for n in range(19))]


def job_of(case: Case) -> JobFacts:
    return make_job(**case.job)


@pytest.mark.parametrize("reason", CASES)
def test_the_odd_one_of_twenty_is_rejected_for_its_reason(reason: RejectReason) -> None:
    case = CASES[reason]
    found = match(job_of(case), fleet_of_twenty(case), outlook=case.outlook)
    if reason == "context_too_long":
        assert isinstance(found, NotPlaced)
        assert found.rejected == {reason: 20}
        return
    assert isinstance(found, Placed)
    assert found.node_id != "node_odd"
    assert sum(found.rejected.values()) == 19
    assert found.rejected.get(reason, 0) == (19 if reason == "less_owed" else 1)


@pytest.mark.parametrize("reason", [r for r in CASES if r not in ABLE_REASONS])
def test_alone_it_is_the_only_count_and_says_whether_time_helps(reason: RejectReason) -> None:
    case = CASES[reason]
    odd = make_host("odd", **case.odd)
    found = match(job_of(case), [odd] * 20, outlook=case.outlook)
    assert isinstance(found, NotPlaced)
    assert found.rejected == {reason: 20}
    assert found.is_ever is (reason in PASSING_REASONS)


def test_a_job_waits_for_a_much_better_mac_that_is_free_soon() -> None:
    fast = make_host("fast", bandwidth_gb=800, slots=(make_slot(live=8),), seat_free_seconds=0.5)
    slow = [make_host(f"{n:02}", bandwidth_gb=20) for n in range(19)]
    found = match(make_job(), [fast, *slow])
    assert isinstance(found, NotPlaced)
    assert found.rejected == {"better_soon": 19, "slot_full": 1}
    assert (found.is_ever, found.soonest_node_id) == (True, "node_fast")
    assert found.soonest_seconds is not None
    assert 0.5 < found.soonest_seconds < 5
    overdue = match(make_job(is_overdue=True), [fast, *slow])
    assert isinstance(overdue, Placed)
    late = match(make_job(), [replace(fast, seat_free_seconds=600.0), *slow])
    assert isinstance(late, Placed)


def test_every_reason_is_shown_and_explained() -> None:
    assert set(CASES) | {"better_soon"} == set(REASONS) == set(EXPLAINED)


def test_own_macs_cost_nothing_and_are_preferred_within_reason() -> None:
    mine = make_host("mine", bandwidth_gb=60, owner_id="acct_me", price_factor_ppm=9_000_000)
    others = [make_host(f"{n:02}", bandwidth_gb=100) for n in range(19)]
    job = make_job(own="prefer", submitter_id="acct_me", price_factor_max_ppm=1_000_000)
    found = match(job, [mine, *others])
    assert isinstance(found, Placed)
    assert found.node_id == "node_mine"
    crawling = replace(mine, hardware=make_host(bandwidth_gb=1).hardware)
    far = match(make_job(own="prefer", submitter_id="acct_me", max_tokens=2000), [crawling, *others])
    assert isinstance(far, Placed)
    assert far.node_id != "node_mine"


def test_a_cached_prefix_draws_the_job_and_shortens_its_prompt() -> None:
    hosts = [make_host(f"{n:02}", slots=(make_slot(slot_id=f"slot_{n}"),), given_tokens=n) for n in range(20)]
    job = make_job(prompt_tokens=6000, max_tokens=10, cached=(("node_19", 5900),))
    with_it, without = match(job, hosts), match(replace(job, cached=()), hosts)
    assert isinstance(with_it, Placed)
    assert isinstance(without, Placed)
    assert (with_it.node_id, without.node_id) == ("node_19", "node_00")
    assert with_it.forecast.prefill_seconds < without.forecast.prefill_seconds / 10


def test_a_loaded_mac_goes_before_one_that_reads_its_disk_and_that_before_one_that_fetches() -> None:
    warm = make_host("warm", slots=(make_slot(),), bandwidth_gb=60)
    disk = make_host("disk", on_disk=frozenset({CARD.revision}))
    fetch = make_host("fetch", on_disk=frozenset[str](), network_bytes_per_second=10**7)
    kinds = [warm, disk, fetch]
    loads: list[float] = []
    for n in range(3):
        found = match(make_job(max_tokens=20), kinds[n:])
        assert isinstance(found, Placed)
        assert found.node_id == kinds[n].node_id
        loads.append(found.forecast.load_seconds)
    assert loads[0] == 0
    assert loads[1] == pytest.approx(5 + CARD.weights_bytes / 1e9, rel=0.02)
    assert loads[2] == pytest.approx(loads[1] + CARD.weights_bytes / 1e7, rel=0.01)


def test_a_host_that_holds_several_models_makes_room_only_as_needed() -> None:
    slots = (
        make_slot("1" * 64, slot_id="slot_large", bytes=4 * GIB),
        make_slot("2" * 64, slot_id="slot_warm", bytes=2 * GIB),
        make_slot("3" * 64, slot_id="slot_cold", bytes=2 * GIB, is_warm=False),
    )
    found = match(make_job(), [make_host(lent_gib=8, slots=slots, slots_max=3)])
    assert isinstance(found, Placed)
    assert found.new_slot is not None
    assert found.new_slot.evict_slot_ids == ("slot_cold",)
    assert found.new_slot.evict_revisions == ("3" * 64,)
    assert found.new_slot.bytes <= 2 * GIB
    roomy = match(make_job(), [make_host(lent_gib=16, slots=slots, slots_max=4)])
    assert isinstance(roomy, Placed)
    assert roomy.new_slot is not None
    assert roomy.new_slot.evict_slot_ids == ()
    assert roomy.new_slot.bytes <= 4 * GIB
    one = match(make_job(), [make_host(lent_gib=16, slots=slots)])
    assert isinstance(one, Placed)
    assert one.new_slot is not None
    assert one.new_slot.evict_slot_ids == ("slot_large", "slot_warm", "slot_cold")


@pytest.mark.parametrize("is_held", [True, False])
def test_one_model_of_several_is_at_work_at_a_time(*, is_held: bool) -> None:
    busy = make_slot("1" * 64, slot_id="slot_busy", live=1, bytes=2 * GIB)
    idle = make_slot(CARD.revision if is_held else "2" * 64, slot_id="slot_idle", bytes=2 * GIB)
    found = match(make_job(), [make_host(lent_gib=64, slots=(busy, idle), slots_max=3)])
    assert isinstance(found, NotPlaced)
    assert found.rejected == {"memory_busy": 1}
    assert found.is_ever


def test_a_slot_that_is_too_small_for_a_job_is_made_anew_without_a_load() -> None:
    other = make_slot("1" * 64, slot_id="slot_other", bytes=2 * GIB)
    small = make_slot(CARD.revision, slot_id="slot_small", bytes=2 * GIB, tokens_max=16)
    job = make_job(max_tokens=100)
    found = match(job, [make_host(lent_gib=64, slots=(other, small), slots_max=3)])
    assert isinstance(found, Placed)
    assert found.new_slot is not None
    assert (found.slot_id, found.forecast.load_seconds) == (None, 0.0)
    assert found.new_slot.evict_slot_ids == ("slot_small",)
    assert found.new_slot.evict_revisions == ()
    assert found.new_slot.tokens_max >= job.tokens


def test_a_hungry_mac_gets_a_trial_and_a_fed_one_does_not() -> None:
    fast = [make_host(f"{n:02}", bandwidth_gb=800) for n in range(19)]
    small = make_host("small", bandwidth_gb=60, hungry_seconds=3000)
    jobs = [make_job(job_id=f"job_{n}", max_tokens=2000) for n in range(40)]

    def share(host: HostFacts) -> float:
        found = [match(job, [*fast, host]) for job in jobs]
        return sum(isinstance(one, Placed) and one.node_id == host.node_id for one in found) / len(jobs)

    assert share(small) > 0.2
    assert share(replace(small, hungry_seconds=0.0)) == 0
    assert share(replace(small, mode="away")) == 0


def test_rows_are_used_again_and_ids_found() -> None:
    fleet = Fleet(1)
    rows = [fleet.put(make_host(f"{n:02}", slots=(make_slot(slot_id=f"slot_{n}"),))) for n in range(20)]
    assert fleet.rows_of(frozenset({"node_07", "node_none"})) == [rows[7]]
    fleet.remove(rows[7])
    assert fleet.rows_of(frozenset({"node_07"})) == []
    assert len(fleet.slots.of_model(CARD.revision)) == 19
    assert fleet.put(make_host("new")) == rows[7]
    assert (fleet.count, fleet.rows) == (20, 20)
