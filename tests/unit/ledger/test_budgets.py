"""Nothing is minted but under a signed, unexpired budget, within its cap, by rule."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ledger.budgets import (
    Budget,
    BudgetError,
    Draw,
    DrawRefused,
    FirstHour,
    Purpose,
    SignedBudget,
    Voucher,
    check_signatures,
    commons_allowance_umlx,
    draw,
    grant_first_hour,
    issue_voucher,
    redeem_voucher,
    top_up_pool,
)
from ledger.ratecard import CARD, HOUR_US
from ledger.signatures import verify_ed25519

MLX = 1_000_000
BUDGET = Budget(
    id="budget_1",
    purpose="grants",
    reason="First hours of spring",
    cap_umlx=12 * MLX,
    valid_from_us=1_000,
    expires_us=2_000,
)
PRIVATE = {
    name: Ed25519PrivateKey.from_private_bytes(bytes([index]) * 32) for index, name in enumerate("abc", 1)
}
KEYS = {name: key.public_key().public_bytes_raw() for name, key in PRIVATE.items()}


def signed(*names: str, budget: Budget = BUDGET) -> SignedBudget:
    return SignedBudget(budget, {name: PRIVATE[name].sign(BUDGET.message) for name in names})


def test_two_operators_make_a_budget_valid() -> None:
    assert check_signatures(signed("c", "a"), KEYS, CARD) == ("a", "c")


@pytest.mark.parametrize(
    "bad",
    [
        signed("a"),
        signed(),
        signed("a", "b", budget=replace(BUDGET, cap_umlx=13 * MLX)),
        SignedBudget(BUDGET, {"a": PRIVATE["a"].sign(BUDGET.message), "b": bytes(64)}),
        SignedBudget(
            BUDGET, {"a": PRIVATE["a"].sign(BUDGET.message), "x": PRIVATE["b"].sign(BUDGET.message)}
        ),
        SignedBudget(BUDGET, {"a": PRIVATE["a"].sign(BUDGET.message), "b": b"short"}),
    ],
)
def test_too_few_signatures_or_another_content_make_it_void(bad: SignedBudget) -> None:
    with pytest.raises(BudgetError, match="needs 2"):
        check_signatures(bad, KEYS, CARD)


def test_one_key_under_two_names_counts_once() -> None:
    keys = {"a": KEYS["a"], "b": KEYS["a"]}
    twice = SignedBudget(BUDGET, dict.fromkeys(keys, PRIVATE["a"].sign(BUDGET.message)))
    with pytest.raises(BudgetError, match="1 valid"):
        check_signatures(twice, keys, CARD)


def test_a_key_that_is_none_verifies_nothing() -> None:
    assert not verify_ed25519(b"short", bytes(64), b"")


def test_the_verification_can_be_another() -> None:
    assert check_signatures(signed("a", "b"), KEYS, CARD, lambda _key, _signature, _message: True) == (
        "a",
        "b",
    )
    with pytest.raises(BudgetError, match="0 valid"):
        check_signatures(signed("a", "b"), KEYS, CARD, lambda _key, _signature, _message: False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cap_umlx": 0}, "cap_umlx"),
        ({"cap_umlx": 1.5}, "cap_umlx"),
        ({"expires_us": 1_000}, "expires_us"),
        ({"reason": " "}, "reason"),
        ({"purpose": "gifts"}, "purpose"),
    ],
)
def test_a_malformed_budget_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        replace(BUDGET, **change)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("purpose", "amount", "drawn", "now", "refusal"),
    [
        ("grants", 1, 0, 1_000, None),
        ("grants", 12 * MLX, 0, 1_999, None),
        ("grants", 1, 12 * MLX - 1, 1_500, None),
        ("grants", 1, 12 * MLX, 1_500, "cap_reached"),
        ("grants", 2, 12 * MLX - 1, 1_500, "cap_reached"),
        ("grants", 1, 0, 999, "not_yet_valid"),
        ("grants", 1, 0, 2_000, "expired"),
        ("vouchers", 1, 0, 1_500, "wrong_purpose"),
    ],
)
def test_a_draw(purpose: Purpose, amount: int, drawn: int, now: int, refusal: str | None) -> None:
    result = draw(
        BUDGET,
        purpose=purpose,
        account_id="user:ann",
        amount_umlx=amount,
        drawn_umlx=drawn,
        now_us=now,
        reference="grant",
    )
    expected = DrawRefused(refusal) if refusal else Draw("budget_1", "user:ann", amount, "grant")  # pyright: ignore[reportArgumentType]
    assert result == expected


@given(st.lists(st.integers(1, 5 * MLX), max_size=30))
def test_draws_never_pass_the_cap(amounts: list[int]) -> None:
    drawn = 0
    for amount in amounts:
        result = draw(
            BUDGET,
            purpose="grants",
            account_id="user:ann",
            amount_umlx=amount,
            drawn_umlx=drawn,
            now_us=1_500,
            reference="",
        )
        drawn += result.amount_umlx if isinstance(result, Draw) else 0
    assert drawn <= BUDGET.cap_umlx


FIRST_HOUR = FirstHour(
    owner="ann",
    device="device_1",
    lent_us=HOUR_US,
    is_measured=True,
    has_passed_check=True,
    owner_was_granted=False,
    device_was_granted=False,
)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"lent_us": HOUR_US - 1}, "hour_not_full"),
        ({"is_measured": False}, "not_verified"),
        ({"has_passed_check": False}, "not_verified"),
        ({"owner_was_granted": True}, "already_granted"),
        ({"device_was_granted": True}, "already_granted"),
    ],
)
def test_the_grant_is_for_the_first_verified_hour_only(change: dict[str, object], refusal: str) -> None:
    granted = grant_first_hour(FIRST_HOUR, BUDGET, drawn_umlx=0, now_us=1_500, card=CARD)
    assert granted == Draw("budget_1", "user:ann", 5 * MLX, "grant:first_hour:device_1")
    facts = replace(FIRST_HOUR, **change)  # pyright: ignore[reportArgumentType]
    assert grant_first_hour(facts, BUDGET, drawn_umlx=0, now_us=1_500, card=CARD) == DrawRefused(refusal)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("pool", "drawn", "amount"),
    [
        (0, 0, 10_000 * MLX),
        (9_000 * MLX, 0, 1_000 * MLX),
        (0, 24_000 * MLX, 1_000 * MLX),
        (10_000 * MLX, 0, None),
        (10_001 * MLX, 0, None),
        (0, 25_000 * MLX, None),
    ],
)
def test_the_pool_is_filled_to_one_days_cap(pool: int, drawn: int, amount: int | None) -> None:
    budget = replace(BUDGET, purpose="availability", cap_umlx=25_000 * MLX)
    result = top_up_pool(
        budget, pool_balance_umlx=pool, day="2026-03-01", drawn_umlx=drawn, now_us=1_500, card=CARD
    )
    assert (result.amount_umlx if isinstance(result, Draw) else None) == amount
    if isinstance(result, Draw):
        assert (result.account_id, result.reference) == ("pool:availability", "top_up:2026-03-01")


VOUCHERS = replace(BUDGET, id="budget_2", purpose="vouchers")
VOUCHER = Voucher(
    id="voucher_1",
    budget_id="budget_2",
    code_sha256=hashlib.sha256(b"CODE").hexdigest(),
    amount_umlx=4 * MLX,
    expires_us=5_000,
)


def test_vouchers_are_covered_when_they_are_issued() -> None:
    assert isinstance(issue_voucher(VOUCHER, VOUCHERS, committed_umlx=8 * MLX, now_us=1_500), Draw)
    assert issue_voucher(VOUCHER, VOUCHERS, committed_umlx=8 * MLX + 1, now_us=1_500) == DrawRefused(
        "cap_reached"
    )
    assert issue_voucher(VOUCHER, BUDGET, committed_umlx=0, now_us=1_500) == DrawRefused("wrong_purpose")


def test_a_voucher_is_redeemed_once_with_its_code_in_its_time() -> None:
    def redeem(code: str = "CODE", *, is_redeemed: bool = False, now_us: int = 4_999) -> Draw | DrawRefused:
        return redeem_voucher(VOUCHER, code, account_id="user:ann", is_redeemed=is_redeemed, now_us=now_us)

    assert redeem() == Draw("budget_2", "user:ann", 4 * MLX, "voucher:voucher_1")
    assert redeem("code") == DrawRefused("wrong_code")
    assert redeem(is_redeemed=True) == DrawRefused("already_redeemed")
    assert redeem(now_us=5_000) == DrawRefused("expired")


@pytest.mark.parametrize(
    ("pool", "busy_ppm", "spent", "allowance"),
    [
        (10_000 * MLX, 0, 0, 2_500 * MLX),
        (10_000 * MLX, 499_999, 2_000 * MLX, 500 * MLX),
        (10_000 * MLX, 500_000, 0, 0),
        (100, 0, 0, 100),
        (10_000 * MLX, 0, 3_000 * MLX, 0),
    ],
)
def test_public_work_is_paid_while_paid_demand_is_low(
    pool: int, busy_ppm: int, spent: int, allowance: int
) -> None:
    assert commons_allowance_umlx(pool, busy_ppm, spent, CARD) == allowance
