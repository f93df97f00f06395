"""The rate cards of this network: the one in force, those of the past, the one that is coming.

A job takes the card that is in force when it is quoted and keeps it. Until a network announces
another one, the first card (`ledger.ratecard.CARD`) is in force, from the beginning of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.policy.models import RateCardRow
from coordinator.policy.records import log_record
from ledger.ratecard import CARD, RateCard


@dataclass(frozen=True)
class DatedCard:
    """A card, when it was announced and from when on it is in force (UTC microseconds)."""

    card: RateCard
    announced_us: int
    effective_us: int


def ensure_first_card(session: Session, now_us: int) -> None:
    """Store the first card, in force from 0, unless there are cards already. May run twice at once."""
    if session.scalar(select(RateCardRow.id).limit(1)) is not None:
        return
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    values = {
        "id": CARD.id,
        "version": CARD.version,
        "body": CARD.body,
        "announced_us": now_us,
        "effective_us": 0,
    }
    _ = session.execute(dialect.insert(RateCardRow).on_conflict_do_nothing().values(values))
    log_record(session, f"rate_card:{CARD.version}", CARD.id, now_us=now_us)


def card_in_force(session: Session, now_us: int) -> RateCard:
    """The card by which what is quoted now is priced."""
    query = select(RateCardRow.body).where(RateCardRow.effective_us <= now_us)
    body = session.scalar(
        query.order_by(RateCardRow.effective_us.desc(), RateCardRow.version.desc()).limit(1)
    )
    return CARD if body is None else _parsed(body)


def card_by_id(session: Session, card_id: str) -> RateCard | None:
    """The card that a job, quote or slot names, or None."""
    row = session.get(RateCardRow, card_id)
    if row is not None:
        return _parsed(row.body)
    return CARD if card_id == CARD.id else None


def cards(session: Session) -> Sequence[DatedCard]:
    """All cards, by the time from which they are in force."""
    rows = session.scalars(select(RateCardRow).order_by(RateCardRow.effective_us, RateCardRow.version))
    found = [DatedCard(_parsed(row.body), row.announced_us, row.effective_us) for row in rows]
    return found or [DatedCard(CARD, 0, 0)]


@lru_cache(maxsize=64)
def _parsed(body: str) -> RateCard:
    # Kept, since every job that is submitted asks for the card in force.
    return RateCard.from_body(body)
