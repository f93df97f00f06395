"""Balances and statements, and the books for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from coordinator import errors
from coordinator.accounts.models import Account
from coordinator.db import database_now_us
from coordinator.http import audience, identify, require_operator, runtime_of
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from ledger import statements

router = APIRouter()

EVERYTHING_US: Final = 2**62


@router.get("/v1/statement", openapi_extra=audience("account"))
def statement(
    request: Request,
    since_us: Annotated[int, Query(ge=0)] = 0,
    until_us: Annotated[int, Query(ge=0, le=EVERYTHING_US)] = EVERYTHING_US,
) -> Response:
    """The caller's account: opening, entries, closing, open holds. Amounts are decimal strings."""
    caller = identify(request)
    with runtime_of(request).database.read() as session:
        account = session.get_one(Account, caller.account_id)
        until = min(until_us, database_now_us(session) + 1)
        try:
            found = statements.statement(
                session.connection(), account.ledger_account, min(since_us, until), until
            )
        except ValueError as error:
            raise errors.invalid_value("since_us", str(error)) from None
        name = account.name
    body = {"object": "statement", "name": name, **asdict(found)}
    return Response(dump(_with_strings(body)), media_type="application/json")


@router.get("/v1/ledger/trial-balance", openapi_extra=audience("operator"))
def trial_balance(request: Request) -> Response:
    """Every account's balance and their sum, which is 0. For operators."""
    require_operator(identify(request))
    with runtime_of(request).database.read() as session:
        connection = session.connection()
        rows = statements.trial_balance(connection)
        total = statements.total_umlx(connection)
        drifts = statements.reconcile(connection)
    body: dict[str, Json] = {
        "object": "trial_balance",
        "accounts": [
            {"account": name, "posted_umlx": str(posted), "held_umlx": str(held)}
            for name, posted, held in rows
        ],
        "total_umlx": str(total),
        "drifts": [asdict(drift) for drift in drifts],
    }
    return Response(dump(body), media_type="application/json")


def _with_strings(fields: Mapping[str, Any]) -> dict[str, Json]:
    """Amounts as decimal strings: JSON numbers above 2**53 lose digits. UUIDs as text."""
    found: dict[str, Json] = {}
    for key, value in fields.items():
        if key.endswith("_umlx") or key == "id":
            found[key] = str(value)
        elif isinstance(value, tuple):
            rows = cast("tuple[dict[str, Any], ...]", value)
            found[key] = [_with_strings(row) for row in rows]
        else:
            found[key] = value
    return found
