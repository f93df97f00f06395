"""Earnings of owners and spending of submitters, each for the caller's own account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import select
from starlette.responses import Response

from coordinator import errors
from coordinator.accounts.captures import TooManyError
from coordinator.accounts.earnings import by_day, read_earnings
from coordinator.accounts.models import Account
from coordinator.accounts.periods import MonthText, Period, SinceUs, UntilUs, read_period
from coordinator.accounts.spending import JobCost, key_names, not_charged, read_charged, spending_of
from coordinator.db import database_now_us
from coordinator.http import audience, identify, runtime_of
from coordinator.nodes.models import Node
from coordinator.numbers import Whole
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from coordinator.policy.rate_cards import cards
from coordinator.runtime import Runtime
from coordinator.settlement import rate_of
from ledger.pricing import PER_MILLION, Rate
from ledger.views import contributor_view, to_json

router = APIRouter()

JOBS_MAX: Final = 1000


@router.get("/v1/earnings", openapi_extra=audience("account"))
def earnings(
    request: Request,
    month: MonthText = None,
    since_us: SinceUs = None,
    until_us: UntilUs = None,
    per: Annotated[Literal["hour", "day"], Query()] = "day",
) -> Response:
    """What the caller's Macs earned, by Mac, model, kind and time; what was not paid, and why.

    Each table sums to `total_umlx`, and that with `other_entries` less the caller's own spending
    to the change of the balance and the held-back pay together. `coming` is what is held back of
    the period, `released` what came in it. Amounts are decimal strings.
    """
    caller = identify(request)
    with runtime_of(request).database.read() as session:
        account = session.get_one(Account, caller.account_id)
        period = read_period(month, since_us, until_us, now_us=database_now_us(session))
        try:
            found = read_earnings(session, account, period)
        except TooManyError as error:
            raise errors.invalid_value(period.field, str(error)) from None
        own = session.execute(select(Node.id, Node.name).where(Node.account_id == account.id))
        names = {row.id: row.name for row in own}
    view = contributor_view(found.rows)
    body: dict[str, Json] = _about("earnings", period) | to_json(view)
    body["by_node"] = _named(view.by_node, names)
    if per == "day":
        del body["by_hour"]
        body["by_day"] = [
            {"key": start, "amount_umlx": str(amount)} for start, amount in by_day(view.by_hour)
        ]
    body["released"] = [to_json(released) for released in found.released]
    body["other_entries"] = [
        {"kind": kind, "amount_umlx": str(amount)} for kind, amount in found.other_entries
    ]
    return _json(body)


@router.get("/v1/spending", openapi_extra=audience("account"))
def spending(
    request: Request,
    month: MonthText = None,
    since_us: SinceUs = None,
    until_us: UntilUs = None,
    limit: Annotated[Whole, Query(ge=0, le=JOBS_MAX)] = 100,
) -> Response:
    """What the caller's jobs cost, by key and model, and the newest `limit` of them as their sums."""
    caller = identify(request)
    runtime = runtime_of(request)
    with runtime.database.read() as session:
        account = session.get_one(Account, caller.account_id)
        period = read_period(month, since_us, until_us, now_us=database_now_us(session))
        try:
            jobs = read_charged(session, account, period)
        except TooManyError as error:
            raise errors.invalid_value(period.field, str(error)) from None
        names = key_names(session, account)
        free = not_charged(session, account, period)
        versions = {dated.card.id: dated.card.version for dated in cards(session)}
    found = spending_of(jobs, lambda card_id, revision: _rate(runtime, card_id, revision))
    newest = found.jobs[::-1][:limit]
    body = _about("spending", period)
    body["total_umlx"] = str(found.total_umlx)
    body["charged_umlx"] = str(found.charged_umlx)
    body["refunded_umlx"] = str(found.charged_umlx - found.total_umlx)
    body["by_key"] = _named(found.by_key, names)
    body["by_model"] = _table(found.by_model)
    body["by_month"] = _table(found.by_month)
    body["jobs"] = [_job_json(job, versions) for job in newest]
    body["has_more"] = len(newest) < len(found.jobs)
    body["not_charged"] = [{"reason": reason, "count": count} for reason, count in free]
    return _json(body)


def _rate(runtime: Runtime, card_id: str, revision: str) -> Rate | None:
    card = runtime.catalogue.by_revision(card_id, revision)
    return None if card is None else rate_of(card.price)


def _about(what: str, period: Period) -> dict[str, Json]:
    return {
        "object": what,
        "month": period.month,
        "since_us": period.since_us,
        "until_us": period.until_us,
    }


def _table(rows: Iterable[tuple[str, int]]) -> list[Json]:
    return [{"key": key, "amount_umlx": str(amount)} for key, amount in rows]


def _named(rows: Iterable[tuple[str, int]], names: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "name": names.get(key), "amount_umlx": str(amount)} for key, amount in rows]


def _job_json(found: JobCost, versions: Mapping[str, int]) -> dict[str, Json]:
    """A job's charge as its sum; `sum` is null where `why` says that there is none."""
    job = found.job
    rate_card: dict[str, Json] = {"id": job.rate_card_id, "version": versions.get(job.rate_card_id)}
    return {
        "job_id": job.job_id,
        "charged_us": job.charged_us,
        "key_id": job.key_id,
        "model": job.card_id,
        "card_revision": job.card_revision,
        "rate_card": rate_card,
        "charge_umlx": str(job.charge_umlx),
        "refunded_umlx": str(job.refunded_umlx),
        "fee_umlx": str(job.fee_umlx),
        "shares": [to_json(share) for share in job.shares],
        "sum": _sum_json(found),
        "why": found.why,
    }


def _sum_json(found: JobCost) -> dict[str, Json] | None:
    cost = found.cost
    if cost is None:
        return None
    lines: list[Json] = [
        {
            "what": line.what,
            "tokens": line.tokens,
            "umlx_per_million_tokens": str(line.umlx_per_million),
            "exact_umlx": exact(line.millionths),
        }
        for line in cost.lines
        if line.tokens
    ]
    return {
        "lines": lines,
        "exact_umlx": exact(sum(line.millionths for line in cost.lines)),
        "rule": cost.rule,
        "minimum_applied": cost.rule == "minimum",
        "as_text": list(cost.as_text()),
    }


def exact(millionths: int) -> str:
    """Millionths of a uMLX as uMLX, with no digit lost: 1500000 is "1.5"."""
    whole, part = divmod(millionths, PER_MILLION)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".")


def _json(body: dict[str, Any]) -> Response:
    return Response(dump(body), media_type="application/json")
