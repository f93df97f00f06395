"""Budgets, vouchers, gifts and corrections over HTTP."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from coordinator import clock, errors
from coordinator.errors import ApiError
from coordinator.http import audience, identify, parse_body, read_body, require_operator, runtime_of
from coordinator.openai.endpoints import read_idempotency_key
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from coordinator.policy import gifts, vouchers
from coordinator.policy.adjustments import adjust
from coordinator.policy.announcements import AnnouncementError
from coordinator.policy.budgets import BudgetState, budget_states, submit_budget
from coordinator.policy.documents import AdjustmentDocument, BudgetDocument, DocumentError
from ledger.budgets import BudgetError
from ledger.signatures import SignatureError

router = APIRouter()

# Read here and not by the framework, which reads without a limit.
Body = Annotated[bytes, Depends(read_body)]
DAYS_MAX = 3650


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class VoucherIssue(_Strict):
    """How many vouchers of which amount, for how long."""

    amount_umlx: object
    days: Annotated[int, Field(ge=1, le=DAYS_MAX)]
    count: Annotated[int, Field(ge=1, le=vouchers.COUNT_MAX)] = 1
    budget: Annotated[str, Field(max_length=64)] | None = None


class VoucherCode(_Strict):
    """A voucher's code."""

    code: Annotated[str, Field(min_length=1, max_length=64)]


class GiftBody(_Strict):
    """Whom to give, how much, and a word with it."""

    to: Annotated[str, Field(min_length=1, max_length=100)]
    amount_umlx: object
    note: Annotated[str, Field(max_length=100)] = ""


@contextmanager
def documents_explained() -> Generator[None]:
    """What is wrong with a signed document, as an answer that names the field."""
    try:
        yield
    except SignatureError as error:
        raise ApiError(
            403,
            "signatures_missing",
            f"Invalid 'signatures': {error}.",
            type="permission_error",
            param="signatures",
        ) from None
    except (AnnouncementError, BudgetError, DocumentError) as error:
        # These begin with the field's name.
        raise ApiError(400, "invalid_value", f"Invalid document: {error}.", param="document") from None


@router.get("/v1/budgets", openapi_extra=audience("public"))
def list_budgets(request: Request) -> Response:
    """Every budget: cap, drawn, left, its time, who signed it, and the digest that the ledger logged."""
    database = runtime_of(request).database
    with database.read() as session:
        states = budget_states(session, now_us=database.now_us(session))
    data: list[Json] = [budget_json(state) for state in states]
    return as_json({"object": "list", "data": data})


@router.post("/v1/budgets", openapi_extra=audience("operator"), status_code=201)
def post_budget(request: Request, body: Body) -> Response:
    """Take in a budget that enough operators have signed, or further signatures of one."""
    require_operator(identify(request))
    document = parse_body(BudgetDocument, body)
    database = runtime_of(request).database
    with documents_explained(), database.write() as session:
        now_us = database.now_us(session)
        row = submit_budget(session, document, now_us=now_us)
        (state,) = (
            state for state in budget_states(session, now_us=now_us) if state.document.budget.id == row.id
        )
    return as_json(budget_json(state), status=201)


def budget_json(state: BudgetState) -> dict[str, Json]:
    """A budget as everyone sees it."""
    text = state.document.budget
    signatures: dict[str, Json] = dict(state.document.signatures)
    return {
        "object": "budget",
        "id": text.id,
        "purpose": text.purpose,
        "reason": text.reason,
        "cap_umlx": text.cap_umlx,
        "drawn_umlx": str(state.drawn_umlx),
        "promised_umlx": str(state.promised_umlx),
        "left_umlx": str(state.left_umlx),
        "valid_from_us": text.valid_from_us,
        "expires_us": text.expires_us,
        "created_us": state.created_us,
        "signers": list(state.signers),
        "signatures": signatures,
        "digest": state.document.digest,
    }


@router.post("/v1/vouchers", openapi_extra=audience("operator"), status_code=201)
def post_vouchers(request: Request, body: Body) -> Response:
    """Issue vouchers under a budget. Their codes are in this answer and nowhere else."""
    require_operator(identify(request))
    wanted = parse_body(VoucherIssue, body)
    amount_umlx = gifts.read_amount("amount_umlx", wanted.amount_umlx)
    database = runtime_of(request).database
    with database.write() as session:
        issued = vouchers.issue_vouchers(
            session,
            amount_umlx=amount_umlx,
            days=wanted.days,
            count=wanted.count,
            budget_id=wanted.budget,
            now_us=database.now_us(session),
        )
    data: list[Json] = [{"id": voucher_id, "code": code} for voucher_id, code in issued.codes]
    found: dict[str, Json] = {
        "object": "vouchers",
        "budget": issued.budget_id,
        "amount_umlx": str(issued.amount_umlx),
        "expires_us": issued.expires_us,
        "data": data,
    }
    return as_json(found, status=201, headers={"Cache-Control": "no-store"})


@router.post("/v1/vouchers/redeem", openapi_extra=audience("account"))
def redeem_voucher(request: Request, body: Body) -> Response:
    """Credit a voucher to the caller's account, once; a code that the caller redeemed answers again."""
    caller = identify(request)
    runtime = runtime_of(request)
    wanted = parse_body(VoucherCode, body)
    wait_seconds = runtime.voucher_limit.wait_seconds(caller.account_id, clock.monotonic())
    if wait_seconds:
        raise errors.rate_limited(
            retry_after_seconds=math.ceil(wait_seconds), what="voucher codes in an hour"
        )
    with runtime.database.write() as session:
        redeemed = vouchers.redeem(
            session, caller.account_id, wanted.code, now_us=runtime.database.now_us(session)
        )
    found: dict[str, Json] = {
        "object": "voucher",
        "id": redeemed.voucher_id,
        "amount_umlx": str(redeemed.amount_umlx),
    }
    return as_json(found, headers={"idempotency-hit": "true"} if redeemed.is_replay else None)


@router.post("/v1/transfers", openapi_extra=audience("account"), status_code=201)
def post_transfer(request: Request, body: Body) -> Response:
    """Give tokens to another account. Needs an Idempotency-Key: what is given is gone."""
    caller = identify(request)
    wanted = parse_body(GiftBody, body)
    amount_umlx = gifts.read_amount("amount_umlx", wanted.amount_umlx)
    key = read_idempotency_key(request)
    if key is None:
        raise errors.missing_parameter("Idempotency-Key")
    database = runtime_of(request).database
    with database.write() as session:
        gift = gifts.give(
            session,
            caller.account_id,
            to=wanted.to,
            amount_umlx=amount_umlx,
            note=wanted.note,
            key=key,
            now_us=database.now_us(session),
        )
    found: dict[str, Json] = {
        "object": "transfer",
        "id": str(gift.transfer.id),
        "from": caller.account_id,
        "to": gift.to.id,
        "to_name": gift.to.name,
        "amount_umlx": str(amount_umlx),
        "note": wanted.note,
        "seq": gift.seq,
        "recorded_us": gift.recorded_us,
    }
    return as_json(found, status=201, headers={"idempotency-hit": "true"} if gift.is_replay else None)


@router.post("/v1/ledger/adjustments", openapi_extra=audience("operator"), status_code=201)
def post_adjustment(request: Request, body: Body) -> Response:
    """Correct the books, by a document that the two operators whom it names have signed."""
    require_operator(identify(request))
    document = parse_body(AdjustmentDocument, body)
    database = runtime_of(request).database
    with documents_explained(), database.write() as session:
        outcome = adjust(session, document, now_us=database.now_us(session))
    found: dict[str, Json] = {
        "object": "adjustment",
        "id": str(outcome.id),
        "seq": outcome.seq,
        "recorded_us": outcome.recorded_us,
        "digest": document.digest,
    }
    return as_json(found, status=201, headers={"idempotency-hit": "true"} if outcome.replayed else None)


def as_json(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(dump(content), status, media_type="application/json", headers=headers)
