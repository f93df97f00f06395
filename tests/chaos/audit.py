"""What the books and the jobs' own rows say when all is quiet again."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.db import Database
from coordinator.jobs.models import Attempt, Job, JobPayload
from coordinator.jobs.states import FINAL_JOB_STATES, LIVE_ATTEMPT_STATES
from coordinator.nodes.models import Slot
from ledger import models, statements

QUIET_SECONDS: Final = 300.0


@dataclass(frozen=True)
class Audit:
    """Every fault of the end state as a line; empty if all is as it must be."""

    jobs: int
    states: dict[str, int]
    lost: list[str]
    paid_twice: list[str]
    other: list[str]
    sum_umlx: int
    entries: int


def wait_quiet(database: Database) -> bool:
    """Wait until no job is under way. False if that takes too long."""
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        with database.read() as session:
            left = session.scalar(
                select(func.count()).select_from(Job).where(Job.state.not_in(FINAL_JOB_STATES))
            )
        if not left:
            return True
        time.sleep(0.5)
    return False


def audit(database: Database, acknowledged: set[str]) -> Audit:
    """Look at everything. `acknowledged` are the jobs whose ids submitters were told."""
    with database.read() as session:
        jobs = {job.id: job for job in session.scalars(select(Job))}
        lost = [f"{job_id} was accepted and is not there" for job_id in sorted(acknowledged - jobs.keys())]
        lost += [
            f"{job.id} is {job.state} for ever" for job in jobs.values() if job.state not in FINAL_JOB_STATES
        ]
        ends = _ends(session)
        paid_twice = [
            f"{job_id} has {kinds['capture']} captures"
            for job_id, kinds in ends.items()
            if kinds["capture"] > 1
        ]
        accounts = models.accounts.c
        return Audit(
            jobs=len(jobs),
            states=dict(Counter(job.state for job in jobs.values())),
            lost=lost,
            paid_twice=paid_twice,
            other=[*_money(session, jobs, ends), *_leftovers(session)],
            sum_umlx=int(session.scalar(select(func.sum(accounts.posted_umlx))) or 0),
            entries=int(session.scalar(select(models.chain.c.seq)) or 0),
        )


def _ends(session: Session) -> dict[str, Counter[str]]:
    """How often each job's hold was captured, voided and expired, by the journal."""
    journal = models.journal.c
    rows = session.execute(
        select(journal.reference, journal.kind).where(
            journal.kind.in_(("capture", "void_hold", "expire_hold")), journal.result == "posted"
        )
    )
    found: dict[str, Counter[str]] = {}
    for reference, kind in rows:
        found.setdefault(reference, Counter())[kind] += 1
    return found


def _money(session: Session, jobs: dict[str, Job], ends: dict[str, Counter[str]]) -> list[str]:
    lines = [f"{drift.rule}: {drift.subject}" for drift in statements.reconcile(session.connection())]
    holds = models.holds.c
    lines += [
        f"hold {hold_id} is open"
        for (hold_id,) in session.execute(select(holds.id).where(holds.state == "open"))
    ]
    for job_id, job in jobs.items():
        count = sum(ends.get(job_id, Counter()).values())
        if count != 1:
            lines.append(f"{job_id} ({job.state}) has {count} ends in the books")
        is_captured = ends.get(job_id, Counter())["capture"] == 1
        if is_captured != (job.charge_umlx > 0):
            lines.append(f"{job_id} says {job.charge_umlx} uMLX; captured: {is_captured}")
    rows = session.execute(select(Attempt.job_id, func.sum(Attempt.share_umlx)).group_by(Attempt.job_id))
    shares = {job_id: int(share_umlx) for job_id, share_umlx in rows}
    for job_id, job in jobs.items():
        fee = -(-job.charge_umlx * job.fee_ppm // 1_000_000)
        if job.charge_umlx and shares.get(job_id, 0) + fee != job.charge_umlx:
            lines.append(f"{job_id}: shares {shares.get(job_id)} + fee {fee} are not {job.charge_umlx}")
    return lines


def _leftovers(session: Session) -> list[str]:
    lines = [
        f"attempt {attempt.fence} of {attempt.job_id} is {attempt.state}"
        for attempt in session.scalars(select(Attempt).where(Attempt.state.in_(LIVE_ATTEMPT_STATES)))
    ]
    lines += [
        f"slot {slot.id} counts {slot.live} attempts"
        for slot in session.scalars(select(Slot).where(Slot.live != 0))
    ]
    requests = session.execute(select(JobPayload.job_id).where(JobPayload.part == "request")).all()
    return [*lines, *(f"the request of {job_id} is still stored" for (job_id,) in requests)]
