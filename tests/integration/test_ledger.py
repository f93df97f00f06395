"""The ledger on real databases: what only they can show (locks, triggers, constraints, threads)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from coordinator.db import Database
from ledger import book, models, statements
from ledger.commands import (
    Applied,
    Burn,
    Capture,
    Command,
    Conflict,
    ExpireHold,
    Mint,
    OpenHold,
    Outcome,
    Refund,
    Rejected,
    Transfer,
    VoidHold,
    settlement_id,
)

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
ACCOUNTS = ("user:a", "user:b", "user:c")


def run(database: Database, *commands: Command, now_us: int = NOW_US) -> list[Outcome]:
    with database.write() as session:
        return book.apply(session.connection(), commands, now_us=now_us)


def posted(database: Database) -> dict[str, int]:
    with database.read() as session:
        return {name: posted_umlx for name, posted_umlx, _ in statements.trial_balance(session.connection())}


def held(database: Database) -> dict[str, int]:
    with database.read() as session:
        return {name: held_umlx for name, _, held_umlx in statements.trial_balance(session.connection())}


def assert_sound(database: Database) -> None:
    with database.read() as session:
        assert statements.reconcile(session.connection()) == []


def entry_count(database: Database) -> int:
    with database.read() as session:
        return session.execute(select(func.count()).select_from(models.journal)).scalar_one()


@pytest.fixture
def books(database: Database) -> Database:
    """A ledger with 1000 uMLX on `user:a`."""
    with database.write() as session:
        connection = session.connection()
        book.ensure_accounts(connection, ACCOUNTS, now_us=NOW_US)
        book.apply(connection, [Mint(id=uuid4(), account_id="user:a", amount_umlx=1000)], now_us=NOW_US)
    return database


def hold(amount_umlx: int, *, account_id: str = "user:a", expires_us: int = NOW_US + HOUR_US) -> OpenHold:
    return OpenHold(id=uuid4(), account_id=account_id, amount_umlx=amount_umlx, expires_us=expires_us)


def test_a_job_is_held_and_captured_and_the_rest_released(books: Database) -> None:
    opened = hold(700)
    assert run(books, opened) == [Applied(opened.id, 2, NOW_US)]
    assert held(books)["user:a"] == 700
    capture = Capture(id=uuid4(), hold_id=opened.id, pays=(("user:b", 450), ("fee", 50)), reference="job_1")
    assert run(books, capture) == [Applied(capture.id, 3, NOW_US)]
    assert posted(books) == {
        "issuance": -1000,
        "fee": 50,
        "treasury": 0,
        "user:a": 500,
        "user:b": 450,
        "user:c": 0,
    }
    assert held(books)["user:a"] == 0
    assert_sound(books)


def test_a_hold_up_to_what_is_available_and_no_more(books: Database) -> None:
    too_much = hold(1001)
    assert run(books, too_much) == [Rejected(too_much.id, 2, NOW_US, "insufficient_funds", 1001, 1000)]
    all_of_it, one_more = hold(1000), hold(1)
    outcomes = run(books, all_of_it, one_more)
    assert outcomes == [
        Applied(all_of_it.id, 3, NOW_US),
        Rejected(one_more.id, 4, NOW_US, "insufficient_funds", 1, 0),
    ]
    assert_sound(books)


@pytest.mark.parametrize(("paid", "works"), [(699, True), (700, True), (701, False)])
def test_a_capture_up_to_the_hold_and_no_more(books: Database, paid: int, works: bool) -> None:
    opened = hold(700)
    outcome = run(books, opened, Capture(id=uuid4(), hold_id=opened.id, pays=(("user:b", paid),)))[1]
    assert isinstance(outcome, Applied) is works
    if isinstance(outcome, Rejected):
        assert (outcome.reason, outcome.needed_umlx, outcome.available_umlx) == ("exceeds_hold", 701, 700)
    assert posted(books)["user:b"] == (paid if works else 0)
    assert_sound(books)


def test_a_hold_ends_once(books: Database) -> None:
    opened = hold(700)
    endings: Sequence[Command] = (
        VoidHold(id=uuid4(), hold_id=opened.id),
        VoidHold(id=uuid4(), hold_id=opened.id),
        Capture(id=uuid4(), hold_id=opened.id, pays=(("user:b", 1),)),
        ExpireHold(id=uuid4(), hold_id=opened.id),
    )
    results = [getattr(outcome, "reason", "applied") for outcome in run(books, opened, *endings)]
    assert results == ["applied", "applied", "hold_not_open", "hold_not_open", "hold_not_open"]
    assert held(books)["user:a"] == 0
    assert_sound(books)


def test_a_hold_expires_at_its_time_and_can_be_captured_until_it_is_swept(books: Database) -> None:
    early, late = hold(10, expires_us=NOW_US + 5), hold(20, expires_us=NOW_US + 5)
    run(books, early, late)
    too_soon = ExpireHold(id=uuid4(), hold_id=early.id)
    assert run(books, too_soon, now_us=NOW_US + 4) == [
        Rejected(too_soon.id, 4, NOW_US + 4, "not_yet_expired")
    ]
    with books.read() as session:
        assert statements.expired_holds(session.connection(), NOW_US + 4) == []
        assert set(statements.expired_holds(session.connection(), NOW_US + 5)) == {early.id, late.id}
    outcomes = run(
        books,
        ExpireHold(id=uuid4(), hold_id=early.id),
        Capture(id=uuid4(), hold_id=late.id, pays=(("user:b", 20),)),
        now_us=NOW_US + 5,
    )
    assert [type(outcome) for outcome in outcomes] == [Applied, Applied]
    assert_sound(books)


def test_paying_oneself_costs_the_fee(books: Database) -> None:
    opened = hold(100)
    run(books, opened, Capture(id=uuid4(), hold_id=opened.id, pays=(("user:a", 90), ("fee", 10))))
    assert (posted(books)["user:a"], posted(books)["fee"]) == (990, 10)
    assert_sound(books)


def test_refunds_stop_at_what_was_captured(books: Database) -> None:
    opened = hold(500)
    run(books, opened, Capture(id=uuid4(), hold_id=opened.id, pays=(("user:b", 300),)))
    first, second, third = (
        Refund(id=uuid4(), hold_id=opened.id, source="user:b", amount_umlx=amount)
        for amount in (200, 101, 100)
    )
    outcomes = run(books, first, second, third)
    assert outcomes[1] == Rejected(second.id, 5, NOW_US, "exceeds_captured", 101, 100)
    assert isinstance(outcomes[0], Applied) and isinstance(outcomes[2], Applied)
    assert (posted(books)["user:a"], posted(books)["user:b"]) == (1000, 0)
    assert_sound(books)


def test_a_command_sent_again_gets_its_first_answer(books: Database) -> None:
    spend = Transfer(id=settlement_id("job_1", 1, "gift"), source="user:a", target="user:b", amount_umlx=600)
    first = run(books, spend, spend)
    again = run(books, spend, now_us=NOW_US + 77)
    assert first[0] == first[1] == again[0] == Applied(spend.id, 2, NOW_US)
    assert [getattr(outcome, "replayed", None) for outcome in (*first, *again)] == [False, True, True]
    refused = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=600)
    [no] = run(books, refused)
    run(books, Mint(id=uuid4(), account_id="user:a", amount_umlx=10_000))
    assert run(books, refused) == [no] and isinstance(no, Rejected)
    assert posted(books)["user:b"] == 600
    assert_sound(books)


def test_an_id_used_for_something_else_is_a_conflict_and_writes_nothing(books: Database) -> None:
    spend = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=600)
    other = Transfer(id=spend.id, source="user:a", target="user:b", amount_umlx=601)
    assert run(books, spend, other)[1] == Conflict(spend.id, 2)
    count = entry_count(books)
    assert run(books, other) == [Conflict(spend.id, 2)]
    assert entry_count(books) == count
    assert_sound(books)


def test_unknown_accounts_and_holds_are_refused(books: Database) -> None:
    nobody = Transfer(id=uuid4(), source="user:a", target="user:nobody", amount_umlx=1)
    nothing = VoidHold(id=uuid4(), hold_id=uuid4())
    reasons = [getattr(outcome, "reason", None) for outcome in run(books, nobody, nothing)]
    assert reasons == ["unknown_account", "unknown_hold"]
    assert_sound(books)


def test_burning_needs_the_money(books: Database) -> None:
    outcomes = run(
        books,
        Burn(id=uuid4(), account_id="user:a", amount_umlx=1001),
        Burn(id=uuid4(), account_id="user:a", amount_umlx=1000),
    )
    assert [type(outcome) for outcome in outcomes] == [Rejected, Applied]
    assert set(posted(books).values()) == {0}


def test_nothing_stays_of_a_transaction_that_fails(books: Database) -> None:
    before = posted(books), entry_count(books)
    with pytest.raises(ZeroDivisionError), books.write() as session:
        spend = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1)
        book.apply(session.connection(), [spend], now_us=NOW_US)
        raise ZeroDivisionError
    assert (posted(books), entry_count(books)) == before
    assert_sound(books)


def test_entries_never_go_back_in_time(books: Database) -> None:
    later = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1)
    earlier = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1)
    run(books, later, now_us=NOW_US + 50)
    assert run(books, earlier, now_us=NOW_US - 50) == [Applied(earlier.id, 3, NOW_US + 50)]


def test_a_batch_is_bounded(books: Database) -> None:
    commands = [Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1) for _ in range(501)]
    with pytest.raises(ValueError, match="at most 500"):
        run(books, *commands)
    assert len(run(books, *commands[:500])) == 500
    assert posted(books)["user:b"] == 500


def test_a_statement_opens_and_closes_with_the_balances(books: Database) -> None:
    opened = hold(300)
    run(books, Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=100), now_us=NOW_US + 10)
    run(books, opened, now_us=NOW_US + 20)
    run(
        books,
        Transfer(id=uuid4(), source="user:a", target="user:c", amount_umlx=7, reference="x"),
        now_us=NOW_US + 30,
    )
    with books.read() as session:
        whole = statements.statement(session.connection(), "user:a", 0, NOW_US + 31)
        middle = statements.statement(session.connection(), "user:a", NOW_US + 10, NOW_US + 30)
        tail = statements.statement(session.connection(), "user:a", NOW_US + 30, NOW_US + 31)
    assert (whole.opening_umlx, whole.closing_umlx) == (0, 893)
    assert (middle.opening_umlx, middle.closing_umlx, len(middle.entries)) == (1000, 900, 1)
    assert [(entry.amount_umlx, entry.reference) for entry in tail.entries] == [(-7, "x")]
    assert [(item.id, item.amount_umlx) for item in tail.open_holds] == [(opened.id, 300)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_journal SET kind = 'burn'",
        "DELETE FROM ledger_journal WHERE seq = 3",
        "UPDATE ledger_postings SET amount_umlx = 5",
        "DELETE FROM ledger_postings",
        "UPDATE ledger_holds SET state = 'open'",
        "UPDATE ledger_holds SET amount_umlx = amount_umlx + 1",
        "UPDATE ledger_holds SET captured_umlx = captured_umlx - 1",
        "DELETE FROM ledger_holds",
        "UPDATE ledger_accounts SET held_umlx = -1",
        "UPDATE ledger_accounts SET posted_umlx = -1 WHERE id = 'user:a'",
        "UPDATE ledger_accounts SET posted_umlx = 5000000000000000000 WHERE id = 'user:a'",
        "INSERT INTO ledger_chain SELECT 2, seq, head, recorded_us FROM ledger_chain",
        "INSERT INTO ledger_postings VALUES (2, 0, 'user:a', 0)",
        "DELETE FROM ledger_accounts WHERE id = 'user:a'",
    ],
)
def test_the_database_itself_refuses(books: Database, statement: str) -> None:
    opened = hold(500)
    run(books, opened, Capture(id=uuid4(), hold_id=opened.id, pays=(("user:b", 300),)))
    with pytest.raises(DBAPIError), books.write() as session:
        session.execute(text(statement))
    assert_sound(books)


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (
            "UPDATE ledger_accounts SET posted_umlx = posted_umlx + 1 WHERE id = 'user:b'",
            "posted_is_sum_of_postings",
        ),
        (
            "UPDATE ledger_accounts SET held_umlx = held_umlx + 1 WHERE id = 'user:b'",
            "held_is_sum_of_open_holds",
        ),
        ("UPDATE ledger_chain SET seq = seq + 1", "chain_row_is_the_last_entry"),
        ("INSERT INTO ledger_postings VALUES (2, 9, 'user:c', 1)", "entry_sums_to_zero"),
        ("UPDATE ledger_holds SET state = 'voided' WHERE state = 'open'", "each_closed_hold_has_one_ending"),
    ],
)
def test_reconciliation_finds_damage(books: Database, damage: str, rule: str) -> None:
    run(books, Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=100), hold(50))
    with books.write() as session:
        session.execute(text(damage))
    with books.read() as session:
        assert rule in {found.rule for found in statements.reconcile(session.connection())}


def _at_once(count: int, work: Callable[[int], Outcome]) -> list[Outcome]:
    barrier = threading.Barrier(count)

    def wait_and_work(index: int) -> Outcome:
        barrier.wait(timeout=10)
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_work, range(count)))


def test_many_threads_never_hold_more_than_there_is(books: Database) -> None:
    outcomes = _at_once(12, lambda _: run(books, hold(150))[0])
    assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 6
    assert held(books)["user:a"] == 900
    assert sorted(outcome.seq for outcome in outcomes) == list(range(2, 14))
    assert_sound(books)


def test_many_threads_settle_one_hold_once(books: Database) -> None:
    opened = hold(900)
    run(books, opened)

    def settle(index: int) -> Outcome:
        ending = Capture if index % 2 else VoidHold
        if ending is VoidHold:
            return run(books, VoidHold(id=uuid4(), hold_id=opened.id))[0]
        return run(books, Capture(id=uuid4(), hold_id=opened.id, pays=(("user:b", 900),)))[0]

    outcomes = _at_once(8, settle)
    assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 1
    assert posted(books)["user:b"] in {0, 900}
    assert_sound(books)


def test_many_threads_with_the_same_command_apply_it_once(books: Database) -> None:
    spend = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=100)
    outcomes = _at_once(8, lambda _: run(books, spend)[0])
    assert set(outcomes) == {Applied(spend.id, 2, NOW_US)}
    assert posted(books)["user:b"] == 100
    assert_sound(books)


def test_threads_that_pay_each_other_do_not_deadlock(books: Database) -> None:
    run(books, Mint(id=uuid4(), account_id="user:b", amount_umlx=1000))
    names = ("user:a", "user:b")

    def pay(index: int) -> Outcome:
        outcome: Outcome | None = None
        for _ in range(5):
            source, target = names[index % 2], names[(index + 1) % 2]
            [outcome] = run(books, Transfer(id=uuid4(), source=source, target=target, amount_umlx=3))
        assert outcome is not None
        return outcome

    assert all(isinstance(outcome, Applied) for outcome in _at_once(6, pay))
    assert posted(books)["user:a"] + posted(books)["user:b"] == 2000
    assert_sound(books)


def test_accounts_can_be_ensured_by_several_threads(books: Database) -> None:
    def ensure(index: int) -> Outcome:
        with books.write() as session:
            names = [f"user:n{number}" for number in range(index % 3, 20)]
            book.ensure_accounts(session.connection(), names, now_us=NOW_US)
        return Conflict(UUID(int=index), 0)

    _at_once(8, ensure)
    assert {f"user:n{number}" for number in range(20)} <= posted(books).keys()
