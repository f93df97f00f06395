"""Refunds, for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from coordinator import errors
from coordinator.http import audience, caller_of, parse_body, read_body, require_operator, runtime_of
from coordinator.openai.endpoints import read_idempotency_key
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from coordinator.policy.refunds import Refunded, RefundWanted, refund

router = APIRouter()


class RefundBody(BaseModel):
    """The body of a refund. `reason` goes into the journal: nothing private in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job_id: Annotated[str, Field(pattern=r"^job_[0-9a-f]{32}$")]
    amount_umlx: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$")] | None = None
    reason: Annotated[str, Field(pattern=r"^[\x21-\x7e]([\x20-\x7e]{0,78}[\x21-\x7e])?$")]


@router.post("/v1/ledger/refunds", openapi_extra=audience("operator"))
async def refunds(request: Request) -> Response:
    """Give a job's charge back, wholly or in part, to the account that paid it. For operators.

    `amount_umlx` is a decimal string; without it all that is left of the charge. Needs an
    Idempotency-Key: the same one again gets the first answer and moves nothing.
    """
    require_operator(await caller_of(request))
    key = read_idempotency_key(request)
    if key is None:
        raise errors.missing_parameter("Idempotency-Key")
    body = parse_body(RefundBody, await read_body(request))
    wanted = RefundWanted(
        job_id=body.job_id,
        amount_umlx=None if body.amount_umlx is None else int(body.amount_umlx),
        reason=body.reason,
        key=key,
    )
    done = await run_in_threadpool(refund, runtime_of(request).database, wanted)
    headers = {"idempotency-hit": "true"} if done.is_replay else {}
    status = 200 if done.is_replay else 201
    return Response(dump(_as_json(done)), status, headers=headers, media_type="application/json")


def _as_json(done: Refunded) -> dict[str, Json]:
    return {
        "object": "refund",
        "job_id": done.job_id,
        "refunded_umlx": str(done.refunded_umlx),
        "owed_umlx": str(done.owed_umlx),
        "from": [{"account": account, "amount_umlx": str(amount)} for account, amount in done.legs],
    }
