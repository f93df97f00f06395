"""Budgets that operators sign, and the rules by which tokens are drawn from them. Pure, no clock.

Nothing is minted but under a budget: a reason, a cap and an expiry, signed by enough operators.
Every draw is refused or allowed by rule, with a reason; what was drawn before is told by the caller
from the books.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from ledger.pricing import PER_MILLION
from ledger.ratecard import HOUR_US, RateCard
from ledger.signatures import SignatureError, Verify, require_signers, signed_message, verify_ed25519

Purpose = Literal["grants", "availability", "vouchers"]
DrawRefusal = Literal[
    "wrong_purpose",
    "not_yet_valid",
    "expired",
    "cap_reached",
    "already_granted",
    "hour_not_full",
    "not_verified",
    "pool_is_full",
    "wrong_code",
    "already_redeemed",
    "already_drawn",
]


class BudgetError(ValueError):
    """A budget that must not be used: malformed, or without enough valid signatures."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Leave to mint up to `cap_umlx` for one purpose between two times. Raises BudgetError."""

    id: str
    purpose: Purpose
    reason: str
    cap_umlx: int
    valid_from_us: int
    expires_us: int

    def __post_init__(self) -> None:
        if self.purpose not in {"grants", "availability", "vouchers"}:
            raise BudgetError("purpose must be grants, availability or vouchers")
        if not self.id or not self.reason.strip():
            raise BudgetError("id and reason must not be empty; say what the tokens are for")
        if type(self.cap_umlx) is not int or not 0 < self.cap_umlx <= 10**18:
            raise BudgetError("cap_umlx must be an integer from 1 to 10**18")
        if not 0 <= self.valid_from_us < self.expires_us:
            raise BudgetError("expires_us must be after valid_from_us")

    @property
    def message(self) -> bytes:
        """The bytes that operators sign: a fixed line and the budget's canonical JSON."""
        return signed_message("budget", json.dumps(asdict(self), sort_keys=True, separators=(",", ":")))


@dataclass(frozen=True)
class SignedBudget:
    """A budget and signatures over its message, by operator name."""

    budget: Budget
    signatures: Mapping[str, bytes]


@dataclass(frozen=True)
class Draw:
    """An allowed draw: mint `amount_umlx` to `account_id` under the budget."""

    budget_id: str
    account_id: str
    amount_umlx: int
    reference: str


@dataclass(frozen=True)
class DrawRefused:
    """No draw, and why."""

    reason: DrawRefusal


def check_signatures(
    signed: SignedBudget, operator_keys: Mapping[str, bytes], card: RateCard, verify: Verify = verify_ed25519
) -> tuple[str, ...]:
    """The operators whose signatures are valid, sorted; raises BudgetError if they are too few.

    See `ledger.signatures.valid_signers`.
    """
    budget = signed.budget
    try:
        return require_signers(
            f"budget {budget.id}",
            budget.message,
            signed.signatures,
            operator_keys,
            needed=card.policy.budget_signatures,
            verify=verify,
        )
    except SignatureError as error:
        raise BudgetError(str(error)) from None


def draw(
    budget: Budget,
    *,
    purpose: Purpose,
    account_id: str,
    amount_umlx: int,
    drawn_umlx: int,
    now_us: int,
    reference: str,
) -> Draw | DrawRefused:
    """Draw an amount, or say why not. `drawn_umlx` is all that was drawn under the budget so far."""
    if amount_umlx <= 0 or drawn_umlx < 0:
        raise ValueError("amount_umlx must be positive and drawn_umlx must not be negative")
    if budget.purpose != purpose:
        return DrawRefused("wrong_purpose")
    if now_us < budget.valid_from_us:
        return DrawRefused("not_yet_valid")
    if now_us >= budget.expires_us:
        return DrawRefused("expired")
    if drawn_umlx + amount_umlx > budget.cap_umlx:
        return DrawRefused("cap_reached")
    return Draw(budget.id, account_id, amount_umlx, reference)


@dataclass(frozen=True, kw_only=True)
class FirstHour:
    """What is known when a Mac asks for the grant of its first verified hour.

    `lent_us`: time lent while measured. `has_passed_check`: at least one result was checked and
    valid. The grant is one per owner and one per device, whoever owned it then.
    """

    owner: str
    device: str
    lent_us: int
    is_measured: bool
    has_passed_check: bool
    owner_was_granted: bool
    device_was_granted: bool


def grant_first_hour(
    facts: FirstHour, budget: Budget, *, drawn_umlx: int, now_us: int, card: RateCard
) -> Draw | DrawRefused:
    """The small grant for the first verified hour lent; nothing is given for signing up."""
    if facts.owner_was_granted or facts.device_was_granted:
        return DrawRefused("already_granted")
    if not (facts.is_measured and facts.has_passed_check):
        return DrawRefused("not_verified")
    if facts.lent_us < HOUR_US:
        return DrawRefused("hour_not_full")
    return draw(
        budget,
        purpose="grants",
        account_id=f"user:{facts.owner}",
        amount_umlx=card.policy.first_hour_grant_umlx,
        drawn_umlx=drawn_umlx,
        now_us=now_us,
        reference=f"grant:first_hour:{facts.device}",
    )


def top_up_pool(
    budget: Budget, *, pool_balance_umlx: int, day: str, drawn_umlx: int, now_us: int, card: RateCard
) -> Draw | DrawRefused:
    """Fill the availability pool to one day's cap, never above: what was not paid out is not minted
    again. Near its end the budget gives what it has left. `day` is the UTC date, for the reference.
    """
    missing = card.availability.cap_umlx_per_day - pool_balance_umlx
    if missing <= 0:
        return DrawRefused("pool_is_full")
    left = budget.cap_umlx - drawn_umlx
    return draw(
        budget,
        purpose="availability",
        account_id="pool:availability",
        amount_umlx=min(missing, left) if left > 0 else missing,
        drawn_umlx=drawn_umlx,
        now_us=now_us,
        reference=f"top_up:{day}",
    )


@dataclass(frozen=True, kw_only=True)
class Voucher:
    """A promise of tokens to whoever shows the code; only the code's SHA-256 (hex) is stored."""

    id: str
    budget_id: str
    code_sha256: str
    amount_umlx: int
    expires_us: int


def issue_voucher(
    voucher: Voucher, budget: Budget, *, committed_umlx: int, now_us: int
) -> Draw | DrawRefused:
    """Whether a voucher may be issued. `committed_umlx` is all that the budget's vouchers promise,
    redeemed or open, so that no voucher can turn out to be uncovered.
    """
    if voucher.budget_id != budget.id or budget.purpose != "vouchers":
        return DrawRefused("wrong_purpose")
    return draw(
        budget,
        purpose="vouchers",
        account_id="",
        amount_umlx=voucher.amount_umlx,
        drawn_umlx=committed_umlx,
        now_us=now_us,
        reference=f"voucher:{voucher.id}",
    )


def redeem_voucher(
    voucher: Voucher, code: str, *, account_id: str, is_redeemed: bool, now_us: int
) -> Draw | DrawRefused:
    """Redeem a voucher for an account. It was covered when issued, so the budget's own expiry does
    not matter any more; the voucher's does.
    """
    shown = hashlib.sha256(code.encode()).hexdigest()
    if not hmac.compare_digest(shown, voucher.code_sha256):
        return DrawRefused("wrong_code")
    if is_redeemed:
        return DrawRefused("already_redeemed")
    if now_us >= voucher.expires_us:
        return DrawRefused("expired")
    return Draw(voucher.budget_id, account_id, voucher.amount_umlx, f"voucher:{voucher.id}")


def commons_allowance_umlx(
    pool_balance_umlx: int, paid_busy_ppm: int, spent_today_umlx: int, card: RateCard
) -> int:
    """What the pool may still spend today on public work: a part of the day's cap while the share of
    the fleet's time that paid jobs take (`paid_busy_ppm`) is low, nothing otherwise.
    """
    if min(pool_balance_umlx, paid_busy_ppm, spent_today_umlx) < 0:
        raise ValueError("pool_balance_umlx, paid_busy_ppm and spent_today_umlx must not be negative")
    if paid_busy_ppm >= card.policy.commons_below_paid_ppm:
        return 0
    part = card.availability.cap_umlx_per_day * card.policy.commons_pool_ppm // PER_MILLION
    return max(0, min(part - spent_today_umlx, pool_balance_umlx))
