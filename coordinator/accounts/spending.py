"""What a submitter spent: each charged job as its sum, by key and by model.

The charge and the fee are the ledger's; tokens are those that the job's attempts were paid for; the
rate is that of the card revision, fee and factor those of the rate card that the job names. A job
whose sum does not come out is shown with the reason instead of being left out, and its charge
counts in every total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from coordinator.accounts.captures import Captured, captures_of, chunks
from coordinator.accounts.models import Account, ApiKey
from coordinator.accounts.periods import Period
from coordinator.jobs.models import Attempt, Job
from ledger import models
from ledger.commands import FEE
from ledger.pricing import Rate
from ledger.views import (
    AttemptShare,
    Cost,
    SpendRow,
    StatementError,
    SubmitterView,
    cost_of,
    month_of,
    submitter_view,
)

NO_RATE: Final = "this revision of the model's card is no longer in the catalogue"

RateOf = Callable[[str, str], Rate | None]
"""(card id, card revision) to its rate, None if the catalogue does not have it any more."""

Totals = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Charged:
    """One job that was charged, from the ledger's capture and the job's own record. uMLX.

    `rate_card_id` and `factor_ppm` are those of its quote. `refunded_umlx` is all that was given back of it until now, whenever that was.
    """

    charged_us: int
    job_id: str
    key_id: str
    card_id: str
    card_revision: str
    rate_card_id: str
    factor_ppm: int
    input_tokens: int
    bound_umlx: int
    charge_umlx: int
    refunded_umlx: int
    fee_umlx: int
    shares: tuple[AttemptShare, ...]

    @property
    def output_tokens(self) -> int:
        """What the attempts are paid for: the tokens that the charge counts."""
        return sum(share.tokens for share in self.shares)


@dataclass(frozen=True)
class JobCost:
    """A charged job with its sum, or with why there is none."""

    job: Charged
    cost: Cost | None
    why: str | None = None


@dataclass(frozen=True)
class Spending:
    """A period's spending; each table sums to the total, which has refunds taken off."""

    total_umlx: int
    charged_umlx: int
    by_key: Totals
    by_model: Totals
    by_month: Totals
    jobs: tuple[JobCost, ...]


def explain(job: Charged, rate: Rate | None) -> tuple[SpendRow | None, JobCost]:
    """The job's charge computed anew from its tokens and rate; without a sum there is a reason."""
    if rate is None:
        return None, JobCost(job, None, NO_RATE)
    row = SpendRow(
        ended_us=job.charged_us,
        job_id=job.job_id,
        key_id=job.key_id,
        card_id=job.card_id,
        card_revision=job.card_revision,
        rate_card=job.rate_card_id,
        rate=rate,
        factor_ppm=job.factor_ppm,
        input_tokens=job.input_tokens,
        cached_tokens=0,
        output_tokens=job.output_tokens,
        bound_umlx=job.bound_umlx,
        charge_umlx=job.charge_umlx,
        refunded_umlx=job.refunded_umlx,
        fee_umlx=job.fee_umlx,
        shares=job.shares,
    )
    try:
        return row, JobCost(job, cost_of(row))
    except StatementError as error:
        return None, JobCost(job, None, str(error))


def spending_of(jobs: Sequence[Charged], rate_of: RateOf) -> Spending:
    """Add up a submitter's jobs, explained or not."""
    explained = [(job, *explain(job, rate_of(job.card_id, job.card_revision))) for job in jobs]
    view = submitter_view([row for _, row, _ in explained if row is not None])
    rest = [job for job, row, _ in explained if row is None]
    return Spending(
        total_umlx=view.total_umlx + sum(job.charge_umlx - job.refunded_umlx for job in rest),
        charged_umlx=sum(job.charge_umlx for job in jobs),
        by_key=_with_rest(view, "by_key", rest, lambda job: job.key_id),
        by_model=_with_rest(view, "by_model", rest, lambda job: job.card_id),
        by_month=_with_rest(view, "by_month", rest, lambda job: month_of(job.charged_us)),
        jobs=tuple(cost for _, _, cost in explained),
    )


def _with_rest(
    view: SubmitterView, table: str, rest: Iterable[Charged], key: Callable[[Charged], str]
) -> Totals:
    totals: dict[str, int] = dict(getattr(view, table))
    for job in rest:
        totals[key(job)] = totals.get(key(job), 0) + job.charge_umlx - job.refunded_umlx
    return tuple(sorted(totals.items()))


# -- reading -------------------------------------------------------------------------------------


def read_charged(session: Session, account: Account, period: Period) -> list[Charged]:
    """The account's charged jobs of a period, oldest first. Raises `TooManyError`."""
    captures = captures_of(session, account, period)
    found: list[Charged] = []
    for part in chunks(captures):
        ids = [capture.job_id for capture in part]
        jobs = {
            job.id: job
            # What a pool paid for is nobody's spending.
            for job in session.scalars(
                select(Job).where(Job.id.in_(ids), Job.payer == account.ledger_account)
            )
        }
        shares = _shares(session, list(jobs))
        refunds = _refunds(session, [job.hold_id for job in jobs.values() if job.hold_id is not None])
        found += [
            _charged(capture, jobs[capture.job_id], shares.get(capture.job_id, ()), refunds)
            for capture in part
            if capture.job_id in jobs
        ]
    return found


def _charged(capture: Captured, job: Job, shares: Iterable[AttemptShare], refunds: dict[str, int]) -> Charged:
    return Charged(
        charged_us=capture.recorded_us,
        job_id=job.id,
        key_id=job.api_key_id or "",
        card_id=job.card_id,
        card_revision=job.card_revision,
        rate_card_id=job.rate_card_id,
        factor_ppm=job.factor_ppm,
        input_tokens=job.prompt_tokens,
        bound_umlx=job.bound_umlx,
        charge_umlx=capture.charge_umlx,
        refunded_umlx=refunds.get(job.hold_id or "", 0),
        fee_umlx=capture.paid_umlx(FEE),
        shares=tuple(shares),
    )


def _shares(session: Session, job_ids: Sequence[str]) -> dict[str, list[AttemptShare]]:
    """The attempts that the charge is for, by job, in order."""
    rows = session.execute(
        select(Attempt.job_id, Attempt.fence, Attempt.node_id, Attempt.received_tokens, Attempt.share_umlx)
        .where(
            Attempt.job_id.in_(job_ids),
            or_(Attempt.share_umlx > 0, Attempt.zero_reason == "rounds_to_zero"),
        )
        .order_by(Attempt.job_id, Attempt.fence)
    )
    found: dict[str, list[AttemptShare]] = {}
    for job_id, fence, node_id, tokens, amount in rows:
        share = AttemptShare(fence=fence, node_id=node_id, tokens=tokens, amount_umlx=amount)
        found.setdefault(job_id, []).append(share)
    return found


def _refunds(session: Session, hold_ids: Sequence[str]) -> dict[str, int]:
    holds = models.holds
    rows = session.execute(
        select(holds.c.id, holds.c.refunded_umlx).where(
            holds.c.id.in_([UUID(hold_id) for hold_id in hold_ids]), holds.c.refunded_umlx > 0
        )
    )
    return {str(hold_id): amount for hold_id, amount in rows}


def key_names(session: Session, account: Account) -> dict[str, str]:
    """The account's API keys' names by id, revoked ones too."""
    rows = session.execute(select(ApiKey.id, ApiKey.name).where(ApiKey.account_id == account.id))
    return {row.id: row.name for row in rows}


def not_charged(session: Session, account: Account, period: Period) -> list[tuple[str, int]]:
    """How many of the account's ended jobs cost nothing, by reason."""
    reason = func.coalesce(Job.error_code, Job.state)
    rows = session.execute(
        select(reason, func.count())
        .where(
            Job.account_id == account.id,
            Job.charge_umlx == 0,
            Job.ended_us >= period.since_us,
            Job.ended_us < period.until_us,
        )
        .group_by(reason)
        .order_by(reason)
    )
    return [(str(name), int(count)) for name, count in rows]
