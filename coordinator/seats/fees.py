"""The fees of a day, cut once a day into treasury, availability pool and audit pool."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import select

from coordinator.db import Database
from coordinator.policy.rate_cards import card_in_force
from ledger import book, models, statements
from ledger.availability import POOL
from ledger.commands import FEE, TREASURY, Applied, Transfer, settlement_id
from ledger.ratecard import DAY_US, split_fee
from ledger.rewards import AUDIT_POOL

MARKER: Final = TREASURY
"""The treasury takes the rest, so of any fee it gets something: its transfer tells that a day is done."""


class FeeSplitError(RuntimeError):
    """The ledger did not take the day's split; nothing was kept."""


def split_fees(database: Database) -> int:
    """Cut what lies in `fee`, once for each day of UTC. Returns the transfers made.

    What comes in later that day waits for the next. Ids follow from the day, so that a second try
    or a second process moves nothing more. Raises `FeeSplitError`.
    """
    with database.write() as session:
        connection = session.connection()
        now_us = database.now_us(session)
        day = f"{datetime.fromtimestamp(now_us // DAY_US * 86_400, tz=UTC):%Y-%m-%d}"
        reference = f"fees:{day}"
        marker = settlement_id(reference, 0, MARKER)
        if connection.execute(select(models.journal.c.seq).where(models.journal.c.id == marker)).first():
            return 0
        balance = statements.balance(connection, FEE)
        fee_umlx = balance.available_umlx if balance is not None else 0
        if fee_umlx <= 0:
            return 0
        split = split_fee(fee_umlx, card_in_force(session, now_us))
        parts = {
            TREASURY: split.treasury_umlx,
            POOL: split.availability_pool_umlx,
            AUDIT_POOL: split.audit_pool_umlx,
        }
        commands = [
            Transfer(
                id=settlement_id(reference, 0, target),
                reference=reference,
                source=FEE,
                target=target,
                amount_umlx=amount,
            )
            for target, amount in parts.items()
            if amount
        ]
        book.ensure_accounts(connection, parts, now_us=now_us)
        for outcome in book.apply(connection, commands, now_us=now_us):
            if not isinstance(outcome, Applied):
                raise FeeSplitError(f"the split of {day} was answered by {type(outcome).__name__}")
        return len(commands)
