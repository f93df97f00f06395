"""Pay for standing ready, per slot of ten minutes, out of a capped pool. Pure; integers of uMLX.

points = min(measured, specified) bandwidth / 100 GB/s + lent memory / 64 GB
claim  = points x the seat's rate x seconds / 3600 x trust x service      (one rounding, down)
pay    = claim x min(1, pool / all claims)          (exact: the parts sum to what is paid out)

Seconds in which a Mac serves a paid job earn no availability; a dedicated or Ultra seat is paid
the difference if the job paid less than the seat's rate for those seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID, uuid5

from ledger.pricing import PER_MILLION, split_shares
from ledger.ratecard import SLOT_US, SLOTS_PER_DAY, RateCard, Seat, Trust

POOL: Final = "pool:availability"
SLOT_SECONDS: Final = SLOT_US // 1_000_000

# The namespace of payment ids; changing it would let old slots be paid again.
_PAYMENT_NAMESPACE: Final = UUID("b1f7d0f4-6f3b-5f0a-9b62-58b1a0f6c2de")

ZeroReason = Literal[
    "already_credited",
    "not_measured",
    "not_present",
    "no_demanded_model",
    "paid_by_jobs",
    "pool_empty",
    "rounds_to_zero",
]


@dataclass(frozen=True, kw_only=True)
class SlotFacts:
    """One Mac in one slot, as the network saw it.

    `device` is the device's key, whatever node or owner it goes by. Seconds: `present` (reachable
    and ready, busy included), `busy` (serving paid jobs of strangers, who paid `job_pay_umlx` for
    them in this slot) and `linked_busy` (serving its owner or somebody linked); of 600, and busy
    and linked_busy do not overlap. `service_ppm` is the day's share of promised time that was
    kept. `is_held` sends the pay to escrow. Raises ValueError, naming the field.
    """

    device: str
    owner: str
    seat: Seat
    slot_start_us: int
    measured_bandwidth_bytes_per_second: int
    specified_bandwidth_bytes_per_second: int
    lent_bytes: int
    trust: Trust
    present_seconds: int
    busy_seconds: int = 0
    job_pay_umlx: int = 0
    linked_busy_seconds: int = 0
    service_ppm: int = PER_MILLION
    has_demanded_model: bool = True
    is_held: bool = False

    def __post_init__(self) -> None:
        for name in (
            "measured_bandwidth_bytes_per_second",
            "specified_bandwidth_bytes_per_second",
            "lent_bytes",
            "busy_seconds",
            "job_pay_umlx",
            "linked_busy_seconds",
            "service_ppm",
        ):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} must be an integer and not negative")
        if self.slot_start_us % SLOT_US:
            raise ValueError("slot_start_us must be a multiple of ten minutes")
        if not 0 <= self.present_seconds <= SLOT_SECONDS:
            raise ValueError(f"present_seconds must be from 0 to {SLOT_SECONDS}")
        if self.busy_seconds + self.linked_busy_seconds > self.present_seconds:
            raise ValueError("busy_seconds and linked_busy_seconds must be within present_seconds")
        if self.service_ppm > PER_MILLION:
            raise ValueError("service_ppm must be at most 1000000")


@dataclass(frozen=True, kw_only=True)
class SlotPayment:
    """What a Mac gets for a slot: a transfer of `amount_umlx` from the pool under this id, unless
    it is 0, for `reason`. `claim_umlx` is what it would get from a full pool.
    """

    id: UUID
    device: str
    owner: str
    account_id: str
    slot_start_us: int
    paid_as: Seat
    points_ppm: int
    claim_umlx: int
    amount_umlx: int
    reason: ZeroReason | None


def payment_id(device: str, slot_start_us: int) -> UUID:
    """The id of a device's payment for a slot: derived, so that no slot is ever paid twice."""
    return uuid5(_PAYMENT_NAMESPACE, json.dumps([device, slot_start_us]))


def points_ppm(facts: SlotFacts, card: RateCard) -> int:
    """A Mac's points in millionths, rounded down; for showing, the claim is not computed from it."""
    numerator, denominator = _points(facts, card)
    return numerator * PER_MILLION // denominator


def paid_seat(facts: SlotFacts, card: RateCard) -> tuple[Seat, int]:
    """(the seat that is paid, its service factor in ppm). A promise kept too rarely is none: the
    Mac is then paid as idle, never less.
    """
    if facts.seat == "idle":
        return "idle", PER_MILLION
    for least_ppm, factor_ppm in card.availability.service_levels:
        if facts.service_ppm >= least_ppm:
            return facts.seat, factor_ppm
    return "idle", PER_MILLION


def claim_umlx(facts: SlotFacts, card: RateCard) -> int:
    """What a slot is worth before the pool is shared out, rounded down once."""
    seat, factor_ppm = paid_seat(facts, card)
    if seat == "idle" and not facts.has_demanded_model:
        return 0
    ready = facts.present_seconds - facts.busy_seconds - facts.linked_busy_seconds
    seconds = ready if seat == "idle" else ready + facts.busy_seconds
    points, per_point = _points(facts, card)
    numerator = points * card.umlx_per_point_hour(seat) * factor_ppm * card.trust_ppm(facts.trust)
    denominator = per_point * 3600 * PER_MILLION**2
    if seat == "idle" or facts.busy_seconds == 0:
        return numerator * seconds // denominator
    # The floor under busy seconds: job pay counts against the seat's rate for them, no further.
    floor = numerator * facts.busy_seconds
    top_up = max(0, floor - facts.job_pay_umlx * denominator)
    return (numerator * ready + top_up) // denominator


def slot_pool_umlx(pool_balance_umlx: int, card: RateCard) -> int:
    """What one slot may pay out: the day's cap cut evenly, but no more than the pool has."""
    return max(0, min(pool_balance_umlx, card.availability.cap_umlx_per_day // SLOTS_PER_DAY))


def pay_slot(
    slot: Iterable[SlotFacts], pool_umlx: int, card: RateCard, *, credited: AbstractSet[str] = frozenset()
) -> tuple[SlotPayment, ...]:
    """The payments of one slot, sorted by device; they sum to min(pool, all claims) exactly.

    Of several entries with one device the smallest claim counts and the others get nothing;
    devices in `credited` were paid for this slot before. The order of entries does not matter.
    Raises ValueError if the entries are of different slots or the pool is negative.
    """
    entries = sorted(slot, key=lambda facts: (facts.device, claim_umlx(facts, card), repr(facts)))
    if len({facts.slot_start_us for facts in entries}) > 1:
        raise ValueError("slot_start_us must be the same in all entries")
    if pool_umlx < 0:
        raise ValueError("pool_umlx must not be negative")
    before = (None, *(facts.device for facts in entries))
    is_repeat = [
        facts.device in credited or facts.device == last for facts, last in zip(entries, before, strict=False)
    ]
    claims = [
        0 if repeated else claim_umlx(facts, card) for facts, repeated in zip(entries, is_repeat, strict=True)
    ]
    return tuple(
        _payment(facts, claim, amount, pool_umlx, card, is_repeat=repeated)
        for facts, claim, amount, repeated in zip(
            entries, claims, _scaled(claims, pool_umlx), is_repeat, strict=True
        )
    )


def _scaled(claims: list[int], pool_umlx: int) -> list[int]:
    total = sum(claims)
    if total <= pool_umlx:
        return claims
    # Index keys of one width, so that ties go by device.
    parts = split_shares(pool_umlx, {f"{index:012d}": claim for index, claim in enumerate(claims)})
    return [parts[f"{index:012d}"] for index in range(len(claims))]


def _payment(
    facts: SlotFacts, claim: int, amount: int, pool_umlx: int, card: RateCard, *, is_repeat: bool
) -> SlotPayment:
    return SlotPayment(
        id=payment_id(facts.device, facts.slot_start_us),
        device=facts.device,
        owner=facts.owner,
        account_id=f"{'escrow' if facts.is_held else 'user'}:{facts.owner}",
        slot_start_us=facts.slot_start_us,
        paid_as=paid_seat(facts, card)[0],
        points_ppm=points_ppm(facts, card),
        claim_umlx=claim,
        amount_umlx=amount,
        reason=None if amount else _reason(facts, claim, pool_umlx, card, is_repeat=is_repeat),
    )


def _reason(facts: SlotFacts, claim: int, pool_umlx: int, card: RateCard, *, is_repeat: bool) -> ZeroReason:
    if is_repeat:
        return "already_credited"
    if card.trust_ppm(facts.trust) == 0:
        return "not_measured"
    if facts.present_seconds == 0:
        return "not_present"
    if paid_seat(facts, card)[0] == "idle" and not facts.has_demanded_model:
        return "no_demanded_model"
    if claim > 0:
        return "pool_empty" if pool_umlx == 0 else "rounds_to_zero"
    is_busy = facts.busy_seconds + facts.linked_busy_seconds > 0
    return "paid_by_jobs" if is_busy else "rounds_to_zero"


def _points(facts: SlotFacts, card: RateCard) -> tuple[int, int]:
    """Points as an exact fraction (numerator, denominator)."""
    rates = card.availability
    # No claim above the maker's figure, and none above what was measured.
    bandwidth = min(facts.measured_bandwidth_bytes_per_second, facts.specified_bandwidth_bytes_per_second)
    per_bandwidth = rates.bandwidth_bytes_per_second_per_point
    numerator = bandwidth * rates.memory_bytes_per_point + facts.lent_bytes * per_bandwidth
    return numerator, per_bandwidth * rates.memory_bytes_per_point
