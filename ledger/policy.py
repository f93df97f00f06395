"""Rules about people: held-back pay, dealing with oneself, refunds, and notice of new rates.

Pure, no clock. Pay that is held back always has a date on which it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ledger.availability import SlotFacts, claim_umlx
from ledger.pricing import PER_MILLION, charge_umlx, split_charge
from ledger.ratecard import DAY_US, RateCard, changes, prices_for
from ledger.rewards import TREASURY_ACCOUNT

HoldReason = Literal["new_owner", "under_check"]
Link = Literal["same_account", "same_device", "same_payment", "same_network"]


@dataclass(frozen=True)
class HeldPay:
    """Pay that lies in escrow and comes to its owner at `release_us`."""

    owner: str
    amount_umlx: int
    earned_us: int
    release_us: int
    reason: HoldReason


def probation_ends_us(first_lent_us: int, card: RateCard, *, is_attested: bool) -> int:
    """When an owner's pay is no longer held back: a time after the first lent hour, shorter with
    attested hardware. Attestation changes nothing else.
    """
    policy = card.policy
    return first_lent_us + (policy.attested_probation_us if is_attested else policy.probation_us)


def hold_back(
    owner: str,
    amount_umlx: int,
    earned_us: int,
    *,
    probation_end_us: int,
    is_suspected: bool,
    card: RateCard,
) -> HeldPay | None:
    """How a payment is held back, or None if it goes to the owner at once.

    A suspected result waits for its check, at most the card's time for it; after that it is paid.
    """
    suspicion_end_us = earned_us + card.policy.suspicion_us if is_suspected else earned_us
    release_us = max(probation_end_us, suspicion_end_us)
    if release_us <= earned_us:
        return None
    reason: HoldReason = "under_check" if suspicion_end_us >= probation_end_us else "new_owner"
    return HeldPay(owner, amount_umlx, earned_us, release_us, reason)


def due(held: Iterable[HeldPay], now_us: int) -> tuple[HeldPay, ...]:
    """What must be released now, in the order of its release."""
    ready = [pay for pay in held if pay.release_us <= now_us]
    return tuple(sorted(ready, key=lambda pay: (pay.release_us, pay.earned_us, pay.owner)))


def coming_on(release_us: int) -> str:
    """How held-back pay is shown: "coming on 2026-03-04". The date is that of UTC, rounded up."""
    day = -(-release_us // DAY_US)
    return f"coming on {datetime.fromtimestamp(day * 86400, tz=UTC):%Y-%m-%d}"


@dataclass(frozen=True, kw_only=True)
class Person:
    """What links an account to a person; keyed digests, never the things themselves.

    `signup_network` is the network (/24 and operator) that the account was opened from.
    """

    account_id: str
    devices: frozenset[str] = frozenset()
    payment_instruments: frozenset[str] = frozenset()
    signup_network: str | None = None


def link_between(submitter: Person, owner: Person) -> Link | None:
    """Why submitter and owner count as one person; None if they do not.

    A linked job runs and pays as usual, so its person loses the fee; the pool adds nothing to it,
    and it counts for no trust, seat, map or ranking.
    """
    if submitter.account_id == owner.account_id:
        return "same_account"
    if submitter.devices & owner.devices:
        return "same_device"
    if submitter.payment_instruments & owner.payment_instruments:
        return "same_payment"
    if submitter.signup_network is not None and submitter.signup_network == owner.signup_network:
        return "same_network"
    return None


@dataclass(frozen=True, kw_only=True)
class PaidShare:
    """An owner's share of a charge that is to be given back, and what the owner has now."""

    owner: str
    share_umlx: int
    escrow_available_umlx: int
    available_umlx: int


@dataclass(frozen=True)
class RefundPlan:
    """(account, uMLX) to give back, in order; `owed_umlx` is what no account could give now."""

    legs: tuple[tuple[str, int], ...]
    owed_umlx: int


def plan_refund(
    amount_umlx: int,
    *,
    charge_umlx: int,
    refunded_umlx: int,
    shares: Sequence[PaidShare],
    treasury_available_umlx: int,
) -> RefundPlan:
    """Where a refund comes from: each owner's escrow, then the owner, then the treasury.

    An owner gives back no more than the same part of the share, and no more than there is: the
    balance never goes below zero. The treasury gives the fee's part and what owners lack. Raises
    ValueError if more than the charge would be refunded or the shares exceed the charge.
    """
    if not 0 < amount_umlx <= charge_umlx - refunded_umlx or refunded_umlx < 0:
        raise ValueError("amount_umlx must be positive and at most what is left of the charge")
    if sum(share.share_umlx for share in shares) > charge_umlx:
        raise ValueError("shares must not exceed the charge")
    legs: list[tuple[str, int]] = []
    left = amount_umlx
    for share in shares:
        # Floors of the running total, so that many part refunds never take more than the share.
        before = share.share_umlx * refunded_umlx // charge_umlx
        liable = share.share_umlx * (refunded_umlx + amount_umlx) // charge_umlx - before
        for account_id, available in (
            (f"escrow:{share.owner}", share.escrow_available_umlx),
            (f"user:{share.owner}", share.available_umlx),
        ):
            part = min(liable, max(0, available))
            if part:
                legs.append((account_id, part))
            liable -= part
            left -= part
    treasury = min(left, max(0, treasury_available_umlx))
    if treasury:
        legs.append((TREASURY_ACCOUNT, treasury))
    return RefundPlan(tuple(legs), left - treasury)


@dataclass(frozen=True)
class Announcement:
    """A rate card that will be in force from `effective_us`. Raises ValueError if the notice is
    shorter than the card in force promises, or if the version does not rise.
    """

    current: RateCard
    coming: RateCard
    announced_us: int
    effective_us: int

    def __post_init__(self) -> None:
        if self.effective_us - self.announced_us < self.current.policy.notice_us:
            days = self.current.policy.notice_us // DAY_US
            raise ValueError(f"effective_us must be at least {days} days after announced_us")
        if self.coming.version <= self.current.version:
            raise ValueError("version of the coming card must be above that of the card in force")

    def changes(self) -> dict[str, tuple[object, object]]:
        """Every rate that changes, as `part.name` to (now, then)."""
        return changes(self.current, self.coming)


def card_at(cards: Sequence[tuple[int, RateCard]], at_us: int) -> RateCard:
    """The card in force at a moment, from (effective_us, card) in order of time.

    A job takes the card of the moment of its quote and keeps it however long it runs.
    """
    in_force = [card for effective_us, card in cards if effective_us <= at_us]
    if not in_force:
        raise ValueError("at_us is before the first card")
    return in_force[-1]


@dataclass(frozen=True, kw_only=True)
class PastWork:
    """A job that an owner served: the model's bytes, the job's tokens, the owner's part in ppm."""

    ended_us: int
    bytes_read_per_token: int
    bytes_resident: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    owner_ppm: int


@dataclass(frozen=True)
class Effect:
    """An owner's last 30 days at the rates in force and at the coming ones, in uMLX.

    Availability is compared by claims: what the pool will hold cannot be known.
    """

    work_now_umlx: int
    work_then_umlx: int
    availability_now_umlx: int
    availability_then_umlx: int

    @property
    def difference_umlx(self) -> int:
        """What the owner would have earned more (or, below zero, less)."""
        return (
            self.work_then_umlx
            + self.availability_then_umlx
            - self.work_now_umlx
            - self.availability_now_umlx
        )


def effect_on_owner(
    announcement: Announcement, jobs: Iterable[PastWork], slots: Iterable[SlotFacts], now_us: int
) -> Effect:
    """What a coming card would have meant for the work and slots of the last 30 days."""
    since_us = now_us - 30 * DAY_US
    recent = [job for job in jobs if since_us <= job.ended_us < now_us]
    stood = [slot for slot in slots if since_us <= slot.slot_start_us < now_us]
    now, then = announcement.current, announcement.coming
    return Effect(
        sum(_work_umlx(job, now) for job in recent),
        sum(_work_umlx(job, then) for job in recent),
        sum(claim_umlx(slot, now) for slot in stood),
        sum(claim_umlx(slot, then) for slot in stood),
    )


def _work_umlx(job: PastWork, card: RateCard) -> int:
    rate = prices_for(job.bytes_read_per_token, job.bytes_resident, card)
    charge = charge_umlx(rate, job.input_tokens, job.cached_tokens, job.output_tokens)
    owners_umlx, _ = split_charge(charge, card.fees.fee_ppm)
    return owners_umlx * job.owner_ppm // PER_MILLION
