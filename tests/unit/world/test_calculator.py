"""Buy, lend or send: costs move the way they must, and breaking even is where the two lines cross."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from web_world import calculator
from web_world.calculator import (
    DAYS_PER_MONTH,
    MONTHS_MAX,
    Running,
    Wishes,
    break_even_month,
    cloud_until,
    network_umlx_per_million,
    own,
    own_until,
    running,
    span,
    work_hours,
)
from web_world.market import GIB, Speeds

ROOT = Path(__file__).parents[3]
SPEEDS = Speeds("single", True, 500.0, 50.0, 10 * GIB, 20 * GIB)


def amounts(most: float = 1e6) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False)


WISHES = st.builds(
    Wishes,
    price=amounts(),
    years=st.floats(0.5, 20),
    idle_watts=amounts(2_000),
    load_watts=amounts(5_000),
    price_per_kwh=amounts(1_000),
    hours_per_day=st.floats(0.1, 24),
    tokens_per_month=st.floats(1e3, 1e12),
    written=st.floats(0, 1),
    cloud_per_million=amounts(1e4),
)
TYPED = Wishes(
    price=2_400,
    years=3,
    idle_watts=6,
    load_watts=70,
    price_per_kwh=0.3,
    hours_per_day=24,
    tokens_per_month=60e6,
    written=0.2,
    cloud_per_million=2.0,
)


def cost(wishes: Wishes, macs: int = 1) -> Running:
    return span(wishes, SPEEDS, macs).likely


# -- by hand -------------------------------------------------------------------------------------


def test_a_case_reckoned_by_hand() -> None:
    found = cost(TYPED)
    # 48 million read at 500 a second, 12 million written at 50.
    hours = 48e6 / 500 / 3600 + 12e6 / 50 / 3600
    assert found.work_hours == pytest.approx(hours) == pytest.approx(93.333, abs=1e-3)
    kwh = (hours * 70 + (730.5 - hours) * 6) / 1000
    assert found.kwh == pytest.approx(kwh)
    assert found.purchase_per_month == pytest.approx(66.667, abs=1e-3)
    assert found.per_month == pytest.approx(2_400 / 36 + kwh * 0.3)
    assert found.per_million == pytest.approx(found.per_month / 60)
    assert found.is_enough
    # 120 a month in the cloud, 3.10 for power: 2,400 are saved after 20.5 months.
    assert break_even_month(TYPED, found) == 21


def test_the_network_is_priced_by_what_is_read_and_what_is_written() -> None:
    assert network_umlx_per_million(1_000_000, 10_000_000, 0.2) == 2_800_000
    assert network_umlx_per_million(1_000_000, 10_000_000, 0.0) == 1_000_000
    assert network_umlx_per_million(1_000_000, 10_000_000, 1.0) == 10_000_000
    assert network_umlx_per_million(1, 2, 0.5) == 2  # up, as every price is


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "buy"),
        ({"cloud_per_million": None}, None),
        ({"cloud_per_million": 0.05}, "do_not_buy"),
        ({"price": 3_950.0}, "unclear"),
        ({"years": 1.0}, "do_not_buy"),
        ({"price": 0.0}, "buy"),
        ({"hours_per_day": 1.0}, "too_slow"),
        ({"hours_per_day": 3.5}, "unclear"),
    ],
)
def test_the_verdict(change: dict[str, float], verdict: str | None) -> None:
    # What is unclear by price alone needs power that costs something.
    wishes = replace(TYPED, price_per_kwh=1.0) if change.get("price") else TYPED
    assert own(replace(wishes, **change), SPEEDS, 1).verdict == verdict


def test_what_does_not_fit_is_not_bought_for_it() -> None:
    assert own(TYPED, replace(SPEEDS, fits=False), 1).verdict == "does_not_fit"


def test_the_errors_are_those_that_were_measured() -> None:
    table = (ROOT / "docs" / "placement.md").read_text()
    for name, median, most in (
        ("decoding", calculator.WRITE_ERROR_MEDIAN, calculator.WRITE_ERROR),
        ("prompt", calculator.READ_ERROR_MEDIAN, calculator.READ_ERROR),
    ):
        row = re.search(rf"\| {name}, source left out \| \d+ \| ([\d.]+) % \| ([\d.]+) % \|", table)
        assert row is not None
        assert [float(each) / 100 for each in row.groups()] == pytest.approx([median, most])


# -- laws ----------------------------------------------------------------------------------------


@given(WISHES, st.sampled_from(["price", "idle_watts", "load_watts", "price_per_kwh"]), amounts(1_000))
def test_what_costs_more_never_makes_it_cheaper(wishes: Wishes, name: str, more: float) -> None:
    dearer = replace(wishes, **{name: getattr(wishes, name) + more})
    before, after = span(wishes, SPEEDS, 1), span(dearer, SPEEDS, 1)
    for one, other in zip((before.likely, before.slow, before.fast), _all(after), strict=True):
        assert other.per_million >= one.per_million
        assert (break_even_month(dearer, other) or MONTHS_MAX + 1) >= (
            break_even_month(wishes, one) or (MONTHS_MAX + 1 if one.price else 0)
        )


def _all(found: calculator.Span) -> tuple[Running, Running, Running]:
    return found.likely, found.slow, found.fast


@given(WISHES, st.floats(0, 24))
def test_longer_hours_cost_no_less_and_do_no_less(wishes: Wishes, more: float) -> None:
    assume(wishes.hours_per_day + more <= 24)
    longer = replace(wishes, hours_per_day=wishes.hours_per_day + more)
    before, after = cost(wishes), cost(longer)
    assert after.per_million >= before.per_million
    assert after.is_enough >= before.is_enough


@given(WISHES, st.floats(1, 20))
def test_a_mac_that_is_used_longer_costs_no_more_a_month(wishes: Wishes, factor: float) -> None:
    longer = replace(wishes, years=wishes.years * factor)
    assert cost(longer).per_month <= cost(wishes).per_month * (1 + 1e-12)


@given(WISHES)
@example(replace(TYPED, price=100.0, cloud_per_million=1.0, price_per_kwh=0.0, tokens_per_month=1e6))
@example(replace(TYPED, price=0.0))
def test_breaking_even_is_where_the_two_lines_cross(wishes: Wishes) -> None:
    found = cost(wishes)
    month = break_even_month(wishes, found)
    if month is None:
        assert own_until(MONTHS_MAX, found) > cloud_until(MONTHS_MAX, wishes) * (1 - 1e-9)
        return
    assert own_until(month, found) <= cloud_until(month, wishes) or found.price == 0
    assert month == 0 or own_until(month - 1, found) > cloud_until(month - 1, wishes)


@given(WISHES)
def test_the_slow_end_is_the_dearer_and_the_later_one(wishes: Wishes) -> None:
    assume(wishes.load_watts >= wishes.idle_watts)
    found = own(wishes, SPEEDS, 1)
    slow, fast = found.span.slow, found.span.fast
    assert fast.work_hours < found.span.likely.work_hours < slow.work_hours
    assert fast.per_million <= found.span.likely.per_million * (1 + 1e-12)
    assert found.span.likely.per_million <= slow.per_million * (1 + 1e-12)
    assert fast.is_enough >= slow.is_enough
    assert found.pays is not None
    if found.pays.late is not None:
        assert found.pays.early is not None
        assert found.pays.likely is not None
        assert found.pays.early <= found.pays.likely <= found.pays.late


@given(WISHES, st.floats(0.001, 1000))
def test_another_currency_changes_every_cost_alike(wishes: Wishes, rate: float) -> None:
    other = replace(wishes, price=wishes.price * rate, price_per_kwh=wishes.price_per_kwh * rate)
    assert cost(other).per_million == pytest.approx(cost(wishes).per_million * rate)


@given(WISHES, st.sampled_from([0.25, 0.5, 2.0, 4.0, 1024.0]))
def test_units_cancel(wishes: Wishes, factor: float) -> None:
    # Powers of two are exact: watts by price for energy, tokens by speed, years by price.
    watts = replace(
        wishes,
        idle_watts=wishes.idle_watts * factor,
        load_watts=wishes.load_watts * factor,
        price_per_kwh=wishes.price_per_kwh / factor,
    )
    assert cost(watts).per_month == pytest.approx(cost(wishes).per_month, rel=1e-12)
    faster = replace(wishes, tokens_per_month=wishes.tokens_per_month * factor)
    hours = work_hours(faster, 500.0 * factor, 50.0 * factor)
    assert hours == pytest.approx(work_hours(wishes, 500.0, 50.0), rel=1e-12)
    kept = replace(wishes, price=wishes.price * factor, years=wishes.years * factor)
    assert cost(kept).purchase_per_month == pytest.approx(cost(wishes).purchase_per_month, rel=1e-12)


@given(WISHES, st.integers(1, 8), st.floats(0, 800))
def test_two_macs_that_do_the_same_each_cost_twice(wishes: Wishes, macs: int, hours: float) -> None:
    one, many = running(wishes, 1, hours), running(wishes, macs, hours)
    assert many.per_month == pytest.approx(macs * one.per_month)
    assert many.kwh == pytest.approx(macs * one.kwh)


@given(WISHES)
def test_a_month_has_no_more_hours_than_it_has(wishes: Wishes) -> None:
    found = cost(wishes)
    assert found.idle_hours + found.work_hours >= wishes.hours_per_month * (1 - 1e-12)
    assert wishes.hours_per_month <= 24 * DAYS_PER_MONTH
    assert found.is_enough == (found.work_hours <= wishes.hours_per_month)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0, 1))
def test_the_networks_price_lies_between_its_two_prices(read: int, write: int, written: float) -> None:
    found = network_umlx_per_million(read, write, written)
    assert min(read, write) <= found <= max(read, write)


@given(WISHES, st.integers(2, 4))
def test_macs_that_do_not_split_the_model_share_the_work_and_its_energy(wishes: Wishes, macs: int) -> None:
    alone, shared = cost(wishes), cost(wishes, macs)
    split = span(wishes, replace(SPEEDS, mode="tensor"), macs).likely
    assert shared.work_hours == pytest.approx(alone.work_hours / macs)
    assert split.work_hours == alone.work_hours
    idle = (macs - 1) * wishes.hours_per_month * wishes.idle_watts / 1000
    if alone.is_enough:
        assert shared.kwh == pytest.approx(alone.kwh + idle)
