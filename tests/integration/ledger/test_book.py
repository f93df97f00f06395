"""What the book refuses to write even if a rule were wrong, and its two newest commands."""

from __future__ import annotations

from uuid import uuid4

import pytest
from sqlalchemy import func, select

from coordinator.db import Database
from ledger import book, models, statements
from ledger.commands import Adjust, Applied, Command, Conflict, Mint, Outcome, Record, Rejected, Transfer
from ledger.rules import Effect, Sheet

NOW_US = 1_800_000_000_000_000
TWO = ("Ann", "Bob")


def run(database: Database, *commands: Command) -> list[Outcome]:
    with database.write() as session:
        book.ensure_accounts(session.connection(), ("user:a", "user:b"), now_us=NOW_US)
        return book.apply(session.connection(), commands, now_us=NOW_US)


def balances(database: Database) -> dict[str, int]:
    with database.read() as session:
        connection = session.connection()
        assert statements.reconcile(connection) == []
        return {name: posted for name, posted, _ in statements.trial_balance(connection) if posted}


def adjust(*legs: tuple[str, int], reason: str = "paid to the wrong account") -> Adjust:
    return Adjust(id=uuid4(), legs=legs, operators=TWO, reason=reason)


def test_an_adjustment_moves_what_it_says_and_no_more(database: Database) -> None:
    run(database, Mint(id=uuid4(), account_id="user:a", amount_umlx=100))
    fits = adjust(("user:a", -100), ("user:b", 90), ("fee", 10))
    too_much = adjust(("user:b", -91), ("user:a", 91))
    unknown = adjust(("user:b", -1), ("user:nobody", 1))
    outcomes = run(database, fits, too_much, unknown, fits)
    assert outcomes == [
        Applied(fits.id, 2, NOW_US),
        Rejected(too_much.id, 3, NOW_US, "insufficient_funds", 91, 90),
        Rejected(unknown.id, 4, NOW_US, "unknown_account"),
        Applied(fits.id, 2, NOW_US),
    ]
    assert balances(database) == {"issuance": -100, "user:b": 90, "fee": 10}
    other = Adjust(id=fits.id, legs=fits.legs, operators=TWO, reason="another reason")
    assert run(database, other) == [Conflict(fits.id, 2)]


def test_a_refusal_changes_no_balance_of_the_commands_after_it(database: Database) -> None:
    """In one batch they share what was read; what a refusal left there would be written by the next."""
    give = [
        Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=amount)
        for amount in (101, 40, 61, 60)
    ]
    outcomes = run(database, Mint(id=uuid4(), account_id="user:a", amount_umlx=100), *give)
    assert [type(outcome) for outcome in outcomes] == [Applied, Rejected, Applied, Rejected, Applied]
    assert balances(database) == {"issuance": -100, "user:b": 100}


def test_a_record_is_an_entry_without_postings(database: Database) -> None:
    record = Record(id=uuid4(), subject="node_key:node_1", content_sha256="ab" * 32)
    assert run(database, record, record) == [Applied(record.id, 1, NOW_US)] * 2
    with database.read() as session:
        assert session.execute(select(models.journal.c.body)).scalar_one() == record.body
        assert session.execute(select(func.count()).select_from(models.postings)).scalar_one() == 0
    assert balances(database) == {}


def test_uneven_postings_are_never_written(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules cannot make them; the book looks all the same."""
    run(database)

    def decide(_sheet: Sheet, _command: Command, _now_us: int) -> Effect:
        return Effect(legs=(("user:a", 5), ("user:b", -4)))

    monkeypatch.setattr(book, "decide", decide)
    with pytest.raises(book.LedgerDamaged, match="sum to zero"):
        run(database, Mint(id=uuid4(), account_id="user:a", amount_umlx=5))
    monkeypatch.undo()
    assert balances(database) == {}
