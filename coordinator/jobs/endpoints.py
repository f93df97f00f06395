"""The job API: submit and come back later, look, follow, cancel, fetch the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from coordinator import errors
from coordinator.accounts.models import Account
from coordinator.accounts.service import Caller
from coordinator.errors import ApiError
from coordinator.http import API_DOCS, audience, caller_of, identify, read_body, runtime_of
from coordinator.jobs import service
from coordinator.jobs.models import Attempt, Job
from coordinator.jobs.states import FINAL_JOB_STATES
from coordinator.jobs.wishes import read_max_charge_umlx, read_wishes
from coordinator.numbers import Whole, whole_of
from coordinator.openai import endpoints as openai
from coordinator.openai import shapes
from coordinator.openai.chat import parse_chat
from coordinator.openai.completions import parse_completion
from coordinator.openai.request import GenerationRequest
from coordinator.openai.strict_json import Json, parse_object
from coordinator.runtime import Runtime

router = APIRouter()

JOB_ID_PATTERN: Final = r"^job_[0-9a-f]{32}$"
PARSERS: Final = {"chat.completions": parse_chat, "completions": parse_completion}


@router.post("/v1/jobs", openapi_extra=audience("account"), status_code=202)
async def submit(request: Request) -> Response:
    """Queue `{"kind": "chat.completions" | "completions", "request": {...}}`; 202 with the job."""
    runtime = runtime_of(request)
    caller = await caller_of(request)
    parse, inner = read_submission(await read_body(request))
    if inner.get("stream"):
        raise errors.invalid_value("request.stream", "follow GET /v1/jobs/{id}/events instead")
    accepted = await openai.accept(
        runtime,
        caller,
        json.dumps(inner).encode(),
        parse,
        idempotency_key=openai.read_idempotency_key(request),
        is_async=True,
        is_commons=openai.read_commons(request),
        wishes=read_wishes(request.headers),
        charge_max_umlx=read_max_charge_umlx(request.headers),
        quote=openai.read_quote(request),
    )
    view = await run_in_threadpool(_view_now, runtime, caller, accepted.job.id)
    return _json(view, status=202, headers=accepted.headers)


def read_submission(body: bytes) -> tuple[Callable[[bytes], GenerationRequest], dict[str, Json]]:
    """`{"kind", "request"}`: what reads the request, and the request. Raises 400."""
    whole = parse_object(body)
    unknown = set(whole) - {"kind", "request"}
    if unknown:
        raise errors.unknown_parameter(min(unknown), listed_in=API_DOCS)
    parse = PARSERS.get(str(whole.get("kind")))
    if parse is None:
        raise errors.invalid_value("kind", f"must be one of {', '.join(PARSERS)}")
    inner = whole.get("request")
    if not isinstance(inner, dict):
        raise errors.missing_parameter("request")
    return parse, inner


@router.get("/v1/jobs", openapi_extra=audience("account"))
def list_jobs(
    request: Request,
    limit: Annotated[Whole, Query(ge=1, le=service.LIST_MAX)] = 20,
    before: Annotated[str | None, Query(pattern=JOB_ID_PATTERN)] = None,
) -> Response:
    """The caller's jobs, newest first."""
    caller = identify(request)
    runtime = runtime_of(request)
    with runtime.database.read() as session:
        account = session.get_one(Account, caller.account_id)
        found = service.list_jobs(session, account, limit=limit, before=before)
        data: list[Json] = [view(runtime, job, None) for job in found]
    return _json({"object": "list", "data": data, "has_more": len(data) == limit})


@router.get("/v1/jobs/{job_id}", openapi_extra=audience("account"))
def get_job(request: Request, job_id: str) -> Response:
    """One job, where it stands, and its attempts."""
    caller = identify(request)
    return _json(_view_now(runtime_of(request), caller, job_id), headers={"x-job-id": job_id})


@router.post("/v1/jobs/{job_id}/cancel", openapi_extra=audience("account"))
async def cancel(request: Request, job_id: str) -> Response:
    """End a job now; it is charged for what was relayed. A job that had ended is left as it is."""
    runtime = runtime_of(request)
    caller = await caller_of(request)
    job = await run_in_threadpool(_own_job, runtime, caller, job_id)
    live = await runtime.live_of(job.id)
    if live is not None:
        _ = runtime.relay.cancel(job.id, reason="client")
        _ = await live.stream.wait_ended()
    return _json(await run_in_threadpool(_view_now, runtime, caller, job_id), headers={"x-job-id": job_id})


@router.get("/v1/jobs/{job_id}/result", openapi_extra=audience("account"))
async def result(request: Request, job_id: str) -> Response:
    """The answer of an asynchronous job, as the chat or completion endpoint would have given it.

    It can be fetched once: what has been sent is no longer kept.
    """
    runtime = runtime_of(request)
    caller = await caller_of(request)

    def load() -> tuple[Job, bytes | None]:
        with runtime.database.read() as session:
            account = session.get_one(Account, caller.account_id)
            job = service.get_job(session, account, job_id)
            return job, service.load_result(session, job.id, runtime.payloads)

    job, content = await run_in_threadpool(load)
    if job.state not in FINAL_JOB_STATES:
        raise errors.conflict("job_not_ended", f"{job_id} is {job.state}; follow its events or ask again.")
    if job.state != "done":
        raise ApiError(
            409, job.error_code or "job_failed", f"{job_id} ended as {job.state}.", type="conflict_error"
        )
    if content is None:
        raise ApiError(
            410,
            "result_gone",
            f"The answer of {job_id} is no longer kept.",
            type="not_found_error",
        )

    def drop() -> None:
        with runtime.database.write() as session:
            service.drop_result(session, job.id)

    # After the answer has gone out, so that a broken write does not lose it.
    return Response(
        content,
        media_type="application/json",
        headers={"x-job-id": job_id},
        background=BackgroundTask(drop),
    )


@router.get("/v1/jobs/{job_id}/events", openapi_extra=audience("account"))
async def events(
    request: Request, job_id: str, after: Annotated[Whole | None, Query(ge=0)] = None
) -> Response:
    """The job's answer as it comes, from the start or behind a token offset."""
    runtime = runtime_of(request)
    caller = await caller_of(request)
    job = await run_in_threadpool(_own_job, runtime, caller, job_id)
    last_id = request.headers.get("last-event-id", "")
    if after is None and last_id:
        after = whole_of(last_id)
        if after is None:
            raise errors.invalid_value("Last-Event-ID", "must be the id of an event: a token offset")
    live = await runtime.live_of(job.id)
    if live is None:
        raise ApiError(
            410, "stream_gone", f"The events of {job_id} are no longer kept.", type="not_found_error"
        )
    return openai.stream_response(
        runtime,
        live,
        job,
        include_usage=True,
        wants_logprobs=live.work.top_logprobs is not None,
        headers={"x-job-id": job.id},
        is_kept=True,
        after=after,
    )


# -- views ---------------------------------------------------------------------------------------


def _own_job(runtime: Runtime, caller: Caller, job_id: str) -> Job:
    with runtime.database.read() as session:
        return service.get_job(session, session.get_one(Account, caller.account_id), job_id)


def _view_now(runtime: Runtime, caller: Caller, job_id: str) -> dict[str, Json]:
    with runtime.database.read() as session:
        job = service.get_job(session, session.get_one(Account, caller.account_id), job_id)
        return view(runtime, job, list(service.attempts_of(session, job_id)))


def view(runtime: Runtime, job: Job, attempts: list[Attempt] | None) -> dict[str, Json]:
    """A job as its submitter sees it. Amounts are decimal strings."""
    found: dict[str, Json] = {
        "id": job.id,
        "object": "job",
        "kind": job.kind,
        "state": job.state,
        "model": job.card_id,
        "model_revision": job.card_revision,
        "asynchronous": job.is_async,
        "prompt_tokens": job.prompt_tokens,
        "max_tokens": job.max_tokens,
        "output_tokens": job.output_tokens,
        "finish_reason": job.finish_reason,
        "error": job.error_code,
        "bound_umlx": str(job.bound_umlx),
        "charge_umlx": str(job.charge_umlx),
        "created_us": job.created_us,
        "started_us": job.started_us,
        "ended_us": job.ended_us,
        "output_digest": job.output_digest,
    }
    if attempts is not None:
        found["attempts"] = [_attempt_view(attempt) for attempt in attempts]
        found["now"] = _standing(runtime, job)
    return found


def _attempt_view(attempt: Attempt) -> dict[str, Json]:
    return {
        "fence": attempt.fence,
        "node": attempt.node_id,
        "state": attempt.state,
        "reason": attempt.reason,
        "delivered_tokens": attempt.delivered_tokens,
        "share_umlx": str(attempt.share_umlx),
        "forecast_seconds": attempt.forecast_ms / 1000,
        "offered_us": attempt.offered_us,
        "first_token_us": attempt.first_token_us,
        "ended_us": attempt.ended_us,
        "node_signature": attempt.node_signature,
    }


def _standing(runtime: Runtime, job: Job) -> dict[str, Json] | None:
    """Where a job that has not ended stands, from memory."""
    live = runtime.jobs.get(job.id)
    if live is None or job.state in FINAL_JOB_STATES:
        return None
    found: dict[str, Json] = {"delivered_tokens": len(live.token_ids)}
    look = runtime.dispatcher.last_look.get(job.id)
    if look is not None:
        rejected: dict[str, Json] = {str(reason): count for reason, count in look.rejected.items()}
        found["waiting_because"] = rejected
    progress = live.attempt.progress if live.attempt is not None else None
    if progress is not None and not live.token_ids:
        found |= {"phase": progress.phase, "done": progress.done, "total": progress.total}
    return found


def _json(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(shapes.dump(content), status, media_type="application/json", headers=headers)
