"""Read the books: balances, statements, trial balance, reconciliation. Amounts in uMLX.

Call these in a read session, so that all of one answer is of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Integer, Row, cast, func, literal, select

from ledger import models
from ledger.drift import Drift, drift_of_journal
from ledger.plaintext import PlainEntry
from ledger.views import month_bounds_us

MAX_STATEMENT_ENTRIES: Final = 10_000


@dataclass(frozen=True)
class Balance:
    """One account at one moment; available = posted - held."""

    account_id: str
    posted_umlx: int
    held_umlx: int

    @property
    def available_umlx(self) -> int:
        """What can be spent or reserved."""
        return self.posted_umlx - self.held_umlx


@dataclass(frozen=True)
class StatementEntry:
    """One change of the account's posted balance."""

    seq: int
    id: UUID
    recorded_us: int
    kind: str
    reference: str
    amount_umlx: int


@dataclass(frozen=True)
class StatementHold:
    """One reservation that is open now."""

    id: UUID
    amount_umlx: int
    reference: str
    opened_us: int
    expires_us: int


@dataclass(frozen=True)
class Statement:
    """An account from `since_us` (included) to `until_us` (excluded); opening + entries = closing.

    `open_holds` are those of the moment of asking, whatever the period.
    """

    account_id: str
    since_us: int
    until_us: int
    opening_umlx: int
    entries: tuple[StatementEntry, ...]
    closing_umlx: int
    open_holds: tuple[StatementHold, ...]


@dataclass(frozen=True)
class StatementLine:
    """One line of a statement as it is printed, with the balance after it."""

    seq: int | None
    recorded_us: int
    kind: str
    reference: str
    amount_umlx: int
    balance_umlx: int


def balance(connection: Connection, account_id: str) -> Balance | None:
    """The balance of an account, or None if there is no such account."""
    row = connection.execute(select(models.accounts).where(models.accounts.c.id == account_id)).one_or_none()
    return None if row is None else Balance(row.id, row.posted_umlx, row.held_umlx)


def statement(connection: Connection, account_id: str, since_us: int, until_us: int) -> Statement:
    """What happened on an account in a period. An unknown account has an empty statement.

    Raises ValueError if the period ends before it begins or holds more than 10,000 entries.
    """
    if until_us < since_us:
        raise ValueError("until_us must not be before since_us")
    own = models.postings.c.account_id == account_id
    both = models.postings.join(models.journal)
    total = func.coalesce(_integer(func.sum(models.postings.c.amount_umlx)), 0)
    opening = connection.execute(
        select(total).select_from(both).where(own, models.journal.c.recorded_us < since_us)
    ).scalar_one()
    rows = connection.execute(
        select(
            models.journal.c.seq,
            models.journal.c.id,
            models.journal.c.recorded_us,
            models.journal.c.kind,
            models.journal.c.reference,
            models.postings.c.amount_umlx,
        )
        .select_from(both)
        .where(own, models.journal.c.recorded_us >= since_us, models.journal.c.recorded_us < until_us)
        .order_by(models.journal.c.seq)
        .limit(MAX_STATEMENT_ENTRIES + 1)
    ).all()
    if len(rows) > MAX_STATEMENT_ENTRIES:
        raise ValueError(f"the period holds more than {MAX_STATEMENT_ENTRIES} entries; ask for a shorter one")
    entries = tuple(StatementEntry(*row) for row in rows)
    closing = opening + sum(entry.amount_umlx for entry in entries)
    return Statement(
        account_id, since_us, until_us, opening, entries, closing, _open_holds(connection, account_id)
    )


def monthly_statement(connection: Connection, account_id: str, month: str) -> Statement:
    """The statement of a calendar month (UTC), written "2026-03". Raises ValueError as `statement`."""
    return statement(connection, account_id, *month_bounds_us(month))


def statement_lines(found: Statement) -> tuple[StatementLine, ...]:
    """Opening, each entry, closing; the balance runs from one to the other."""
    balance_umlx = found.opening_umlx
    lines = [StatementLine(None, found.since_us, "opening", "", 0, balance_umlx)]
    for entry in found.entries:
        balance_umlx += entry.amount_umlx
        lines.append(
            StatementLine(
                entry.seq, entry.recorded_us, entry.kind, entry.reference, entry.amount_umlx, balance_umlx
            )
        )
    lines.append(StatementLine(None, found.until_us, "closing", "", 0, found.closing_umlx))
    return tuple(lines)


def plain_entries(connection: Connection) -> Iterator[PlainEntry]:
    """Every entry that moved money, with its legs, in order; read as it goes, memory stays flat."""
    legs: list[tuple[str, int]] = []
    last: Row[Any] | None = None
    query = (
        select(models.journal, models.postings.c.account_id, models.postings.c.amount_umlx)
        .join_from(models.journal, models.postings)
        .order_by(models.journal.c.seq, models.postings.c.leg)
        .execution_options(yield_per=1000)
    )
    for row in connection.execute(query):
        if last is not None and row.seq != last.seq:
            yield _plain_entry(last, legs)
            legs = []
        legs.append((row.account_id, row.amount_umlx))
        last = row
    if last is not None:
        yield _plain_entry(last, legs)


def _plain_entry(row: Row[Any], legs: list[tuple[str, int]]) -> PlainEntry:
    return PlainEntry(row.seq, str(row.id), row.recorded_us, row.kind, row.reference, tuple(legs))


def _open_holds(connection: Connection, account_id: str) -> tuple[StatementHold, ...]:
    rows = connection.execute(
        select(
            models.holds.c.id,
            models.holds.c.amount_umlx,
            models.holds.c.reference,
            models.holds.c.opened_us,
            models.holds.c.expires_us,
        )
        .where(models.holds.c.account_id == account_id, models.holds.c.state == "open")
        .order_by(models.holds.c.opened_us, models.holds.c.id)
    )
    return tuple(StatementHold(*row) for row in rows)


def expired_holds(connection: Connection, now_us: int, limit: int = 500) -> list[UUID]:
    """The open holds whose time is over, longest first: what a sweeper must expire."""
    query = (
        select(models.holds.c.id)
        .where(models.holds.c.state == "open", models.holds.c.expires_us <= now_us)
        .order_by(models.holds.c.expires_us, models.holds.c.id)
        .limit(limit)
    )
    return list(connection.execute(query).scalars())


def trial_balance(connection: Connection) -> list[tuple[str, int, int]]:
    """(account id, posted, held) of every account, sorted by id."""
    columns = (models.accounts.c.id, models.accounts.c.posted_umlx, models.accounts.c.held_umlx)
    return [
        (row[0], row[1], row[2])
        for row in connection.execute(select(*columns).order_by(models.accounts.c.id))
    ]


def total_umlx(connection: Connection) -> int:
    """The sum of all accounts' posted balances; anything but 0 is damage."""
    return sum(posted_umlx for _, posted_umlx, _ in trial_balance(connection))


def reconcile(connection: Connection) -> list[Drift]:
    """Compare balances with postings and holds, sum everything, and replay the journal.

    The replay recomputes chain, tree and checkpoints and what each entry does to the books (see
    `ledger.drift`). Reads the whole ledger. An empty list means that the books are right.
    """
    return [
        *_drift_of_balances(connection),
        *_drift_of_entries(connection),
        *_drift_of_holds(connection),
        *drift_of_journal(connection),
    ]


def _integer(column: Any) -> Any:
    # PostgreSQL sums BIGINT to NUMERIC; without the cast Decimals would come back.
    return cast(column, models.accounts.c.posted_umlx.type)


def _drift_of_balances(connection: Connection) -> list[Drift]:
    posted_query = select(
        models.postings.c.account_id, _integer(func.sum(models.postings.c.amount_umlx))
    ).group_by(models.postings.c.account_id)
    posted = {row[0]: row[1] for row in connection.execute(posted_query)}
    held_query = (
        select(models.holds.c.account_id, _integer(func.sum(models.holds.c.amount_umlx)))
        .where(models.holds.c.state == "open")
        .group_by(models.holds.c.account_id)
    )
    held = {row[0]: row[1] for row in connection.execute(held_query)}
    found: list[Drift] = []
    for account_id, posted_umlx, held_umlx in trial_balance(connection):
        if posted_umlx != posted.get(account_id, 0):
            found.append(
                Drift("posted_is_sum_of_postings", account_id, posted.get(account_id, 0), posted_umlx)
            )
        if held_umlx != held.get(account_id, 0):
            found.append(Drift("held_is_sum_of_open_holds", account_id, held.get(account_id, 0), held_umlx))
    total = total_umlx(connection)
    if total != 0:
        found.append(Drift("accounts_sum_to_zero", "all", 0, total))
    return found


def _drift_of_entries(connection: Connection) -> list[Drift]:
    total = _integer(func.sum(models.postings.c.amount_umlx))
    uneven = connection.execute(
        select(models.postings.c.seq, total).group_by(models.postings.c.seq).having(total != 0)
    )
    found = [Drift("entry_sums_to_zero", str(row[0]), 0, row[1]) for row in uneven]
    refused = connection.execute(
        select(models.postings.c.seq)
        .join_from(models.postings, models.journal)
        .where(models.journal.c.result != "posted")
        .distinct()
    )
    return found + [Drift("refused_entry_has_no_postings", str(row[0]), 0, 1) for row in refused]


def _drift_of_holds(connection: Connection) -> list[Drift]:
    """Each hold was opened once, and left `open` by exactly one entry unless it still is."""
    opened = select(models.journal.c.id).where(
        models.journal.c.kind == "open_hold", models.journal.c.result == "posted"
    )
    orphans = connection.execute(select(models.holds.c.id).where(models.holds.c.id.not_in(opened)))
    found = [Drift("hold_was_opened_by_an_entry", str(row[0]), 1, 0) for row in orphans]
    kept = select(models.holds.c.id)
    lost = connection.execute(opened.where(models.journal.c.id.not_in(kept)))
    found += [Drift("opened_hold_exists", str(row[0]), 1, 0) for row in lost]
    endings = select(func.count(literal(1).cast(Integer))).where(
        models.journal.c.kind.in_(("capture", "void_hold", "expire_hold")),
        models.journal.c.result == "posted",
    )
    closed = (
        select(func.count(literal(1).cast(Integer)))
        .select_from(models.holds)
        .where(models.holds.c.state != "open")
    )
    ends, closes = (connection.execute(endings).scalar_one(), connection.execute(closed).scalar_one())
    return (
        found if ends == closes else [*found, Drift("each_closed_hold_has_one_ending", "all", closes, ends)]
    )
