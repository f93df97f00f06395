"""The calculator's form: numbers as people write them, faults by field, and no answer to nonsense."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.world.test_market import offer
from web_world.calculator_form import EXAMPLE, NUMBERS, example, parse_number, read_form
from web_world.market import GIB, Mac, Market, MarketFacts, Speeds, advance

MODEL = "small"


def forecast(model: str, mac: Mac, macs: int) -> Speeds:
    assert model == MODEL
    return Speeds("single", mac.memory_bytes >= 16 * GIB, 500.0 * macs, 50.0, 10 * GIB, mac.memory_bytes)


MARKET = replace(
    advance(None, MarketFacts(models=(offer(MODEL, 10),))),
    chips=(("M4", 10), ("M4 Pro", 20)),
    forecast=forecast,
)
FILLED = {"mac": "M4 Pro:20", "model": MODEL, **EXAMPLE}


@pytest.mark.parametrize(
    ("text", "language", "value"),
    [
        ("2400", "en", 2400),
        ("2,400", "en", 2400),
        ("2,400.5", "en", 2400.5),
        ("0.3", "en", 0.3),
        ("0,3", "en", 0.3),
        ("0,3", "pl", 0.3),
        ("0.3", "pl", 0.3),
        ("2\xa0400,5", "pl", 2400.5),
        ("2 400,5", "pl", 2400.5),
        ("2 400", "en", 2400),
        ("\u0662\u066c\u0664\u0660\u0660\u066b\u0665", "ar", 2400.5),
        ("\u06f0\u066b\u06f3", "ur", 0.3),
        ("1,200", "ur", 1200),
        ("", "en", None),
        ("ten", "en", None),
        ("nan", "en", None),
        ("inf", "en", None),
        ("1e999", "en", None),
        ("1e3", "en", None),
        ("1_0", "en", None),
        ("+5", "en", None),
        ("1" * 65, "en", None),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, language: str, value: float | None) -> None:
    assert parse_number(text, language) == value


@given(st.text(max_size=80), st.sampled_from(["en", "ar", "pl", "ur"]))
def test_no_text_breaks_the_reading_of_a_number(text: str, language: str) -> None:
    _ = parse_number(text, language)


@given(st.dictionaries(st.sampled_from([*FILLED, "other"]), st.text(max_size=80)))
def test_whatever_is_asked_there_is_an_answer_or_a_fault(query: dict[str, str]) -> None:
    form = read_form({**FILLED, **query}, MARKET, "en")
    assert (form.answer is None) == bool(form.faults)


def test_before_anything_is_typed_nothing_is_wrong_and_nothing_is_said() -> None:
    form = read_form({}, MARKET, "pl")
    assert not form.is_asked
    assert form.answer is None
    assert not form.faults
    assert (form.values["currency"], form.values["price"], form.values["mac"]) == ("PLN", "", "M4 Pro:20")


def test_each_fault_names_its_field_and_its_bounds() -> None:
    query = FILLED | {
        "price": "",
        "years": "100",
        "kwh": "cheap",
        "mac": "M9",
        "memory": "7",
        "macs": "99",
        "model": "x",
        "currency": "XYZW",
    }
    faults = read_form(query, MARKET, "en").faults
    assert {name: fault.kind for name, fault in faults.items()} == {
        "price": "missing",
        "years": "out_of_range",
        "kwh": "not_a_number",
        "mac": "unknown",
        "memory": "unknown",
        "macs": "unknown",
        "model": "unknown",
        "currency": "unknown",
    }
    assert (faults["years"].least, faults["years"].most) == (0.5, 20)


def test_the_bounds_themselves_are_allowed_and_the_price_elsewhere_may_be_left_out() -> None:
    for field in NUMBERS:
        for value in (field.least, field.most):
            assert read_form(FILLED | {field.name: repr(value)}, MARKET, "en").answer is not None
    form = read_form(FILLED | {"cloud": ""}, MARKET, "en")
    assert form.answer is not None
    assert form.answer.single.verdict is None


def test_the_example_is_written_as_the_language_writes_numbers() -> None:
    assert example(MARKET, "pl")["kwh"] == "0,3"
    assert example(MARKET, "ar")["kwh"] == example(MARKET, "en")["kwh"] == "0.3"
    answers = [read_form(example(MARKET, code), MARKET, code).answer for code in ("en", "ar", "pl", "ur")]
    assert all(answer is not None and answer == answers[0] for answer in answers)


def test_the_example_is_answered() -> None:
    form = read_form(example(MARKET, "en"), MARKET, "en")
    assert form.answer is not None
    assert form.answer.choice.model.offer.id == MODEL
    assert form.answer.choice.currency == "EUR"
    # 1 MLX a million read and 10 written, a fifth of them written; sixty million.
    assert form.answer.umlx_per_million == 2_800_000
    assert form.answer.umlx_per_month == 168_000_000


def test_what_lending_pays_for_is_told_in_tokens_and_only_where_earnings_are() -> None:
    form = read_form(FILLED, MARKET, "en")
    assert form.answer is not None
    assert form.answer.lent_tokens is None
    classes = tuple(replace(each, earned_umlx=5_600_000) for each in MARKET.classes)
    form = read_form(FILLED, replace(MARKET, classes=classes), "en")
    assert form.answer is not None
    assert form.answer.lent_tokens == 2_000_000


def test_without_a_catalogue_there_is_no_answer_and_no_error() -> None:
    form = read_form(FILLED, Market(), "en")
    assert form.answer is None
    assert not form.faults
