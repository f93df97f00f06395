"""What tests of settlements share: who has what, what is on record of a job, and its sums."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import select, update

from coordinator.db import Database
from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import Node
from coordinator.policy.held import release_held_pay
from ledger import book, models
from ledger.commands import Applied, Transfer
from tests.fixtures.asking import wait_until
from tests.fixtures.coordinator import Coordinator
from tests.fixtures.scripted_node import ScriptedNode


class Pay(NamedTuple):
    """What one attempt came to."""

    share: int
    reading: int
    reason: str | None
    received: int
    delivered: int


async def settled(coordinator: Coordinator, job_id: str) -> Job:
    """The job's row once it has ended."""

    def has_ended() -> bool:
        with coordinator.database.read() as session:
            return session.get_one(Job, job_id).ended_us is not None

    await wait_until(has_ended, f"{job_id} to end")
    with coordinator.database.read() as session:
        job = session.get_one(Job, job_id)
        session.expunge_all()
    return job


def pays(coordinator: Coordinator, job_id: str) -> list[Pay]:
    with coordinator.database.read() as session:
        rows = session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.fence))
        return [
            Pay(row.share_umlx, row.reading_umlx, row.zero_reason, row.received_tokens, row.delivered_tokens)
            for row in rows
        ]


def entries(coordinator: Coordinator, job_id: str) -> list[tuple[str, str, dict[str, int]]]:
    """(kind, result, postings) of the journal's entries about the job, but for its hold."""
    journal, postings = models.journal, models.postings
    with coordinator.database.read() as session:
        found: list[tuple[str, str, dict[str, int]]] = []
        rows = session.execute(
            select(journal.c.seq, journal.c.kind, journal.c.result)
            .where(journal.c.reference.contains(job_id), journal.c.kind != "open_hold")
            .order_by(journal.c.seq)
        ).all()
        for seq, kind, result in rows:
            legs = session.execute(select(postings.c.account_id, postings.c.amount_umlx).filter_by(seq=seq))
            found.append((kind, result, {row.account_id: row.amount_umlx for row in legs}))
    return found


async def check_sums(coordinator: Coordinator, job_id: str) -> Job:
    """Owners' shares and fee are the charge, to the last uMLX, and the books agree with the rows."""
    job = await settled(coordinator, job_id)
    with coordinator.database.read() as session:
        body = session.execute(
            select(models.journal.c.body).where(
                models.journal.c.reference == job_id, models.journal.c.kind == "capture"
            )
        ).scalar_one_or_none()
    pay: dict[str, int] = dict(json.loads(body)["pays"]) if body is not None else {}
    assert sum(pay.values()) == job.charge_umlx
    if job.charge_umlx:
        shares = sum(found.share for found in pays(coordinator, job_id))
        assert shares + pay["fee"] == job.charge_umlx
        assert pay["fee"] == (job.charge_umlx + 9) // 10
    coordinator.check_books()
    return job


def give(coordinator: Coordinator, target: str, amount_umlx: int, *, source: str = "Sam") -> None:
    """Fill a pool or the treasury out of somebody's pocket."""
    command = Transfer(
        id=uuid4(),
        reference="filled by a test",
        source=coordinator.people[source].ledger_account,
        target=target,
        amount_umlx=amount_umlx,
    )
    with coordinator.database.write() as session:
        (outcome,) = book.apply(session.connection(), [command])
    assert isinstance(outcome, Applied)


def has(coordinator: Coordinator, account: str) -> int:
    """An account's posted balance: a person's name, `escrow:NAME`, or the network's own."""
    kind, _, name = account.partition(":")
    if kind == "escrow":
        account = f"escrow:{coordinator.people[name].account_id}"
    return coordinator.balances()[account][0]


def change_node(coordinator: Coordinator, node: ScriptedNode, **values: Any) -> None:
    with coordinator.database.write() as session:
        session.execute(update(Node).where(Node.id == node.node_id).values(**values))


def checks_passed(coordinator: Coordinator, node: ScriptedNode) -> int:
    with coordinator.database.read() as session:
        return session.get_one(Node, node.node_id).checks_passed


async def release(coordinator: Coordinator, *, later_us: int = 0) -> int:
    """The chore as it would run so much later."""
    engine = coordinator.database.engine
    with coordinator.database.read() as session:
        now_us = coordinator.database.now_us(session)
    moved = Database(engine, clock_us=lambda: now_us + later_us)
    return await asyncio.to_thread(release_held_pay, moved)
