"""The ledger against an independent model of it, with random commands, replays and lost commits.

`Oracle` below knows the rules in its own words: money as plain sums over lists of what happened,
nothing shared with the ledger's code but the command types.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import func, select

from coordinator.db import Database, make_engine
from ledger import book, models, statements
from ledger.commands import (
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
)
from tests.fixtures.databases import NewDatabase

START_US = 1_800_000_000_000_000
USERS = ("user:a", "user:b", "user:c")
PARTIES = (*USERS, "fee")
KNOWN = ("issuance", *PARTIES)
UNKNOWN = "user:nobody"


class Oracle:
    """What the ledger must answer. Balances are summed anew from the moves each time."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str, int]] = []
        self.holds: dict[UUID, OpenHold] = {}
        self.ends: dict[UUID, tuple[str, int]] = {}
        self.refunds: list[tuple[UUID, int]] = []
        self.answers: dict[UUID, tuple[Command, Outcome]] = {}
        self.last_us = 0

    def posted(self, name: str) -> int:
        return sum(n for _, to, n in self.moves if to == name) - sum(
            n for by, _, n in self.moves if by == name
        )

    def held(self, name: str) -> int:
        return sum(
            h.amount_umlx for i, h in self.holds.items() if h.account_id == name and i not in self.ends
        )

    def free(self, name: str) -> int:
        return self.posted(name) - self.held(name)

    def answer(self, command: Command, now_us: int) -> Outcome:
        if command.id in self.answers:
            first, outcome = self.answers[command.id]
            return outcome if first == command else Conflict(command.id, outcome.seq)
        seq = len(self.answers) + 1
        self.last_us = max(self.last_us, now_us)
        refusal = self.carry_out(command, now_us)
        outcome: Outcome = Applied(command.id, seq, self.last_us)
        if refusal is not None:
            outcome = Rejected(command.id, seq, self.last_us, *refusal)  # pyright: ignore[reportArgumentType]
        self.answers[command.id] = (command, outcome)
        return outcome

    def carry_out(self, command: Command, now_us: int) -> tuple[str | int, ...] | None:
        if isinstance(command, Capture | VoidHold | ExpireHold | Refund):
            if command.hold_id not in self.holds:
                return ("unknown_hold",)
            return self.with_hold(command, self.holds[command.hold_id], now_us)
        if isinstance(command, OpenHold):
            if command.expires_us <= now_us:
                return ("already_expired",)
            refusal = self.lacks(command.account_id, command.amount_umlx)
            if refusal is None:
                self.holds[command.id] = command
            return refusal
        if isinstance(command, Record):
            return None
        if isinstance(command, Adjust):
            return self.adjust(command)
        if isinstance(command, Mint):
            return self.move("issuance", command.account_id, command.amount_umlx)
        if isinstance(command, Burn):
            return self.move(command.account_id, "issuance", command.amount_umlx)
        return self.move(command.source, command.target, command.amount_umlx)

    def with_hold(
        self, command: Capture | VoidHold | ExpireHold | Refund, hold: OpenHold, now_us: int
    ) -> tuple[str | int, ...] | None:
        end = self.ends.get(command.hold_id)
        if isinstance(command, Refund):
            if end is None or end[0] != "captured":
                return ("not_captured",)
            left = end[1] - sum(n for i, n in self.refunds if i == command.hold_id)
            if command.amount_umlx > left:
                return ("exceeds_captured", command.amount_umlx, left)
            refusal = self.move(command.source, hold.account_id, command.amount_umlx)
            if refusal is None:
                self.refunds.append((command.hold_id, command.amount_umlx))
            return refusal
        if end is not None:
            return ("hold_not_open",)
        if isinstance(command, Capture):
            paid = sum(n for _, n in command.pays)
            if paid > hold.amount_umlx:
                return ("exceeds_hold", paid, hold.amount_umlx)
            if any(n and to not in KNOWN for to, n in command.pays):
                return ("unknown_account",)
            self.moves += [(hold.account_id, to, n) for to, n in command.pays]
            self.ends[command.hold_id] = ("captured", paid)
        elif isinstance(command, ExpireHold) and now_us < hold.expires_us:
            return ("not_yet_expired",)
        else:
            self.ends[command.hold_id] = ("released", 0)
        return None

    def adjust(self, command: Adjust) -> tuple[str | int, ...] | None:
        if any(name not in KNOWN for name, _ in command.legs):
            return ("unknown_account",)
        for name, amount in sorted(command.legs):
            if -amount > self.free(name):
                return ("insufficient_funds", -amount, self.free(name))
        # Where it comes from and goes to does not matter to sums: all through one made-up middle.
        self.moves += [("middle", name, amount) for name, amount in command.legs]
        return None

    def lacks(self, name: str, amount: int) -> tuple[str | int, ...] | None:
        if name not in KNOWN:
            return ("unknown_account",)
        if name != "issuance" and amount > self.free(name):
            return ("insufficient_funds", amount, self.free(name))
        return None

    def move(self, source: str, target: str, amount: int) -> tuple[str | int, ...] | None:
        if source not in KNOWN or target not in KNOWN:
            return ("unknown_account",)
        # The payer of a refund may be the one who gets it back; nothing moves then.
        refusal = None if source == target else self.lacks(source, amount)
        if refusal is None:
            self.moves.append((source, target, amount))
        return refusal


amounts = st.one_of(st.integers(1, 40), st.sampled_from([1, 2, 99, 100, 101]))
parties = st.sampled_from((*PARTIES, *USERS, UNKNOWN))
users = st.sampled_from(USERS)


class LedgerMachine(RuleBasedStateMachine):
    """Sends the same commands to the ledger and to the oracle; checks both after each step."""

    new_database: NewDatabase

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        url = self.stack.enter_context(self.new_database())
        self.database = Database(make_engine(url))
        self.oracle = Oracle()
        self.now_us = START_US
        self.sent: list[Command] = []
        self.next_id = 1

    def teardown(self) -> None:
        self.database.close()
        self.stack.close()

    @initialize(amount=st.integers(0, 200))
    def open_books(self, amount: int) -> None:
        with self.database.write() as session:
            book.ensure_accounts(session.connection(), USERS, now_us=START_US)
        if amount:
            self.send([Mint(id=self.fresh(), account_id="user:a", amount_umlx=amount)])

    def fresh(self) -> UUID:
        self.next_id += 1
        # Spread out, so that order of ids is not order of sending.
        return UUID(int=random.Random(self.next_id).getrandbits(128))

    def send(self, commands: list[Command]) -> None:
        with self.database.write() as session:
            outcomes = book.apply(session.connection(), commands, now_us=self.now_us)
        assert outcomes == [self.oracle.answer(command, self.now_us) for command in commands]
        self.sent += commands

    def some_hold(self, data: st.DataObject) -> UUID:
        known = list(self.oracle.holds)
        return data.draw(st.sampled_from(known)) if known else UUID(int=0)

    def some_command(self, data: st.DataObject) -> Command:
        kind = data.draw(
            st.sampled_from((OpenHold, OpenHold, Capture, Capture, Transfer, VoidHold, Mint, Refund, Adjust))
        )
        identity = self.fresh()
        if kind is Adjust:
            return self.some_adjustment(identity, data)
        if kind is OpenHold:
            free = max(1, self.oracle.free("user:a"))
            amount = data.draw(st.one_of(amounts, st.sampled_from([free, free + 1])))
            expires_us = self.now_us + data.draw(st.sampled_from([0, 1, 100]))
            return OpenHold(id=identity, account_id="user:a", amount_umlx=amount, expires_us=expires_us)
        if kind is Capture:
            hold_id = self.some_hold(data)
            size = self.oracle.holds[hold_id].amount_umlx if hold_id in self.oracle.holds else 10
            first = data.draw(st.sampled_from([0, 1, size - 1, size, size + 1]))
            pays = [
                (data.draw(parties), first),
                *data.draw(st.lists(st.tuples(parties, st.integers(0, 3)), max_size=2)),
            ]
            return Capture(id=identity, hold_id=hold_id, pays=tuple(pays))
        if kind is VoidHold:
            return VoidHold(id=identity, hold_id=self.some_hold(data))
        if kind is Refund:
            return Refund(
                id=identity,
                hold_id=self.some_hold(data),
                source=data.draw(users),
                amount_umlx=data.draw(amounts),
            )
        if kind is Mint:
            return Mint(id=identity, account_id=data.draw(parties), amount_umlx=data.draw(amounts))
        source, target = data.draw(st.lists(parties, min_size=2, max_size=2, unique=True))
        return Transfer(id=identity, source=source, target=target, amount_umlx=data.draw(amounts))

    def some_adjustment(self, identity: UUID, data: st.DataObject) -> Adjust:
        names = data.draw(st.lists(parties, min_size=2, max_size=4, unique=True))
        given = [(name, data.draw(amounts) * data.draw(st.sampled_from([1, -1]))) for name in names[:-1]]
        rest = -sum(amount for _, amount in given)
        legs = [*given, (names[-1], rest)] if rest else [(names[0], 5), (names[-1], -5)]
        return Adjust(id=identity, legs=tuple(legs), operators=("Ann", "Bob"), reason="a test")

    @rule()
    def record(self) -> None:
        self.send([Record(id=self.fresh(), subject="node_key:n", content_sha256="0" * 64)])

    @rule(data=st.data())
    def one(self, data: st.DataObject) -> None:
        self.send([self.some_command(data)])

    @rule(data=st.data(), size=st.integers(2, 5))
    def several(self, data: st.DataObject, size: int) -> None:
        commands = [self.some_command(data) for _ in range(size)]
        self.send([*commands, data.draw(st.sampled_from(commands))])

    @rule(data=st.data(), wait_us=st.sampled_from([-100, -1, 0, 1, 50, 100]))
    def expire(self, data: st.DataObject, wait_us: int) -> None:
        hold_id = self.some_hold(data)
        if hold_id in self.oracle.holds:
            self.now_us = max(self.now_us, self.oracle.holds[hold_id].expires_us + wait_us)
        self.send([ExpireHold(id=self.fresh(), hold_id=hold_id)])

    @rule(amount=amounts)
    def burn(self, amount: int) -> None:
        self.send([Burn(id=self.fresh(), account_id="user:a", amount_umlx=amount)])

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        if self.sent:
            self.send([data.draw(st.sampled_from(self.sent))])

    @rule(data=st.data())
    def use_an_id_twice(self, data: st.DataObject) -> None:
        if self.sent:
            old = data.draw(st.sampled_from(self.sent))
            self.send([replace(old, reference=old.reference + "x")])

    @rule(data=st.data())
    def lose_the_commit(self, data: st.DataObject) -> None:
        """A crash before the commit: nothing stays, and sending it again is as the first time."""
        command = self.some_command(data)
        with self.database.engine.connect() as connection, connection.begin() as transaction:
            book.apply(connection, [command], now_us=self.now_us)
            transaction.rollback()
        self.send([command])

    @rule(step_us=st.sampled_from([-1000, -1, 1, 1000]))
    def move_the_clock(self, step_us: int) -> None:
        self.now_us += step_us

    @invariant()
    def books_are_right(self) -> None:
        with self.database.read() as session:
            connection = session.connection()
            rows = statements.trial_balance(connection)
            entries = connection.execute(select(func.count()).select_from(models.journal)).scalar_one()
            drifts = statements.reconcile(connection)
        assert drifts == []
        assert sum(posted for _, posted, _ in rows) == 0
        assert all(name == "issuance" or posted - held >= 0 for name, posted, held in rows)
        assert rows == [(name, self.oracle.posted(name), self.oracle.held(name)) for name, _, _ in rows]
        assert entries == len(self.oracle.answers)


def machine_on(new: NewDatabase) -> type[LedgerMachine]:
    return type("LedgerMachine", (LedgerMachine,), {"new_database": staticmethod(new)})


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


def test_ledger_is_the_oracle_on_sqlite(new_sqlite: NewDatabase) -> None:
    chosen = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=QUIET)
    run_state_machine_as_test(machine_on(new_sqlite), settings=chosen)


def test_ledger_is_the_oracle_on_postgresql(new_postgresql: NewDatabase) -> None:
    chosen = settings(max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=QUIET)
    run_state_machine_as_test(machine_on(new_postgresql), settings=chosen)


def _random_commands(seed: int) -> Iterator[Command]:
    draw = random.Random(seed)
    holds: list[UUID] = []
    yield Mint(id=UUID(int=draw.getrandbits(128)), account_id="user:a", amount_umlx=500)
    for _ in range(24):
        identity, amount = UUID(int=draw.getrandbits(128)), draw.randint(1, 200)
        hold_id = draw.choice(holds) if holds else UUID(int=1)
        kind = draw.randrange(5)
        if kind <= 1:
            holds.append(identity)
            yield OpenHold(id=identity, account_id="user:a", amount_umlx=amount, expires_us=START_US + 10**6)
        elif kind == 2:
            yield Capture(id=identity, hold_id=hold_id, pays=(("user:b", amount), ("fee", amount // 10)))
        elif kind == 3:
            yield VoidHold(id=identity, hold_id=hold_id)
        else:
            yield Transfer(id=identity, source="user:b", target="user:c", amount_umlx=amount)


def _journal_of(new: NewDatabase, batches: list[list[Command]]) -> list[tuple[object, ...]]:
    with new() as url:
        database = Database(make_engine(url))
        with database.write() as session:
            book.ensure_accounts(session.connection(), USERS, now_us=START_US)
        for batch in batches:
            with database.write() as session:
                book.apply(session.connection(), batch, now_us=START_US)
        with database.read() as session:
            rows = [
                tuple(row) for row in session.execute(select(models.journal).order_by(models.journal.c.seq))
            ]
        database.close()
    return rows


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None, suppress_health_check=QUIET)
def test_a_batch_is_its_commands_one_by_one(new_sqlite: NewDatabase, seed: int) -> None:
    commands = list(_random_commands(seed))
    single = _journal_of(new_sqlite, [[command] for command in commands])
    assert single == _journal_of(new_sqlite, [commands])
    assert single == _journal_of(new_sqlite, [commands[:7], commands[7:8], commands[8:]])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_databases_keep_the_same_journal(
    new_sqlite: NewDatabase, new_postgresql: NewDatabase, seed: int
) -> None:
    commands = list(_random_commands(seed))
    assert _journal_of(new_sqlite, [commands]) == _journal_of(new_postgresql, [commands])
