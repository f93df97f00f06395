"""Submitting, finding and listing jobs. Module functions over a session; no clock, no sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.accounts.models import Account
from coordinator.commits import Written
from coordinator.db import database_now_us
from coordinator.ids import new_id
from coordinator.jobs.models import Attempt, Job, JobEvent, JobPayload
from coordinator.jobs.payloads import Part, PayloadBox, PayloadError
from coordinator.jobs.quotes import Quote, check_terms, expired
from coordinator.jobs.schemas import Work
from coordinator.jobs.wishes import MAX_CHARGE
from coordinator.policy import commons
from coordinator.policy.rate_cards import card_by_id, card_in_force
from coordinator.settings import Settings
from coordinator.settlement import JOB_WIDE_FENCE, rate_of
from ledger import statements
from ledger.commands import OpenHold, settlement_id
from ledger.pricing import PER_MILLION, bound_umlx
from ledger.ratecard import RateCard
from node_agent.protocol.cards import ModelCard

LIST_MAX: Final = 100
NOTHING_DONE: Final = ("expired", "no_host_available", 0)
"""State, error and charge of a job that no Mac took."""


@dataclass(frozen=True)
class Submission:
    """What is asked for, already checked against card and context."""

    account_id: str
    api_key_id: str | None
    card: ModelCard
    work: Work
    is_async: bool
    request_digest: str
    idempotency_key: str | None
    commons_busy_ppm: int | None = None
    """Set for public work: the part of the Macs' last hour that paid jobs took."""
    charge_max_umlx: int | None = None
    quote: Quote | None = None

    @property
    def payer(self) -> str:
        """The ledger account whose hold pays."""
        return f"user:{self.account_id}" if self.commons_busy_ppm is None else commons.PAYER


@dataclass(frozen=True)
class Submitted:
    """The job's row, and whether an earlier request with the same key had made it."""

    job: Job
    is_replay: bool


def find_replay(session: Session, submission: Submission) -> Job | None:
    """The job that the same key made before. Raises 409 if its request was another one.

    A job that no Mac took is none: it ended with nothing done, and trying again is what its
    submitter was told to do.
    """
    return _replay_of(_job_of_key(session, submission), submission)


def _job_of_key(session: Session, submission: Submission) -> Job | None:
    if submission.idempotency_key is None:
        return None
    return session.scalars(
        select(Job).where(
            Job.account_id == submission.account_id,
            Job.idempotency_key == submission.idempotency_key,
        )
    ).one_or_none()


def _replay_of(job: Job | None, submission: Submission) -> Job | None:
    if job is None or (job.state, job.error_code, job.charge_umlx) == NOTHING_DONE:
        return None
    if (job.request_digest, job.payer) != (submission.request_digest, submission.payer):
        raise errors.idempotency_key_reused()
    return job


def submit(
    session: Session, submission: Submission, *, settings: Settings, payloads: PayloadBox
) -> Written[Submitted]:
    """Queue a job, in the caller's transaction; its hold is the ledger command that is returned.

    A job for the submitter's own Macs alone costs nothing and has none. Raises `ApiError` before it
    changes anything: 402 when the balance or the submitter's own limit does not cover the bound,
    409 for a reused key, 429 when the account has too many jobs under way; for a quote what
    `quotes.check_terms` raises; for public work what `commons.require_allowance` raises.
    """
    earlier = _job_of_key(session, submission)
    replay = _replay_of(earlier, submission)
    if replay is not None:
        return Written(Submitted(replay, is_replay=True))
    account = session.get_one(Account, submission.account_id)
    under_way = session.scalar(
        select(func.count())
        .select_from(Job)
        .where(Job.account_id == account.id, Job.state.in_(("queued", "running")))
    )
    if (under_way or 0) >= settings.jobs_per_account_max:
        raise errors.rate_limited(retry_after_seconds=5, what=f"{settings.jobs_per_account_max} jobs at once")
    now_us = database_now_us(session)
    rates = _rates(session, submission, now_us)
    job = _new_job(submission, rates, now_us=now_us)
    limit_umlx = submission.charge_max_umlx
    if limit_umlx is not None and job.bound_umlx > limit_umlx:
        raise errors.charge_above_limit(bound_umlx=job.bound_umlx, limit_umlx=limit_umlx, param=MAX_CHARGE)
    if submission.commons_busy_ppm is None:
        _check_balance(session, account, job.bound_umlx)
    else:
        busy_ppm = submission.commons_busy_ppm
        commons.require_allowance(
            session, account, job.bound_umlx, paid_busy_ppm=busy_ppm, card=rates, now_us=now_us
        )
    wrapped, ciphertext = payloads.seal(submission.work.to_bytes(), job_id=job.id, part="request")
    if earlier is not None:
        # It came to nothing: its key is the new job's.
        earlier.idempotency_key = None
        session.flush()
    session.add(job)
    session.flush()
    session.add(JobPayload(job_id=job.id, part="request", wrapped_key=wrapped, ciphertext=ciphertext))
    session.add(JobEvent(job_id=job.id, from_state="", to_state="queued", at_us=now_us))
    session.flush()
    if job.hold_id is None:
        return Written(Submitted(job, is_replay=False))
    hold = OpenHold(
        id=UUID(job.hold_id),
        reference=job.id,
        account_id=job.payer,
        amount_umlx=job.bound_umlx,
        expires_us=now_us + int(settings.hold_seconds * 1e6),
    )
    return Written(Submitted(job, is_replay=False), (hold,))


def _rates(session: Session, submission: Submission, now_us: int) -> RateCard:
    """The rate card by which the job is priced: the quoted one, or that of now."""
    quote, card = submission.quote, submission.card
    if quote is None:
        return card_in_force(session, now_us)
    check_terms(
        quote,
        account_id=submission.account_id,
        card_id=card.id,
        card_revision=card.revision,
        now_us=now_us,
    )
    found = card_by_id(session, quote.rate_card_id)
    if found is None:
        raise expired("The rate card that it was made by is gone.")
    return found


def _new_job(submission: Submission, rates: RateCard, *, now_us: int) -> Job:
    card, work = submission.card, submission.work
    job_id = new_id("job")
    is_free = work.wishes.own == "only" and submission.commons_busy_ppm is None
    price_umlx = bound_umlx(rate_of(card.price), len(work.prompt_ids), work.max_tokens)
    return Job(
        id=job_id,
        account_id=submission.account_id,
        api_key_id=submission.api_key_id,
        kind=work.kind,
        state="queued",
        is_async=submission.is_async,
        card_id=card.id,
        card_revision=card.revision,
        prompt_tokens=len(work.prompt_ids),
        max_tokens=work.max_tokens,
        idempotency_key=submission.idempotency_key,
        request_digest=submission.request_digest,
        hold_id=None if is_free else str(settlement_id(job_id, JOB_WIDE_FENCE, "hold")),
        payer=submission.payer,
        rate_card_id=rates.id,
        fee_ppm=rates.fees.fee_ppm,
        factor_ppm=PER_MILLION,
        bound_umlx=0 if is_free else price_umlx,
        created_us=now_us,
    )


def _check_balance(session: Session, account: Account, needed_umlx: int) -> None:
    """Refuse early what the ledger would refuse; it alone decides, when the hold is opened."""
    balance = statements.balance(session.connection(), account.ledger_account)
    available_umlx = balance.available_umlx if balance is not None else 0
    if available_umlx < needed_umlx:
        raise errors.insufficient_balance(needed_umlx=needed_umlx, available_umlx=available_umlx)


def get_job(session: Session, account: Account, job_id: str) -> Job:
    """The account's own job, for operators too. Raises 404: others' jobs do not exist."""
    job = session.get(Job, job_id)
    if job is None or job.account_id != account.id:
        raise errors.not_found("job", job_id)
    return job


def list_jobs(session: Session, account: Account, *, limit: int, before: str | None) -> Sequence[Job]:
    """The account's jobs, newest first; `before` is the last id of the page before."""
    query = select(Job).where(Job.account_id == account.id)
    if before is not None:
        query = query.where(Job.id < before)
    return session.scalars(query.order_by(Job.id.desc()).limit(min(limit, LIST_MAX))).all()


def attempts_of(session: Session, job_id: str) -> Sequence[Attempt]:
    """The job's attempts, first to last."""
    return session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.fence)).all()


def load_work(session: Session, job_id: str, payloads: PayloadBox) -> Work:
    """The job's request, decrypted. Raises `PayloadError` if it is gone or cannot be opened."""
    return Work.from_bytes(_open_part(session, job_id, payloads, "request"))


def load_result(session: Session, job_id: str, payloads: PayloadBox) -> bytes | None:
    """The stored answer of an asynchronous job, or None when there is none (any more)."""
    if session.get(JobPayload, (job_id, "result")) is None:
        return None
    return _open_part(session, job_id, payloads, "result")


def drop_result(session: Session, job_id: str) -> None:
    """Forget the stored answer: it was fetched."""
    _ = session.execute(delete(JobPayload).where(JobPayload.job_id == job_id, JobPayload.part == "result"))


def _open_part(session: Session, job_id: str, payloads: PayloadBox, part: Part) -> bytes:
    row = session.get(JobPayload, (job_id, part))
    if row is None:
        raise PayloadError(f"the {part} of {job_id} is not stored")
    return payloads.open(row.wrapped_key, row.ciphertext, job_id=job_id, part=part)
