"""Slots on both databases: paid by what was seen and measured, and by how promises were kept."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from coordinator.accounts.earnings import NODE_ID, kind_of
from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.policy.models import HeldPayRow
from coordinator.seats.credit import GRACE_US, credit_missed_slots, credit_part, credit_slots
from coordinator.seats.service import availability_zeros, slot_reference
from ledger import models as ledger
from ledger.availability import POOL
from ledger.ratecard import CARD, GIBIBYTE, SLOT_US, Seat, Trust
from tests.integration.macs import MONDAY_US, NOON, Macs, after, claim


def seated(macs: Macs, owner: str, seat: Seat) -> str:
    """A Mac that holds a seat from midnight on, and was there all the time until noon."""
    node_id = macs.add(owner)
    macs.ask(node_id, seat)
    macs.stand_for(node_id, range(72))
    return node_id


# -- what is paid --------------------------------------------------------------------------------


def test_a_slot_is_paid_from_the_pool_when_it_is_over_and_not_before(macs: Macs) -> None:
    macs.fill()
    node_id = macs.add("Ada")
    macs.stand(node_id, NOON)
    macs.now_us = NOON + SLOT_US + GRACE_US - 1
    assert credit_slots(macs.database) == 0
    after(macs, NOON)
    assert credit_slots(macs.database) == 1
    row = macs.credited()[node_id, NOON]
    assert row.amount_umlx == row.claim_umlx == macs.earned("Ada") == claim() > 0
    assert (row.seat, row.paid_as, row.reason, row.rate_card_id) == ("idle", "idle", None, CARD.id)
    assert row.points_ppm == 7_370_000 + 4_000_000
    macs.check_books()


def test_the_earnings_view_knows_these_transfers(macs: Macs) -> None:
    macs.fill()
    node_id = macs.add("Ada")
    macs.stand(node_id, NOON)
    after(macs, NOON)
    credit_slots(macs.database)
    reference = slot_reference(NOON, node_id)
    with macs.database.read() as session:
        query = select(ledger.journal.c.kind).where(ledger.journal.c.reference == reference)
        assert session.scalars(query).all() == ["transfer"]
    assert kind_of("transfer", reference, 1, {POOL}) == "availability"
    found = NODE_ID.search(reference)
    assert found is not None
    assert found[0] == node_id


def test_idle_dedicated_and_ultra_earn_in_this_order(macs: Macs) -> None:
    macs.fill()
    seats: dict[str, Seat] = {"Ida": "idle", "Dee": "dedicated", "Uma": "ultra"}
    nodes = {owner: seated(macs, owner, seat) for owner, seat in seats.items()}
    after(macs, MONDAY_US + 71 * SLOT_US)
    assert credit_missed_slots(macs.database) == 3 * 72
    earned = {owner: macs.earned(owner) for owner in seats}
    assert earned == {owner: 72 * claim(seat) for owner, seat in seats.items()}
    assert 0 < earned["Ida"] < earned["Dee"] < earned["Uma"]
    assert {macs.credited()[nodes[owner], MONDAY_US].paid_as for owner in seats} == set(seats.values())
    macs.check_books()


def test_busy_seconds_are_not_paid_twice(macs: Macs) -> None:
    macs.fill()
    floor = claim("dedicated")
    for owner, seat, pay in (
        ("Ida", "idle", 5),
        ("Dee", "dedicated", floor - 7),
        ("Rich", "dedicated", floor + 1),
    ):
        node_id = macs.add(owner)
        macs.ask(node_id, seat)  # pyright: ignore[reportArgumentType]
        macs.stand(node_id, NOON, busy=600)
        macs.work(node_id, NOON + SLOT_US - 1, pay - 2, reading_umlx=2)
        macs.work(node_id, NOON + SLOT_US, 10**9)  # belongs to the next slot
        macs.work(node_id, NOON + 1, 10**9, is_linked=True)  # is no stranger's
    after(macs, NOON)
    credit_slots(macs.database)
    assert macs.earned("Ida") == 0
    assert macs.earned("Dee") == 7  # the floor less what jobs paid
    assert macs.earned("Rich") == 0
    assert {row.reason for row in macs.credited().values()} == {"paid_by_jobs", None}


def test_work_for_oneself_earns_no_availability(macs: Macs) -> None:
    macs.fill()
    node_id = macs.add("Ada")
    macs.stand(node_id, NOON, linked_busy=400)
    after(macs, NOON)
    credit_slots(macs.database)
    assert macs.earned("Ada") == claim(linked_busy=400) == claim(present=200)


def test_each_zero_has_its_reason(macs: Macs) -> None:
    macs.fill()
    unmeasured = macs.add("Ada", tests=())
    cold = macs.add("Ada")
    gone = macs.add("Ada")
    macs.stand(unmeasured, NOON)
    macs.stand(cold, NOON, is_warm=False)
    macs.stand(gone, NOON, 0)
    after(macs, NOON)
    assert credit_slots(macs.database) == 3
    with macs.database.read() as session:
        account = session.get_one(Account, macs.owner("Ada"))
        zeros = availability_zeros(session, account, Period(NOON, NOON + 2 * SLOT_US))
        assert list(availability_zeros(session, account, Period(NOON - SLOT_US, NOON + SLOT_US))) == []
    found = {row.node_id: (row.zero_reason, row.amount_umlx, row.kind) for row in zeros}
    assert found == {
        unmeasured: ("not_measured", 0, "availability"),
        cold: ("no_demanded_model", 0, "availability"),
        gone: ("not_present", 0, "availability"),
    }


@pytest.mark.parametrize(("checks", "trust"), [(9, "measured"), (10, "audited")])
def test_trust_comes_from_checked_results(macs: Macs, checks: int, trust: Trust) -> None:
    macs.fill()
    node_id = macs.add("Ada", checks_passed=checks)
    macs.stand(node_id, NOON)
    after(macs, NOON)
    credit_slots(macs.database)
    assert macs.earned("Ada") == claim(trust=trust)


def test_no_claim_of_a_node_raises_its_pay(macs: Macs) -> None:
    macs.fill()
    honest = macs.add("Ada", chip="Apple M4", gpu_cores=10, tests=(10**11,) * 3)
    liar = macs.add("Bo", chip="Apple M4", gpu_cores=10, tests=(4 * 10**12,) * 3)
    macs.change(honest, lent_bytes=16 * GIBIBYTE)
    macs.change(liar, lent_bytes=16 * GIBIBYTE)
    for node_id in (honest, liar):
        macs.stand(node_id, NOON)
    after(macs, NOON)
    credit_slots(macs.database)
    points = {node_id: macs.credited()[node_id, NOON].points_ppm for node_id in (honest, liar)}
    assert points == {honest: 1_250_000, liar: 1_200_000 + 250_000}


# -- promises ------------------------------------------------------------------------------------


def slot(index: int) -> int:
    """The start of Monday's slot of that number."""
    return MONDAY_US + index * SLOT_US


def test_a_promise_kept_too_rarely_is_paid_as_idle(macs: Macs) -> None:
    macs.fill()
    node_id = seated(macs, "Ada", "ultra")
    macs.stand_for(node_id, range(72, 144), down=range(72, 102))
    after(macs, slot(143))
    for index in (71, 101, 102, 143):
        assert credit_part(macs.database, slot(index)) == 1
    rows = macs.credited()
    assert rows[node_id, slot(71)].paid_as == "ultra"
    last = rows[node_id, slot(143)]
    # Five hours down: 19 of 20 kept, which is half the pay; just after the outage it is idle.
    assert (last.paid_as, last.claim_umlx) == ("ultra", claim("ultra") // 2)
    assert rows[node_id, slot(102)].paid_as == "idle"
    assert rows[node_id, slot(101)].reason == "not_present"


@pytest.mark.parametrize(("is_announced", "paid_as"), [(True, "dedicated"), (False, "idle")])
def test_announced_upkeep_counts_as_kept(macs: Macs, is_announced: bool, paid_as: Seat) -> None:
    macs.fill()
    node_id = macs.add("Ann")
    macs.ask(node_id, "dedicated")
    if is_announced:
        macs.announce_upkeep(node_id, 50 * 600, 7200)
    # Six hours down: the four that are not promised and two more.
    macs.stand_for(node_id, range(144), down=range(50, 86))
    after(macs, slot(143))
    credit_part(macs.database, slot(143))
    assert macs.earned("Ann") == claim(paid_as)


def test_stepping_back_loses_only_what_lies_ahead(macs: Macs) -> None:
    macs.fill()
    node_id = seated(macs, "Ada", "dedicated")
    after(macs, slot(70))
    credit_slots(macs.database)
    earned = macs.earned("Ada")
    assert earned == 6 * claim("dedicated")  # the last hour
    macs.ask(node_id, "idle")
    assert macs.earned("Ada") == earned
    macs.stand_for(node_id, range(72, 74))
    after(macs, slot(73))
    credit_slots(macs.database)
    paid_as = [macs.credited()[node_id, slot(index)].paid_as for index in range(70, 74)]
    assert paid_as == ["dedicated", "dedicated", "idle", "idle"]
    assert macs.earned("Ada") == earned + claim("dedicated") + 2 * claim("idle")


# -- probation -----------------------------------------------------------------------------------


def test_a_new_owners_pay_goes_into_escrow_and_is_noted(macs: Macs) -> None:
    macs.fill()
    node_id = macs.add("New", lent_since_us=None)
    macs.stand(node_id, NOON)
    macs.stand(node_id, NOON + SLOT_US)
    after(macs, NOON + SLOT_US)
    credit_slots(macs.database)
    account_id = macs.owner("New")
    assert macs.node(node_id).first_lent_us == NOON
    assert (macs.posted(f"user:{account_id}"), macs.posted(f"escrow:{account_id}")) == (0, 2 * claim())
    with macs.database.read() as session:
        held = session.scalars(select(HeldPayRow).order_by(HeldPayRow.earned_us)).all()
    assert [row.amount_umlx for row in held] == [claim()] * 2
    assert [row.earned_us for row in held] == [NOON + SLOT_US, NOON + 2 * SLOT_US]
    assert {row.release_us for row in held} == {NOON + CARD.policy.probation_us}
    assert {(row.owner_account_id, row.node_id, row.reason) for row in held} == {
        (account_id, node_id, "new_owner")
    }


def test_a_slot_after_probation_is_paid_at_once_on_any_mac_of_the_owner(macs: Macs) -> None:
    macs.fill()
    macs.add("Ada", lent_since_us=NOON + SLOT_US - CARD.policy.probation_us)
    young = macs.add("Ada", lent_since_us=None)
    macs.stand(young, NOON)
    after(macs, NOON)
    credit_slots(macs.database)
    assert macs.posted(f"user:{macs.owner('Ada')}") == claim()


def test_who_was_never_there_has_not_begun(macs: Macs) -> None:
    node_id = macs.add("New", lent_since_us=None)
    macs.stand(node_id, NOON, 0)
    after(macs, NOON)
    credit_slots(macs.database)
    assert macs.node(node_id).first_lent_us is None
