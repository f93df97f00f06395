"""The rules at their edges, on sheets made by hand."""

from __future__ import annotations

from uuid import UUID

import pytest

from ledger.commands import (
    Adjust,
    Burn,
    Capture,
    Command,
    ExpireHold,
    Mint,
    OpenHold,
    Refund,
    Transfer,
    VoidHold,
)
from ledger.limits import MAX_AMOUNT_UMLX, MAX_BALANCE_UMLX
from ledger.rules import Account, Effect, Hold, Refusal, Sheet, decide

ID, HOLD = UUID(int=1), UUID(int=2)


def sheet(*, posted_umlx: int = 100, hold: Hold | None = None) -> Sheet:
    held_umlx = hold.amount_umlx if hold is not None and hold.state == "open" else 0
    accounts = {
        "issuance": Account(None, -posted_umlx, 0),
        "user:a": Account(0, posted_umlx, held_umlx),
        "user:b": Account(0, 0, 0),
    }
    return Sheet(accounts, {} if hold is None else {HOLD: hold})


@pytest.mark.parametrize(
    ("amount", "refusal"), [(99, None), (100, None), (101, Refusal("insufficient_funds", 101, 100))]
)
def test_a_hold_needs_the_money(amount: int, refusal: Refusal | None) -> None:
    decision = decide(sheet(), OpenHold(id=ID, account_id="user:a", amount_umlx=amount, expires_us=11), 10)
    assert (decision if isinstance(decision, Refusal) else None) == refusal


@pytest.mark.parametrize(("now_us", "is_open"), [(9, True), (10, False), (11, False)])
def test_a_hold_must_end_later_than_now(now_us: int, is_open: bool) -> None:
    decision = decide(sheet(), OpenHold(id=ID, account_id="user:a", amount_umlx=1, expires_us=10), now_us)
    assert isinstance(decision, Effect) is is_open


@pytest.mark.parametrize(("now_us", "expires"), [(9, False), (10, True), (11, True)])
def test_expiry_is_at_its_time(now_us: int, expires: bool) -> None:
    books = sheet(hold=Hold("user:a", 50, "open", 10))
    assert isinstance(decide(books, ExpireHold(id=ID, hold_id=HOLD), now_us), Effect) is expires


def test_held_money_cannot_be_spent() -> None:
    books = sheet(hold=Hold("user:a", 60, "open", 10))
    spend = Transfer(id=ID, source="user:a", target="user:b", amount_umlx=41)
    assert decide(books, spend, 0) == Refusal("insufficient_funds", 41, 40)


def test_capture_legs_are_netted_sorted_and_never_zero() -> None:
    books = sheet(hold=Hold("user:a", 60, "open", 10))
    pays = (("user:b", 3), ("user:a", 20), ("user:b", 4), ("fee", 0))
    decision = decide(books, Capture(id=ID, hold_id=HOLD, pays=pays), 0)
    assert isinstance(decision, Effect)
    assert decision.legs == (("user:a", -7), ("user:b", 7))
    assert (decision.held_umlx, decision.hold) == (-60, Hold("user:a", 60, "posted", 10, 27))


def test_a_refund_needs_the_money_of_its_source() -> None:
    books = sheet(hold=Hold("user:a", 60, "posted", 10, 60))
    refund = Refund(id=ID, hold_id=HOLD, source="user:b", amount_umlx=1)
    assert decide(books, refund, 0) == Refusal("insufficient_funds", 1, 0)


def test_no_balance_leaves_what_the_database_can_hold() -> None:
    books = sheet(posted_umlx=MAX_BALANCE_UMLX - MAX_AMOUNT_UMLX)
    fits = Mint(id=ID, account_id="user:a", amount_umlx=MAX_AMOUNT_UMLX)
    decision = decide(books, fits, 0)
    assert isinstance(decision, Effect)
    books.post(decision)
    assert books.accounts["user:a"].posted_umlx == MAX_BALANCE_UMLX
    assert decide(books, Mint(id=ID, account_id="user:a", amount_umlx=1), 0) == Refusal("balance_limit")


def test_deciding_changes_nothing() -> None:
    books, same = (sheet(hold=Hold("user:a", 60, "open", 10)) for _ in range(2))
    decide(books, Capture(id=ID, hold_id=HOLD, pays=(("user:b", 60),)), 0)
    assert books == same


@pytest.mark.parametrize(
    "command",
    [
        Transfer(id=ID, source="user:a", target="user:b", amount_umlx=101),
        Transfer(id=ID, source="user:a", target="user:nobody", amount_umlx=1),
        Burn(id=ID, account_id="user:b", amount_umlx=1),
        OpenHold(id=ID, account_id="user:a", amount_umlx=101, expires_us=9),
        OpenHold(id=ID, account_id="user:a", amount_umlx=1, expires_us=0),
        Capture(id=ID, hold_id=HOLD, pays=(("user:b", 61),)),
        Capture(id=ID, hold_id=HOLD, pays=(("user:nobody", 1),)),
        VoidHold(id=ID, hold_id=ID),
        ExpireHold(id=ID, hold_id=HOLD),
        Refund(id=ID, hold_id=HOLD, source="user:b", amount_umlx=1),
        Adjust(id=ID, legs=(("user:a", 1), ("user:b", -1)), operators=("Ann", "Bob"), reason="wrong account"),
    ],
)
def test_a_refusal_changes_nothing(command: Command) -> None:
    books, same = (sheet(hold=Hold("user:a", 60, "open", 10)) for _ in range(2))
    assert isinstance(decide(books, command, 0), Refusal)
    assert books == same
