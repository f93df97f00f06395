"""Reading and writing a batch on SQLite, where a statement is no journey: a row at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from ledger import models
from ledger.rules import Account, Hold
from ledger.store import ChainMoved, Changes, NewEntry, OldEntry, Stored, Tip, Wanted

_ENTRY_COLUMNS: Final = (
    "seq",
    "id",
    "kind",
    "reference",
    "recorded_us",
    "request_digest",
    "result",
    "needed_umlx",
    "available_umlx",
)
_HOLD_COLUMNS: Final = ("account_id", "amount_umlx", "state", "expires_us", "captured_umlx", "refunded_umlx")
_TIP: Final = select(models.chain).where(models.chain.c.id == 1)
_ANSWER: Final = (
    models.journal.c.id,
    models.journal.c.request_digest,
    models.journal.c.seq,
    models.journal.c.recorded_us,
    models.journal.c.result,
    models.journal.c.needed_umlx,
    models.journal.c.available_umlx,
)
_SET_ACCOUNT: Final = (
    update(models.accounts)
    .where(models.accounts.c.id == bindparam("row_id"))
    .values(posted_umlx=bindparam("posted"), held_umlx=bindparam("held"))
)
_SET_HOLD: Final = (
    update(models.holds)
    .where(models.holds.c.id == bindparam("row_id"))
    .values(
        state=bindparam("new_state"),
        captured_umlx=bindparam("new_captured_umlx"),
        refunded_umlx=bindparam("new_refunded_umlx"),
    )
)


def lock_and_read(connection: Connection, wanted: Wanted) -> tuple[Tip, Stored] | None:
    """As `ledger.store.Store` says; the transaction itself holds the only lock that SQLite has."""
    tip = connection.execute(_TIP).one_or_none()
    if tip is None:
        return None
    # SQLite has no clock of its own: this machine's.
    return Tip(tip.seq, tip.head, tip.recorded_us, time.time_ns() // 1000), _read(connection, wanted)


def journeys(_connection: Connection) -> AbstractContextManager[Callable[[], None]]:
    """As `ledger.store.Store` says; there are none, so the caller's commit is the only one."""
    return nullcontext(lambda: None)


def _read(connection: Connection, wanted: Wanted) -> Stored:
    rows = connection.execute(select(*_ANSWER).where(models.journal.c.id.in_(wanted.ids)))
    answered = [OldEntry(*row) for row in rows]
    holds: dict[UUID, Hold] = {}
    if wanted.hold_ids:
        columns = models.holds.c
        query = select(columns.id, *(columns[name] for name in _HOLD_COLUMNS))
        rows = connection.execute(query.where(columns.id.in_(wanted.hold_ids)))
        holds = {row.id: _hold_of(row) for row in rows}
    names = sorted({*wanted.account_ids, *(hold.account_id for hold in holds.values())})
    found = connection.execute(select(models.accounts).where(models.accounts.c.id.in_(names)))
    accounts = {row.id: Account(row.floor_umlx, row.posted_umlx, row.held_umlx) for row in found}
    return Stored(answered, holds, accounts)


def _hold_of(row: Row[Any]) -> Hold:
    return Hold(
        row.account_id, row.amount_umlx, row.state, row.expires_us, row.captured_umlx, row.refunded_umlx
    )


def write(connection: Connection, changes: Changes) -> None:
    """As `ledger.store.Store` says."""
    last = changes.journal[-1]
    moved = connection.execute(
        update(models.chain)
        .where(models.chain.c.id == 1, models.chain.c.seq == changes.old_seq)
        .values(seq=last.entry.seq, head=last.head, recorded_us=last.entry.recorded_us)
    )
    if moved.rowcount != 1:
        raise ChainMoved("ledger_chain moved under its lock")
    connection.execute(insert(models.journal), [_entry_row(new) for new in changes.journal])
    postings = [
        {"seq": new.entry.seq, "leg": leg, "account_id": account_id, "amount_umlx": amount_umlx}
        for new in changes.journal
        for leg, (account_id, amount_umlx) in enumerate(new.entry.legs)
    ]
    if postings:
        connection.execute(insert(models.postings), postings)
    _write_holds(connection, changes)
    accounts = [
        {"row_id": name, "posted": account.posted_umlx, "held": account.held_umlx}
        for name, account in changes.accounts.items()
    ]
    if accounts:
        connection.execute(_SET_ACCOUNT, accounts)


def _entry_row(new: NewEntry) -> dict[str, Any]:
    row = {name: getattr(new.entry, name) for name in _ENTRY_COLUMNS}
    return row | {"body": new.body, "leaf": new.leaf, "head": new.head}


def _write_holds(connection: Connection, changes: Changes) -> None:
    opened = [
        {name: getattr(changes.holds[hold_id], name) for name in _HOLD_COLUMNS}
        | {"id": hold_id, "reference": new.reference, "opened_us": new.opened_us}
        for hold_id, new in changes.new_holds.items()
    ]
    if opened:
        connection.execute(insert(models.holds), opened)
    changed = [
        {
            "row_id": hold_id,
            "new_state": hold.state,
            "new_captured_umlx": hold.captured_umlx,
            "new_refunded_umlx": hold.refunded_umlx,
        }
        for hold_id, hold in changes.holds.items()
        if hold_id not in changes.new_holds
    ]
    if changed:
        connection.execute(_SET_HOLD, changed)
