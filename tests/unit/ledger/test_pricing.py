"""Prices are whole, rounded once and up, bounded before; shares lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.pricing import PER_MILLION, Rate, bound_umlx, charge_umlx, split_charge, split_shares

RATE = Rate(
    input_umlx_per_million=1_000_000,
    cached_input_umlx_per_million=250_000,
    output_umlx_per_million=10_000_001,
    minimum_umlx=100,
)

rates = st.integers(0, 10**9)
tokens = st.integers(0, 10**6)


@pytest.mark.parametrize(
    ("counts", "umlx"),
    [
        ((0, 0, 0), 100),
        ((99, 0, 0), 100),
        ((100, 0, 0), 100),
        ((101, 0, 0), 101),
        ((101, 101, 0), 100),
        ((400, 400, 1), 111),
        ((0, 0, 10), 101),
        ((200, 3, 0), 198),
    ],
)
def test_a_charge(counts: tuple[int, int, int], umlx: int) -> None:
    assert charge_umlx(RATE, *counts) == umlx


@given(rates, rates, rates, st.integers(0, 1000), tokens, tokens, tokens)
def test_a_charge_is_the_exact_price_rounded_up_and_within_the_bound(
    dear: int, cheap: int, output: int, minimum: int, prompt: int, cached: int, made: int
) -> None:
    rate = Rate(max(dear, cheap), min(dear, cheap), output, minimum)
    cached = min(cached, prompt)
    exact = Fraction(
        (prompt - cached) * max(dear, cheap) + cached * min(dear, cheap) + made * output, PER_MILLION
    )
    charge = charge_umlx(rate, prompt, cached, made)
    assert charge == minimum or exact <= charge < exact + 1
    assert charge >= exact and charge >= minimum
    assert charge <= bound_umlx(rate, prompt, made)


@pytest.mark.parametrize(
    ("charge", "owner", "fee"), [(0, 0, 0), (1, 0, 1), (9, 8, 1), (10, 9, 1), (11, 9, 2), (100, 90, 10)]
)
def test_the_fee_is_ten_percent_rounded_up(charge: int, owner: int, fee: int) -> None:
    assert split_charge(charge) == (owner, fee)


@given(st.integers(0, 10**18), st.integers(0, PER_MILLION))
def test_fee_and_owner_are_the_charge(charge: int, fee_ppm: int) -> None:
    owner, fee = split_charge(charge, fee_ppm)
    assert owner + fee == charge and owner >= 0
    assert 0 <= fee - Fraction(charge * fee_ppm, PER_MILLION) < 1


@given(st.integers(0, 10**15), st.dictionaries(st.text(max_size=3), st.integers(0, 10**6), min_size=1))
def test_shares_are_the_amount_each_within_one(amount: int, weights: dict[str, int]) -> None:
    if sum(weights.values()) == 0:
        with pytest.raises(ValueError, match="weight"):
            split_shares(amount, weights)
        return
    parts = split_shares(amount, weights)
    assert sum(parts.values()) == amount
    total = sum(weights.values())
    assert all(abs(parts[name] - Fraction(amount * weight, total)) < 1 for name, weight in weights.items())
    assert parts == split_shares(amount, dict(reversed(weights.items())))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: charge_umlx(RATE, -1, 0, 0), "input_tokens"),
        (lambda: charge_umlx(RATE, 1, 2, 0), "cached_tokens"),
        (lambda: charge_umlx(RATE, 1, 0, 10**9 + 1), "output_tokens"),
        (lambda: Rate(1, 2, 3, 0), "cached_input"),
        (lambda: Rate(-1, -1, 3, 0), "input_umlx"),
        (lambda: split_charge(-1), "charge"),
        (lambda: split_charge(1, PER_MILLION + 1), "fee_ppm"),
        (lambda: split_shares(1, {"a": -1, "b": 2}), "weight"),
        (lambda: split_shares(1, {}), "weight"),
    ],
)
def test_bad_numbers_are_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
