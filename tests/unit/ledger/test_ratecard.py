"""The rate card is whole, frozen and named by its content; prices follow from bytes."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.catalogue.cards import load_catalogue
from ledger.pricing import Rate
from ledger.ratecard import (
    CARD,
    SEATS,
    AvailabilityRates,
    FeeRates,
    PolicyRates,
    PriceRates,
    RateCard,
    changes,
    output_tokens_per_mlx,
    pod_factor_ppm,
    prices_for,
    split_fee,
)

GB = 10**9


def test_the_card_in_force_has_this_digest() -> None:
    """Published: jobs name it. A changed rate needs a new version and a new line here."""
    assert (CARD.version, CARD.id) == (1, "fc541098f018f881ea8591553be4b78beab87b0033b360ca84b9b01606ae4c48")


def test_a_card_is_read_back_from_its_body_in_any_order_and_spacing() -> None:
    other = replace(CARD, version=7, fees=FeeRates(fee_ppm=1, treasury_ppm=600_000))
    for card in (CARD, other):
        assert RateCard.from_body(card.body) == card
        loose = json.dumps(dict(reversed(json.loads(card.body).items())), indent=2)
        assert RateCard.from_body(loose).id == card.id


GONE = object()


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        (None, "version", GONE, "version is missing"),
        (None, "fees", GONE, "fees is missing"),
        ("fees", "fee_ppm", GONE, "fee_ppm is missing in fees"),
        ("fees", "bonus_ppm", 1, "bonus_ppm is no field of fees"),
        (None, "extra", {}, "extra is no field"),
        (None, "version", True, "version must be an integer"),
        ("prices", "minimum_umlx", [1], "minimum_umlx must be an integer"),
        ("prices", "minimum_umlx", 1.0, "minimum_umlx must be an integer"),
        ("prices", "minimum_umlx", "1", "minimum_umlx must be an integer"),
        ("prices", "minimum_umlx", -1, "minimum_umlx must be an integer"),
        (None, "seats", [], "seats must be an object"),
        ("fees", "treasury_ppm", 0, "must sum to 1000000"),
        ("availability", "service_levels", 3, "service_levels must be a list of pairs"),
        ("availability", "service_levels", [[1]], "service_levels must be a list of pairs"),
        ("availability", "service_levels", [[1, 0.5]], "service_levels must be an integer"),
    ],
)
def test_a_bad_body_is_refused_by_name(part: str | None, name: str, value: object, said: str) -> None:
    card: dict[str, Any] = json.loads(CARD.body)
    target: dict[str, Any] = card if part is None else card[part]
    if value is GONE:
        del target[name]
    else:
        target[name] = value
    with pytest.raises(ValueError, match=said):
        RateCard.from_body(json.dumps(card))


@pytest.mark.parametrize("body", ["", "[]", "{", "[" * 100_000])
def test_what_is_no_object_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match="the card"):
        RateCard.from_body(body)


def test_any_changed_rate_changes_the_id() -> None:
    others = [
        replace(CARD, version=2),
        replace(CARD, prices=PriceRates(minimum_umlx=101)),
        replace(CARD, fees=FeeRates(fee_ppm=100_001)),
        replace(CARD, availability=AvailabilityRates(cap_umlx_per_day=1)),
        replace(CARD, policy=PolicyRates(notice_us=1)),
    ]
    assert len({card.id for card in (CARD, *others)}) == len(others) + 1


def test_the_card_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        CARD.version = 2  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ({"prices": PriceRates(input_ppm=-1)}, "input_ppm"),
        ({"prices": PriceRates(input_ppm=0.1)}, "input_ppm"),  # pyright: ignore[reportArgumentType]
        ({"prices": PriceRates(minimum_umlx=True)}, "minimum_umlx"),
        ({"prices": PriceRates(cached_input_ppm=1_000_001)}, "cached_input_ppm"),
        ({"prices": PriceRates(reserved_seat_ppm=999_999)}, "reserved_seat_ppm"),
        ({"fees": FeeRates(fee_ppm=1_000_001)}, "fee_ppm"),
        ({"fees": FeeRates(treasury_ppm=600_001)}, "treasury_ppm"),
        ({"availability": AvailabilityRates(idle_umlx_per_point_hour=50_000)}, "umlx_per_point_hour"),
        ({"availability": AvailabilityRates(ultra_umlx_per_point_hour=50_000)}, "umlx_per_point_hour"),
        ({"availability": AvailabilityRates(measured_ppm=1_000_001)}, "measured_ppm"),
        ({"availability": AvailabilityRates(memory_bytes_per_point=0)}, "memory_bytes_per_point"),
        (
            {"availability": AvailabilityRates(service_levels=((950_000, 500_000), (990_000, 1_000_000)))},
            "service_levels",
        ),
        ({"availability": AvailabilityRates(service_levels=((990_000, 400_000),))}, "service_levels"),
    ],
)
def test_a_card_that_contradicts_itself_is_refused(part: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        RateCard(version=2, **part)  # pyright: ignore[reportArgumentType]


@given(read=st.integers(1, 10**12), more=st.integers(0, 10**12))
def test_prices_are_the_nearest_integers_of_the_formula(read: int, more: int) -> None:
    resident = read + more
    rate = prices_for(read, resident)
    exact = Fraction(10_000_000 * read + 20_000 * resident, GB)
    assert abs(rate.output_umlx_per_million - exact) <= Fraction(1, 2)
    assert abs(rate.input_umlx_per_million - Fraction(rate.output_umlx_per_million, 10)) <= Fraction(1, 2)
    cached = Fraction(rate.input_umlx_per_million, 4)
    assert abs(rate.cached_input_umlx_per_million - cached) <= Fraction(1, 2)


@pytest.mark.parametrize(("read", "resident"), [(0, 1), (2, 1), (-1, 1), (1.0, 2), (1, 2.0)])
def test_prices_of_no_bytes_are_refused(read: int, resident: int) -> None:
    with pytest.raises(ValueError, match="bytes_re"):
        prices_for(read, resident)


def test_the_catalogue_asks_the_prices_of_the_rate_card() -> None:
    for card in load_catalogue().cards.values():
        shape = card.shape
        kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * shape.activation_bytes
        rate = prices_for(card.weights_bytes, card.weights_bytes + card.context_tokens * kv_bytes)
        assert card.price.model_dump() == vars(rate)


@pytest.mark.parametrize(
    ("members", "speedup_ppm", "factor_ppm"),
    [
        (2, 1_800_000, 1_111_111),
        (4, 3_200_000, 1_250_000),
        (4, 1_000_000, 1_500_000),
        (2, 2_500_000, 1_000_000),
        (1, 1_000_000, 1_000_000),
    ],
)
def test_a_pod_costs_what_keeps_its_members_whole(members: int, speedup_ppm: int, factor_ppm: int) -> None:
    assert pod_factor_ppm(members, speedup_ppm) == factor_ppm


@given(st.integers(0, 10**18))
def test_a_fee_is_split_exactly(fee: int) -> None:
    parts = split_fee(fee)
    assert parts.treasury_umlx + parts.availability_pool_umlx + parts.audit_pool_umlx == fee
    assert min(vars(parts).values()) >= 0


def test_a_fee_of_ten_goes_six_two_two() -> None:
    assert tuple(vars(split_fee(10)).values()) == (6, 2, 2)


def test_changes_name_each_rate() -> None:
    coming = replace(CARD, version=2, fees=FeeRates(fee_ppm=50_000))
    assert changes(CARD, coming) == {"fees.fee_ppm": (100_000, 50_000)}


def test_what_one_mlx_buys() -> None:
    """8 GB read, 10 GB resident: 80.2 uMLX a token."""
    assert output_tokens_per_mlx(prices_for(8 * GB, 10 * GB)) == 12_468
    assert output_tokens_per_mlx(Rate(0, 0, 0, 0)) is None


def test_seats_rise() -> None:
    assert [CARD.umlx_per_point_hour(seat) for seat in SEATS] == [20_000, 50_000, 100_000]
