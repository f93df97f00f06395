"""Which seat a node holds when: the rows of `seat_terms`, changed by the ledger's rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.nodes.models import Node
from coordinator.seats import models
from ledger.ratecard import Seat
from ledger.seats import SeatTerm, change_seat, seat_at

log = structlog.get_logger()


def terms_of(session: Session, node_ids: Sequence[str]) -> dict[str, list[SeatTerm]]:
    """The terms of each of some nodes, oldest first; a node without any is left out."""
    rows = session.scalars(
        select(models.SeatTerm)
        .where(models.SeatTerm.node_id.in_(node_ids))
        .order_by(models.SeatTerm.node_id, models.SeatTerm.since_us)
    )
    found: dict[str, list[SeatTerm]] = {}
    for row in rows:
        found.setdefault(row.node_id, []).append(_term(row))
    return found


def take_seat(session: Session, node: Node, seat: Seat, now_us: int) -> list[SeatTerm]:
    """Have the node hold `seat` from the next slot on, unless it does already; all its terms then.

    `node.seat` follows when the slot begins. If the clock has gone back behind a term, nothing is
    changed until it has caught up.
    """
    rows = session.scalars(
        select(models.SeatTerm)
        .where(models.SeatTerm.node_id == node.id)
        .order_by(models.SeatTerm.since_us)
        .with_for_update()
    ).all()
    terms = [_term(row) for row in rows]
    last = terms[-1].seat if terms else "idle"
    if seat != last:
        try:
            terms = list(change_seat(terms, seat, now_us))
        except ValueError:
            log.warning("seat_change_waits_for_the_clock", node_id=node.id)
        else:
            _store(session, node.id, rows, terms)
    node.seat = seat_at(terms, now_us)
    return terms


def _store(
    session: Session, node_id: str, rows: Sequence[models.SeatTerm], terms: Sequence[SeatTerm]
) -> None:
    known = {row.since_us: row for row in rows}
    for term in terms:
        row = known.pop(term.since_us, None)
        if row is None:
            session.add(
                models.SeatTerm(
                    node_id=node_id, since_us=term.since_us, seat=term.seat, until_us=term.until_us
                )
            )
        else:
            row.seat, row.until_us = term.seat, term.until_us
    for row in known.values():
        session.delete(row)
    session.flush()


def _term(row: models.SeatTerm) -> SeatTerm:
    return SeatTerm(cast("Seat", row.seat), row.since_us, row.until_us)
