"""What one Mac earned an owner, as a statement: its shares of captures, and what it was paid else.

The ledger knows accounts, not Macs. A capture's pay to an owner is split among Macs by
`attempts.share_umlx`; other pay (standing ready, second readings) names the Mac in its reference.
Held-back pay counts from when it was earned. A grant is on the account's statement only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import CompoundSelect, Select, cast, exists, func, select, union_all
from sqlalchemy.orm import Session

from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.jobs.models import Attempt
from ledger import models
from ledger.rewards import AVAILABILITY_POOL, TREASURY_ACCOUNT
from ledger.statements import MAX_STATEMENT_ENTRIES, Statement, StatementEntry

journal = models.journal


def node_statement(session: Session, account: Account, node_id: str, period: Period) -> Statement:
    """The Mac's statement; its opening is all that it earned before. Amounts in uMLX.

    Raises ValueError if the period holds more than 10,000 entries.
    """
    shares = _earned(account, node_id).subquery()
    rows = session.execute(
        select(
            journal.c.seq,
            journal.c.id,
            journal.c.recorded_us,
            journal.c.kind,
            journal.c.reference,
            shares.c.share_umlx,
        )
        .join(shares, shares.c.seq == journal.c.seq)
        .where(journal.c.recorded_us >= period.since_us, journal.c.recorded_us < period.until_us)
        .order_by(journal.c.seq)
        .limit(MAX_STATEMENT_ENTRIES + 1)
    ).all()
    if len(rows) > MAX_STATEMENT_ENTRIES:
        raise ValueError(f"the period holds more than {MAX_STATEMENT_ENTRIES} entries; ask for a shorter one")
    entries = tuple(StatementEntry(*row) for row in rows)
    opening_umlx = earned_before_umlx(session, account, node_id, period.since_us)
    return Statement(
        account_id=account.ledger_account,
        since_us=period.since_us,
        until_us=period.until_us,
        opening_umlx=opening_umlx,
        entries=entries,
        closing_umlx=opening_umlx + sum(entry.amount_umlx for entry in entries),
        open_holds=(),
    )


def earned_before_umlx(session: Session, account: Account, node_id: str, until_us: int) -> int:
    """All that the Mac earned before a moment, added up by the database."""
    shares = _earned(account, node_id).subquery()
    # PostgreSQL sums BIGINT to NUMERIC; without the cast a Decimal would come back.
    total = cast(func.coalesce(func.sum(shares.c.share_umlx), 0), Attempt.share_umlx.type)
    query = (
        select(total)
        .select_from(shares)
        .join(journal, journal.c.seq == shares.c.seq)
        .where(journal.c.recorded_us < until_us)
    )
    return session.execute(query).scalar_one()


def _earned(account: Account, node_id: str) -> CompoundSelect[Any, Any]:
    """(seq of the entry, what it paid this account for this Mac)."""
    return union_all(_shares(account, node_id), _transfers(account, node_id))


def _shares(account: Account, node_id: str) -> Select[Any, Any]:
    """Captures' pay. The Mac may have had another owner before, whose attempts are not counted."""
    total = cast(func.sum(Attempt.share_umlx), Attempt.share_umlx.type).label("share_umlx")
    return (
        select(journal.c.seq, total)
        .select_from(Attempt)
        .join(journal, journal.c.reference == Attempt.job_id)
        .where(
            Attempt.node_id == node_id,
            Attempt.owner_account_id == account.id,
            Attempt.share_umlx > 0,
            journal.c.kind == "capture",
            journal.c.result == "posted",
        )
        .group_by(journal.c.seq)
    )


def _transfers(account: Account, node_id: str) -> Select[Any, Any]:
    """Pay of pools and treasury to the account or its escrow; what only moves between the two or
    leaves them is none.
    """
    postings, source = models.postings, models.postings.alias("source")
    names = (account.ledger_account, account.escrow_account)
    is_pay = exists(
        select(1).where(
            source.c.seq == journal.c.seq,
            source.c.account_id.in_((AVAILABILITY_POOL, TREASURY_ACCOUNT)),
            source.c.amount_umlx < 0,
        )
    )
    return (
        select(journal.c.seq, postings.c.amount_umlx.label("share_umlx"))
        .join(postings, postings.c.seq == journal.c.seq)
        .where(
            postings.c.account_id.in_(names),
            postings.c.amount_umlx > 0,
            journal.c.kind == "transfer",
            journal.c.reference.endswith(f":{node_id}", autoescape=True),
            is_pay,
        )
    )
