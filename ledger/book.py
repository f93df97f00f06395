"""Carry out commands in the caller's transaction: `apply`.

Every writer first locks the one chain row and then the accounts in ascending order, so writers
cannot deadlock among themselves, and all that is read after the first lock is current. Call
`apply` last in a transaction: the chain row stays locked until the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast
from uuid import UUID

from sqlalchemy import Connection, Row, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ledger import models
from ledger.chain import Entry, leaf_of, next_head
from ledger.commands import (
    ISSUANCE,
    Adjust,
    Applied,
    Burn,
    Capture,
    Command,
    Conflict,
    ExpireHold,
    Mint,
    OpenHold,
    Outcome,
    Record,
    Refund,
    Rejected,
    Transfer,
    VoidHold,
    account_kind,
)
from ledger.rules import Account, Hold, Refusal, Sheet, decide

MAX_COMMANDS: Final = 500
POSTED: Final = "posted"


class LedgerDamaged(Exception):
    """The stored books contradict themselves; nothing may be committed. Run `reconcile`."""


def ensure_accounts(connection: Connection, account_ids: Iterable[str], *, now_us: int) -> None:
    """Make the accounts that do not exist yet, with balance 0; leave the others alone.

    The migrations make `issuance`, `fee` and `treasury`; only `issuance` may go below zero. Raises
    ValueError if an id is malformed.
    """
    rows = [
        {
            "id": account_id,
            "kind": account_kind(account_id),
            "floor_umlx": None if account_id == ISSUANCE else 0,
            "posted_umlx": 0,
            "held_umlx": 0,
            "created_us": now_us,
        }
        for account_id in sorted(set(account_ids))
    ]
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(models.accounts).on_conflict_do_nothing(index_elements=["id"]), rows)


def apply(connection: Connection, commands: Sequence[Command], *, now_us: int) -> list[Outcome]:
    """Carry out `commands` in order and return one outcome each; the caller commits.

    A refused command is a value (`Rejected`), is journalled, and stops nothing. A command that was
    answered before, in this batch too, gets its first answer. `now_us` is the database's clock
    (UTC microseconds); entries never go back in time even if it does.

    Raises ValueError for more than 500 commands, LedgerDamaged if a stored row is not as it must
    be. After an exception the transaction must be rolled back.
    """
    if len(commands) > MAX_COMMANDS:
        raise ValueError(f"at most {MAX_COMMANDS} commands at once; split the batch")
    if not commands:
        return []
    tip = connection.execute(
        select(models.chain).where(models.chain.c.id == 1).with_for_update()
    ).one_or_none()
    if tip is None:
        raise LedgerDamaged("the chain row is missing; run the migrations")
    answers = _first_answers(connection, {command.id for command in commands})
    sheet = _load_sheet(connection, commands)
    batch = _Batch(sheet, answers, seq=tip.seq, head=tip.head, recorded_us=max(now_us, tip.recorded_us))
    outcomes = [batch.answer(command, now_us) for command in commands]
    batch.write(connection, old_seq=tip.seq)
    return outcomes


class _Batch:
    """The entries that one call of `apply` adds, gathered in memory and then written at once."""

    def __init__(
        self,
        sheet: Sheet,
        answers: dict[UUID, tuple[bytes, Outcome]],
        *,
        seq: int,
        head: bytes,
        recorded_us: int,
    ) -> None:
        self._sheet = sheet
        self._answers = answers
        self._seq = seq
        self._head = head
        self._recorded_us = recorded_us
        self._journal: list[dict[str, Any]] = []
        self._postings: list[dict[str, Any]] = []
        self._new_holds: dict[UUID, dict[str, Any]] = {}
        self._touched_holds: set[UUID] = set()
        self._touched_accounts: set[str] = set()

    def answer(self, command: Command, now_us: int) -> Outcome:
        """Decide one command; add its entry unless its id was answered before."""
        earlier = self._answers.get(command.id)
        if earlier is not None:
            digest, outcome = earlier
            return outcome if digest == command.digest else Conflict(command.id, outcome.seq)
        self._seq += 1
        decision = decide(self._sheet, command, now_us)
        legs: tuple[tuple[str, int], ...] = ()
        if isinstance(decision, Refusal):
            outcome = Rejected(
                command.id,
                self._seq,
                self._recorded_us,
                decision.reason,
                decision.needed_umlx,
                decision.available_umlx,
            )
        else:
            outcome = Applied(command.id, self._seq, self._recorded_us)
            legs = decision.legs
            if sum(amount_umlx for _, amount_umlx in legs) != 0:
                raise LedgerDamaged("postings do not sum to zero")
            self._sheet.post(decision)
            self._touched_accounts.update(account_id for account_id, _ in legs)
            if decision.held_account is not None:
                self._touched_accounts.add(decision.held_account)
            if decision.hold_id is not None:
                self._touched_holds.add(decision.hold_id)
            if isinstance(command, OpenHold):
                self._new_holds[command.id] = {"reference": command.reference, "opened_us": self._recorded_us}
        self._record(command, outcome, legs)
        return outcome

    def _record(
        self, command: Command, outcome: Applied | Rejected, legs: tuple[tuple[str, int], ...]
    ) -> None:
        refused = outcome if isinstance(outcome, Rejected) else None
        entry = Entry(
            seq=outcome.seq,
            id=command.id,
            kind=command.kind,
            reference=command.reference,
            recorded_us=outcome.recorded_us,
            request_digest=command.digest,
            result=refused.reason if refused else POSTED,
            needed_umlx=refused.needed_umlx if refused else None,
            available_umlx=refused.available_umlx if refused else None,
            legs=legs,
        )
        leaf = leaf_of(entry)
        self._head = next_head(self._head, leaf)
        row = {name: getattr(entry, name) for name in _ENTRY_COLUMNS}
        self._journal.append(row | {"body": command.body, "leaf": leaf, "head": self._head})
        for leg, (account_id, amount_umlx) in enumerate(legs):
            self._postings.append(
                {"seq": entry.seq, "leg": leg, "account_id": account_id, "amount_umlx": amount_umlx}
            )
        self._answers[command.id] = (command.digest, _replay(outcome))

    def write(self, connection: Connection, *, old_seq: int) -> None:
        """Write what was gathered; four to seven statements whatever the number of commands."""
        if not self._journal:
            return
        moved = connection.execute(
            update(models.chain)
            .where(models.chain.c.id == 1, models.chain.c.seq == old_seq)
            .values(seq=self._seq, head=self._head, recorded_us=self._recorded_us)
        )
        if moved.rowcount != 1:
            raise LedgerDamaged("the chain row changed under its lock")
        connection.execute(insert(models.journal), self._journal)
        if self._postings:
            connection.execute(insert(models.postings), self._postings)
        self._write_holds(connection)
        if self._touched_accounts:
            connection.execute(
                _SET_ACCOUNT, [self._account_row(name) for name in sorted(self._touched_accounts)]
            )

    def _account_row(self, account_id: str) -> dict[str, Any]:
        account = self._sheet.accounts[account_id]
        return {"row_id": account_id, "posted": account.posted_umlx, "held": account.held_umlx}

    def _write_holds(self, connection: Connection) -> None:
        new = [self._hold_row(hold_id) | {"id": hold_id} | row for hold_id, row in self._new_holds.items()]
        if new:
            connection.execute(insert(models.holds), new)
        changed = sorted(self._touched_holds - self._new_holds.keys())
        if changed:
            values = [self._hold_row(hold_id) for hold_id in changed]
            rows = [
                {"row_id": hold_id}
                | {f"new_{name}": value[name] for name in ("state", "captured_umlx", "refunded_umlx")}
                for hold_id, value in zip(changed, values, strict=True)
            ]
            connection.execute(_SET_HOLD, rows)

    def _hold_row(self, hold_id: UUID) -> dict[str, Any]:
        hold = self._sheet.holds[hold_id]
        return {name: getattr(hold, name) for name in _HOLD_COLUMNS}


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


def _replay(outcome: Applied | Rejected) -> Outcome:
    if isinstance(outcome, Applied):
        return Applied(outcome.id, outcome.seq, outcome.recorded_us, replayed=True)
    return Rejected(
        outcome.id,
        outcome.seq,
        outcome.recorded_us,
        outcome.reason,
        outcome.needed_umlx,
        outcome.available_umlx,
        replayed=True,
    )


def _first_answers(connection: Connection, ids: set[UUID]) -> dict[UUID, tuple[bytes, Outcome]]:
    rows = connection.execute(select(models.journal).where(models.journal.c.id.in_(sorted(ids))))
    return {row.id: (row.request_digest, _answer_of(row)) for row in rows}


def _answer_of(row: Row[Any]) -> Outcome:
    if row.result == POSTED:
        return Applied(row.id, row.seq, row.recorded_us, replayed=True)
    return Rejected(
        row.id, row.seq, row.recorded_us, row.result, row.needed_umlx, row.available_umlx, replayed=True
    )


def _load_sheet(connection: Connection, commands: Sequence[Command]) -> Sheet:
    holds = _load_holds(connection, commands)
    names = {hold.account_id for hold in holds.values()}
    for command in commands:
        names.update(_accounts_named(command))
    query = (
        select(models.accounts).where(models.accounts.c.id.in_(sorted(names))).order_by(models.accounts.c.id)
    )
    rows = connection.execute(query.with_for_update())
    accounts = {row.id: Account(row.floor_umlx, row.posted_umlx, row.held_umlx) for row in rows}
    return Sheet(accounts, holds)


def _load_holds(connection: Connection, commands: Sequence[Command]) -> dict[UUID, Hold]:
    ids = {
        command.hold_id
        for command in commands
        if isinstance(command, Capture | VoidHold | ExpireHold | Refund)
    }
    if not ids:
        return {}
    query = select(models.holds).where(models.holds.c.id.in_(sorted(ids))).order_by(models.holds.c.id)
    rows = connection.execute(query.with_for_update())
    return {
        cast("UUID", row.id): Hold(
            row.account_id, row.amount_umlx, row.state, row.expires_us, row.captured_umlx, row.refunded_umlx
        )
        for row in rows
    }


def _accounts_named(command: Command) -> set[str]:
    match command:
        case Mint() | Burn():
            return {ISSUANCE, command.account_id}
        case Transfer():
            return {command.source, command.target}
        case OpenHold():
            return {command.account_id}
        case Capture():
            return {account_id for account_id, _ in command.pays}
        case Refund():
            return {command.source}
        case Adjust():
            return {account_id for account_id, _ in command.legs}
        case VoidHold() | ExpireHold() | Record():
            return set()
