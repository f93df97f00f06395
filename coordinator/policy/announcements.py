"""New rate cards: signed by two operators, announced with notice, never for work under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.catalogue.cards import Catalogue
from coordinator.catalogue.pricing import priced_bytes
from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import Node
from coordinator.policy.demand import first_id
from coordinator.policy.documents import RateCardDocument
from coordinator.policy.models import RateCardRow
from coordinator.policy.operators import signers_of
from coordinator.policy.rate_cards import DatedCard, card_by_id, card_in_force, cards, ensure_first_card
from coordinator.policy.records import log_record
from coordinator.seats.hardware import measured_bandwidth, specified_bandwidth, trust_of
from coordinator.seats.models import CreditedSlot, SelfTest
from ledger.availability import SlotFacts
from ledger.policy import Announcement, Effect, PastWork, effect_on_owner
from ledger.pricing import PER_MILLION
from ledger.ratecard import DAY_US, RateCard, Seat
from node_agent.protocol.cards import ModelCard


class AnnouncementError(ValueError):
    """A card that cannot be announced; the text names the field and what to do."""


def announce(session: Session, document: RateCardDocument, *, now_us: int) -> DatedCard:
    """Store a card that is in force from its moment on; logged in the ledger.

    The same announcement again changes nothing. Raises AnnouncementError, SignatureError,
    DocumentError.
    """
    ensure_first_card(session, now_us)
    coming = document.value
    known = session.get(RateCardRow, coming.id)
    if known is not None and known.effective_us == document.effective_us:
        return DatedCard(coming, known.announced_us, known.effective_us)
    current = card_in_force(session, now_us)
    what = f"rate card {coming.version}"
    _ = signers_of(session, what, document.message, document.signature_bytes, current)
    try:
        _ = Announcement(current, coming, now_us, document.effective_us)
    except ValueError as error:
        raise AnnouncementError(str(error)) from None
    latest = cards(session)[-1]
    if coming.version <= max(dated.card.version for dated in cards(session)):
        raise AnnouncementError("version must be above that of every card so far, announced ones too")
    if document.effective_us <= latest.effective_us:
        raise AnnouncementError("effective_us must be after that of the card announced before")
    session.add(
        RateCardRow(
            id=coming.id,
            version=coming.version,
            body=coming.body,
            announced_us=now_us,
            effective_us=document.effective_us,
        )
    )
    # Two digests: the card, which jobs name, and the document with the signatures.
    log_record(session, f"rate_card:{coming.version}", coming.id, now_us=now_us)
    log_record(session, f"rate_card_announced:{coming.version}", document.digest, now_us=now_us)
    return DatedCard(coming, now_us, document.effective_us)


@dataclass(frozen=True)
class OwnEffect:
    """What the next card would have meant for an owner's last 30 days; `jobs_left_out` served models
    whose cards have left the catalogue.
    """

    announcement: Announcement
    effect: Effect
    jobs: int
    slots: int
    jobs_left_out: int


def effect_for(session: Session, account_id: str, catalogue: Catalogue, *, now_us: int) -> OwnEffect | None:
    """The effect of the next coming card on the account's own Macs; None if none is coming."""
    coming = next((dated for dated in cards(session) if dated.effective_us > now_us), None)
    if coming is None:
        return None
    announcement = Announcement(
        card_in_force(session, now_us), coming.card, coming.announced_us, coming.effective_us
    )
    since_us = now_us - 30 * DAY_US
    work, left_out = _past_work(session, account_id, catalogue, since_us)
    slots = _past_slots(session, account_id, since_us)
    effect = effect_on_owner(announcement, work, slots, now_us)
    return OwnEffect(announcement, effect, len(work), len(slots), left_out)


def _past_work(
    session: Session, account_id: str, catalogue: Catalogue, since_us: int
) -> tuple[list[PastWork], int]:
    """The charged jobs that the owner's Macs served, and how many have no card any more."""
    # A job that ended in the period can have been made before it, but no attempt runs for a day.
    mine = select(Attempt.job_id).where(
        Attempt.id >= first_id("att", since_us - DAY_US),
        Attempt.owner_account_id == account_id,
        Attempt.share_umlx > 0,
    )
    rows = session.execute(
        select(Job, Attempt.owner_account_id, Attempt.share_umlx)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Job.id.in_(mine), Job.ended_us >= since_us)
        .order_by(Job.id)
    )
    shares: dict[str, tuple[Job, int, int]] = {}
    for job, owner, share_umlx in rows:
        _, own, all_shares = shares.get(job.id, (job, 0, 0))
        shares[job.id] = (job, own + (share_umlx if owner == account_id else 0), all_shares + share_umlx)
    work: list[PastWork] = []
    for job, own, all_shares in shares.values():
        card = catalogue.by_revision(job.card_id, job.card_revision)
        if card is not None:
            work.append(_work_of(job, card, owner_ppm=own * PER_MILLION // all_shares))
    return work, len(shares) - len(work)


def _work_of(job: Job, card: ModelCard, *, owner_ppm: int) -> PastWork:
    read, resident = priced_bytes(card.shape, card.weights_bytes, card.context_tokens)
    return PastWork(
        ended_us=job.ended_us or 0,
        bytes_read_per_token=read,
        bytes_resident=resident,
        input_tokens=job.prompt_tokens,
        cached_tokens=0,
        output_tokens=job.output_tokens,
        owner_ppm=owner_ppm,
    )


def _past_slots(session: Session, account_id: str, since_us: int) -> list[SlotFacts]:
    """The slots that were credited to the owner's Macs, with what is measured of these Macs today."""
    rows = session.execute(
        select(CreditedSlot, Node)
        .join(Node, Node.id == CreditedSlot.node_id)
        .where(CreditedSlot.owner_account_id == account_id, CreditedSlot.slot_start_us >= since_us)
    ).all()
    tests: dict[str, list[int]] = {}
    warm = select(SelfTest.node_id, SelfTest.bandwidth_bytes_per_second).where(
        SelfTest.node_id.in_({node.id for _, node in rows}), SelfTest.is_warm
    )
    for node_id, bandwidth in session.execute(warm.order_by(SelfTest.at_us)):
        tests.setdefault(node_id, []).append(bandwidth)
    return [
        _slot_of(slot, node, tests.get(node.id, []), card_by_id(session, slot.rate_card_id))
        for slot, node in rows
    ]


def _slot_of(slot: CreditedSlot, node: Node, warm: list[int], card: RateCard | None) -> SlotFacts:
    present = min(slot.present_seconds, 600)
    return SlotFacts(
        device=slot.device,
        owner=slot.owner_account_id,
        seat=cast("Seat", slot.paid_as),
        slot_start_us=slot.slot_start_us,
        measured_bandwidth_bytes_per_second=measured_bandwidth(warm),
        specified_bandwidth_bytes_per_second=specified_bandwidth(node.hardware),
        lent_bytes=node.lent_bytes,
        trust=trust_of(len(warm), node.checks_passed, card or RateCard(version=0)),
        present_seconds=present,
        busy_seconds=min(slot.busy_seconds, present),
        job_pay_umlx=slot.job_pay_umlx,
        has_demanded_model=slot.claim_umlx > 0,
    )
