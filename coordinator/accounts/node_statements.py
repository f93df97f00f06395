"""What one Mac earned, as a statement: its shares of captures, from the attempts that it served.

The ledger knows accounts, not Macs. A capture's pay to an owner is split among Macs by
`attempts.share_umlx`; pay that no attempt stands for (a pool's, a grant) is on the account's
statement only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, cast, exists, func, or_, select
from sqlalchemy.orm import Session

from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.jobs.models import Attempt, Job
from ledger import models
from ledger.statements import MAX_STATEMENT_ENTRIES, Statement, StatementEntry

journal = models.journal


def node_statement(session: Session, account: Account, node_id: str, period: Period) -> Statement:
    """The Mac's statement; its opening is all that it earned before. Amounts in uMLX.

    Raises ValueError if the period holds more than 10,000 entries.
    """
    shares = _shares(account, node_id).subquery()
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
    """All shares of the Mac that were paid before a moment, added up by the database."""
    shares = _shares(account, node_id).subquery()
    # PostgreSQL sums BIGINT to NUMERIC; without the cast a Decimal would come back.
    total = cast(func.coalesce(func.sum(shares.c.share_umlx), 0), Attempt.share_umlx.type)
    query = (
        select(total)
        .select_from(shares)
        .join(journal, journal.c.seq == shares.c.seq)
        .where(journal.c.recorded_us < until_us)
    )
    return session.execute(query).scalar_one()


def _shares(account: Account, node_id: str) -> Select[Any, Any]:
    """(seq of the capture, what it paid for this Mac), of captures that paid this account.

    A Mac may have had another owner before: that owner's captures have no posting of this account.
    """
    paid = exists(
        select(1).where(
            models.postings.c.seq == journal.c.seq, models.postings.c.account_id == account.ledger_account
        )
    )
    return (
        select(journal.c.seq, cast(func.sum(Attempt.share_umlx), Attempt.share_umlx.type).label("share_umlx"))
        .select_from(Attempt)
        .join(Job, Job.id == Attempt.job_id)
        .join(journal, journal.c.reference == Job.id)
        .where(
            Attempt.node_id == node_id,
            Attempt.share_umlx > 0,
            journal.c.kind == "capture",
            journal.c.result == "posted",
            # A job on one's own Mac at a fee of zero moves nothing, so it has no posting.
            or_(paid, Job.account_id == account.id),
        )
        .group_by(journal.c.seq)
    )
