"""What an owner earned: the ledger's own figures, put to the Macs that did the work.

An owner's account and its escrow are read as one: what is held back is earned, only not there yet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast
from uuid import UUID

from sqlalchemy import cast as sql_cast
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from coordinator.accounts.captures import CAPTURES_MAX, Captured, TooManyError, captures_of, chunks
from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.jobs.models import Attempt, Job
from coordinator.policy.held import share_id, transfer_row_id
from coordinator.policy.models import HeldPayRow
from coordinator.seats.service import availability_zeros
from ledger import models
from ledger.policy import HoldReason
from ledger.ratecard import DAY_US
from ledger.rewards import AVAILABILITY_POOL, TREASURY_ACCOUNT
from ledger.views import EarningKind, EarningRow

NODE_ID: Final = re.compile(r"node_[0-9a-f]{64}")
JOB_ID: Final = re.compile(r"job_[0-9a-f]{32}")
FIRST_HOUR: Final = "grant:first_hour:"


@dataclass(frozen=True)
class Share:
    """What one attempt got of a job's charge for its owner of then; how it is held back, if it is."""

    job_id: str
    node_id: str
    amount_umlx: int
    held: HeldPayRow | None = None


@dataclass(frozen=True)
class Released:
    """Held-back pay that came to its owner, with when it was earned and when it came."""

    released_us: int
    earned_us: int
    node_id: str
    job_id: str | None
    amount_umlx: int


@dataclass(frozen=True)
class Earnings:
    """Rows that sum to what the ledger paid, held-back pay too, and all else that the ledger posted
    to the account and its escrow, by kind of entry: grants, gifts, refunds, forfeits; signed uMLX.

    `released` came in the period, whenever it was earned; it is in the rows of that time.
    """

    rows: tuple[EarningRow, ...]
    other_entries: tuple[tuple[str, int], ...]
    released: tuple[Released, ...]


def read_earnings(session: Session, account: Account, period: Period) -> Earnings:
    """The account's earnings of a period. Raises `TooManyError`."""
    own = (account.ledger_account, account.escrow_account)
    captures = [capture for capture in captures_of(session, account, period) if capture.paid_umlx(*own)]
    job_ids = [capture.job_id for capture in captures]
    work = work_rows(captures, own, _shares(session, account, job_ids), _cards(session, job_ids))
    given, others = _given(session, account, period)
    zeros = (*_zeros(session, account, period), *availability_zeros(session, account, period))
    rows = sorted((*work, *given, *zeros), key=lambda row: row.earned_us)
    return Earnings(tuple(rows), others, _released(session, account, period))


def work_rows(
    captures: Iterable[Captured],
    own_accounts: Collection[str],
    shares: Iterable[Share],
    cards: Mapping[str, str],
) -> list[EarningRow]:
    """One row for each attempt and capture; a capture's rows sum to what it paid the accounts.

    What no attempt stands for has an empty `node_id`. Shares above what was paid are not this
    owner's, so that capture is not split.
    """
    by_job: dict[str, list[Share]] = {}
    for share in shares:
        by_job.setdefault(share.job_id, []).append(share)
    rows: list[EarningRow] = []
    for capture in captures:
        paid = capture.paid_umlx(*own_accounts)
        parts = by_job.get(capture.job_id, [])
        if sum(share.amount_umlx for share in parts) > paid:
            parts = []
        rest = paid - sum(share.amount_umlx for share in parts)
        rest_share = [Share(capture.job_id, "", rest)] if rest else []
        rows += [
            row
            for share in (*parts, *rest_share)
            for row in held_or_paid(_share_row(capture, share, cards.get(capture.job_id, "")), share.held)
        ]
    return rows


def _share_row(capture: Captured, share: Share, card_id: str) -> EarningRow:
    return EarningRow(
        earned_us=capture.recorded_us,
        node_id=share.node_id,
        card_id=card_id,
        kind="work",
        reference=capture.job_id,
        amount_umlx=share.amount_umlx,
    )


def held_or_paid(row: EarningRow, held: HeldPayRow | None) -> list[EarningRow]:
    """The row with how its pay is held back or was forfeited; as it is once the pay has come.

    What was refunded out of escrow is no longer held back: its entry takes it off elsewhere.
    """
    if held is None or held.released_us is not None:
        return [row]
    rest = replace(row, amount_umlx=row.amount_umlx - held.amount_umlx)
    if held.forfeited_us is not None:
        part = replace(row, amount_umlx=held.amount_umlx, is_forfeited=True)
    else:
        part = replace(
            row,
            amount_umlx=held.amount_umlx,
            hold_reason=cast("HoldReason", held.reason),
            release_us=held.release_us,
        )
    return [rest, part] if rest.amount_umlx else [part]


def kind_of(kind: str, reference: str, amount_umlx: int, sources: Collection[str]) -> EarningKind | None:
    """What an entry that is no capture pays for; None if it is no pay.

    `sources` are the accounts that the entry took from. The availability pool pays for standing
    ready and, with a job's id, for a second reading; the treasury, with a job's id, for work that
    the network itself lost; a grant is told by its reference.
    """
    if amount_umlx <= 0:
        return None
    if kind == "transfer" and AVAILABILITY_POOL in sources:
        return "second_reading" if JOB_ID.search(reference) else "availability"
    if kind == "transfer" and TREASURY_ACCOUNT in sources and JOB_ID.search(reference):
        return "work"
    return "grant" if reference.startswith(FIRST_HOUR) else None


def by_day(by_hour: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same sums by the start of the day (UTC microseconds)."""
    totals: dict[int, int] = {}
    for hour_us, amount_umlx in by_hour:
        day_us = hour_us // DAY_US * DAY_US
        totals[day_us] = totals.get(day_us, 0) + amount_umlx
    return sorted(totals.items())


def _shares(session: Session, account: Account, job_ids: Sequence[str]) -> list[Share]:
    found: list[Share] = []
    for ids in chunks(job_ids):
        rows = session.execute(
            select(Attempt.job_id, Attempt.fence, Attempt.node_id, Attempt.share_umlx)
            .where(Attempt.job_id.in_(ids), Attempt.share_umlx > 0, Attempt.owner_account_id == account.id)
            .order_by(Attempt.job_id, Attempt.fence)
        ).all()
        row_ids = [share_id(row.job_id, row.fence, row.node_id) for row in rows]
        held = _held(session, row_ids)
        found += [
            Share(row.job_id, row.node_id, row.share_umlx, held.get(row_id))
            for row, row_id in zip(rows, row_ids, strict=True)
        ]
    return found


def _held(session: Session, row_ids: Sequence[str]) -> dict[str, HeldPayRow]:
    """Held pay by the id of its row, of those that were held back at all."""
    found: dict[str, HeldPayRow] = {}
    for ids in chunks(row_ids):
        found.update(
            (row.id, row) for row in session.scalars(select(HeldPayRow).where(HeldPayRow.id.in_(ids)))
        )
    return found


def _cards(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for ids in chunks(job_ids):
        rows = session.execute(select(Job.id, Job.card_id).where(Job.id.in_(ids)))
        found.update((job_id, card_id) for job_id, card_id in rows)
    return found


def _given(
    session: Session, account: Account, period: Period
) -> tuple[list[EarningRow], tuple[tuple[str, int], ...]]:
    """Pay that is no share of a charge, and the sums of what is no pay at all."""
    entries = _entries(session, account, period)
    sources = _sources(session, [entry.seq for entry in entries])
    held = _held(session, [transfer_row_id(entry.reference, entry.id) for entry in entries])
    cards = _cards(session, [found[0] for entry in entries if (found := JOB_ID.search(entry.reference))])
    rows: list[EarningRow] = []
    others: dict[str, int] = {}
    for entry in entries:
        taken_from = sources.get(entry.seq, set())
        kind = kind_of(entry.kind, entry.reference, entry.amount_umlx, taken_from)
        if kind is None:
            is_forfeit = entry.reference.startswith("forfeit:") and account.escrow_account in taken_from
            name = "forfeit" if is_forfeit else entry.kind
            others[name] = others.get(name, 0) + entry.amount_umlx
            continue
        node, job = NODE_ID.search(entry.reference), JOB_ID.search(entry.reference)
        row = EarningRow(
            earned_us=entry.recorded_us,
            node_id=node[0] if node else "",
            card_id=cards.get(job[0], "") if job else "",
            kind=kind,
            reference=entry.reference,
            amount_umlx=entry.amount_umlx,
        )
        rows += held_or_paid(row, held.get(transfer_row_id(entry.reference, entry.id)))
    return rows, tuple(sorted(others.items()))


class _Entry(NamedTuple):
    seq: int
    id: UUID
    recorded_us: int
    kind: str
    reference: str
    amount_umlx: int


def _entries(session: Session, account: Account, period: Period) -> list[_Entry]:
    """What moved account and escrow taken together, but for captures: a release is no change."""
    journal, postings = models.journal, models.postings
    # PostgreSQL sums BIGINT to NUMERIC; without the cast a Decimal would come back.
    amount = sql_cast(func.sum(postings.c.amount_umlx), postings.c.amount_umlx.type)
    columns = (journal.c.seq, journal.c.id, journal.c.recorded_us, journal.c.kind, journal.c.reference)
    found = session.execute(
        select(*columns, amount)
        .join(postings, postings.c.seq == journal.c.seq)
        .where(
            postings.c.account_id.in_((account.ledger_account, account.escrow_account)),
            journal.c.kind != "capture",
            journal.c.recorded_us >= period.since_us,
            journal.c.recorded_us < period.until_us,
        )
        .group_by(*columns)
        .having(amount != 0)
        .order_by(journal.c.seq)
        .limit(CAPTURES_MAX + 1)
    ).all()
    if len(found) > CAPTURES_MAX:
        raise TooManyError("entries")
    return [_Entry(*row) for row in found]


def _sources(session: Session, seqs: Sequence[int]) -> dict[int, set[str]]:
    """The accounts that each entry took from."""
    found: dict[int, set[str]] = {}
    postings = models.postings
    for part in chunks(seqs):
        rows = session.execute(
            select(postings.c.seq, postings.c.account_id).where(
                postings.c.seq.in_(part), postings.c.amount_umlx < 0
            )
        )
        for seq, name in rows:
            found.setdefault(seq, set()).add(name)
    return found


def _zeros(session: Session, account: Account, period: Period) -> list[EarningRow]:
    """The owner's attempts at jobs that have ended whose share, or whose second reading, came to
    nothing, and why.
    """
    rows = session.execute(
        select(Attempt, Job.card_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            Attempt.owner_account_id == account.id,
            or_(Attempt.share_umlx == 0, Attempt.zero_reason.is_not(None)),
            Attempt.ended_us >= period.since_us,
            Attempt.ended_us < period.until_us,
            Job.ended_us.is_not(None),
        )
        .order_by(Attempt.ended_us, Attempt.id)
        .limit(CAPTURES_MAX + 1)
    ).all()
    if len(rows) > CAPTURES_MAX:
        raise TooManyError("attempts")
    return [
        EarningRow(
            earned_us=attempt.ended_us or period.since_us,
            node_id=attempt.node_id,
            card_id=card_id,
            kind="work" if attempt.share_umlx == 0 else "second_reading",
            reference=attempt.job_id,
            amount_umlx=0,
            zero_reason=zero_text(attempt.zero_reason, attempt.state, attempt.reason),
        )
        for attempt, card_id in rows
    ]


def zero_text(zero_reason: str | None, state: str, reason: str | None) -> str:
    """Why nothing was paid: the rule's word, and what became of the attempt where that says more.

    Attempts from before there was a rule have their end alone.
    """
    parts = [zero_reason or state, reason if state != "done" else None]
    return ": ".join(part for part in parts if part)


def _released(session: Session, account: Account, period: Period) -> tuple[Released, ...]:
    rows = session.scalars(
        select(HeldPayRow)
        .where(
            HeldPayRow.owner_account_id == account.id,
            HeldPayRow.released_us >= period.since_us,
            HeldPayRow.released_us < period.until_us,
        )
        .order_by(HeldPayRow.released_us, HeldPayRow.id)
        .limit(CAPTURES_MAX + 1)
    ).all()
    if len(rows) > CAPTURES_MAX:
        raise TooManyError("releases")
    return tuple(
        Released(row.released_us or 0, row.earned_us, row.node_id, row.job_id, row.amount_umlx)
        for row in rows
    )
