"""The load: callers in one process that each open a hold, capture it, and begin again.

A caller is an asyncio task. It hands its command to the process' group commit, as a request
does, and waits for the answer, which comes after the commit. A capture has three legs: payer,
owner, fee.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import uvloop
from sqlalchemy.orm import Session

from coordinator.commits import GroupCommit, Write, Written
from coordinator.db import Database
from coordinator.ids import new_id
from coordinator.settlement import JOB_WIDE_FENCE
from ledger import book
from ledger.commands import FEE, Capture, Command, Mint, OpenHold, settlement_id
from tests.benchmarks.ledger.server import Measured, Server, own_cpu_seconds

ACCOUNTS: Final = 12_000
BALANCE_UMLX: Final = 10**12
HOLD_UMLX_MAX: Final = 100_000
HOLD_US: Final = 3600 * 10**6
FEE_PERCENT: Final = 10


def account_names(count: int = ACCOUNTS) -> list[str]:
    """Names as the coordinator gives them to its accounts."""
    return [f"user:{new_id('acct')}" for _ in range(count)]


def open_accounts(database: Database, names: Sequence[str]) -> None:
    """Make the accounts and give each enough for the whole bench."""
    for begin in range(0, len(names), book.MAX_COMMANDS):
        part = names[begin : begin + book.MAX_COMMANDS]
        mints = [Mint(id=uuid.uuid4(), account_id=name, amount_umlx=BALANCE_UMLX) for name in part]
        with database.write() as session:
            now_us = database.now_us(session)
            book.ensure_accounts(session.connection(), part, now_us=now_us)
            book.apply(session.connection(), mints, now_us=now_us)


@dataclass(frozen=True)
class Pair:
    """One job's two commands."""

    hold: OpenHold
    capture: Capture


def make_pair(draw: random.Random, names: Sequence[str]) -> Pair:
    """A hold on a random account, and its capture for a random other one and the fee."""
    job_id = new_id("job")
    payer, owner = draw.sample(names, 2)
    amount_umlx = draw.randint(FEE_PERCENT * 10, HOLD_UMLX_MAX)
    charge_umlx = draw.randint(FEE_PERCENT * 2, amount_umlx)
    fee_umlx = charge_umlx * FEE_PERCENT // 100
    hold_id = settlement_id(job_id, JOB_WIDE_FENCE, "hold")
    return Pair(
        OpenHold(
            id=hold_id,
            reference=job_id,
            account_id=payer,
            amount_umlx=amount_umlx,
            expires_us=time.time_ns() // 1000 + HOLD_US,
        ),
        Capture(
            id=settlement_id(job_id, JOB_WIDE_FENCE, "capture"),
            reference=job_id,
            hold_id=hold_id,
            pays=((owner, charge_umlx - fee_umlx), (FEE, fee_umlx)),
        ),
    )


def only(command: Command) -> Write[None]:
    """A write of one ledger command and nothing else."""

    def write(_session: Session) -> Written[None]:
        return Written(None, (command,))

    return write


@dataclass
class Load:
    """What the callers have seen: how long each command took, in seconds."""

    commits: GroupCommit
    names: Sequence[str]
    latencies_seconds: list[float] = field(default_factory=list[float])

    async def caller(self, seed: int, until: float) -> None:
        """Hold and capture until the time is over; a hold that was opened is captured."""
        draw = random.Random(seed)
        while time.perf_counter() < until:
            pair = make_pair(draw, self.names)
            for command in (pair.hold, pair.capture):
                asked = time.perf_counter()
                await self.commits.written(only(command))
                self.latencies_seconds.append(time.perf_counter() - asked)

    async def callers(self, count: int, seconds: float) -> None:
        """So many callers at once."""
        until = time.perf_counter() + seconds
        await asyncio.gather(*(self.caller(random.getrandbits(64), until) for _ in range(count)))


def run_callers(server: Server, load: Load, count: int, seconds: float) -> Measured:
    """Let `count` callers run for `seconds`; what was done counts ledger commands."""
    done, wall = len(load.latencies_seconds), time.perf_counter()
    server_cpu, client_cpu = server.cpu_seconds(), own_cpu_seconds()
    # The coordinator's server chooses this loop, too.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(load.callers(count, seconds))
    return Measured(
        len(load.latencies_seconds) - done,
        time.perf_counter() - wall,
        own_cpu_seconds() - client_cpu,
        server.cpu_seconds() - server_cpu,
    )
