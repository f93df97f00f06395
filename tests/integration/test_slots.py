"""Slots on both databases: paid once whatever happens, by what was seen and measured, and no more."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.accounts.earnings import NODE_ID, kind_of
from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.db import Database, make_engine
from coordinator.policy.models import HeldPayRow
from coordinator.seats.credit import GRACE_US, credit_missed_slots, credit_part, credit_slots
from coordinator.seats.fees import split_fees
from coordinator.seats.models import StandingTime
from coordinator.seats.service import availability_zeros, slot_reference
from coordinator.seats.standing import Stood
from coordinator.seats.standing_rows import StandingRows
from ledger import models as ledger
from ledger.availability import POOL, SlotFacts, claim_umlx
from ledger.commands import FEE, TREASURY
from ledger.ratecard import CARD, DAY_US, GIBIBYTE, HOUR_US, SLOT_US, Seat, Trust
from ledger.rewards import AUDIT_POOL
from tests.integration.macs import MONDAY_US, ULTRA_BANDWIDTH, Macs

NOON: Final = MONDAY_US + 12 * HOUR_US
"""The slot that most tests pay."""


@pytest.fixture
def macs(database_url: str) -> Generator[Macs]:
    world = Macs(database_url)
    yield world
    world.database.close()


def claim(
    seat: Seat = "idle",
    present: int = 600,
    *,
    busy: int = 0,
    job_pay: int = 0,
    linked_busy: int = 0,
    trust: Trust = "audited",
) -> int:
    """What the rule says of the Macs of these tests, put together here by hand."""
    facts = SlotFacts(
        device="d",
        owner="o",
        seat=seat,
        slot_start_us=0,
        measured_bandwidth_bytes_per_second=ULTRA_BANDWIDTH,
        specified_bandwidth_bytes_per_second=819 * 10**9,
        lent_bytes=256 * GIBIBYTE,
        trust=trust,
        present_seconds=present,
        busy_seconds=busy,
        job_pay_umlx=job_pay,
        linked_busy_seconds=linked_busy,
    )
    return claim_umlx(facts, CARD)


def after(macs: Macs, slot_start_us: int) -> None:
    """Move the clock to where the slot can be paid."""
    macs.now_us = slot_start_us + SLOT_US + GRACE_US


def seated(macs: Macs, owner: str, seat: Seat) -> str:
    """A Mac that holds a seat from midnight on, and was there all the time until noon."""
    node_id = macs.add(owner)
    macs.ask(node_id, seat)
    for index in range(12 * 6):
        macs.stand(node_id, MONDAY_US + index * SLOT_US)
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


def test_a_promise_kept_too_rarely_is_paid_as_idle(macs: Macs) -> None:
    macs.fill()
    node_id = seated(macs, "Ada", "ultra")
    for index in range(72, 144):
        macs.stand(node_id, MONDAY_US + index * SLOT_US, 0 if index < 102 else 600)
    after(macs, MONDAY_US + 143 * SLOT_US)
    credit_missed_slots(macs.database)
    rows = macs.credited()
    assert rows[node_id, MONDAY_US + 71 * SLOT_US].paid_as == "ultra"
    last = rows[node_id, MONDAY_US + 143 * SLOT_US]
    # Five hours down: 19 of 20 kept, which is half the pay; one slot more down, and it is idle.
    assert (last.paid_as, last.claim_umlx) == ("ultra", claim("ultra") // 2)
    assert rows[node_id, MONDAY_US + 102 * SLOT_US].paid_as == "idle"
    assert rows[node_id, MONDAY_US + 101 * SLOT_US].reason == "not_present"


def test_announced_upkeep_counts_as_kept(macs: Macs) -> None:
    macs.fill()
    down = range(50, 86)  # six hours: the four that are not promised and two more
    amounts: dict[bool, int] = {}
    for is_announced in (False, True):
        owner = "Ann" if is_announced else "Bob"
        node_id = macs.add(owner)
        macs.now_us = MONDAY_US
        macs.ask(node_id, "dedicated")
        if is_announced:
            macs.announce_upkeep(node_id, 50 * 600, 7200)
        for index in range(144):
            macs.stand(node_id, MONDAY_US + index * SLOT_US, 0 if index in down else 600)
        after(macs, MONDAY_US + 143 * SLOT_US)
        credit_missed_slots(macs.database)
        amounts[is_announced] = macs.credited()[node_id, MONDAY_US + 143 * SLOT_US].amount_umlx
    assert amounts == {True: claim("dedicated"), False: claim("idle")}


def test_stepping_back_loses_only_what_lies_ahead(macs: Macs) -> None:
    macs.fill()
    node_id = seated(macs, "Ada", "dedicated")
    after(macs, MONDAY_US + 70 * SLOT_US)
    credit_missed_slots(macs.database)
    earned = macs.earned("Ada")
    macs.ask(node_id, "idle")
    assert macs.earned("Ada") == earned
    for index in (72, 73):
        macs.stand(node_id, MONDAY_US + index * SLOT_US)
    after(macs, MONDAY_US + 73 * SLOT_US)
    credit_missed_slots(macs.database)
    paid_as = [macs.credited()[node_id, MONDAY_US + index * SLOT_US].paid_as for index in range(70, 74)]
    assert paid_as == ["dedicated", "dedicated", "idle", "idle"]
    assert macs.earned("Ada") == earned + claim("dedicated") + 2 * claim("idle")


# -- once ----------------------------------------------------------------------------------------


def test_a_slot_is_never_paid_twice(macs: Macs) -> None:
    macs.fill()
    node_id = macs.add("Ada")
    macs.stand(node_id, NOON)
    after(macs, NOON)
    assert [credit_slots(macs.database) for _ in range(3)] == [1, 0, 0]
    macs.now_us += DAY_US
    assert credit_missed_slots(macs.database) == 0
    macs.now_us -= 2 * DAY_US  # the clock goes back
    assert credit_slots(macs.database) == credit_missed_slots(macs.database) == 0
    assert macs.earned("Ada") == claim()


class Crashing(Database):
    """A database whose process dies at a commit: before it, or with the answer on its way."""

    after_commit = False

    @contextmanager
    def write(self) -> Generator[Session]:
        with super().write() as session:
            yield session
            if not self.after_commit:
                raise KeyboardInterrupt
        raise KeyboardInterrupt


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_crash_at_the_commit_pays_once(macs: Macs, after_commit: bool) -> None:
    macs.fill()
    node_id = macs.add("Ada")
    macs.stand(node_id, NOON)
    after(macs, NOON)
    dying = Crashing(make_engine(macs.url), clock_us=lambda: macs.now_us)
    dying.after_commit = after_commit
    with pytest.raises(KeyboardInterrupt):
        credit_slots(dying)
    dying.close()
    assert macs.earned("Ada") == (claim() if after_commit else 0)
    assert credit_slots(macs.database) == (0 if after_commit else 1)
    assert macs.earned("Ada") == claim()
    macs.check_books()


def test_two_processes_at_once_pay_once(macs: Macs) -> None:
    macs.fill()
    owners = ["Ada", "Bo", "Cy"]
    slots = [NOON - index * SLOT_US for index in range(5)]
    for owner in owners:
        node_id = macs.add(owner)
        for slot in slots:
            macs.stand(node_id, slot)
    after(macs, NOON)
    others = [macs.open() for _ in range(3)]
    gate = threading.Barrier(len(others))
    counts: list[int] = []

    def run(database: Database) -> None:
        gate.wait()
        counts.append(credit_slots(database))

    threads = [threading.Thread(target=run, args=(database,)) for database in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for database in others:
        database.close()
    credit_slots(macs.database)  # what was left to the other one when both had it
    assert len(counts) == 3
    assert [macs.earned(owner) for owner in owners] == [len(slots) * claim()] * 3
    macs.check_books()


def test_one_device_is_paid_once_whatever_nodes_and_owners_it_goes_by(macs: Macs) -> None:
    macs.fill()
    small = macs.add("Ada", device="d" * 64)
    large = macs.add("Bo", device="d" * 64)
    macs.change(small, lent_bytes=64 * GIBIBYTE)
    for node_id in (small, large):
        macs.stand(node_id, NOON)
    after(macs, NOON)
    assert credit_slots(macs.database) == 1
    assert [row.node_id for row in macs.credited().values()] == [small]
    assert macs.earned("Bo") == 0
    # Another name for the Mac afterwards brings nothing more for the same time.
    macs.change(small, device="e" * 64)
    macs.change(large, device="d" * 64)
    assert credit_slots(macs.database) == 0


def test_an_outage_is_caught_up(macs: Macs) -> None:
    macs.fill()
    node_id = macs.add("Ada")
    missed = [NOON - 3 * DAY_US, NOON - 2 * DAY_US, NOON]
    for slot in missed:
        macs.stand(node_id, slot)
    after(macs, NOON)
    assert credit_slots(macs.database) == 1
    assert credit_missed_slots(macs.database) == 2
    assert sorted(slot for _, slot in macs.credited()) == missed


# -- the pool ------------------------------------------------------------------------------------


def test_a_short_pool_is_shared_exactly(macs: Macs) -> None:
    macs.fill(amount_umlx=10_001)
    nodes = [macs.add(f"Owner {index}") for index in range(3)]
    macs.change(nodes[0], lent_bytes=64 * GIBIBYTE)
    for node_id in nodes:
        macs.stand(node_id, NOON)
    after(macs, NOON)
    credit_slots(macs.database)
    rows = macs.credited()
    amounts = [rows[node_id, NOON].amount_umlx for node_id in nodes]
    claims = [rows[node_id, NOON].claim_umlx for node_id in nodes]
    assert sum(amounts) == 10_001
    assert macs.posted(POOL) == 0
    for amount, wanted in zip(amounts, claims, strict=True):
        assert abs(amount - 10_001 * wanted / sum(claims)) < 1
    macs.stand(nodes[0], NOON + SLOT_US)
    after(macs, NOON + SLOT_US)
    credit_slots(macs.database)
    assert macs.credited()[nodes[0], NOON + SLOT_US].reason == "pool_empty"
    macs.check_books()


def test_no_slot_takes_more_than_its_part_of_the_days_cap(macs: Macs) -> None:
    macs.fill(amount_umlx=10**15)
    node_id = macs.add("Ada")
    macs.ask(node_id, "ultra")
    macs.change(node_id, lent_bytes=2**42, hardware={**macs.node(node_id).hardware, "memory_bytes": 2**50})
    macs.change(node_id, lent_bytes=2**49)
    macs.stand(node_id, NOON)
    after(macs, NOON)
    credit_slots(macs.database)
    assert macs.earned("Ada") == CARD.availability.cap_umlx_per_day // 144


def test_more_macs_than_one_transaction_takes_share_as_one(macs: Macs) -> None:
    pool = 700_001
    macs.fill(amount_umlx=pool)
    macs.owner("Ada")
    nodes = [macs.add("Ada") for _ in range(507)]
    rows = [Stood(node_id, NOON, 600, 0, 0, has_demanded_model=True) for node_id in nodes]
    with macs.writing() as session:
        StandingRows().write(session, rows, now_us=NOON + SLOT_US)
    after(macs, NOON)
    assert credit_part(macs.database, NOON) == 500
    assert credit_slots(macs.database) == 7
    amounts = [row.amount_umlx for row in macs.credited().values()]
    assert sum(amounts) == macs.earned("Ada") == pool
    assert max(amounts) - min(amounts) <= 1
    macs.check_books()


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


# -- standing rows -------------------------------------------------------------------------------


def standing(macs: Macs, node_id: str) -> tuple[int, int]:
    with macs.database.read() as session:
        row = session.get_one(StandingTime, (node_id, NOON))
        return row.present_seconds, row.busy_seconds


def test_storing_again_adds_nothing_and_a_new_process_adds_its_own(macs: Macs) -> None:
    node_id = macs.add("Ada")
    first, second = StandingRows(), StandingRows()
    end = NOON + SLOT_US

    def store(rows: StandingRows, present: int, busy: int, now_us: int = end) -> tuple[int, int]:
        with macs.writing() as session:
            stood = Stood(node_id, NOON, present, busy, 0, has_demanded_model=True)
            rows.write(session, [stood], now_us=now_us)
        return standing(macs, node_id)

    assert store(first, 100, 10) == (100, 10)
    assert store(first, 100, 10) == (100, 10)
    assert store(first, 160, 20) == (160, 20)
    assert store(second, 30, 30) == (190, 50)
    assert store(second, 500, 500) == (600, 520)
    # Not more than the time of the slot that has passed.
    other = macs.add("Bo")
    with macs.writing() as session:
        stood = Stood(other, NOON, 600, 600, 0, has_demanded_model=True)
        StandingRows().write(session, [stood], now_us=NOON + 240_000_000)
    assert standing(macs, other) == (240, 240)


# -- fees ----------------------------------------------------------------------------------------


def test_fees_are_cut_once_a_day(macs: Macs) -> None:
    macs.fill(FEE, 1_001)
    assert split_fees(macs.database) == 3
    found = {name: macs.posted(name) for name in (FEE, TREASURY, POOL, AUDIT_POOL)}
    assert found == {FEE: 0, TREASURY: 601, POOL: 200, AUDIT_POOL: 200}
    macs.fill(FEE, 3)
    assert split_fees(macs.database) == 0
    macs.now_us += DAY_US
    assert split_fees(macs.database) == 1
    assert macs.posted(TREASURY) == 604
    macs.fill(FEE, 10)
    macs.now_us -= DAY_US
    assert split_fees(macs.database) == 0
    macs.check_books()


def test_two_processes_cut_a_days_fees_once(macs: Macs) -> None:
    macs.fill(FEE, 1_000)
    others = [macs.open() for _ in range(3)]
    threads = [threading.Thread(target=split_fees, args=(database,)) for database in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for database in others:
        database.close()
    assert [macs.posted(name) for name in (FEE, TREASURY, POOL, AUDIT_POOL)] == [0, 600, 200, 200]
