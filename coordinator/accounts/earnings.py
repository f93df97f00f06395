"""What an owner earned: the ledger's own figures, put to the Macs that did the work."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.accounts.captures import CAPTURES_MAX, Captured, TooManyError, captures_of, chunks
from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import Node
from ledger import models
from ledger.ratecard import DAY_US
from ledger.rewards import AVAILABILITY_POOL
from ledger.views import EarningKind, EarningRow

NODE_ID: Final = re.compile(r"node_[0-9a-f]{64}")
JOB_ID: Final = re.compile(r"job_[0-9a-f]{32}")
FIRST_HOUR: Final = "grant:first_hour:"


@dataclass(frozen=True)
class Share:
    """What one of the owner's Macs got of a job's charge, by the job's own record."""

    job_id: str
    node_id: str
    amount_umlx: int


@dataclass(frozen=True)
class Earnings:
    """Rows that sum to what the ledger paid, and all else that the ledger posted to the account,
    by kind of entry: grants, gifts, refunds; signed uMLX.
    """

    rows: tuple[EarningRow, ...]
    other_entries: tuple[tuple[str, int], ...]


def read_earnings(session: Session, account: Account, period: Period) -> Earnings:
    """The account's earnings of a period. Raises `TooManyError`."""
    captures = [
        capture
        for capture in captures_of(session, account, period)
        if capture.paid_umlx(account.ledger_account)
    ]
    job_ids = [capture.job_id for capture in captures]
    work = work_rows(
        captures, account.ledger_account, _shares(session, account, job_ids), _cards(session, job_ids)
    )
    given, others = _given(session, account, period)
    rows = (*work, *given, *_zeros(session, account, period))
    return Earnings(tuple(sorted(rows, key=lambda row: row.earned_us)), others)


def work_rows(
    captures: Iterable[Captured],
    ledger_account: str,
    shares: Iterable[Share],
    cards: Mapping[str, str],
) -> list[EarningRow]:
    """One row for each Mac and capture; a capture's rows sum to what it paid the account.

    What no Mac of the account stands for, because the Mac has another owner now, has an empty
    `node_id`. Shares above what was paid are another owner's, so that capture is not split.
    """
    by_job: dict[str, list[Share]] = {}
    for share in shares:
        by_job.setdefault(share.job_id, []).append(share)
    rows: list[EarningRow] = []
    for capture in captures:
        paid = capture.paid_umlx(ledger_account)
        parts = [(share.node_id, share.amount_umlx) for share in by_job.get(capture.job_id, ())]
        if sum(amount for _, amount in parts) > paid:
            parts = []
        rest = paid - sum(amount for _, amount in parts)
        rows += [
            EarningRow(
                earned_us=capture.recorded_us,
                node_id=node_id,
                card_id=cards.get(capture.job_id, ""),
                kind="work",
                reference=capture.job_id,
                amount_umlx=amount,
            )
            for node_id, amount in (*parts, *([("", rest)] if rest else []))
        ]
    return rows


def kind_of(kind: str, reference: str, amount_umlx: int, sources: Collection[str]) -> EarningKind | None:
    """What an entry that is no capture pays for; None if it is no pay.

    `sources` are the accounts that the entry took from. The availability pool pays for standing
    ready and, with a job's id, for a second reading; a grant is told by its reference.
    """
    if amount_umlx <= 0:
        return None
    if kind == "transfer" and AVAILABILITY_POOL in sources:
        return "second_reading" if JOB_ID.search(reference) else "availability"
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
            select(Attempt.job_id, Attempt.node_id, Attempt.share_umlx)
            .join(Node, Node.id == Attempt.node_id)
            .where(Attempt.job_id.in_(ids), Attempt.share_umlx > 0, Node.account_id == account.id)
            .order_by(Attempt.job_id, Attempt.fence)
        )
        found += [Share(job_id, node_id, amount) for job_id, node_id, amount in rows]
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
    journal, postings = models.journal, models.postings
    entries = session.execute(
        select(
            journal.c.seq, journal.c.recorded_us, journal.c.kind, journal.c.reference, postings.c.amount_umlx
        )
        .join(postings, postings.c.seq == journal.c.seq)
        .where(
            postings.c.account_id == account.ledger_account,
            journal.c.kind != "capture",
            journal.c.recorded_us >= period.since_us,
            journal.c.recorded_us < period.until_us,
        )
        .order_by(journal.c.seq)
        .limit(CAPTURES_MAX + 1)
    ).all()
    if len(entries) > CAPTURES_MAX:
        raise TooManyError("entries")
    sources = _sources(session, [entry.seq for entry in entries])
    rows: list[EarningRow] = []
    others: dict[str, int] = {}
    for seq, recorded_us, entry_kind, reference, amount in entries:
        kind = kind_of(entry_kind, reference, amount, sources.get(seq, ()))
        if kind is None:
            others[entry_kind] = others.get(entry_kind, 0) + amount
            continue
        node = NODE_ID.search(reference)
        rows.append(
            EarningRow(
                earned_us=recorded_us,
                node_id=node[0] if node else "",
                card_id="",
                kind=kind,
                reference=reference,
                amount_umlx=amount,
            )
        )
    return rows, tuple(sorted(others.items()))


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
    """Attempts on the account's Macs, of jobs that have ended, that were paid nothing, and why."""
    rows = session.execute(
        select(Attempt.ended_us, Attempt.node_id, Job.card_id, Job.id, Attempt.state, Attempt.reason)
        .join(Node, Node.id == Attempt.node_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            Node.account_id == account.id,
            Attempt.share_umlx == 0,
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
            earned_us=ended_us or period.since_us,
            node_id=node_id,
            card_id=card_id,
            kind="work",
            reference=job_id,
            amount_umlx=0,
            zero_reason=f"{state}: {reason}" if reason else state,
        )
        for ended_us, node_id, card_id, job_id, state, reason in rows
    ]
