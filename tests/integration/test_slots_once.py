"""Slots and fees on both databases: moved once whatever happens, and never more than there is."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from sqlalchemy.orm import Session

from coordinator.db import Database, make_engine
from coordinator.seats.credit import credit_missed_slots, credit_part, credit_slots
from coordinator.seats.fees import split_fees
from coordinator.seats.models import StandingTime
from coordinator.seats.standing import Stood
from coordinator.seats.standing_rows import StandingRows, drop_old_standing
from ledger.availability import POOL
from ledger.commands import FEE, TREASURY
from ledger.ratecard import CARD, DAY_US, GIBIBYTE, SLOT_US
from ledger.rewards import AUDIT_POOL
from tests.integration.macs import NOON, Macs, after, claim

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


def test_old_standing_time_is_dropped_and_what_it_was_paid_stays(macs: Macs) -> None:
    macs.fill()
    node_id = macs.add("Ada")
    macs.stand(node_id, NOON)
    after(macs, NOON)
    credit_slots(macs.database)
    assert drop_old_standing(macs.database) == 0
    macs.now_us += 90 * DAY_US
    assert drop_old_standing(macs.database) == 1
    assert list(macs.credited()) == [(node_id, NOON)]


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
