"""Public work: jobs of allowed accounts that the availability pool pays for in quiet hours."""

from __future__ import annotations

from typing import Final

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from coordinator.accounts.models import Account
from coordinator.errors import ApiError, permission_denied
from coordinator.jobs.models import Job
from coordinator.policy.models import RateCardRow
from ledger import statements
from ledger.availability import POOL
from ledger.budgets import commons_allowance_umlx
from ledger.pricing import PER_MILLION
from ledger.ratecard import DAY_US, RateCard

PAYER: Final = POOL
PPM_PER_PERCENT: Final = PER_MILLION // 100


def require_allowance(
    session: Session, account: Account, bound_umlx: int, *, paid_busy_ppm: int, card: RateCard, now_us: int
) -> None:
    """Refuse a job that the pool will not pay for: 403, 409 when demand is high, 402 when the day's
    part or the pool is used up. To be called in the transaction that opens the hold.
    """
    if not account.may_ask_commons:
        raise permission_denied("ask for public work: an operator must allow the account first")
    if paid_busy_ppm >= card.policy.commons_below_paid_ppm:
        raise ApiError(
            409,
            "commons_demand_high",
            f"Public work waits while paid jobs take {card.policy.commons_below_paid_ppm // PPM_PER_PERCENT} % "
            f"of the Macs' time or more; in the last hour it was {paid_busy_ppm // PPM_PER_PERCENT} %. "
            "Try again later, or send it without 'x-mlxnet-commons'.",
            type="conflict_error",
            param="x-mlxnet-commons",
            retry_after_seconds=600,
        )
    _take_turn(session, card)
    balance = statements.balance(session.connection(), PAYER)
    allowance = commons_allowance_umlx(
        0 if balance is None else max(0, balance.available_umlx),
        paid_busy_ppm,
        spent_today_umlx(session, now_us),
        card,
    )
    if bound_umlx > allowance:
        raise ApiError(
            402,
            "commons_used_up",
            f"This job may cost up to {bound_umlx} uMLX and public work has {allowance} uMLX left today. "
            "Lower 'max_tokens', try again tomorrow, or send it without 'x-mlxnet-commons'.",
            type="insufficient_quota",
            param="x-mlxnet-commons",
            should_retry=False,
        )


def spent_today_umlx(session: Session, now_us: int) -> int:
    """What public work made since midnight (UTC) has cost, and may yet cost where it has not ended."""
    cost = case((Job.ended_us.is_(None), Job.bound_umlx), else_=Job.charge_umlx)
    query = select(func.coalesce(func.sum(cost), 0)).where(
        Job.payer == PAYER, Job.created_us >= now_us // DAY_US * DAY_US
    )
    return int(session.execute(query).scalar_one())


def _take_turn(session: Session, card: RateCard) -> None:
    # One after the other, in whatever process: two that both see the last of the allowance would
    # both take it. The card's row is locked by nobody else, and the ledger's rows must come last.
    _ = session.execute(select(RateCardRow.id).where(RateCardRow.id == card.id).with_for_update())
