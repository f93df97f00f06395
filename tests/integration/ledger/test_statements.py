"""Monthly statements and the plain-text books, read from real databases."""

from __future__ import annotations

import io
from uuid import uuid4

import pytest
from beancount import loader

from coordinator.db import Database
from ledger import book, statements
from ledger.commands import Capture, Command, Mint, OpenHold, Transfer
from ledger.plaintext import beancount_text
from ledger.views import month_bounds_us, write_csv

MARCH_US, APRIL_US = month_bounds_us("2026-03")
ACCOUNTS = ("user:ann", "user:sue", "pool:availability")


@pytest.fixture
def books(database: Database) -> Database:
    """Sue has 10,000 uMLX in February and pays Ann's Mac for a job on the last of March."""
    hold = OpenHold(id=uuid4(), account_id="user:sue", amount_umlx=3_000, expires_us=APRIL_US)
    refused = Transfer(id=uuid4(), source="user:ann", target="user:sue", amount_umlx=1)
    pays = (("user:ann", 1_800), ("fee", 200))
    run(database, MARCH_US - 1, Mint(id=uuid4(), account_id="user:sue", amount_umlx=10_000))
    run(database, MARCH_US, hold, refused)
    run(database, APRIL_US - 1, Capture(id=uuid4(), hold_id=hold.id, pays=pays, reference="job_1"))
    run(database, APRIL_US, Transfer(id=uuid4(), source="user:sue", target="user:ann", amount_umlx=5))
    return database


def run(database: Database, now_us: int, *commands: Command) -> None:
    with database.write() as session:
        book.ensure_accounts(session.connection(), ACCOUNTS, now_us=now_us)
        book.apply(session.connection(), commands, now_us=now_us)


@pytest.mark.parametrize(
    ("month", "opening", "amounts", "closing"),
    [
        ("2026-02", 0, [10_000], 10_000),
        ("2026-03", 10_000, [-2_000], 8_000),
        ("2026-04", 8_000, [-5], 7_995),
        ("2026-05", 7_995, [], 7_995),
    ],
)
def test_a_month_opens_where_the_last_one_closed(
    books: Database, month: str, opening: int, amounts: list[int], closing: int
) -> None:
    with books.read() as session:
        found = statements.monthly_statement(session.connection(), "user:sue", month)
    assert (found.opening_umlx, found.closing_umlx) == (opening, closing)
    lines = statements.statement_lines(found)
    assert [line.amount_umlx for line in lines[1:-1]] == amounts
    assert lines[0].balance_umlx == opening
    assert lines[-2].balance_umlx == lines[-1].balance_umlx == closing


def test_a_statement_as_csv_runs_from_opening_to_closing(books: Database) -> None:
    with books.read() as session:
        found = statements.monthly_statement(session.connection(), "user:ann", "2026-03")
    out = io.StringIO()
    write_csv(statements.statement_lines(found), out)
    assert out.getvalue().splitlines() == [
        "seq,recorded_us,kind,reference,amount_umlx,balance_umlx,recorded_utc",
        f",{MARCH_US},opening,,0,0,2026-03-01T00:00:00.000000Z",
        f"4,{APRIL_US - 1},capture,job_1,1800,1800,2026-03-31T23:59:59.999999Z",
        f",{APRIL_US},closing,,0,1800,2026-04-01T00:00:00.000000Z",
    ]


def test_beancount_accepts_the_books_of_the_database(books: Database) -> None:
    with books.read() as session:
        connection = session.connection()
        entries = list(statements.plain_entries(connection))
        closing = {name: posted for name, posted, _ in statements.trial_balance(connection)}
    assert [entry.kind for entry in entries] == ["mint", "capture", "transfer"]
    text = "\n".join(beancount_text(entries, closing)) + "\n"
    assert loader.load_string(text)[1] == []  # pyright: ignore[reportUnknownMemberType]
    closing["user:ann"] += 1
    text = "\n".join(beancount_text(entries, closing)) + "\n"
    assert loader.load_string(text)[1] != []  # pyright: ignore[reportUnknownMemberType]
