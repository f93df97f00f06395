"""What a slot is paid by, from rows: one entry a device, nothing taken from what nodes say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.jobs.models import Attempt
from coordinator.nodes.models import Node
from coordinator.seats.hardware import SELF_TEST_US, measured_bandwidth, specified_bandwidth, trust_of
from coordinator.seats.keeping import kept, present_of, windows_of
from coordinator.seats.models import CreditedSlot, SelfTest, StandingTime
from coordinator.seats.standing import SLOT_SECONDS
from coordinator.seats.terms import terms_of
from ledger.availability import SlotFacts, claim_umlx
from ledger.policy import probation_ends_us
from ledger.pricing import PER_MILLION
from ledger.ratecard import DAY_US, SLOT_US, RateCard
from ledger.seats import seat_at
from node_agent.protocol.ids import make_id

CHUNK: Final = 500
SERVICE_US: Final = DAY_US
"""Service counts over the 24 hours up to the slot's end: a slot can be paid when it is over, and
an outage weighs as much whenever its owner takes a seat or gives it back."""

ATTEMPT_US_MAX: Final = DAY_US // 4
"""Attempts are looked for from this long before the slot; hardly one runs for hours."""


@dataclass(frozen=True)
class Standee:
    """A Mac in a slot: its row, who owns it, and how it counts."""

    node: Node
    facts: SlotFacts


@dataclass(frozen=True)
class SlotBook:
    """A slot that is to be paid: who is due, and what was paid of it before."""

    due: tuple[Standee, ...]
    paid_umlx: int


def read_slot(session: Session, slot_start_us: int, card: RateCard) -> SlotBook:
    """The slot's Macs that were not credited for it yet, one a device, sorted by device.

    Of several nodes of a device the one with the smallest claim counts. Marks Macs that were
    present for the first time.
    """
    pairs = session.execute(
        select(StandingTime, Node)
        .join(Node, Node.id == StandingTime.node_id)
        .where(StandingTime.slot_start_us == slot_start_us)
        .order_by(Node.id)
    ).all()
    rows = [(row[0], row[1]) for row in pairs]
    credited = _credited(session, slot_start_us, [node for _, node in rows])
    nodes = {row.node_id for row in credited}
    devices = {row.device for row in credited}
    rows = [(time, node) for time, node in rows if node.id not in nodes and node.device not in devices]
    for time, node in rows:
        if time.present_seconds and (node.first_lent_us is None or node.first_lent_us > slot_start_us):
            node.first_lent_us = slot_start_us
    session.flush()
    best: dict[str, Standee] = {}
    for standee in _standees(session, slot_start_us, rows, card):
        device = standee.facts.device
        least = best.get(device)
        if least is None or claim_umlx(standee.facts, card) < claim_umlx(least.facts, card):
            best[device] = standee
    due = tuple(best[device] for device in sorted(best))
    return SlotBook(due, sum(row.amount_umlx for row in credited))


def _credited(session: Session, slot_start_us: int, nodes: Sequence[Node]) -> list[CreditedSlot]:
    """By device and by owner: a Mac may have become another device or another owner's since."""
    found: dict[str, CreditedSlot] = {}
    slot = CreditedSlot.slot_start_us == slot_start_us
    for devices in _chunks(sorted({node.device for node in nodes})):
        rows = session.scalars(select(CreditedSlot).where(slot, CreditedSlot.device.in_(devices)))
        found.update((row.device, row) for row in rows)
    for owners in _chunks(sorted({node.account_id for node in nodes})):
        rows = session.scalars(select(CreditedSlot).where(slot, CreditedSlot.owner_account_id.in_(owners)))
        found.update((row.device, row) for row in rows)
    return list(found.values())


def _standees(
    session: Session, slot_start_us: int, rows: Sequence[tuple[StandingTime, Node]], card: RateCard
) -> Iterable[Standee]:
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        ids = [node.id for _, node in part]
        until_us = slot_start_us + SLOT_US
        terms = terms_of(session, ids)
        services = _services(session, [node for _, node in part if node.id in terms], until_us, card)
        tests = _warm_tests(session, ids, until_us)
        pays = _job_pay(session, ids, slot_start_us)
        first = _first_lent(session, {node.account_id for _, node in part})
        for time, node in part:
            warm = tests.get(node.id, [])
            present = min(time.present_seconds, SLOT_SECONDS)
            busy = min(time.busy_seconds, present)
            facts = SlotFacts(
                device=node.device,
                owner=node.account_id,
                seat=seat_at(terms.get(node.id, ()), slot_start_us),
                slot_start_us=slot_start_us,
                measured_bandwidth_bytes_per_second=measured_bandwidth(warm),
                specified_bandwidth_bytes_per_second=specified_bandwidth(node.hardware),
                lent_bytes=min(node.lent_bytes, int(node.hardware["memory_bytes"])),
                trust=trust_of(len(warm), node.checks_passed, card),
                present_seconds=present,
                busy_seconds=busy,
                job_pay_umlx=pays.get(node.id, 0),
                linked_busy_seconds=min(time.linked_busy_seconds, present - busy),
                service_ppm=services.get(node.id, PER_MILLION),
                has_demanded_model=time.has_demanded_model,
                is_held=_ends_us(first.get(node.account_id), until_us, card) > until_us,
            )
            yield Standee(node, facts)


def _services(session: Session, nodes: Sequence[Node], until_us: int, card: RateCard) -> dict[str, int]:
    since_us = until_us - SERVICE_US
    ids = [node.id for node in nodes]
    terms = terms_of(session, ids)
    present = present_of(session, ids, since_us, until_us)
    windows = windows_of(session, ids, since_us)
    return {
        node.id: kept(
            present.get(node.id, ()),
            terms[node.id],
            windows.get(node.id, ()),
            promised_seconds_per_day=node.promised_seconds_per_day,
            card=card,
        ).service_ppm
        for node in nodes
    }


def _warm_tests(session: Session, node_ids: Sequence[str], until_us: int) -> dict[str, list[int]]:
    """Warm bandwidths up to a moment, newest last, of some nodes."""
    rows = session.execute(
        select(SelfTest.node_id, SelfTest.bandwidth_bytes_per_second)
        .where(
            SelfTest.node_id.in_(node_ids),
            SelfTest.is_warm.is_(True),
            SelfTest.at_us < until_us,
            SelfTest.at_us >= until_us - SELF_TEST_US,
        )
        .order_by(SelfTest.node_id, SelfTest.at_us, SelfTest.id)
    )
    found: dict[str, list[int]] = {}
    for node_id, bandwidth in rows:
        found.setdefault(node_id, []).append(bandwidth)
    return found


def _job_pay(session: Session, node_ids: Sequence[str], slot_start_us: int) -> dict[str, int]:
    """What strangers' jobs paid for attempts that ended in the slot, second readings included."""
    # Ids are made from the time, so their own index leads to the attempts of these hours.
    first_us = max(0, slot_start_us - ATTEMPT_US_MAX)
    first_id = make_id("att", unix_ms=first_us // 1000, random_bytes=bytes(10))
    rows = session.execute(
        select(Attempt.node_id, func.sum(Attempt.share_umlx + Attempt.reading_umlx))
        .where(
            Attempt.id >= first_id,
            Attempt.node_id.in_(node_ids),
            Attempt.ended_us >= slot_start_us,
            Attempt.ended_us < slot_start_us + SLOT_US,
            Attempt.is_linked.is_(False),
        )
        .group_by(Attempt.node_id)
    )
    return {node_id: int(amount) for node_id, amount in rows}


def _first_lent(session: Session, owners: Iterable[str]) -> dict[str, int]:
    rows = session.execute(
        select(Node.account_id, func.min(Node.first_lent_us))
        .where(Node.account_id.in_(sorted(owners)))
        .group_by(Node.account_id)
    )
    return {account_id: first_us for account_id, first_us in rows if first_us is not None}


def _ends_us(first_lent_us: int | None, at_us: int, card: RateCard) -> int:
    return probation_ends_us(at_us if first_lent_us is None else first_lent_us, card, is_attested=False)


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]
