"""Vouchers: tokens for whoever shows the code. Issued by an operator under a budget, redeemed once.

Only a code's digest is stored; the code itself is in the answer to its issue and nowhere else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import clock
from coordinator.errors import ApiError
from coordinator.ids import new_id
from coordinator.policy.budgets import draw_from, drawn_umlx, lock_budget, promised_umlx, usable_budgets
from coordinator.policy.models import VoucherRow
from coordinator.policy.rate_cards import card_in_force
from ledger.budgets import Budget, BudgetError, Draw, DrawRefused, Voucher, issue_voucher, redeem_voucher
from ledger.ratecard import DAY_US

# Letters and digits that nobody mistakes for one another: 31 of them, so 24 have 118 bits.
ALPHABET: Final = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
GROUPS: Final = 4
GROUP_CHARS: Final = 6
PREFIX: Final = "MLX"
COUNT_MAX: Final = 100


@dataclass(frozen=True)
class Issued:
    """Vouchers of one issue, with the codes that are shown only now."""

    budget_id: str
    amount_umlx: int
    expires_us: int
    codes: tuple[tuple[str, str], ...]
    """(voucher id, code)"""


@dataclass(frozen=True)
class Redeemed:
    """What a voucher brought; `is_replay`: the same account had redeemed it before."""

    voucher_id: str
    amount_umlx: int
    is_replay: bool


def canonical(code: str) -> str:
    """A code as it is hashed: capital letters and digits alone, however it was typed."""
    return "".join(character for character in code.upper() if character.isalnum())


def new_code() -> str:
    """A fresh code such as `MLX-ABCDEF-…`, four groups of six."""
    letters = "".join(ALPHABET[value] for value in _uniform(GROUPS * GROUP_CHARS))
    groups = (letters[start : start + GROUP_CHARS] for start in range(0, len(letters), GROUP_CHARS))
    return "-".join((PREFIX, *groups))


def _uniform(count: int) -> list[int]:
    """Numbers below the alphabet's length, each as likely: bytes beyond a whole multiple are dropped."""
    limit = 256 - 256 % len(ALPHABET)
    found: list[int] = []
    while len(found) < count:
        found += [value % len(ALPHABET) for value in clock.random_bytes(2 * count) if value < limit]
    return found[:count]


def issue_vouchers(
    session: Session, *, amount_umlx: int, days: int, count: int, budget_id: str | None, now_us: int
) -> Issued:
    """Issue `count` vouchers of one amount under one budget, or none. Raises 404, 409."""
    card = card_in_force(session, now_us)
    refusal: str | None = None
    for candidate in [budget_id] if budget_id else usable_budgets(session, "vouchers", now_us=now_us):
        try:
            budget = lock_budget(session, candidate, card)
        except BudgetError as error:
            refusal = str(error)
            continue
        issued = _issue(session, budget, amount_umlx, now_us + days * DAY_US, count, now_us=now_us)
        if isinstance(issued, Issued):
            return issued
        refusal = f"budget {budget.id} refuses it: {issued.reason}"
    if refusal is None:
        refusal = "no budget for vouchers is in force; two operators sign one: mlx-network budget draft"
    raise ApiError(409, "no_budget", f"No voucher was issued: {refusal}.", type="conflict_error")


def _issue(
    session: Session, budget: Budget, amount_umlx: int, expires_us: int, count: int, *, now_us: int
) -> Issued | DrawRefused:
    committed = drawn_umlx(session, budget.id) + promised_umlx(session, budget.id, now_us=now_us)
    rows: list[VoucherRow] = []
    codes: list[tuple[str, str]] = []
    for _ in range(count):
        code = new_code()
        digest = hashlib.sha256(canonical(code).encode()).hexdigest()
        voucher = Voucher(
            id=new_id("voucher"),
            budget_id=budget.id,
            code_sha256=digest,
            amount_umlx=amount_umlx,
            expires_us=expires_us,
        )
        decision = issue_voucher(voucher, budget, committed_umlx=committed, now_us=now_us)
        if isinstance(decision, DrawRefused):
            return decision
        committed += amount_umlx
        codes.append((voucher.id, code))
        rows.append(VoucherRow(**vars(voucher), issued_us=now_us))
    session.add_all(rows)
    session.flush()
    return Issued(budget.id, amount_umlx, expires_us, tuple(codes))


def redeem(session: Session, account_id: str, code: str, *, now_us: int) -> Redeemed:
    """Credit a voucher to the account, once. Raises 404 for a wrong code, 409 for a used or old one."""
    shown = canonical(code)
    digest = hashlib.sha256(shown.encode()).hexdigest()
    row = session.scalars(
        select(VoucherRow).where(VoucherRow.code_sha256 == digest).with_for_update()
    ).one_or_none()
    if row is None:
        raise ApiError(
            404,
            "voucher_not_found",
            "Invalid 'code': no voucher has this code; check it letter by letter.",
            type="not_found_error",
            param="code",
        )
    if row.redeemed_by == account_id:
        return Redeemed(row.id, row.amount_umlx, is_replay=True)
    voucher = Voucher(
        id=row.id,
        budget_id=row.budget_id,
        code_sha256=row.code_sha256,
        amount_umlx=row.amount_umlx,
        expires_us=row.expires_us,
    )
    is_redeemed = row.redeemed_us is not None

    def decide(_budget: Budget, _drawn_umlx: int) -> Draw | DrawRefused:
        # What it promises was counted against the cap when it was issued.
        return redeem_voucher(
            voucher, shown, account_id=f"user:{account_id}", is_redeemed=is_redeemed, now_us=now_us
        )

    try:
        decision = draw_from(session, voucher.budget_id, decide, now_us=now_us)
    except BudgetError:
        raise _unusable("its budget is void: an operator who signed it is one no more") from None
    if isinstance(decision, DrawRefused):
        raise _unusable("its time is over" if decision.reason == "expired" else "it was redeemed before")
    row.redeemed_us, row.redeemed_by = now_us, account_id
    session.flush()
    return Redeemed(row.id, row.amount_umlx, is_replay=False)


def _unusable(why: str) -> ApiError:
    return ApiError(
        409,
        "voucher_not_usable",
        f"Invalid 'code': {why}.",
        type="conflict_error",
        param="code",
        should_retry=False,
    )
