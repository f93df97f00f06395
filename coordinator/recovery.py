"""What a coordinator does with the past when it starts: attempts that nobody carries any more."""

from __future__ import annotations

from typing import cast

import structlog
from sqlalchemy import select

from coordinator.commits import Write, Written
from coordinator.jobs.models import Attempt, Job
from coordinator.jobs.schemas import AttemptEnd, JobEnd
from coordinator.jobs.states import LIVE_ATTEMPT_STATES
from coordinator.runtime import Runtime
from coordinator.settlement import Settled, end_job, requeue
from node_agent.protocol.cards import Price

log = structlog.get_logger()


def recover(runtime: Runtime) -> None:
    """Queue asynchronous jobs again, and end those whose waiting submitter is gone, uncharged.

    The prefix of an answer lived in the memory of the process that ended; nobody has been charged
    for it. Blocking.
    """
    with runtime.database.read() as session:
        rows = session.execute(
            select(Job.id, Job.is_async, Job.card_id, Job.card_revision, Attempt.fence)
            .outerjoin(Attempt, (Attempt.job_id == Job.id) & Attempt.state.in_(LIVE_ATTEMPT_STATES))
            .where(Job.state.in_(("queued", "running")))
        ).all()
    for job_id, is_async, card_id, revision, found_fence in rows:
        fence = cast("int | None", found_fence)
        lost = None
        if fence is not None:
            lost = AttemptEnd(fence=fence, state="lost", reason="coordinator_restarted", delivered_tokens=0)
        card = runtime.catalogue.by_revision(card_id, revision)
        if is_async and card is not None:
            if lost is not None:
                _ = runtime.commits.write(_requeue(job_id, lost))
            continue
        end = JobEnd(
            state="expired",
            finish_reason=None,
            error_code="coordinator_restarted",
            output_tokens=0,
            received_tokens=0,
            output_digest=None,
            attempt=lost,
        )
        price = (card or next(iter(runtime.catalogue.cards.values()))).price
        _ = runtime.commits.write(_expire(runtime, job_id, end, price))
    if rows:
        log.info("recovered", jobs=len(rows))


def _requeue(job_id: str, lost: AttemptEnd) -> Write[bool]:
    return lambda session: Written(requeue(session, job_id, lost))


def _expire(runtime: Runtime, job_id: str, end: JobEnd, price: Price) -> Write[Settled]:
    return lambda session: end_job(
        session,
        job_id,
        end,
        price=price,
        payloads=runtime.payloads,
        result=None,
        result_keep_us=0,
    )
