"""What an owner sees of a seat: held and wanted, what fails and how to mend it, service, pay."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.nodes.models import Node
from coordinator.policy.rate_cards import card_in_force
from coordinator.seats import upkeep_windows
from coordinator.seats.hardware import measured_bandwidth, specified_bandwidth, trust_of
from coordinator.seats.keeping import Kept, kept, present_of, week_of, windows_of
from coordinator.seats.models import CreditedSlot, UpkeepWindow
from coordinator.seats.service import seat_facts, seat_named, warm_tests
from coordinator.seats.slot_facts import SERVICE_US
from coordinator.seats.terms import terms_of
from ledger.ratecard import DAY_US, SEATS, SLOT_US, RateCard
from ledger.seats import SeatFacts, SeatTerm, failing, seat_at

MONTH_US: Final = 30 * DAY_US


def seat_view(session: Session, node: Node, *, now_us: int) -> dict[str, Any]:
    """The whole page as JSON values; amounts are decimal strings of uMLX."""
    card = card_in_force(session, now_us)
    facts = seat_facts(session, node, now_us=now_us)
    terms = terms_of(session, [node.id]).get(node.id, [])
    return {
        "id": node.id,
        "object": "node.seat",
        "seat": seat_at(terms, now_us),
        "next_seat": seat_at(terms, now_us + SLOT_US),
        "wanted_seat": node.wanted_seat,
        "promised_seconds_per_day": node.promised_seconds_per_day,
        "promised_days": node.promised_days,
        "owner_may_interrupt": node.owner_may_interrupt,
        "failing": _failing(facts, node.wanted_seat, card),
        "seats": [
            {"seat": seat, "umlx_per_point_hour": str(card.umlx_per_point_hour(seat)), "failing": missing}
            for seat in SEATS
            for missing in [_failing(facts, seat, card)]
        ],
        "hardware": _hardware(session, node, card, now_us),
        "service": _service(session, node, terms, card, now_us),
        "upkeep": upkeep_view(session, node, card, now_us=now_us),
        "earned": _earned(session, node, now_us),
    }


def upkeep_view(session: Session, node: Node, card: RateCard, *, now_us: int) -> dict[str, Any]:
    """This week's allowance, and the windows of this week and later."""
    week_us = week_of(now_us)
    found = upkeep_windows.windows(session, node.id, since_us=week_us)
    allowed = card.seats.upkeep_seconds_per_week
    used = upkeep_windows.used_seconds([(window.start_us, window.end_us) for window in found], week_us)
    return {
        "week_start_us": week_us,
        "allowed_seconds": allowed,
        "used_seconds": min(used, allowed),
        "left_seconds": max(0, allowed - used),
        "windows": [window_view(window) for window in found],
    }


def window_view(window: UpkeepWindow) -> dict[str, Any]:
    """One window."""
    return {
        "id": window.id,
        "object": "node.upkeep",
        "announced_us": window.announced_us,
        "start_us": window.start_us,
        "end_us": window.end_us,
    }


def _failing(facts: SeatFacts, name: str, card: RateCard) -> list[dict[str, Any]]:
    return [asdict(condition) for condition in failing(facts, seat_named(name), card)]


def _hardware(session: Session, node: Node, card: RateCard, now_us: int) -> dict[str, Any]:
    """Claimed, measured and audited are three words: what the node says, what the tests found."""
    tests = warm_tests(session, node.id, now_us)
    warm = [test.bandwidth_bytes_per_second for test in tests]
    return {
        "trust": trust_of(len(warm), node.checks_passed, card),
        "specified_bandwidth_bytes_per_second": specified_bandwidth(node.hardware),
        "measured_bandwidth_bytes_per_second": measured_bandwidth(warm),
        "lent_bytes": node.lent_bytes,
        "checks_passed": node.checks_passed,
        "self_tests": [
            {"at_us": test.at_us, "bandwidth_bytes_per_second": test.bandwidth_bytes_per_second}
            for test in tests
        ],
    }


def _service(
    session: Session, node: Node, terms: list[SeatTerm], card: RateCard, now_us: int
) -> dict[str, Any]:
    since = {
        "today": now_us // DAY_US * DAY_US,
        "last_24_hours": now_us // SLOT_US * SLOT_US - SERVICE_US,
        "this_week": week_of(now_us),
    }
    first_us = min(since.values())
    # The slot that still runs is not over, so nothing of it is missed yet.
    present = present_of(session, [node.id], first_us, now_us // SLOT_US * SLOT_US).get(node.id, [])
    windows = windows_of(session, [node.id], first_us).get(node.id, [])

    def over(since_us: int) -> Kept:
        return kept(
            [slot for slot in present if slot[0] >= since_us],
            terms,
            windows,
            promised_seconds_per_day=node.promised_seconds_per_day,
            card=card,
        )

    return {name: asdict(over(since_us)) for name, since_us in since.items()}


def _earned(session: Session, node: Node, now_us: int) -> dict[str, Any]:
    """What standing ready brought; slots are counted by when they were stood."""
    since = {
        "today_umlx": now_us // DAY_US * DAY_US,
        "this_week_umlx": week_of(now_us),
        "last_30_days_umlx": now_us - MONTH_US,
    }
    rows = session.execute(
        select(CreditedSlot.slot_start_us, func.sum(CreditedSlot.amount_umlx))
        .where(
            CreditedSlot.owner_account_id == node.account_id,
            CreditedSlot.node_id == node.id,
            CreditedSlot.slot_start_us >= min(since.values()),
        )
        .group_by(CreditedSlot.slot_start_us)
    ).all()
    return {
        name: str(sum(int(amount) for slot_us, amount in rows if slot_us >= since_us))
        for name, since_us in since.items()
    }
