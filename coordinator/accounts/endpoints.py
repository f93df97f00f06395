"""Statements for accounts, and the books for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from coordinator import errors
from coordinator.accounts.models import Account
from coordinator.accounts.money_endpoints import router as money_router
from coordinator.accounts.node_statements import earned_before_umlx, node_statement
from coordinator.accounts.periods import MonthText, Period, SinceUs, UntilUs, read_period
from coordinator.accounts.refund_endpoints import router as refunds_router
from coordinator.accounts.statement_files import CONTENT_TYPES, Format, file_name, file_text
from coordinator.accounts.token_endpoints import router as tokens_router
from coordinator.db import database_now_us
from coordinator.http import audience, identify, require_operator, runtime_of
from coordinator.nodes.service import own_node
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from coordinator.policy.held import held_now
from ledger import statements
from ledger.views import to_json

router = APIRouter()
NODE_ID_PATTERN: Final = r"^node_[0-9a-f]{64}$"
router.include_router(money_router)
router.include_router(tokens_router)
router.include_router(refunds_router)


@router.get("/v1/statement", openapi_extra=audience("account"))
def statement(
    request: Request,
    month: MonthText = None,
    since_us: SinceUs = None,
    until_us: UntilUs = None,
    node: Annotated[str | None, Query(pattern=NODE_ID_PATTERN)] = None,
    form: Annotated[Format, Query(alias="format")] = "json",
) -> Response:
    """The caller's account or one Mac of it: opening, entries, closing, open holds, and what of the
    account's pay is held back now and when it comes.

    Amounts are decimal strings in JSON; see `statement_files` for the other formats.
    """
    caller = identify(request)
    with runtime_of(request).database.read() as session:
        account = session.get_one(Account, caller.account_id)
        period = read_period(month, since_us, until_us, now_us=database_now_us(session))
        own = None if node is None else own_node(session, account.id, node)
        title = account.name if own is None else f"{account.name}, {own.name}"
        try:
            found, stated_closing_umlx = _statement(session, account, node, period)
        except ValueError as error:
            raise errors.invalid_value(period.field, str(error)) from None
        name = account.name
        held_back = [] if own is not None else held_now(session, account.id)
    if form == "json":
        about: dict[str, Json] = {"object": "statement", "name": name, "month": month, "node": node}
        if own is None:
            about["held_back"] = [to_json(coming) for coming in held_back]
        content = dump(about | _with_strings(asdict(found)))
    else:
        text = file_text(found, form, title=title, stated_closing_umlx=stated_closing_umlx)
        content = text.encode("utf-8")
    shown_as = f'attachment; filename="{file_name(form, month=month, node_id=node)}"'
    return Response(content, headers={"Content-Disposition": shown_as, "Content-Type": CONTENT_TYPES[form]})


def _statement(
    session: Session, account: Account, node_id: str | None, period: Period
) -> tuple[statements.Statement, int]:
    """The statement, and its closing balance as the database adds it up, not from the entries."""
    if node_id is not None:
        found = node_statement(session, account, node_id, period)
        return found, earned_before_umlx(session, account, node_id, period.until_us)
    connection, name = session.connection(), account.ledger_account
    found = statements.statement(connection, name, period.since_us, period.until_us)
    after = statements.statement(connection, name, period.until_us, period.until_us)
    return found, after.opening_umlx


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
