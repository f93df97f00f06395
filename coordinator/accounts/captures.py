"""What the ledger's captures say: when, for which job, and whom they paid. Read from the journal.

A capture's stored body names every payee, also where the payer is one of them and its posting is
the difference, so earnings and spending are both read from it and never from a job's own row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select, union
from sqlalchemy.orm import Session

from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.jobs.models import Job
from ledger import models

CAPTURES_MAX: Final = 10_000
CHUNK: Final = 500
"""Ids in one query: SQLite takes at most 32,766 values, and plans stay short."""

journal = models.journal


@dataclass(frozen=True)
class Captured:
    """One capture. `pays` are (account, uMLX) as commanded; their sum is the job's charge."""

    recorded_us: int
    job_id: str
    pays: tuple[tuple[str, int], ...]

    @property
    def charge_umlx(self) -> int:
        """All that was paid out of the job's hold."""
        return sum(amount for _, amount in self.pays)

    def paid_umlx(self, *ledger_accounts: str) -> int:
        """What these accounts were paid together."""
        return sum(amount for name, amount in self.pays if name in ledger_accounts)


class TooManyError(ValueError):
    """The period holds more than can be answered at once; the text says what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the period holds more than {CAPTURES_MAX} {what}; ask for a shorter one")


def captures_of(session: Session, account: Account, period: Period) -> list[Captured]:
    """Captures that moved the account's money, held-back pay too, or that it paid, oldest first.

    Raises `TooManyError` for more than 10,000.
    """
    columns = (journal.c.seq, journal.c.recorded_us, journal.c.reference, journal.c.body)
    within = (
        journal.c.kind == "capture",
        journal.c.result == "posted",
        journal.c.recorded_us >= period.since_us,
        journal.c.recorded_us < period.until_us,
    )
    postings = models.postings
    moved = (
        select(*columns)
        .join(postings, postings.c.seq == journal.c.seq)
        .where(postings.c.account_id.in_((account.ledger_account, account.escrow_account)), *within)
    )
    # A job on one's own Mac at a fee of zero moves nothing, so it has no posting.
    submitted = select(*columns).join(Job, Job.id == journal.c.reference)
    submitted = submitted.where(Job.payer == account.ledger_account, *within)
    both = union(moved, submitted).order_by("seq").limit(CAPTURES_MAX + 1)
    rows = session.execute(both).all()
    if len(rows) > CAPTURES_MAX:
        raise TooManyError("charged jobs")
    return [Captured(recorded_us, job_id, _pays(body)) for _, recorded_us, job_id, body in rows]


def _pays(body: str) -> tuple[tuple[str, int], ...]:
    pays: list[list[Any]] = json.loads(body)["pays"]
    return tuple((str(name), int(amount)) for name, amount in pays)


def chunks(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The ids in parts that fit into one query."""
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]
