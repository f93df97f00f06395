"""The OpenAI surface: chat completions, completions, models."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from coordinator import errors
from coordinator.accounts.service import Caller
from coordinator.commits import LedgerRefusedError, Refused, Written
from coordinator.errors import ApiError
from coordinator.http import STATUS_CLIENT_GONE, audience, caller_of, read_body, respond_with, runtime_of
from coordinator.jobs import quotes
from coordinator.jobs import service as jobs
from coordinator.jobs.models import Job
from coordinator.jobs.quotes import Quote
from coordinator.jobs.wishes import NO_WISHES, Wishes, read_max_charge_umlx, read_wishes
from coordinator.live import LiveJob
from coordinator.numbers import decimal_of
from coordinator.openai import results, shapes
from coordinator.openai.chat import parse_chat
from coordinator.openai.completions import parse_completion
from coordinator.openai.models import list_models
from coordinator.openai.request import GenerationRequest
from coordinator.openai.streaming import ClientGoneError, EventStreamResponse, unless_gone
from coordinator.openai.strict_json import Json
from coordinator.runtime import DISPATCH_TOPIC, Runtime
from ledger.commands import Rejected
from node_agent.protocol.cards import ModelCard

router = APIRouter()


@dataclass(frozen=True)
class Accepted:
    """A job of this request, as the handler follows it."""

    request: GenerationRequest
    card: ModelCard
    job: Job
    live: LiveJob
    is_replay: bool

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every answer about this job."""
        found = {"x-job-id": self.job.id}
        if self.request.ignored:
            found["x-mlxnet-ignored"] = ", ".join(self.request.ignored)
        if self.is_replay:
            found["idempotency-hit"] = "true"
        return found


@router.post("/v1/chat/completions", openapi_extra=audience("account"))
async def chat_completions(request: Request) -> Response:
    """One chat completion, streamed or whole."""
    return await _generate(request, parse_chat)


@router.post("/v1/completions", openapi_extra=audience("account"))
async def completions(request: Request) -> Response:
    """One text completion, streamed or whole."""
    return await _generate(request, parse_completion)


@router.get("/v1/models", openapi_extra=audience("account"))
async def models(request: Request) -> Response:
    """The catalogue and its aliases, with context, price, and Macs and speed now."""
    _ = await caller_of(request)
    data: list[Json] = list(list_models(runtime_of(request)))
    body: dict[str, Json] = {"object": "list", "data": data}
    return Response(shapes.dump(body), media_type="application/json")


@router.get("/v1/models/{name:path}", openapi_extra=audience("account"))
async def model(request: Request, name: str) -> Response:
    """One model, by id or alias."""
    _ = await caller_of(request)
    runtime = runtime_of(request)
    found = [entry for entry in list_models(runtime) if entry["id"] == name]
    if not found:
        raise runtime.missing_model(name)
    return Response(shapes.dump(found[0]), media_type="application/json")


# -- one request ---------------------------------------------------------------------------------


async def _generate(request: Request, parse: Callable[[bytes], GenerationRequest]) -> Response:
    runtime = runtime_of(request)
    caller = await caller_of(request)
    body = await read_body(request)
    max_wait_seconds = read_max_wait(request)
    is_kept = read_on_disconnect(request)
    accepted = await accept(
        runtime,
        caller,
        body,
        parse,
        idempotency_key=read_idempotency_key(request),
        is_async=False,
        is_kept=is_kept,
        is_commons=read_commons(request),
        quote=read_quote(request),
        wishes=read_wishes(request.headers),
        charge_max_umlx=read_max_charge_umlx(request.headers),
    )
    stream = accepted.live.stream
    _come_to_read(runtime, accepted.live)
    try:
        await unless_gone(request, asyncio.ensure_future(_wait_for_host(runtime, accepted, max_wait_seconds)))
        if accepted.request.stream:
            return _streamed(runtime, accepted, is_kept=is_kept)
        ending = await unless_gone(request, asyncio.ensure_future(stream.wait_ended()))
    except ClientGoneError:
        if stream.readers == 1:
            _leave(runtime, accepted.live, is_kept=is_kept)
        return Response(status_code=STATUS_CLIENT_GONE)
    except ApiError as error:
        error.extra_headers.update(accepted.headers)
        raise
    finally:
        stream.readers -= 1
    if ending.error is not None:
        raise _after_begin(ending.error, accepted)
    content = results.whole_result(
        stream,
        ending,
        job_id=accepted.job.id,
        kind=accepted.request.kind,
        card=accepted.card,
        created_us=accepted.job.created_us,
        wants_logprobs=accepted.request.want_logprobs,
    )
    headers = accepted.headers | {"x-mlxnet-charge-umlx": str(ending.charge_umlx)}
    return Response(content, media_type="application/json", headers=headers)


def read_max_wait(request: Request) -> float:
    """Seconds to wait for a host, from the header or the setting. Raises 400."""
    settings = runtime_of(request).settings
    text = request.headers.get("x-mlxnet-max-wait")
    if text is None:
        return settings.max_wait_seconds
    seconds = decimal_of(text)
    if seconds is None or seconds > settings.max_wait_seconds_limit:
        raise errors.invalid_value(
            "x-mlxnet-max-wait", f"must be seconds from 0 to {settings.max_wait_seconds_limit:g}"
        )
    return max(seconds, settings.max_wait_seconds_least)


def read_on_disconnect(request: Request) -> bool:
    """Whether the job goes on when its submitter leaves, from the header. Raises 400."""
    choice = request.headers.get("x-mlxnet-on-disconnect", "cancel").lower()
    if choice not in {"cancel", "continue"}:
        raise errors.invalid_value("x-mlxnet-on-disconnect", "must be 'cancel' or 'continue'")
    return choice == "continue"


def read_commons(request: Request) -> bool:
    """Whether this is to be public work, which the pool pays for, from the header. Raises 400."""
    choice = request.headers.get("x-mlxnet-commons", "false").lower()
    if choice not in {"true", "false"}:
        raise errors.invalid_value("x-mlxnet-commons", "must be 'true' or 'false'")
    return choice == "true"


def read_quote(request: Request) -> Quote | None:
    """The quote by which the job is to be priced, from the header. Raises 400 for one that is not ours."""
    quote_id = request.headers.get(quotes.HEADER)
    return None if quote_id is None else runtime_of(request).quotes.read(quote_id)


def read_idempotency_key(request: Request) -> str | None:
    """The Idempotency-Key header. Raises 400 if it is too long or empty."""
    key = request.headers.get("idempotency-key")
    limit = runtime_of(request).settings.idempotency_key_chars_max
    if key is not None and not 0 < len(key) <= limit:
        raise errors.invalid_value("Idempotency-Key", f"must have 1 to {limit} characters")
    return key


async def accept(
    runtime: Runtime,
    caller: Caller,
    body: bytes,
    parse: Callable[[bytes], GenerationRequest],
    *,
    idempotency_key: str | None,
    is_async: bool,
    is_kept: bool = True,
    is_commons: bool = False,
    quote: Quote | None = None,
    wishes: Wishes = NO_WISHES,
    charge_max_umlx: int | None = None,
) -> Accepted:
    """Parse, price and queue a request. Raises `ApiError`; nothing is held or queued then."""
    if runtime.is_draining:
        raise errors.coordinator_restarting()

    def submit() -> tuple[GenerationRequest, ModelCard, Job, LiveJob | None, bool]:
        request = parse(body)
        card, tokenizer, work = runtime.prepare(request)
        work = replace(work, is_kept=is_kept, wishes=wishes)
        submission = jobs.Submission(
            account_id=caller.account_id,
            api_key_id=caller.key_id,
            card=card,
            work=work,
            is_async=is_async,
            request_digest=request.digest,
            idempotency_key=idempotency_key,
            commons_busy_ppm=runtime.demand.demand().paid_busy_ppm if is_commons else None,
            quote=quote,
            charge_max_umlx=charge_max_umlx,
        )
        if not _is_repeated(runtime, submission):
            runtime.refuse_hopeless(caller.account_id, card, work)
        submitted = _submit(runtime, submission)
        job = submitted.job
        if submitted.is_replay:
            return request, card, job, None, True
        live = runtime.make_live(
            job_id=job.id,
            account_id=caller.account_id,
            card=card,
            tokenizer=tokenizer,
            work=work,
            is_async=is_async,
            created_us=job.created_us,
        )
        return request, card, job, live, False

    with runtime.dispatcher.expecting():
        request, card, job, fresh, is_replay = await run_in_threadpool(submit)
        live = runtime.relay.add(fresh) if fresh is not None else await runtime.live_of(job.id)
    if not is_replay:
        # The dispatcher may be another replica's; our own has been woken already.
        runtime.publish_later(DISPATCH_TOPIC)
    if live is None:
        raise errors.conflict(
            "result_gone", f"{job.id}, made with this Idempotency-Key, ended and is no longer kept."
        )
    return Accepted(request, card, job, live, is_replay)


def _is_repeated(runtime: Runtime, submission: jobs.Submission) -> bool:
    """Whether the same key made a job before: that one is answered, whatever Macs there are now."""
    if submission.idempotency_key is None:
        return False
    with runtime.database.read() as session:
        return jobs.find_replay(session, submission) is not None


def _submit(runtime: Runtime, submission: jobs.Submission) -> jobs.Submitted:
    def write(session: Session) -> Written[jobs.Submitted]:
        try:
            return jobs.submit(session, submission, settings=runtime.settings, payloads=runtime.payloads)
        except ApiError as error:
            raise Refused(error) from None

    try:
        return runtime.commits.write(write)
    except IntegrityError:
        if submission.idempotency_key is None:
            raise
        # A twin with the same key was faster; now its job is found.
        return runtime.commits.write(write)
    except LedgerRefusedError as refusal:
        outcome = refusal.outcome
        if not isinstance(outcome, Rejected) or outcome.reason != "insufficient_funds":
            raise
        raise errors.insufficient_balance(
            needed_umlx=outcome.needed_umlx or 0, available_umlx=outcome.available_umlx or 0
        ) from None


async def _wait_for_host(runtime: Runtime, accepted: Accepted, max_wait_seconds: float) -> None:
    live = accepted.live
    if await live.stream.wait_accepted(max_wait_seconds):
        return
    forecast = runtime.jobs.forecast_seconds(runtime.settings.max_wait_seconds)
    look = runtime.dispatcher.last_look.get(live.job_id)
    is_never = look is not None and look.rejected and not look.is_ever
    why = ", ".join(f"{count} {reason}" for reason, count in look.rejected.items()) if look else ""
    error = errors.no_host_available(
        f"none took it within {max_wait_seconds:g} s ({why or _no_reason(runtime)})",
        retry_after_seconds=None if is_never else max(1, math.ceil(forecast)),
    )
    # Another request for the same job may be willing to wait longer.
    if live.stream.readers > 1:
        raise error
    is_expired = runtime.relay.cancel(live.job_id, reason="expired", error=error)
    # The hold is free again before the submitter is told to come back.
    _ = await live.stream.wait_ended()
    if is_expired:
        raise error


def _no_reason(runtime: Runtime) -> str:
    return "none had answered yet" if runtime.fleet.channels else "none is connected"


def _after_begin(error: ApiError, accepted: Accepted) -> ApiError:
    """An error of a job that had begun: its own headers say not to send the request again blindly."""
    return ApiError(
        error.status,
        error.code,
        error.message,
        type=error.type,
        param=error.param,
        retry_after_seconds=error.retry_after_seconds,
        should_retry=False,
        headers=error.extra_headers | accepted.headers,
    )


def _streamed(runtime: Runtime, accepted: Accepted, *, is_kept: bool) -> Response:
    live = accepted.live
    ending = live.stream.ending
    if ending is not None and ending.error is not None and not live.stream.deltas:
        return respond_with(_after_begin(ending.error, accepted))
    return stream_response(
        runtime,
        live,
        accepted.job,
        include_usage=accepted.request.include_usage,
        wants_logprobs=accepted.request.want_logprobs,
        headers=accepted.headers,
        is_kept=is_kept,
        after=None,
    )


def stream_response(
    runtime: Runtime,
    live: LiveJob,
    job: Job,
    *,
    include_usage: bool,
    wants_logprobs: bool,
    headers: dict[str, str],
    is_kept: bool,
    after: int | None,
) -> Response:
    """The job's events from an offset on, for one reader."""
    settings = runtime.settings
    head = results.head_of(job_id=job.id, kind=live.work.kind, card=live.card, created_us=job.created_us)
    _come_to_read(runtime, live)

    def end(is_gone: bool) -> None:
        live.stream.readers -= 1
        if is_gone and live.stream.readers == 0:
            _leave(runtime, live, is_kept=is_kept)

    return EventStreamResponse(
        results.events(
            live.stream,
            head,
            include_usage=include_usage,
            wants_logprobs=wants_logprobs,
            keep_alive_seconds=settings.keep_alive_seconds,
            after=after,
        ),
        headers=headers,
        stall_seconds=settings.reader_stall_seconds,
        on_end=end,
    )


def _come_to_read(runtime: Runtime, live: LiveJob) -> None:
    live.stream.readers += 1
    if live.is_orphaned:
        runtime.dispatcher.wake()  # it may have waited for just this


def _leave(runtime: Runtime, live: LiveJob, *, is_kept: bool) -> None:
    """The submitter went away: its job ends at what was relayed, unless it is to go on."""
    if not is_kept and not live.is_async:
        _ = runtime.relay.cancel(live.job_id, reason="client")
