"""Pay for standing ready: points, seats, trust, service, busy seconds, and the shared pool."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.availability import (
    SlotFacts,
    ZeroReason,
    claim_umlx,
    pay_slot,
    payment_id,
    points_ppm,
    slot_pool_umlx,
)
from ledger.commands import Transfer
from ledger.ratecard import CARD, GIBIBYTE, SEATS, SLOT_US, AvailabilityRates, Trust

GB = 10**9
MLX = 1_000_000
# An M3 Ultra that lends 256 GB: 8.19 + 4 = 12.19 points.
ULTRA = SlotFacts(
    device="device_1",
    owner="ann",
    seat="ultra",
    slot_start_us=0,
    measured_bandwidth_bytes_per_second=819 * GB,
    specified_bandwidth_bytes_per_second=819 * GB,
    lent_bytes=256 * GIBIBYTE,
    trust="audited",
    present_seconds=600,
)

facts_of_any_mac = st.builds(
    SlotFacts,
    device=st.sampled_from([f"device_{number}" for number in range(6)]),
    owner=st.sampled_from(["ann", "bob"]),
    seat=st.sampled_from(SEATS),
    slot_start_us=st.just(SLOT_US),
    measured_bandwidth_bytes_per_second=st.integers(0, 1500 * GB),
    specified_bandwidth_bytes_per_second=st.integers(0, 1500 * GB),
    lent_bytes=st.integers(0, 512 * GIBIBYTE),
    trust=st.sampled_from(get_args(Trust)),
    present_seconds=st.just(600),
    busy_seconds=st.integers(0, 400),
    job_pay_umlx=st.integers(0, MLX),
    linked_busy_seconds=st.integers(0, 200),
    service_ppm=st.integers(900_000, 1_000_000),
    has_demanded_model=st.booleans(),
    is_held=st.booleans(),
)


@pytest.mark.parametrize(
    ("bandwidth_gb", "lent_gb", "hourly_umlx"),
    [
        # Points x rate of each seat: idle 0.02, dedicated 0.05, ultra 0.10 MLX an hour.
        (120, 16, (29_000, 72_500, 145_000)),
        (273, 48, (69_600, 174_000, 348_000)),
        (546, 128, (149_200, 373_000, 746_000)),
        (819, 256, (243_800, 609_500, 1_219_000)),
        (819, 512, (323_800, 809_500, 1_619_000)),
    ],
)
def test_a_standing_hour(bandwidth_gb: int, lent_gb: int, hourly_umlx: tuple[int, int, int]) -> None:
    facts = replace(
        ULTRA,
        measured_bandwidth_bytes_per_second=bandwidth_gb * GB,
        lent_bytes=lent_gb * GIBIBYTE,
    )
    for seat, hourly in zip(SEATS, hourly_umlx, strict=True):
        assert claim_umlx(replace(facts, seat=seat), CARD) == hourly // 6


@pytest.mark.parametrize(
    ("measured", "specified", "points"),
    [(819, 819, 12_190_000), (400, 819, 8_000_000), (2_000, 819, 12_190_000)],
)
def test_no_claim_above_what_was_measured_or_specified(measured: int, specified: int, points: int) -> None:
    facts = replace(
        ULTRA,
        measured_bandwidth_bytes_per_second=measured * GB,
        specified_bandwidth_bytes_per_second=specified * GB,
    )
    assert points_ppm(facts, CARD) == points


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        # 203,166.7 x 0.3, rounded down once.
        ({"trust": "measured"}, 60_950),
        ({"trust": "claimed"}, 0),
        ({"service_ppm": 990_000}, 203_166),
        ({"service_ppm": 989_999}, 101_583),
        ({"service_ppm": 950_000}, 101_583),
        ({"service_ppm": 949_999}, 40_633),
        ({"service_ppm": 0, "has_demanded_model": False}, 0),
        ({"has_demanded_model": False}, 203_166),
        ({"present_seconds": 300}, 101_583),
        ({"present_seconds": 0}, 0),
        # 300 s x 1.219 MLX/h = 101,583 for the ready half; the jobs of the busy half paid more ...
        ({"busy_seconds": 300, "job_pay_umlx": 200_000}, 101_583),
        # ... or less, and the seat makes up the difference ...
        ({"busy_seconds": 300, "job_pay_umlx": 1_583}, 201_583),
        ({"busy_seconds": 300}, 203_166),
        # ... but not for work that the owner gives to himself.
        ({"linked_busy_seconds": 300}, 101_583),
        ({"seat": "idle"}, 40_633),
        ({"seat": "idle", "busy_seconds": 300}, 20_316),
        ({"seat": "idle", "has_demanded_model": False}, 0),
        ({"seat": "idle", "service_ppm": 0}, 40_633),
    ],
)
def test_a_claim_of_a_slot(change: dict[str, object], claim: int) -> None:
    """12.19 points x 0.10 MLX / 6 = 203,166 uMLX in a whole slot of an Ultra seat."""
    assert claim_umlx(replace(ULTRA, **change), CARD) == claim  # pyright: ignore[reportArgumentType]


@given(facts=facts_of_any_mac)
def test_idle_earns_less_than_dedicated_and_dedicated_less_than_ultra(facts: SlotFacts) -> None:
    """All else equal, as long as the promise is kept; a broken one is paid as idle, not less."""
    claims = [claim_umlx(replace(facts, seat=seat), CARD) for seat in SEATS]
    assert claims == sorted(claims)
    is_worth_something = points_ppm(facts, CARD) > 100_000 and facts.trust != "claimed"
    is_ready = facts.present_seconds > facts.busy_seconds + facts.linked_busy_seconds
    if is_worth_something and is_ready and facts.service_ppm >= 950_000:
        assert claims[0] < claims[1] < claims[2]


@given(facts=facts_of_any_mac, more=st.integers(1, 10**12))
def test_more_bandwidth_or_memory_never_earns_less(facts: SlotFacts, more: int) -> None:
    claim = claim_umlx(facts, CARD)
    faster = replace(
        facts, measured_bandwidth_bytes_per_second=facts.measured_bandwidth_bytes_per_second + more
    )
    assert claim_umlx(faster, CARD) >= claim
    assert claim_umlx(replace(facts, lent_bytes=facts.lent_bytes + more), CARD) >= claim


@given(facts=facts_of_any_mac)
def test_a_busy_seat_never_earns_less_than_a_standing_one(facts: SlotFacts) -> None:
    facts = replace(facts, seat="dedicated" if facts.seat == "idle" else facts.seat, service_ppm=950_000)
    standing = replace(facts, busy_seconds=0, job_pay_umlx=0)
    # One less for the rounding of the two.
    assert claim_umlx(facts, CARD) + facts.job_pay_umlx >= claim_umlx(standing, CARD) - 1


@given(facts=facts_of_any_mac)
def test_a_claim_is_the_formula_rounded_down(facts: SlotFacts) -> None:
    facts = replace(facts, service_ppm=1_000_000, has_demanded_model=True)
    bandwidth = min(facts.measured_bandwidth_bytes_per_second, facts.specified_bandwidth_bytes_per_second)
    points = Fraction(bandwidth, 100 * GB) + Fraction(facts.lent_bytes, 64 * GIBIBYTE)
    hourly = {"idle": 20_000, "dedicated": 50_000, "ultra": 100_000}[facts.seat]
    per_second = (
        points * hourly * {"claimed": 0, "measured": Fraction(3, 10), "audited": 1}[facts.trust] / 3600
    )
    due = per_second * (600 - facts.busy_seconds - facts.linked_busy_seconds)
    if facts.seat != "idle":
        due += max(Fraction(0), per_second * facts.busy_seconds - facts.job_pay_umlx)
    assert claim_umlx(facts, CARD) == due.numerator // due.denominator


slots = st.lists(facts_of_any_mac, max_size=12)


@given(slot=slots, pool=st.integers(0, 2 * MLX), seed=st.randoms())
def test_a_slot_pays_exactly_what_the_pool_and_the_claims_allow(
    slot: list[SlotFacts], pool: int, seed: random.Random
) -> None:
    payments = pay_slot(slot, pool, CARD)
    total = sum(payment.claim_umlx for payment in payments)
    assert sum(payment.amount_umlx for payment in payments) == min(pool, total)
    for payment in payments:
        assert 0 <= payment.amount_umlx <= payment.claim_umlx
        assert (payment.amount_umlx == 0) == (payment.reason is not None)
        if total > pool:
            assert abs(payment.amount_umlx - Fraction(payment.claim_umlx * pool, total)) < 1
    seed.shuffle(slot)
    assert pay_slot(slot, pool, CARD) == payments


@given(slot=slots, pool=st.integers(0, 2 * MLX))
def test_a_device_is_credited_once_a_slot(slot: list[SlotFacts], pool: int) -> None:
    payments = pay_slot(slot, pool, CARD)
    paid = [payment.device for payment in payments if payment.amount_umlx]
    assert len(paid) == len(set(paid))
    assert len({payment.id for payment in payments}) == len({facts.device for facts in slot})
    again = pay_slot(slot, pool, CARD, credited=frozenset(facts.device for facts in slot))
    assert [payment.amount_umlx for payment in again] == [0] * len(slot)
    assert {payment.reason for payment in again} <= {"already_credited"}


def test_of_two_claims_with_one_device_the_smaller_counts() -> None:
    """Twice the same Mac under two owners gains nothing."""
    twin = replace(ULTRA, owner="bob", lent_bytes=64 * GIBIBYTE)
    first, second = pay_slot([ULTRA, twin], MLX, CARD)
    assert (first.owner, first.amount_umlx) == ("bob", claim_umlx(twin, CARD))
    assert (second.owner, second.amount_umlx, second.reason) == ("ann", 0, "already_credited")


def test_a_short_pool_is_shared_by_claims_to_the_last_umlx() -> None:
    slot = [replace(ULTRA, device=f"device_{number}", owner=f"owner_{number}") for number in range(3)]
    assert [payment.amount_umlx for payment in pay_slot(slot, 100, CARD)] == [34, 33, 33]


@pytest.mark.parametrize(
    ("change", "pool", "reason"),
    [
        ({"trust": "claimed"}, MLX, "not_measured"),
        ({"present_seconds": 0}, MLX, "not_present"),
        ({"seat": "idle", "has_demanded_model": False}, MLX, "no_demanded_model"),
        ({"busy_seconds": 600, "job_pay_umlx": MLX}, MLX, "paid_by_jobs"),
        ({}, 0, "pool_empty"),
        ({"lent_bytes": 1, "measured_bandwidth_bytes_per_second": 1}, MLX, "rounds_to_zero"),
    ],
)
def test_a_zero_has_its_reason(change: dict[str, object], pool: int, reason: ZeroReason) -> None:
    (payment,) = pay_slot([replace(ULTRA, **change)], pool, CARD)  # pyright: ignore[reportArgumentType]
    assert (payment.amount_umlx, payment.reason) == (0, reason)


def test_a_payment_becomes_a_transfer_with_a_derived_id() -> None:
    (payment,) = pay_slot([replace(ULTRA, is_held=True)], MLX, CARD)
    command = Transfer(
        id=payment.id,
        reference="slot",
        source="pool:availability",
        target=payment.account_id,
        amount_umlx=payment.amount_umlx,
    )
    assert (command.target, command.amount_umlx) == ("escrow:ann", 203_166)
    assert str(payment_id("device_1", 0)) == "7e79efb3-e070-5e9c-b778-d89922febb2d"
    assert payment_id("device_1", 0) == payment.id != payment_id("device_1", SLOT_US)


@pytest.mark.parametrize(("balance", "pool"), [(10**18, 69_444_444), (5, 5), (0, 0), (-1, 0)])
def test_a_slot_may_spend_its_part_of_the_days_cap(balance: int, pool: int) -> None:
    assert slot_pool_umlx(balance, CARD) == pool
    assert slot_pool_umlx(balance, replace(CARD, availability=AvailabilityRates(cap_umlx_per_day=0))) == 0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"present_seconds": 601}, "present_seconds"),
        ({"present_seconds": -1}, "present_seconds"),
        ({"busy_seconds": 400, "linked_busy_seconds": 201}, "busy_seconds"),
        ({"slot_start_us": 1}, "slot_start_us"),
        ({"service_ppm": 1_000_001}, "service_ppm"),
        ({"lent_bytes": -1}, "lent_bytes"),
        ({"measured_bandwidth_bytes_per_second": 8.19e11}, "measured_bandwidth"),
        ({"job_pay_umlx": True}, "job_pay_umlx"),
    ],
)
def test_facts_that_cannot_be_are_refused(change: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        replace(ULTRA, **change)  # pyright: ignore[reportArgumentType]


def test_slots_are_paid_one_at_a_time_from_a_pool_that_exists() -> None:
    with pytest.raises(ValueError, match="slot_start_us"):
        pay_slot([ULTRA, replace(ULTRA, slot_start_us=SLOT_US)], 1, CARD)
    with pytest.raises(ValueError, match="pool_umlx"):
        pay_slot([ULTRA], -1, CARD)
