"""`POST /v1/quotes`: what a request would cost at most, and how long it would take. Asking is free."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from coordinator import clock, errors
from coordinator.accounts.service import Caller
from coordinator.explain import class_of_mac
from coordinator.http import audience, caller_of, read_body, runtime_of
from coordinator.ids import new_id
from coordinator.jobs.endpoints import read_submission
from coordinator.jobs.explanation import forecast_json, standing_json
from coordinator.jobs.models import Job
from coordinator.jobs.quotes import HEADER, Quote
from coordinator.jobs.schemas import Work
from coordinator.jobs.standing import stand
from coordinator.jobs.wishes import Wishes, read_wishes, with_wishes
from coordinator.openai import shapes
from coordinator.openai.strict_json import Json
from coordinator.placement.types import JobFacts, Placed
from coordinator.policy.rate_cards import card_in_force
from coordinator.runtime import Runtime
from coordinator.settlement import rate_of
from ledger.pricing import bound_umlx, charge_umlx
from node_agent.protocol.cards import ModelCard

router = APIRouter()

LOOKED_AT_MAX: Final = 500  # the account's newest jobs, of any model
SAMPLE_MAX: Final = 50  # of them with this model
SAMPLE_LEAST: Final = 5  # fewer tell nothing about the next


@dataclass(frozen=True)
class _Priced:
    """A request with all that follows from card, rates and the account's own past."""

    card: ModelCard
    work: Work
    quote: Quote
    expected_tokens: int
    sample: int


@router.post("/v1/quotes", openapi_extra=audience("account"))
async def make_quote(request: Request) -> Response:
    """A price and a forecast for `{"kind", "request"}` as `/v1/jobs` takes it.

    Whatever the request itself would be refused for, the quote is refused for; headers that wish for
    certain Macs count.
    """
    runtime = runtime_of(request)
    caller = await caller_of(request)
    wait_seconds = runtime.quote_limit.wait_seconds(caller.account_id, clock.monotonic())
    if wait_seconds:
        raise errors.rate_limited(retry_after_seconds=math.ceil(wait_seconds), what="quotes in a minute")
    body = await read_body(request)
    wishes = read_wishes(request.headers)
    priced = await run_in_threadpool(_price, runtime, caller, body, wishes)
    return Response(
        shapes.dump(_price_json(runtime, priced) | await _forecast_json(runtime, caller, priced)),
        media_type="application/json",
    )


def _price(runtime: Runtime, caller: Caller, body: bytes, wishes: Wishes) -> _Priced:
    parse, inner = read_submission(body)
    card, _, work = runtime.prepare(parse(json.dumps(inner).encode()))
    work = replace(work, wishes=wishes)
    runtime.refuse_hopeless(caller.account_id, card, work)
    with runtime.database.read() as session:
        now_us = runtime.database.now_us(session)
        sample = _answers(session, caller.account_id, card.id)
        quote = Quote(
            expires_us=now_us + int(runtime.settings.quote_seconds * 1e6),
            account_id=caller.account_id,
            card_id=card.id,
            card_revision=card.revision,
            rate_card_id=card_in_force(session, now_us).id,
        )
    if len(sample) < SAMPLE_LEAST:
        return _Priced(card, work, quote, work.max_tokens, 0)
    expected = math.ceil(sum(sample) / len(sample))
    return _Priced(card, work, quote, max(1, min(expected, work.max_tokens)), len(sample))


def _answers(session: Session, account_id: str, card_id: str) -> list[int]:
    """Tokens of the account's own latest answers of the model; nobody else's say anything here."""
    newest = (
        select(Job.card_id, Job.state, Job.output_tokens)
        .where(Job.account_id == account_id)
        .order_by(Job.created_us.desc())
        .limit(LOOKED_AT_MAX)
        .subquery()
    )
    query = select(newest.c.output_tokens).where(newest.c.card_id == card_id, newest.c.state == "done")
    return list(session.scalars(query.limit(SAMPLE_MAX)))


def _price_json(runtime: Runtime, priced: _Priced) -> dict[str, Json]:
    card, work, quote = priced.card, priced.work, priced.quote
    rate, prompt_tokens = rate_of(card.price), len(work.prompt_ids)
    bound = bound_umlx(rate, prompt_tokens, work.max_tokens)
    expected = charge_umlx(rate, prompt_tokens, 0, priced.expected_tokens)
    if work.wishes.own == "only":
        bound = expected = 0  # what one's own Macs make is free
    return {
        "id": runtime.quotes.id_of(quote),
        "object": "quote",
        "header": HEADER,
        "expires_us": quote.expires_us,
        "valid_seconds": runtime.settings.quote_seconds,
        "model": card.id,
        "model_revision": card.revision,
        "rate_card": quote.rate_card_id,
        "prompt_tokens": prompt_tokens,
        "max_tokens": work.max_tokens,
        "expected_output_tokens": priced.expected_tokens,
        "expected_from_jobs": priced.sample,
        "bound_umlx": str(bound),
        "expected_umlx": str(expected),
        "price": {
            "input_umlx_per_million_tokens": str(rate.input_umlx_per_million),
            "cached_input_umlx_per_million_tokens": str(rate.cached_input_umlx_per_million),
            "output_umlx_per_million_tokens": str(rate.output_umlx_per_million),
            "minimum_umlx": str(rate.minimum_umlx),
        },
    }


async def _forecast_json(runtime: Runtime, caller: Caller, priced: _Priced) -> dict[str, Json]:
    """When the job would begin and end if it were sent now, and on which kind of Mac."""
    job = JobFacts(
        job_id=new_id("job"),
        card=priced.card,
        prompt_tokens=len(priced.work.prompt_ids),
        max_tokens=priced.work.max_tokens,
        card_revision=priced.card.revision,
        answer_tokens_expected=priced.expected_tokens,
        submitter_id=caller.account_id,
    )
    standing = await stand(runtime, with_wishes(job, priced.work.wishes))
    forecast = forecast_json(standing.forecast)
    if not isinstance(standing.choice, Placed):
        return {"forecast": forecast, "mac": None, "waiting": standing_json(standing)}
    channel = runtime.fleet.get(standing.choice.node_id)
    mac = class_of_mac(channel.hardware) if channel is not None else None
    return {"forecast": forecast, "mac": mac, "waiting": None}
