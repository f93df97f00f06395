"""Pay for standing ready: each slot of ten minutes, soon after it is over, once.

A part of a slot is one transaction: its rows of `credited_slots` (zeros with their reason, too),
the transfers, and what is held back. The row's key is the device and the slot, so a second process
or a second try finds it taken; a crash leaves a part done or not done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from coordinator.db import Database
from coordinator.nodes.models import Node
from coordinator.policy.held import hold_pay, transfer_row_id
from coordinator.policy.rate_cards import card_in_force
from coordinator.seats.models import CreditedSlot, StandingTime
from coordinator.seats.service import slot_reference
from coordinator.seats.slot_facts import SlotBook, Standee, read_slot
from coordinator.seats.standing import slot_of
from ledger import book, statements
from ledger.availability import POOL, SlotPayment, pay_slot, slot_pool_umlx
from ledger.commands import Applied, Transfer
from ledger.ratecard import DAY_US, HOUR_US, SLOT_US, RateCard

log = structlog.get_logger()

GRACE_US: Final = 180_000_000
"""After a slot's end: standing time is stored each minute, by clocks that differ a little."""

LATELY_US: Final = HOUR_US
OUTAGE_US: Final = 7 * DAY_US
PAYMENTS_MAX: Final = book.MAX_COMMANDS


class CreditError(RuntimeError):
    """The ledger did not take a slot's payments; nothing of them was kept."""


def credit_slots(database: Database) -> int:
    """Pay the slots of the last hour that are over. Returns how many Macs were credited."""
    return _credit_since(database, LATELY_US)


def credit_missed_slots(database: Database) -> int:
    """Pay what an outage left over in the last week. Returns how many Macs were credited."""
    return _credit_since(database, OUTAGE_US)


def _credit_since(database: Database, back_us: int) -> int:
    with database.read() as session:
        due = _due_slots(session, database.now_us(session), back_us)
    done = 0
    for slot_start_us in due:
        try:
            while credited := credit_part(database, slot_start_us):
                done += credited
        except CreditError:
            # Tried again with the next round; one slot must not hold up the others.
            log.exception("slot_not_credited", slot_start_us=slot_start_us)
    return done


def _due_slots(session: Session, now_us: int, back_us: int) -> Sequence[int]:
    """Slots that are over and have a Mac that was not credited, oldest first."""
    over_us = slot_of(now_us - GRACE_US)
    query = (
        select(StandingTime.slot_start_us)
        .join(Node, Node.id == StandingTime.node_id)
        .outerjoin(
            CreditedSlot,
            (CreditedSlot.device == Node.device) & (CreditedSlot.slot_start_us == StandingTime.slot_start_us),
        )
        .where(
            StandingTime.slot_start_us >= over_us - back_us,
            StandingTime.slot_start_us < over_us,
            CreditedSlot.device.is_(None),
        )
    )
    return session.scalars(query.distinct().order_by(StandingTime.slot_start_us)).all()


def credit_part(database: Database, slot_start_us: int) -> int:
    """Pay up to 500 Macs of a slot in one transaction. Returns how many; 0: all are credited, or
    another process is crediting them.

    Raises `CreditError` if the ledger refuses, as when the pool was emptied just now.
    """
    try:
        with database.write() as session:
            now_us = database.now_us(session)
            card = card_in_force(session, slot_start_us)
            found = read_slot(session, slot_start_us, card)
            if found.due:
                _credit(session, found, card, slot_start_us, now_us=now_us)
            return min(len(found.due), PAYMENTS_MAX)
    except IntegrityError:
        log.info("slot_credited_elsewhere", slot_start_us=slot_start_us)
        return 0


def _credit(session: Session, found: SlotBook, card: RateCard, slot_start_us: int, *, now_us: int) -> None:
    balance = statements.balance(session.connection(), POOL)
    available = balance.available_umlx if balance is not None else 0
    # Of a slot in several parts, all together get no more than one slot may.
    whole = slot_pool_umlx(available + found.paid_umlx, card)
    pool = min(available, max(0, whole - found.paid_umlx))
    payments = pay_slot([standee.facts for standee in found.due], pool, card)
    part = list(zip(found.due, payments, strict=True))[:PAYMENTS_MAX]
    session.add_all(_row(standee, payment, card) for standee, payment in part)
    session.flush()
    paid = [(standee, payment) for standee, payment in part if payment.amount_umlx]
    for standee, payment in paid:
        if standee.facts.is_held:
            _ = hold_pay(
                session,
                row_id=transfer_row_id(slot_reference(slot_start_us, standee.node.id), payment.id),
                owner_account_id=payment.owner,
                node_id=standee.node.id,
                job_id=None,
                amount_umlx=payment.amount_umlx,
                earned_us=slot_start_us + SLOT_US,
                is_suspected=False,
                card=card,
            )
    session.flush()
    _transfer(session, paid, now_us=now_us)


def _transfer(session: Session, paid: Sequence[tuple[Standee, SlotPayment]], *, now_us: int) -> None:
    connection = session.connection()
    book.ensure_accounts(connection, [POOL, *(payment.account_id for _, payment in paid)], now_us=now_us)
    commands = [
        Transfer(
            id=payment.id,
            reference=slot_reference(payment.slot_start_us, standee.node.id),
            source=POOL,
            target=payment.account_id,
            amount_umlx=payment.amount_umlx,
        )
        for standee, payment in paid
    ]
    for outcome in book.apply(connection, commands, now_us=now_us):
        if not isinstance(outcome, Applied):
            raise CreditError(f"a slot's payment was answered by {type(outcome).__name__}")


def _row(standee: Standee, payment: SlotPayment, card: RateCard) -> CreditedSlot:
    facts = standee.facts
    return CreditedSlot(
        device=payment.device,
        slot_start_us=payment.slot_start_us,
        node_id=standee.node.id,
        owner_account_id=payment.owner,
        seat=facts.seat,
        paid_as=payment.paid_as,
        rate_card_id=card.id,
        points_ppm=payment.points_ppm,
        present_seconds=facts.present_seconds,
        busy_seconds=facts.busy_seconds,
        job_pay_umlx=facts.job_pay_umlx,
        claim_umlx=payment.claim_umlx,
        amount_umlx=payment.amount_umlx,
        reason=payment.reason,
    )
