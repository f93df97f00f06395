"""What a coordinator does with the past when it starts: nothing that was delivered is lost.

Queued jobs are found by the dispatcher. Running ones are carried on from their stored prefix: their
Macs get some time to come back with what they made meanwhile, and only then another reads the
prompt again. Nobody is blamed for our own absence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import structlog
from sqlalchemy import select, update
from starlette.concurrency import run_in_threadpool

from coordinator import settlement
from coordinator.commits import Write, Written
from coordinator.jobs import prefixes
from coordinator.jobs.facts import COORDINATOR_RESTARTED
from coordinator.jobs.models import Attempt, Job
from coordinator.jobs.payloads import PayloadError
from coordinator.jobs.prefixes import Prefix
from coordinator.jobs.schemas import AttemptEnd, JobEnd
from coordinator.jobs.states import LIVE_ATTEMPT_STATES
from coordinator.live import LiveJob, lease_seconds
from coordinator.nodes.models import Node
from coordinator.runtime import Runtime
from coordinator.settlement import Settled, end_job
from node_agent.protocol.cards import Price
from node_agent.protocol.messages import Hardware
from node_agent.sizing import speed

log = structlog.get_logger()

STAYING: Final = ("offline", "asleep", "quarantined")  # states that say nothing of a socket


@dataclass(frozen=True)
class _Running:
    """A job that ran when the earlier process ended, and its attempt if there is one."""

    job_id: str
    card_id: str
    card_revision: str
    fence: int | None
    node_id: str | None
    device: str | None
    hardware: dict[str, Any] | None
    accepted_us: int | None


async def recover(runtime: Runtime) -> None:
    """Carry on what an earlier process left. Before sockets and requests are served."""
    rows = await run_in_threadpool(_take_stock, runtime)
    carried = 0
    for row in rows:
        live = await run_in_threadpool(runtime.revive, row.job_id)
        if live is not None and row.fence is not None:
            _carry_on(runtime, row, live, row.fence)
            carried += 1
        else:
            await run_in_threadpool(_put_back, runtime, row)
    if rows:
        log.info("recovered", jobs=len(rows), carried_on=carried)


def _take_stock(runtime: Runtime) -> list[_Running]:
    """What runs on record, with no socket open; the health and paces of devices are read, too."""
    with runtime.database.write() as session:
        runtime.endings.health.load(session)
        runtime.endings.paces.load(session)
        _ = session.execute(
            update(Node).where(Node.state.not_in(STAYING)).values(state="offline", state_reason=None)
        )
        rows = session.execute(
            select(
                Job.id,
                Job.card_id,
                Job.card_revision,
                Attempt.fence,
                Attempt.node_id,
                Node.device,
                Node.hardware,
                Attempt.accepted_us,
            )
            .outerjoin(Attempt, (Attempt.job_id == Job.id) & Attempt.state.in_(LIVE_ATTEMPT_STATES))
            .outerjoin(Node, Node.id == Attempt.node_id)
            .where(Job.state == "running")
        ).all()
    return [_Running(*row) for row in rows]


def _carry_on(runtime: Runtime, row: _Running, live: LiveJob, fence: int) -> None:
    hardware = Hardware.model_validate(row.hardware)
    tokens = len(live.work.prompt_ids) + len(live.token_ids)
    runtime.relay.take_up(
        live,
        fence=fence,
        node_id=row.node_id or "",
        device=row.device or "",
        deadline_seconds=lease_seconds(
            runtime.settings,
            prefill_seconds=speed.prefill_seconds(live.card, tokens, hardware),
            step_seconds=speed.decode_seconds_per_token(live.card, hardware),
        ),
        received=live.tokens_of(fence),
        accepted_us=row.accepted_us,
    )


def _put_back(runtime: Runtime, row: _Running) -> None:
    """Queue a job that cannot be carried on just now, or end it if it never can be. Blocking."""
    card = runtime.catalogue.by_revision(row.card_id, row.card_revision)
    lost = None
    if row.fence is not None:
        prefix = _prefix_of(runtime, row.job_id)
        is_its = prefix is not None and prefix.fence == row.fence
        lost = AttemptEnd(
            fence=row.fence,
            state="lost",
            reason=COORDINATOR_RESTARTED,
            delivered_tokens=prefix.fence_tokens if prefix is not None and is_its else 0,
        )
    if card is not None and lost is not None:
        _ = runtime.commits.write(_requeue(row.job_id, lost))
        return
    end = JobEnd(
        state="expired",
        finish_reason=None,
        error_code="coordinator_restarted",
        output_tokens=0,
        received_tokens=0,
        output_digest=None,
        attempt=lost,
    )
    log.error("job_cannot_go_on", job_id=row.job_id, card=row.card_id)
    _ = runtime.commits.write(_expire(runtime, row.job_id, end, card.price if card is not None else None))


def _prefix_of(runtime: Runtime, job_id: str) -> Prefix | None:
    try:
        with runtime.database.read() as session:
            return prefixes.load(session, job_id, runtime.payloads)
    except PayloadError:
        return None


def _requeue(job_id: str, lost: AttemptEnd) -> Write[bool]:
    return lambda session: Written(settlement.requeue(session, job_id, lost))


def _expire(runtime: Runtime, job_id: str, end: JobEnd, price: Price | None) -> Write[Settled]:
    return lambda session: end_job(
        session,
        job_id,
        end,
        price=price,
        payloads=runtime.payloads,
        result=None,
        result_keep_us=0,
    )
