"""Seats as owners ask for them: what a node is found to be, what it fails, what it holds.

Facts come from rows alone: self-tests, checks, what the owner promises and lends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.accounts.captures import CAPTURES_MAX, TooManyError
from coordinator.accounts.models import Account
from coordinator.accounts.periods import Period
from coordinator.db import Database
from coordinator.nodes.models import Node
from coordinator.policy.rate_cards import card_in_force
from coordinator.seats.hardware import SELF_TEST_US
from coordinator.seats.models import CreditedSlot, SelfTest
from coordinator.seats.models import SeatTerm as SeatTermRow
from coordinator.seats.terms import take_seat, terms_of
from ledger.ratecard import SLOT_US, RateCard, Seat
from ledger.seats import WEEK_US, SeatFacts, SeatTerm, granted_seat, seat_at
from ledger.views import EarningRow

SELF_TESTS_SHOWN: Final = 10


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The seat that an owner asks for, and what is promised for it; None: the least that it needs."""

    seat: Seat
    promised_seconds_per_day: int | None = None
    promised_days: int | None = None
    owner_may_interrupt: bool | None = None


def ask_for_seat(session: Session, node: Node, wish: Wish, *, now_us: int) -> list[SeatTerm]:
    """Note what the owner wants and promises, and give the highest seat that it comes to, from the
    next slot on; the node's terms. Asking for `idle` is stepping back: it touches nothing earned.

    Raises 404 for a node that was removed.
    """
    if node.revoked_us is not None:
        raise errors.not_found("node", node.id)
    card = card_in_force(session, now_us)
    is_idle = wish.seat == "idle"
    least = (0, 0) if is_idle else (card.seats.dedicated_seconds_per_day, card.seats.dedicated_days)
    seconds, days, interrupt = wish.promised_seconds_per_day, wish.promised_days, wish.owner_may_interrupt
    node.wanted_seat = wish.seat
    node.promised_seconds_per_day = least[0] if seconds is None else seconds
    node.promised_days = least[1] if days is None else days
    node.owner_may_interrupt = is_idle if interrupt is None else interrupt
    session.flush()
    return grant(session, node, card, now_us=now_us)


def grant(session: Session, node: Node, card: RateCard, *, now_us: int) -> list[SeatTerm]:
    """Look at the node's seat anew; its terms."""
    return take_seat(session, node, granted_to(session, node, card, now_us=now_us), now_us)


def granted_to(session: Session, node: Node, card: RateCard, *, now_us: int) -> Seat:
    """The highest seat, at most the wanted one, that the node comes to."""
    if node.revoked_us is not None:
        return "idle"
    facts = seat_facts(session, node, now_us=now_us)
    return granted_seat(facts, seat_named(node.wanted_seat), card) or "idle"


def grant_seats(database: Database) -> int:
    """Look at every seat above idle anew, held or wanted. Returns how many changed."""
    with database.read() as session:
        changing = [node.id for node in _with_seats(session) if _changes(session, node, database)]
    # One by one: an owner's own request must not wait for all others.
    for node_id in changing:
        with database.write() as session:
            node = session.get(Node, node_id, with_for_update=True)
            if node is not None:
                now_us = database.now_us(session)
                _ = grant(session, node, card_in_force(session, now_us), now_us=now_us)
    return len(changing)


def _with_seats(session: Session) -> Sequence[Node]:
    held = select(SeatTermRow.node_id).where(SeatTermRow.until_us.is_(None), SeatTermRow.seat != "idle")
    wanted = or_(Node.wanted_seat != "idle", Node.seat != "idle", Node.id.in_(held))
    return session.scalars(select(Node).where(wanted).order_by(Node.id)).all()


def _changes(session: Session, node: Node, database: Database) -> bool:
    now_us = database.now_us(session)
    terms = terms_of(session, [node.id]).get(node.id, [])
    last = terms[-1].seat if terms else "idle"
    seat = granted_to(session, node, card_in_force(session, now_us), now_us=now_us)
    return seat != last or node.seat != seat_at(terms, now_us)


def seat_facts(session: Session, node: Node, *, now_us: int) -> SeatFacts:
    """The node as the rows have it."""
    return SeatFacts(
        promised_seconds_per_day=node.promised_seconds_per_day,
        promised_days=node.promised_days,
        owner_may_interrupt=node.owner_may_interrupt,
        warm_bandwidths_bytes_per_second=tuple(
            test.bandwidth_bytes_per_second for test in warm_tests(session, node.id, now_us)
        ),
        installed_bytes=int(node.hardware["memory_bytes"]),
        lent_bytes=node.lent_bytes,
        checks_passed=node.checks_passed,
        other_seat_of_device=_other_of_device(session, node, now_us) is not None,
    )


def warm_tests(session: Session, node_id: str, now_us: int) -> list[SelfTest]:
    """The latest warm self-tests of a node that still count, newest last."""
    rows = session.scalars(
        select(SelfTest)
        .where(
            SelfTest.node_id == node_id,
            SelfTest.is_warm.is_(True),
            SelfTest.at_us >= now_us - SELF_TEST_US,
        )
        .order_by(SelfTest.at_us.desc(), SelfTest.id.desc())
        .limit(SELF_TESTS_SHOWN)
    ).all()
    return list(reversed(rows))


def _other_of_device(session: Session, node: Node, now_us: int) -> str | None:
    """An older node of the same Mac that was there in the last week: one Mac has one seat."""
    return session.scalar(
        select(Node.id)
        .where(
            Node.device == node.device,
            Node.id != node.id,
            Node.revoked_us.is_(None),
            or_(
                Node.created_us < node.created_us, (Node.created_us == node.created_us) & (Node.id < node.id)
            ),
            or_(Node.state != "offline", Node.seen_us > now_us - WEEK_US),
        )
        .limit(1)
    )


def seat_named(name: str) -> Seat:
    """The seat of a row. Raises ValueError if there is none of that name."""
    match name:
        case "idle" | "dedicated" | "ultra":
            return name
        case _:
            raise ValueError(f"{name!r} is no seat")


# -- for the earnings view -----------------------------------------------------------------------


def availability_zeros(session: Session, account: Account, period: Period) -> Sequence[EarningRow]:
    """Slots that the account's Macs stood and were not paid for, and why, oldest first.

    What was paid is in the ledger; these are the rest. Raises `TooManyError`.
    """
    rows = session.scalars(
        select(CreditedSlot)
        .where(
            CreditedSlot.owner_account_id == account.id,
            CreditedSlot.slot_start_us >= period.since_us - SLOT_US,
            CreditedSlot.slot_start_us < period.until_us - SLOT_US,
            CreditedSlot.amount_umlx == 0,
        )
        .order_by(CreditedSlot.slot_start_us, CreditedSlot.node_id)
        .limit(CAPTURES_MAX + 1)
    ).all()
    if len(rows) > CAPTURES_MAX:
        raise TooManyError("unpaid slots")
    return [
        EarningRow(
            earned_us=row.slot_start_us + SLOT_US,
            node_id=row.node_id,
            card_id="",
            kind="availability",
            reference=slot_reference(row.slot_start_us, row.node_id),
            amount_umlx=0,
            zero_reason=row.reason,
        )
        for row in rows
    ]


def slot_reference(slot_start_us: int, node_id: str) -> str:
    """What the ledger calls a slot's pay: the earnings view reads the node from it."""
    return f"slot:{slot_start_us}:{node_id}"
