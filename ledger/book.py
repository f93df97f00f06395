"""Carry out commands in the caller's transaction: `apply`.

Every writer first locks the one chain row, so writers cannot deadlock among themselves, and all
that is read after that lock is current and stays so. Call `apply` last in a transaction: the chain
row stays locked until the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final, cast
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from ledger import models, store_postgresql, store_sqlite
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
    Reason,
    Record,
    Refund,
    Rejected,
    Transfer,
    VoidHold,
    account_kind,
)
from ledger.rules import Refusal, Sheet, decide
from ledger.store import Changes, NewEntry, NewHold, OldEntry, Store, Wanted

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


def apply(connection: Connection, commands: Sequence[Command], *, now_us: int | None = None) -> list[Outcome]:
    """Carry out `commands` in order and return one outcome each; the caller commits.

    A refused command is a value (`Rejected`), is journalled, and stops nothing. A command that was
    answered before, in this batch too, gets its first answer. `now_us` is the time (UTC
    microseconds); None takes the database's clock along with the lock, which saves asking for it.
    Entries never go back in time even if it does.

    Raises ValueError for more than 500 commands, LedgerDamaged if a stored row is not as it must
    be. After an exception the transaction must be rolled back.
    """
    if len(commands) > MAX_COMMANDS:
        raise ValueError(f"at most {MAX_COMMANDS} commands at once; split the batch")
    if not commands:
        return []
    for command in commands:
        _ = command.digest  # and with it the body: both are kept, and nobody waits for us yet
    store: Store = store_postgresql if connection.dialect.name == "postgresql" else store_sqlite
    found = store.lock_and_read(connection, _wanted(commands))
    if found is None:
        raise LedgerDamaged("the chain row is missing; run the migrations")
    tip, stored = found
    if now_us is None:
        now_us = tip.clock_us
    answers = {old.id: (old.request_digest, _answer_of(old)) for old in stored.answered}
    sheet = Sheet(stored.accounts, stored.holds)
    batch = _Batch(sheet, answers, seq=tip.seq, head=tip.head, recorded_us=max(now_us, tip.recorded_us))
    outcomes = [batch.answer(command, now_us) for command in commands]
    changes = batch.changes(old_seq=tip.seq)
    if changes.journal:
        store.write(connection, changes)
    return outcomes


def journeys(connection: Connection) -> AbstractContextManager[Callable[[], None]]:
    """A block in which `apply` shares its journeys to the server, as far as the database is one.

    It yields a function to be called last in it, if all went well: that commits in the journey of
    the writing. A commit of the caller is needed all the same, and costs nothing then. Nothing but
    `apply` may use the connection in the block. Errors of the writing may come only at its end, and
    as those of the driver.
    """
    store: Store = store_postgresql if connection.dialect.name == "postgresql" else store_sqlite
    return store.journeys(connection)


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
        self._journal: list[NewEntry] = []
        self._new_holds: dict[UUID, NewHold] = {}
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
                self._new_holds[command.id] = NewHold(command.reference, self._recorded_us)
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
        self._journal.append(NewEntry(entry, command.body, leaf, self._head))
        self._answers[command.id] = (command.digest, _replay(outcome))

    def changes(self, *, old_seq: int) -> Changes:
        """What was gathered, to be written at once."""
        return Changes(
            old_seq,
            self._journal,
            {name: self._sheet.accounts[name] for name in sorted(self._touched_accounts)},
            {hold_id: self._sheet.holds[hold_id] for hold_id in sorted(self._touched_holds)},
            self._new_holds,
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


def _answer_of(old: OldEntry) -> Outcome:
    if old.result == POSTED:
        return Applied(old.id, old.seq, old.recorded_us, replayed=True)
    reason = cast("Reason", old.result)
    return Rejected(
        old.id, old.seq, old.recorded_us, reason, old.needed_umlx, old.available_umlx, replayed=True
    )


def _wanted(commands: Sequence[Command]) -> Wanted:
    hold_ids = {
        command.hold_id
        for command in commands
        if isinstance(command, Capture | VoidHold | ExpireHold | Refund)
    }
    names = {name for command in commands for name in _accounts_named(command)}
    return Wanted([command.id for command in commands], sorted(hold_ids), sorted(names))


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
