"""What most services would write: one ORM transaction for each command, accounts locked by SELECT.

Eight processes; the same hold and capture with three legs; no hash chain, no journal of refusals,
no request digests, so it does less than the ledger does.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, create_engine, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from tests.benchmarks.ledger.server import Measured, Server, own_cpu_seconds

PROCESSES: Final = 8
START_DELAY_SECONDS: Final = 0.2
FEE_ACCOUNT: Final = 0
BALANCE_UMLX: Final = 10**12


class Base(DeclarativeBase):
    """Base of the naive tables."""


class Account(Base):
    """An account with its balances."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    posted_umlx: Mapped[int] = mapped_column(BigInteger)
    held_umlx: Mapped[int] = mapped_column(BigInteger)
    __table_args__ = (CheckConstraint("posted_umlx - held_umlx >= 0 AND held_umlx >= 0"),)


class Hold(Base):
    """Money kept back."""

    __tablename__ = "holds"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    amount_umlx: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(8))


class Entry(Base):
    """A command that was carried out."""

    __tablename__ = "entries"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    reference: Mapped[str] = mapped_column(String(64))


class Posting(Base):
    """One leg of an entry."""

    __tablename__ = "postings"
    entry_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("entries.id"), primary_key=True)
    leg: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    amount_umlx: Mapped[int] = mapped_column(BigInteger)


def hold(session: Session, payer: int, amount_umlx: int) -> uuid.UUID:
    """Reserve money; the caller commits."""
    account = session.get_one(Account, payer, with_for_update=True)
    account.held_umlx += amount_umlx
    hold_id = uuid.uuid4()
    session.add(Hold(id=hold_id, account_id=payer, amount_umlx=amount_umlx, state="open"))
    session.add(Entry(id=hold_id, kind="open_hold", reference=str(hold_id)))
    return hold_id


def capture(session: Session, hold_id: uuid.UUID, owner: int, charge_umlx: int) -> None:
    """Pay owner and fee out of a hold and release the rest; the caller commits."""
    held = session.get_one(Hold, hold_id, with_for_update=True)
    fee_umlx = charge_umlx // 10
    amounts = {held.account_id: -charge_umlx, owner: charge_umlx - fee_umlx, FEE_ACCOUNT: fee_umlx}
    query = select(Account).where(Account.id.in_(amounts)).order_by(Account.id)
    accounts = {account.id: account for account in session.scalars(query.with_for_update())}
    accounts[held.account_id].held_umlx -= held.amount_umlx
    entry_id = uuid.uuid4()
    session.add(Entry(id=entry_id, kind="capture", reference=str(hold_id)))
    for leg, (account_id, amount_umlx) in enumerate(sorted(amounts.items())):
        accounts[account_id].posted_umlx += amount_umlx
        session.add(Posting(entry_id=entry_id, leg=leg, account_id=account_id, amount_umlx=amount_umlx))
    held.state = "posted"


def prepare(url: str, accounts: int) -> None:
    """Make the tables and the accounts 0 (fee) to `accounts`."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    rows = [{"id": i, "posted_umlx": BALANCE_UMLX, "held_umlx": 0} for i in range(accounts + 1)]
    with engine.begin() as connection:
        connection.execute(insert(Account), rows)
    engine.dispose()


_sessions: list[sessionmaker[Session]] = []


def _connect(url: str) -> None:
    _sessions.append(sessionmaker(create_engine(url, pool_size=1)))


def _work(accounts: int, start: float, seconds: float) -> tuple[int, float]:
    """Commands done from the moment `start` on, and this process' CPU seconds for them."""
    make_session, draw = _sessions[0], random.Random(os.getpid())
    time.sleep(max(0.0, start - time.time()))
    cpu, done = own_cpu_seconds(), 0
    while time.time() < start + seconds:
        payer, owner = draw.sample(range(1, accounts + 1), 2)
        amount_umlx = draw.randint(100, 100_000)
        with make_session.begin() as session:
            hold_id = hold(session, payer, amount_umlx)
        with make_session.begin() as session:
            capture(session, hold_id, owner, draw.randint(20, amount_umlx))
        done += 2
    return done, own_cpu_seconds() - cpu


class Naive:
    """Eight processes, each with its own connection, ready to run."""

    def __init__(self, server: Server, url: str, accounts: int) -> None:
        self._server = server
        self._accounts = accounts
        prepare(url, accounts)
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(PROCESSES, mp_context=spawn, initializer=_connect, initargs=(url,))

    def run(self, seconds: float) -> Measured:
        """All processes at once for so long; what was done counts commands."""
        server_cpu, start = self._server.cpu_seconds(), time.time() + START_DELAY_SECONDS
        futures = [self._pool.submit(_work, self._accounts, start, seconds) for _ in range(PROCESSES)]
        found: Sequence[tuple[int, float]] = [future.result() for future in futures]
        wall = time.time() - start
        server_cpu = self._server.cpu_seconds() - server_cpu
        return Measured(sum(done for done, _ in found), wall, sum(cpu for _, cpu in found), server_cpu)

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()
