"""Held-back pay has a date, links are seen, refunds ruin nobody, new rates are announced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.availability import SlotFacts
from ledger.policy import (
    Announcement,
    HeldPay,
    HoldReason,
    Link,
    PaidShare,
    PastWork,
    Person,
    card_at,
    coming_on,
    due,
    effect_on_owner,
    hold_back,
    link_between,
    plan_refund,
    probation_ends_us,
)
from ledger.ratecard import CARD, DAY_US, GIBIBYTE, SLOT_US, AvailabilityRates, FeeRates

MLX = 1_000_000
GB = 10**9


def test_attestation_shortens_probation_and_nothing_else() -> None:
    assert probation_ends_us(5, CARD, is_attested=False) == 5 + 7 * DAY_US
    assert probation_ends_us(5, CARD, is_attested=True) == 5 + DAY_US


@pytest.mark.parametrize(
    ("earned_day", "probation_day", "is_suspected", "release_day", "reason"),
    [
        (1, 7, False, 7, "new_owner"),
        (6, 7, True, 9, "under_check"),
        (1, 7, True, 7, "new_owner"),
        (8, 7, True, 11, "under_check"),
        (7, 7, False, None, None),
        (8, 7, False, None, None),
    ],
)
def test_pay_is_held_back_until_a_known_day(
    earned_day: int,
    probation_day: int,
    is_suspected: bool,
    release_day: int | None,
    reason: HoldReason | None,
) -> None:
    held = hold_back(
        "ann",
        10,
        earned_day * DAY_US,
        probation_end_us=probation_day * DAY_US,
        is_suspected=is_suspected,
        card=CARD,
    )
    found = None if held is None else (held.release_us // DAY_US, held.reason)
    assert found == (None if release_day is None else (release_day, reason))


def test_what_is_due_is_released_in_order() -> None:
    pays = [
        HeldPay("ann", amount, 0, release, "new_owner") for amount, release in ((1, 30), (2, 10), (3, 20))
    ]
    assert [pay.amount_umlx for pay in due(pays, 20)] == [2, 3]
    assert due(pays, 9) == ()


@pytest.mark.parametrize(
    ("release_us", "shown"),
    [
        (0, "coming on 1970-01-01"),
        (1, "coming on 1970-01-02"),
        (20_516 * DAY_US, "coming on 2026-03-04"),
        (20_516 * DAY_US - 1, "coming on 2026-03-04"),
    ],
)
def test_held_pay_is_shown_with_its_date(release_us: int, shown: str) -> None:
    assert coming_on(release_us) == shown


ANN = Person(
    account_id="ann",
    devices=frozenset({"d1", "d2"}),
    payment_instruments=frozenset({"p1"}),
    signup_network="n1",
)


@pytest.mark.parametrize(
    ("other", "link"),
    [
        (Person(account_id="ann"), "same_account"),
        (Person(account_id="bob", devices=frozenset({"d2", "d3"})), "same_device"),
        (Person(account_id="bob", payment_instruments=frozenset({"p1"})), "same_payment"),
        (Person(account_id="bob", signup_network="n1"), "same_network"),
        (Person(account_id="bob", devices=frozenset({"d3"}), signup_network="n2"), None),
        (Person(account_id="bob"), None),
    ],
)
def test_who_counts_as_one_person(other: Person, link: Link | None) -> None:
    assert link_between(ANN, other) == link_between(other, ANN) == link


def test_people_without_a_known_network_are_not_linked_by_it() -> None:
    assert link_between(Person(account_id="ann"), Person(account_id="bob")) is None


def share(owner: str, amount: int, escrow: int, available: int) -> PaidShare:
    return PaidShare(owner=owner, share_umlx=amount, escrow_available_umlx=escrow, available_umlx=available)


@pytest.mark.parametrize(
    ("escrow", "available", "treasury", "legs", "owed"),
    [
        (90, 90, 10, (("escrow:ann", 90), ("treasury", 10)), 0),
        (50, 90, 10, (("escrow:ann", 50), ("user:ann", 40), ("treasury", 10)), 0),
        (50, 10, 100, (("escrow:ann", 50), ("user:ann", 10), ("treasury", 40)), 0),
        (0, 0, 100, (("treasury", 100),), 0),
        (0, 0, 30, (("treasury", 30),), 70),
        (0, -5, 0, (), 100),
    ],
)
def test_a_refund_comes_from_escrow_then_owner_then_treasury(
    escrow: int, available: int, treasury: int, legs: tuple[tuple[str, int], ...], owed: int
) -> None:
    """Of a charge of 100 Ann had 90, the fee was 10."""
    plan = plan_refund(
        100,
        charge_umlx=100,
        refunded_umlx=0,
        shares=[share("ann", 90, escrow, available)],
        treasury_available_umlx=treasury,
    )
    assert (plan.legs, plan.owed_umlx) == (legs, owed)


@given(data=st.data())
def test_refunds_never_make_an_owner_negative_nor_take_more_than_the_share(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.integers(0, 1_000), min_size=1, max_size=4))
    charge = sum(parts) + data.draw(st.integers(1, 100))
    balance = {f"user:{index}": data.draw(st.integers(0, 1_000)) for index in range(len(parts))}
    balance |= {f"escrow:{index}": data.draw(st.integers(0, 1_000)) for index in range(len(parts))}
    balance["treasury"] = data.draw(st.integers(0, 2_000))
    taken = dict.fromkeys(balance, 0)
    refunded = 0
    for _ in range(3):
        if refunded == charge:
            break
        amount = data.draw(st.integers(1, charge - refunded))
        plan = plan_refund(
            amount,
            charge_umlx=charge,
            refunded_umlx=refunded,
            shares=[
                share(str(index), part, balance[f"escrow:{index}"], balance[f"user:{index}"])
                for index, part in enumerate(parts)
            ],
            treasury_available_umlx=balance["treasury"],
        )
        assert sum(leg for _, leg in plan.legs) + plan.owed_umlx == amount
        for account_id, leg in plan.legs:
            balance[account_id] -= leg
            taken[account_id] += leg
        refunded += amount
    assert min(balance.values()) >= 0
    for index, part in enumerate(parts):
        assert taken[f"user:{index}"] + taken[f"escrow:{index}"] <= part


@pytest.mark.parametrize(("amount", "refunded"), [(0, 0), (101, 0), (51, 50), (1, 100)])
def test_no_more_is_refunded_than_was_charged(amount: int, refunded: int) -> None:
    with pytest.raises(ValueError, match="amount_umlx"):
        plan_refund(amount, charge_umlx=100, refunded_umlx=refunded, shares=[], treasury_available_umlx=100)


COMING = replace(
    CARD,
    version=2,
    fees=FeeRates(fee_ppm=200_000),
    availability=AvailabilityRates(idle_umlx_per_point_hour=40_000, dedicated_umlx_per_point_hour=90_000),
)
NOTICE_US = 14 * DAY_US


def test_a_card_is_announced_fourteen_days_before_it_holds() -> None:
    announced = Announcement(CARD, COMING, 0, NOTICE_US)
    assert set(announced.changes()) == {
        "fees.fee_ppm",
        "availability.idle_umlx_per_point_hour",
        "availability.dedicated_umlx_per_point_hour",
    }
    with pytest.raises(ValueError, match="14 days"):
        Announcement(CARD, COMING, 0, NOTICE_US - 1)
    with pytest.raises(ValueError, match="version"):
        Announcement(CARD, replace(COMING, version=1), 0, NOTICE_US)


def test_a_job_keeps_the_card_of_its_quote() -> None:
    cards = [(0, CARD), (100, COMING)]
    assert [card_at(cards, at).version for at in (0, 99, 100, 10**9)] == [1, 1, 2, 2]
    with pytest.raises(ValueError, match="before the first"):
        card_at(cards, -1)


def test_an_owner_is_told_what_the_last_30_days_would_have_been() -> None:
    """A job of 1 GB read, 1 GB resident: 10.02 uMLX a token out, 1.002 in: 1002 + 10020 = 11,022;
    half of it is the owner's pod. An idle slot of 1 + 1 points: 2 x 0.02 / 6 = 6,666."""
    now = 100 * DAY_US
    work = PastWork(
        ended_us=now - DAY_US,
        bytes_read_per_token=GB,
        bytes_resident=GB,
        input_tokens=1_000,
        cached_tokens=0,
        output_tokens=1_000,
        owner_ppm=500_000,
    )
    slot = SlotFacts(
        device="d",
        owner="ann",
        seat="idle",
        slot_start_us=now - SLOT_US,
        measured_bandwidth_bytes_per_second=100 * GB,
        specified_bandwidth_bytes_per_second=100 * GB,
        lent_bytes=64 * GIBIBYTE,
        trust="audited",
        present_seconds=600,
    )
    old_work = replace(work, ended_us=now - 31 * DAY_US)
    old_slot = replace(slot, slot_start_us=now - 31 * DAY_US)
    effect = effect_on_owner(
        Announcement(CARD, COMING, 0, NOTICE_US), [work, old_work], [slot, old_slot], now
    )
    assert (effect.work_now_umlx, effect.work_then_umlx) == (9_919 // 2, 8_817 // 2)
    assert (effect.availability_now_umlx, effect.availability_then_umlx) == (6_666, 13_333)
    assert effect.difference_umlx == 4_408 - 4_959 + 13_333 - 6_666
