"""Group commit on both databases: shared transactions, refusals alone, faults alone."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from uuid import uuid4

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from coordinator.accounts.models import Account
from coordinator.commits import GroupCommit, LedgerRefusedError, Refused, Write, Written
from coordinator.db import Database, DatabaseBusy, DatabaseUnavailable
from ledger import book, models, statements
from ledger.commands import Capture, Command, Mint, OpenHold, Transfer
from ledger.drift import Drift


class Gate:
    """Holds the writer inside a first batch, so that the writes behind it gather in the next."""

    def __init__(self, commits: GroupCommit) -> None:
        self._opened = threading.Event()
        self._entered = threading.Event()
        self.answer = commits.submit(self._wait)
        assert self._entered.wait(10)

    def _wait(self, _session: Session) -> Written[None]:
        self._entered.set()
        assert self._opened.wait(10)
        return Written(None)

    def open(self) -> None:
        self._opened.set()
        self.answer.result(10)


def add_account(name: str) -> Write[str]:
    def write(session: Session) -> Written[str]:
        session.add(Account(id=f"acct_{name}", name=name, is_operator=False, created_us=1))
        session.flush()
        return Written(name)

    return write


def names(database: Database) -> set[str]:
    with database.read() as session:
        return set(session.scalars(select(Account.name)))


def test_writes_that_come_together_share_a_transaction(database: Database, commits: GroupCommit) -> None:
    gate = Gate(commits)
    answers = [commits.submit(add_account(f"n{index}")) for index in range(50)]
    gate.open()
    assert [answer.result(10) for answer in answers] == [f"n{index}" for index in range(50)]
    assert (commits.batches, commits.writes) == (2, 51)
    assert len(names(database)) == 50


def test_nothing_is_answered_before_the_commit(database: Database, commits: GroupCommit) -> None:
    for index in range(5):
        assert commits.write(add_account(f"n{index}")) in names(database)


def test_a_refusal_stops_nobody_else(database: Database, commits: GroupCommit) -> None:
    def refuse(_session: Session) -> Written[str]:
        raise Refused(ValueError("no"))

    gate = Gate(commits)
    before, refused, after = (commits.submit(w) for w in (add_account("a"), refuse, add_account("b")))
    gate.open()
    assert (before.result(10), after.result(10)) == ("a", "b")
    with pytest.raises(ValueError, match="no"):
        _ = refused.result(10)
    assert commits.batches == 2
    assert names(database) == {"a", "b"}


def test_a_broken_constraint_fails_its_own_write_alone(database: Database, commits: GroupCommit) -> None:
    gate = Gate(commits)
    answers: list[Future[str]] = [commits.submit(add_account(name)) for name in ("a", "b", "a", "c")]
    gate.open()
    assert [answers[index].result(10) for index in (0, 1, 3)] == ["a", "b", "c"]
    with pytest.raises(IntegrityError):
        _ = answers[2].result(10)
    assert names(database) == {"a", "b", "c"}


def test_rows_and_ledger_commands_commit_together_or_not_at_all(
    database: Database, commits: GroupCommit
) -> None:
    with database.write() as session:
        connection = session.connection()
        book.ensure_accounts(connection, ["user:a", "user:b"], now_us=1)
        (_,) = book.apply(connection, [Mint(id=uuid4(), account_id="user:a", amount_umlx=100)], now_us=1)

    def pay(name: str, amount_umlx: int) -> Write[str]:
        command = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=amount_umlx)

        def write(session: Session) -> Written[str]:
            return Written(add_account(name)(session).value, (command,))

        return write

    gate = Gate(commits)
    fits, too_much, fits_too = (commits.submit(pay(*each)) for each in (("x", 60), ("y", 50), ("z", 40)))
    gate.open()
    assert (fits.result(10), fits_too.result(10)) == ("x", "z")
    with pytest.raises(LedgerRefusedError, match="insufficient_funds"):
        _ = too_much.result(10)
    assert names(database) == {"x", "z"}
    with database.read() as session:
        balance = statements.balance(session.connection(), "user:b")
        assert balance is not None
        assert balance.posted_umlx == 100
        assert statements.reconcile(session.connection()) == []


def test_many_threads_at_once(database: Database, commits: GroupCommit) -> None:
    def work(thread: int) -> None:
        for index in range(20):
            _ = commits.write(add_account(f"t{thread}-{index}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(names(database)) == 160
    assert commits.writes == 160
    assert commits.batches <= 160


def test_what_was_handed_in_is_committed_before_the_end(database: Database) -> None:
    commits = GroupCommit(database)
    gate = Gate(commits)
    answers = [commits.submit(add_account(f"n{index}")) for index in range(3)]
    stopping = threading.Thread(target=commits.stop)
    stopping.start()
    gate.open()
    stopping.join(10)
    assert [answer.result(0) for answer in answers] == ["n0", "n1", "n2"]
    with pytest.raises(RuntimeError, match="stopped"):
        _ = commits.submit(add_account("late"))


@pytest.mark.anyio
async def test_tasks_and_threads_are_answered_from_one_batch(
    database: Database, commits: GroupCommit
) -> None:
    def refuse(_session: Session) -> Written[str]:
        raise Refused(ValueError("no"))

    gate = await asyncio.to_thread(Gate, commits)
    of_thread = commits.submit(add_account("thread"))
    tasks = [asyncio.create_task(commits.written(add_account(f"n{index}"))) for index in range(3)]
    refused = asyncio.create_task(commits.written(refuse))
    await asyncio.sleep(0)
    gate.open()
    assert await asyncio.gather(*tasks) == ["n0", "n1", "n2"]
    with pytest.raises(ValueError, match="no"):
        await refused
    assert of_thread.result(10) == "thread"
    assert commits.batches == 2
    assert names(database) == {"thread", "n0", "n1", "n2"}


@pytest.mark.anyio
async def test_a_task_that_waits_no_more_stops_nobody_else(database: Database, commits: GroupCommit) -> None:
    gate = await asyncio.to_thread(Gate, commits)
    gone, stays = (asyncio.create_task(commits.written(add_account(name))) for name in ("gone", "stays"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    gate.open()
    assert await stays == "stays"
    assert gone.cancelled()
    assert names(database) == {"gone", "stays"}


def test_a_loop_that_has_closed_stops_nobody_else(database: Database, commits: GroupCommit) -> None:
    async def leave() -> Gate:
        gate = await asyncio.to_thread(Gate, commits)
        asyncio.create_task(commits.written(add_account("gone"))).add_done_callback(lambda _: None)
        await asyncio.sleep(0)
        return gate

    gate = asyncio.run(leave())
    stays = commits.submit(add_account("stays"))
    gate.open()
    assert stays.result(10) == "stays"
    assert commits.write(add_account("later")) == "later"
    assert names(database) == {"gone", "stays", "later"}


def open_books(database: Database, *account_ids: str, amount_umlx: int = 10**9) -> None:
    mints = [Mint(id=uuid4(), account_id=name, amount_umlx=amount_umlx) for name in account_ids]
    with database.write() as session:
        book.ensure_accounts(session.connection(), account_ids, now_us=1)
        book.apply(session.connection(), mints, now_us=1)


def only(*commands: Command) -> Write[None]:
    return lambda _session: Written(None, commands)


def drifts(database: Database) -> list[Drift]:
    with database.read() as session:
        return statements.reconcile(session.connection())


def test_two_writers_at_once_keep_one_chain(database: Database, commits: GroupCommit) -> None:
    """As two processes would; each of them has two batches under way where the database allows it."""
    open_books(database, "user:a", "user:b")
    other = GroupCommit(database)
    answers: list[Future[None]] = []
    for index in range(200):
        hold = OpenHold(id=uuid4(), account_id="user:a", amount_umlx=5, expires_us=2**60)
        capture = Capture(id=uuid4(), hold_id=hold.id, pays=(("user:b", 2), ("fee", 1)))
        answers.append((commits, other)[index % 2].submit(only(hold, capture)))
    for answer in answers:
        answer.result(60)
    other.stop()
    with database.read() as session:
        balance = statements.balance(session.connection(), "user:b")
    assert balance is not None
    assert balance.posted_umlx == 10**9 + 400
    assert drifts(database) == []


def test_a_hold_of_one_batch_is_captured_in_the_next(database: Database, commits: GroupCommit) -> None:
    """The next batch begins before the first is committed, and must see what it left all the same."""
    open_books(database, "user:a", "user:b")
    holds = [OpenHold(id=uuid4(), account_id="user:a", amount_umlx=5, expires_us=2**60) for _ in range(50)]
    answers: list[Future[None]] = []
    for hold in holds:
        answers.append(commits.submit(only(hold)))
        answers.append(commits.submit(only(Capture(id=uuid4(), hold_id=hold.id, pays=(("user:b", 5),)))))
    for answer in answers:
        answer.result(60)
    assert drifts(database) == []


def test_a_batch_of_megabytes_is_sent(database: Database, commits: GroupCommit) -> None:
    """More than a socket takes at once: the driver must not wait for an answer to what it kept."""
    payees = [f"user:{'x' * 90}{index}" for index in range(256)]
    open_books(database, "user:a", *payees)
    gate = Gate(commits)
    answers: list[Future[None]] = []
    for _ in range(40):
        hold = OpenHold(id=uuid4(), account_id="user:a", amount_umlx=256, expires_us=2**60)
        capture = Capture(id=uuid4(), hold_id=hold.id, pays=tuple((name, 1) for name in payees))
        answers.append(commits.submit(only(hold, capture)))
    gate.open()
    for answer in answers:
        answer.result(60)
    assert commits.batches == 2
    assert drifts(database) == []


def test_nothing_is_kept_of_a_batch_that_the_books_do_not_take(
    database: Database, commits: GroupCommit
) -> None:
    """The writing and the commit travel together on PostgreSQL; a failure of one must stop the other."""
    open_books(database, "user:a", "user:b")
    with database.write() as session:
        session.execute(update(models.chain).values(seq=models.chain.c.seq - 1))
    pay = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1)

    def write(session: Session) -> Written[str]:
        return Written(add_account("x")(session).value, (pay,))

    with pytest.raises(Exception, match=r"duplicate key|UNIQUE"):
        _ = commits.write(write)
    assert names(database) == set()
    with database.write() as session:
        session.execute(update(models.chain).values(seq=models.chain.c.seq + 1))
    assert commits.write(write) == "x"
    assert drifts(database) == []


def test_a_lost_connection_is_named_and_replaced(database: Database, commits: GroupCommit) -> None:
    if database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no server")
    open_books(database, "user:a", "user:b")
    pay = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1)

    def hang_up(session: Session) -> Written[None]:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with database.write() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        return Written(None, (pay,))

    with pytest.raises(DatabaseUnavailable, match="cannot reach"):
        commits.write(hang_up)
    commits.write(only(pay))
    assert drifts(database) == []


def test_a_chain_that_stays_locked_makes_the_database_busy(database: Database, commits: GroupCommit) -> None:
    if database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no row locks")
    open_books(database, "user:a", "user:b")
    pay = Transfer(id=uuid4(), source="user:a", target="user:b", amount_umlx=1)

    def impatient(session: Session) -> Written[None]:
        session.execute(text("SET LOCAL lock_timeout = '50ms'"))
        return Written(None, (pay,))

    with database.write() as session:
        session.execute(select(models.chain).with_for_update())
        with pytest.raises(DatabaseBusy):
            commits.write(impatient)
    commits.write(only(pay))
    assert drifts(database) == []
