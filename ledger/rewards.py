"""Who is paid what when a job has ended. Pure; integers of uMLX, no clock, no database.

**Delivered work is paid.** A job has one charge. Of it, the owners' part is shared among the
attempts by the tokens that each delivered and the submitter received, whatever then became of the
Mac: its owner came back, it slept, lost its network or crashed. Not paid are tokens that did not
arrive, results that came late (an older fence) and work that failed its check; for the latter the
submitter is not charged either. Owners' shares + fee = charge, exactly.

When another Mac continues an answer it reads the prompt, and what was delivered of the answer, a
second time. The pool pays for that, never the submitter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ledger.pricing import PER_MILLION, Rate, charge_umlx, split_charge, split_shares

AVAILABILITY_POOL: Final = "pool:availability"
AUDIT_POOL: Final = "pool:audit"
TREASURY_ACCOUNT: Final = "treasury"
FEE_ACCOUNT: Final = "fee"

Outcome = Literal["finished", "cancelled", "failed", "expired", "coordinator_fault"]
Ending = Literal[
    "finished", "cancelled", "reclaimed", "asleep", "disconnected", "crashed", "declined", "late"
]
Check = Literal["none", "passed", "suspected", "failed"]
TrustEffect = Literal["none", "minus_one", "reset"]

ZeroReason = Literal[
    "nothing_delivered",
    "not_received",
    "late_result",
    "check_failed",
    "declined",
    "rounds_to_zero",
    "own_break",
    "own_mac",
    "capped_by_fee",
    "self_dealing",
    "not_proven",
    "pool_empty",
    "treasury_empty",
]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One Mac of an attempt's host and the part of the model that it holds, in ppm."""

    node_id: str
    owner: str
    held_ppm: int


@dataclass(frozen=True, kw_only=True)
class AttemptFacts:
    """One attempt as the coordinator saw it; no number here is a node's own claim.

    `members` is one Mac, or those of a pod; their `held_ppm` sum to 10**6. `delivered_tokens` were
    accepted by the relay, `received_tokens` of them reached the submitter. `is_held` sends the pay
    to the owner's escrow (a new owner); a suspected result is held likewise. `is_linked` says that
    submitter and an owner are one person, or look like one. An attempt that lost its lease keeps
    how it was lost and what it had delivered by then; `late` is one whose whole result came late.
    """

    fence: int
    members: tuple[Member, ...]
    ending: Ending
    delivered_tokens: int
    received_tokens: int
    check: Check = "none"
    is_held: bool = False
    is_linked: bool = False

    def __post_init__(self) -> None:
        if not self.members or sum(member.held_ppm for member in self.members) != PER_MILLION:
            raise ValueError(f"members of attempt {self.fence}: held_ppm must sum to 1000000")
        if min(member.held_ppm for member in self.members) < 0:
            raise ValueError(f"members of attempt {self.fence}: held_ppm must not be negative")
        if len({member.node_id for member in self.members}) != len(self.members):
            raise ValueError(f"members of attempt {self.fence}: a Mac must appear once")
        if not 0 <= self.received_tokens <= self.delivered_tokens:
            raise ValueError(f"attempt {self.fence}: received_tokens must be from 0 to delivered_tokens")


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A job that has ended. `rate`, `fee_ppm` and `factor_ppm` are those of its quote.

    `payer` is the account whose hold pays: a user's, or `pool:audit` for an audit. Cached tokens
    are among the input tokens. Raises ValueError if a number is out of range or a fence repeats.
    """

    job_id: str
    payer: str
    rate: Rate
    fee_ppm: int
    bound_umlx: int
    outcome: Outcome
    input_tokens: int
    cached_tokens: int
    attempts: tuple[AttemptFacts, ...]
    factor_ppm: int = PER_MILLION

    def __post_init__(self) -> None:
        if self.bound_umlx < 0:
            raise ValueError("bound_umlx must not be negative")
        if not 0 <= self.fee_ppm <= PER_MILLION:
            raise ValueError("fee_ppm must be from 0 to 1000000")
        if not 0 <= self.cached_tokens <= self.input_tokens:
            raise ValueError("cached_tokens must be from 0 to input_tokens")
        fences = [attempt.fence for attempt in self.attempts]
        if fences != sorted(set(fences)):
            raise ValueError("attempts must be in order of their fences, each once")


@dataclass(frozen=True, kw_only=True)
class Payment:
    """What one Mac gets for one attempt, and from where; a zero has its reason.

    `source` is the job's hold ("charge"), a pool or the treasury. `account_id` is the owner's
    account or its escrow. `tokens` are those that it is paid for.
    """

    source: str
    fence: int
    node_id: str
    owner: str
    account_id: str
    tokens: int
    amount_umlx: int
    reason: ZeroReason | None = None


@dataclass(frozen=True, kw_only=True)
class TrustChange:
    """What an attempt means for its Macs' count of valid results; `slashes` forfeits the escrow."""

    fence: int
    effect: TrustEffect
    slashes: bool


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """What a job comes to. `shares` and the fee are paid out of the hold and sum to the charge;
    `extra` payments come from the pool (second readings) or the treasury (a fault of the network).
    """

    job_id: str
    payer: str
    charge_umlx: int
    fee_umlx: int
    paid_tokens: int
    shares: tuple[Payment, ...]
    extra: tuple[Payment, ...]
    trust: tuple[TrustChange, ...]

    def capture_pays(self) -> tuple[tuple[str, int], ...]:
        """(account, uMLX) out of the hold, one per account, sorted, the fee among them; no zeros.

        Empty when nothing is charged: the hold is to be voided.
        """
        return _by_account((FEE_ACCOUNT, self.fee_umlx), *_legs(self.shares))

    def extra_pays(self) -> tuple[Payment, ...]:
        """The payments from pool and treasury that move anything: one transfer each."""
        return tuple(payment for payment in self.extra if payment.amount_umlx > 0)


def settle(job: JobFacts) -> Settlement:
    """The settlement of an ended job, from its facts alone.

    The charge: prompt and the received tokens of attempts that are not barred (late or failed
    check), rounded up once, never above the bound. It is 0 if no token is payable, unless an
    attempt finished without one: the model ended at once, and the prompt was read. What the payer's
    own Macs made is free, and pays nothing.
    """
    weights = _weights(job)
    total = sum(attempt.received_tokens for attempt in job.attempts if attempt.fence in weights)
    if job.outcome == "coordinator_fault":
        return _without_charge(job, weights)
    charge = 0
    if weights:
        price = charge_umlx(job.rate, job.input_tokens, job.cached_tokens, total, job.factor_ppm)
        charge = min(price, job.bound_umlx)
    owners_umlx, fee_umlx = split_charge(charge, job.fee_ppm)
    return Settlement(
        job_id=job.job_id,
        payer=job.payer,
        charge_umlx=charge,
        fee_umlx=fee_umlx,
        paid_tokens=total,
        shares=_shares(job, "charge", owners_umlx, weights),
        extra=_second_readings(job, fee_umlx),
        trust=_trust(job),
    )


def _without_charge(job: JobFacts, weights: dict[int, int]) -> Settlement:
    """A fault of the network: the submitter pays nothing, the treasury pays the owners' part."""
    # The treasury must not become a source of income for people who submit to themselves.
    honest = {
        attempt.fence: weights[attempt.fence] for attempt in job.attempts if _is_honest(attempt, weights)
    }
    owners_umlx = 0
    if honest:
        total = sum(honest.values())
        price = charge_umlx(job.rate, job.input_tokens, job.cached_tokens, total, job.factor_ppm)
        owners_umlx, _ = split_charge(min(price, job.bound_umlx), job.fee_ppm)
    return Settlement(
        job_id=job.job_id,
        payer=job.payer,
        charge_umlx=0,
        fee_umlx=0,
        paid_tokens=0,
        shares=(),
        extra=(*_shares(job, TREASURY_ACCOUNT, owners_umlx, honest), *_second_readings(job, 0)),
        trust=_trust(job),
    )


def _is_honest(attempt: AttemptFacts, weights: dict[int, int]) -> bool:
    return attempt.fence in weights and not attempt.is_linked


def _is_barred(job: JobFacts, attempt: AttemptFacts) -> bool:
    return (
        attempt.ending in {"late", "declined"}
        or attempt.check == "failed"
        or _is_own_public_work(job, attempt)
    )


def _is_own_public_work(job: JobFacts, attempt: AttemptFacts) -> bool:
    # Who pays oneself loses the fee. Where a pool pays nobody would, and the pool could be emptied.
    return attempt.is_linked and not job.payer.startswith("user:")


def _is_own(job: JobFacts, attempt: AttemptFacts) -> bool:
    """Whether every Mac of the attempt is the payer's."""
    return all(f"user:{member.owner}" == job.payer for member in attempt.members)


def _payable_tokens(job: JobFacts, attempt: AttemptFacts) -> int:
    if _is_barred(job, attempt) or _is_own(job, attempt):
        return 0
    # What the network itself then lost was delivered by the Mac all the same.
    return attempt.delivered_tokens if job.outcome == "coordinator_fault" else attempt.received_tokens


def _weights(job: JobFacts) -> dict[int, int]:
    """Fence to tokens of each attempt that shares in the charge."""
    tokens = {attempt.fence: _payable_tokens(job, attempt) for attempt in job.attempts}
    paid = {fence: count for fence, count in tokens.items() if count > 0}
    if paid:
        return paid
    last = job.attempts[-1] if job.attempts else None
    is_empty_answer = (
        last is not None
        and job.outcome == "finished"
        and last.ending == "finished"
        and last.delivered_tokens == 0
        and not _is_barred(job, last)
        and not _is_own(job, last)
    )
    return {last.fence: 1} if last is not None and is_empty_answer else {}


def _shares(job: JobFacts, source: str, owners_umlx: int, weights: dict[int, int]) -> tuple[Payment, ...]:
    """One payment per attempt and Mac. Split in one step over all of them by tokens x part held,
    so that each is within 1 uMLX of its exact ratio; largest remainder, ties by fence and Mac.
    """
    by_key = {
        _key(attempt, member): weights.get(attempt.fence, 0) * member.held_ppm
        for attempt in job.attempts
        for member in attempt.members
    }
    amounts = split_shares(owners_umlx, by_key) if any(by_key.values()) else dict.fromkeys(by_key, 0)
    payments: list[Payment] = []
    for attempt in job.attempts:
        reason = _zero_reason(job, attempt, weights)
        tokens = _payable_tokens(job, attempt) if attempt.fence in weights else 0
        for member in attempt.members:
            amount = amounts[_key(attempt, member)]
            payments.append(_payment(source, attempt, member, tokens, amount, reason))
    return tuple(payments)


def _zero_reason(job: JobFacts, attempt: AttemptFacts, weights: dict[int, int]) -> ZeroReason:
    if attempt.fence in weights:
        return "rounds_to_zero"
    if attempt.ending == "late":
        return "late_result"
    if attempt.check == "failed":
        return "check_failed"
    if attempt.ending == "declined":
        return "declined"
    if attempt.delivered_tokens == 0:
        return "nothing_delivered"
    if _is_own_public_work(job, attempt):
        return "self_dealing"
    if _is_own(job, attempt):
        return "own_mac"
    if job.outcome == "coordinator_fault" and attempt.is_linked:
        return "self_dealing"
    return "not_received"


def _second_readings(job: JobFacts, fee_umlx: int) -> tuple[Payment, ...]:
    """What the pool pays for reading prompt and delivered prefix once more: the input price of
    those tokens less the fee's part, rounded down, for each attempt after the first that delivered.

    New owners together get at most the job's fee for it: strangers who are secretly one person
    then never take more out of the pool than they put in.
    """
    payments: list[Payment] = []
    prefix_tokens, left_umlx = 0, fee_umlx
    readers: list[AttemptFacts] = []
    for attempt in job.attempts:
        if readers and attempt.ending != "declined":
            tokens = job.input_tokens + prefix_tokens
            amount, reason = _reading_pay(job, attempt, readers, tokens)
            if attempt.is_held and amount > left_umlx:
                amount, reason = left_umlx, "capped_by_fee"
            left_umlx -= amount if attempt.is_held else 0
            payments += _split_reading(attempt, tokens, amount, reason)
        if attempt.delivered_tokens > 0 and not _is_barred(job, attempt):
            readers.append(attempt)
            prefix_tokens += attempt.delivered_tokens
    return tuple(payments)


def _reading_pay(
    job: JobFacts, attempt: AttemptFacts, readers: list[AttemptFacts], tokens: int
) -> tuple[int, ZeroReason]:
    """The pool's pay for a second reading, and the reason if it is 0."""
    if attempt.ending == "late":
        return 0, "late_result"
    if attempt.check == "failed":
        return 0, "check_failed"
    if attempt.delivered_tokens == 0 and attempt.ending != "finished":
        return 0, "nothing_delivered"
    # Both rules keep the pool from being milked: by jobs to oneself, and by breaking off on one Mac
    # to be paid for the second reading on another.
    if any(other.is_linked or _is_own(job, other) for other in (attempt, *readers)):
        return 0, "self_dealing"
    owners = {member.owner for member in attempt.members}
    if any(member.owner in owners for reader in readers for member in reader.members):
        return 0, "own_break"
    full = tokens * job.rate.input_umlx_per_million * (PER_MILLION - job.fee_ppm) // PER_MILLION**2
    return full, "rounds_to_zero"


def _split_reading(attempt: AttemptFacts, tokens: int, amount_umlx: int, reason: ZeroReason) -> list[Payment]:
    parts = split_shares(amount_umlx, {member.node_id: member.held_ppm for member in attempt.members})
    return [
        _payment(AVAILABILITY_POOL, attempt, member, tokens, parts[member.node_id], reason)
        for member in attempt.members
    ]


def _payment(
    source: str, attempt: AttemptFacts, member: Member, tokens: int, amount_umlx: int, reason: ZeroReason
) -> Payment:
    is_held = attempt.is_held or attempt.check == "suspected"
    return Payment(
        source=source,
        fence=attempt.fence,
        node_id=member.node_id,
        owner=member.owner,
        account_id=f"{'escrow' if is_held else 'user'}:{member.owner}",
        tokens=tokens,
        amount_umlx=amount_umlx,
        reason=None if amount_umlx else reason,
    )


def _trust(job: JobFacts) -> tuple[TrustChange, ...]:
    return tuple(
        TrustChange(fence=attempt.fence, effect=_trust_effect(attempt), slashes=attempt.check == "failed")
        for attempt in job.attempts
    )


def _trust_effect(attempt: AttemptFacts) -> TrustEffect:
    if attempt.check == "failed":
        return "reset"
    # An owner who takes his Mac back, lets it sleep or loses his network has done nothing wrong.
    return "minus_one" if attempt.ending == "crashed" else "none"


def _key(attempt: AttemptFacts, member: Member) -> str:
    return f"{attempt.fence:012d} {member.node_id}"


def _legs(payments: Iterable[Payment]) -> list[tuple[str, int]]:
    return [(payment.account_id, payment.amount_umlx) for payment in payments]


def _by_account(*legs: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for account_id, amount_umlx in legs:
        totals[account_id] = totals.get(account_id, 0) + amount_umlx
    return tuple((name, amount) for name, amount in sorted(totals.items()) if amount)
