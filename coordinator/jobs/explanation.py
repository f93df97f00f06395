"""`GET /v1/jobs/{job_id}/explanation`: why a job waits, or why it ran where it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from coordinator import errors
from coordinator.accounts.service import Caller
from coordinator.explain import (
    Note,
    changes_json,
    class_of_mac,
    note_json,
    rejected_json,
    seconds_json,
    unservable_text,
)
from coordinator.http import audience, caller_of, runtime_of
from coordinator.jobs import service
from coordinator.jobs.decisions import notes_of_attempts
from coordinator.jobs.models import Attempt, Job
from coordinator.jobs.standing import Standing, facts_of, is_waiting, stand
from coordinator.nodes.models import Node
from coordinator.openai import shapes
from coordinator.openai.strict_json import Json
from coordinator.placement.types import Forecast, NotPlaced
from coordinator.runtime import Runtime
from node_agent.protocol.messages import Hardware

router = APIRouter()

ENDS: Final[dict[str, str]] = {
    "done": "it ended well",
    "declined": "the Mac declined the offer",
    "lost": "the Mac was lost, or did not go on",
    "reclaimed": "its owner came back",
    "failed": "it failed on the Mac",
    "cancelled": "it was cancelled, or no longer needed",
}
GONE: Final = "the decision is no longer remembered: only the latest jobs' are, since the last restart"


@router.get("/v1/jobs/{job_id}/explanation", openapi_extra=audience("account"))
async def explanation(request: Request, job_id: str) -> Response:
    """Why the job waits and for how long, or why each attempt went where it did.

    For its submitter and for operators: counts and seconds, no ids of Macs, nobody else's job.
    """
    runtime = runtime_of(request)
    caller = await caller_of(request)

    def load() -> tuple[Job, Sequence[Attempt], list[dict[str, Json] | None]]:
        with runtime.database.read() as session:
            job = _find(session, caller, job_id)
            attempts = service.attempts_of(session, job_id)
            return job, attempts, [_class_of(session, attempt.node_id) for attempt in attempts]

    job, attempts, classes = await run_in_threadpool(load)
    found: dict[str, Json] = {
        "id": job.id,
        "object": "job.explanation",
        "state": job.state,
        "model": job.card_id,
        "prompt_tokens": job.prompt_tokens,
        "max_tokens": job.max_tokens,
        "waiting": await _waiting(runtime, job),
        "attempts": _attempts_json(
            attempts,
            notes_of_attempts(runtime.decisions.of(job_id), [attempt.node_id for attempt in attempts]),
            classes,
        ),
    }
    return Response(shapes.dump(found), media_type="application/json", headers={"x-job-id": job_id})


def _find(session: Session, caller: Caller, job_id: str) -> Job:
    """The caller's job, an operator's any. Raises 404."""
    job = session.get(Job, job_id)
    if job is None or not (caller.is_operator or job.account_id == caller.account_id):
        raise errors.not_found("job", job_id)
    return job


def _class_of(session: Session, node_id: str) -> dict[str, Json] | None:
    node = session.get(Node, node_id)
    return None if node is None else class_of_mac(Hardware.model_validate(node.hardware))


# -- a job that waits ------------------------------------------------------------------------------


async def _waiting(runtime: Runtime, job: Job) -> dict[str, Json] | None:
    if job.state != "queued":
        return None
    live = await runtime.live_of(job.id)
    if live is None or not is_waiting(live):
        return None
    return standing_json(await stand(runtime, facts_of(live)))


def standing_json(standing: Standing) -> dict[str, Json]:
    """A job's place in the queue, when its turn comes, what is in the way and what would change it."""
    choice = standing.choice
    is_never = isinstance(choice, NotPlaced) and bool(choice.rejected) and not choice.is_ever
    found: dict[str, Json] = {
        "can_ever_run": not is_never,
        "why": _why(standing),
        "position": None if is_never else standing.before + 1,
        "queued": standing.queued,
        "unservable_left_out": standing.unservable,
        "hosts": sum(choice.rejected.values()) + (not isinstance(choice, NotPlaced)),
        "rejected": rejected_json(choice.rejected),
        "forecast": None if is_never else forecast_json(standing.forecast),
    }
    if isinstance(choice, NotPlaced):
        found |= {
            "needed_bytes": choice.needed_bytes,
            "largest_lent_bytes": choice.largest_lent_bytes,
            "changes": changes_json(standing.job, choice),
        }
    return found


def _why(standing: Standing) -> str:
    choice = standing.choice
    if not isinstance(choice, NotPlaced):
        return "a Mac can take it: it is offered next"
    if not choice.rejected:
        return "no Mac is connected"
    if not choice.is_ever:
        return f"no Mac can ever run it: {unservable_text(standing.job, choice)}"
    return "no Mac can take it just now"


def forecast_json(forecast: Forecast | None) -> dict[str, Json] | None:
    """When it begins and ends, from now, and the parts of that."""
    if forecast is None:
        return None
    return {
        "starts_in_seconds": round(forecast.wait_seconds, 3),
        "ends_in_seconds": round(forecast.total_seconds, 3),
        "seconds": seconds_json(forecast),
        "tokens_per_second": round(forecast.tokens_per_second, 1),
    }


# -- attempts --------------------------------------------------------------------------------------


def _attempts_json(
    attempts: Sequence[Attempt], notes: Sequence[Note | None], classes: Sequence[dict[str, Json] | None]
) -> list[Json]:
    found: list[Json] = []
    for attempt, note, mac in zip(attempts, notes, classes, strict=True):
        took_us = None if attempt.ended_us is None else attempt.ended_us - attempt.offered_us
        found.append(
            {
                "fence": attempt.fence,
                "state": attempt.state,
                "reason": attempt.reason,
                "end": ENDS.get(attempt.state),
                "mac": mac,
                "delivered_tokens": attempt.delivered_tokens,
                "forecast_seconds": attempt.forecast_ms / 1000,
                "took_seconds": None if took_us is None else took_us / 1e6,
                "chosen": None if note is None else note_json(note),
                "chosen_missing": GONE if note is None else None,
            }
        )
    return found
