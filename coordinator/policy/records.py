"""What the ledger logs beside money: keys, cards, budgets, each by the digest of its content."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.orm import Session

from ledger import book
from ledger.commands import Applied, Record, settlement_id
from node_agent.protocol.cards import ModelCard


class RecordError(RuntimeError):
    """The ledger refused a record: a fault of ours."""


def record_of(subject: str, content_sha256: str) -> Record:
    """The command that logs `subject` (a kind and a name, as `node_key:node_1`) with this content.

    Its id follows from both: the same content is logged once, however often it is seen.
    """
    return Record(
        id=settlement_id(subject, 0, f"record:{content_sha256}"),
        subject=subject,
        content_sha256=content_sha256,
    )


def log_record(session: Session, subject: str, content_sha256: str, *, now_us: int) -> None:
    """Log one content in the caller's transaction. Raises RecordError."""
    _log(session, [record_of(subject, content_sha256)], now_us=now_us)


def log_cards(session: Session, cards: Iterable[ModelCard], *, now_us: int) -> None:
    """Log each revision of a model's card that was not seen before: `card:ID`, its revision."""
    records = [record_of(f"card:{card.id}", card.revision) for card in cards]
    for start in range(0, len(records), book.MAX_COMMANDS):
        _log(session, records[start : start + book.MAX_COMMANDS], now_us=now_us)


def _log(session: Session, records: list[Record], *, now_us: int) -> None:
    session.flush()
    for outcome in book.apply(session.connection(), records, now_us=now_us):
        if not isinstance(outcome, Applied):
            raise RecordError(f"the ledger refused a record: {outcome}")
