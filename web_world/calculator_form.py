"""The calculator's form: what a reader typed, read in the page's language, and the answer to it. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Final, Literal, TypeVar

from babel import Locale
from babel.numbers import NumberFormatError, get_decimal_symbol, parse_decimal

from web_world.calculator import MILLION, Own, Wishes, network_umlx_per_million, own
from web_world.market import GIB, MEMORY_CLASSES, ClassView, Mac, Market, ModelView
from web_world.texts import NUMBERING

CLUSTERS: Final = (2, 3, 4)
"""Thunderbolt joins each Mac to each other one; four have ports enough for that."""
VALUE_CHARACTERS_MAX: Final = 64
# Digits and what stands between them: what parses numbers would take 1_0 and 1e3, too.
WRITTEN: Final = re.compile("[\u00a0]*-?[0-9.,\u00a0]+")
CURRENCIES: Final = {"en": "USD", "ar": "USD", "pl": "PLN", "ur": "PKR"}
"""What the field holds before anybody typed another one."""
EXAMPLE_MODELS: Final = ("qwen3-30b-a3b-4bit", "gpt-oss-20b-mxfp4-q8")
EXAMPLE: Final = {
    "memory": "48",
    "macs": "2",
    "price": "2400",
    "years": "3",
    "idle": "6",
    "load": "70",
    "kwh": "0.3",
    "hours": "24",
    "tokens": "60",
    "written": "20",
    "cloud": "0.6",
    "currency": "EUR",
}
"""Invented, and called so on the page."""

Found = TypeVar("Found")
FaultKind = Literal["missing", "not_a_number", "out_of_range", "unknown"]


@dataclass(frozen=True, slots=True)
class NumberField:
    """A number to be typed, what it may be, and what stands there before; an optional one may be
    left empty."""

    name: str
    least: float
    most: float
    default: str = ""
    is_optional: bool = False


NUMBERS: Final = (
    NumberField("price", 0, 1e9),
    NumberField("years", 0.5, 20, "3"),
    NumberField("idle", 0, 2_000),
    NumberField("load", 0, 5_000),
    NumberField("kwh", 0, 1e6),
    NumberField("hours", 0.1, 24, "24"),
    NumberField("tokens", 0.001, 1e6, "10"),
    NumberField("written", 0, 100, "20"),
    NumberField("cloud", 0, 1e7, is_optional=True),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one field cannot be used; the bounds of a number, else 0."""

    name: str
    kind: FaultKind
    least: float = 0
    most: float = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A form that was filled in well."""

    mac: Mac
    macs: int
    model: ModelView
    currency: str
    wishes: Wishes


@dataclass(frozen=True, slots=True)
class Answer:
    """All that the page tells: one Mac, a cluster of them, this network, and lending."""

    choice: Choice
    single: Own
    cluster: Own
    umlx_per_million: int
    umlx_per_month: int
    lending: ClassView | None

    @property
    def lent_tokens(self) -> int | None:
        """Tokens of this model that a month's average earnings of such a Mac pay for; None: not told."""
        if self.lending is None or self.lending.earned_umlx is None or not self.umlx_per_million:
            return None
        return self.lending.earned_umlx * MILLION // self.umlx_per_million


@dataclass(frozen=True, slots=True)
class Form:
    """The fields' values as they are shown, what is wrong with them, and the answer if nothing is.
    `is_asked` is false before anything was typed."""

    values: Mapping[str, str]
    faults: Mapping[str, Fault]
    answer: Answer | None
    is_asked: bool


def read_form(query: Mapping[str, str], market: Market, language: str) -> Form:
    """Read the fields and, if all are well, reckon. Names in `query` that are no field are left aside."""
    defaults = _defaults(market, language)
    values = {name: query.get(name, default).strip() for name, default in defaults.items()}
    if not query or not market.models:
        return Form(values, {}, None, is_asked=False)
    faults: dict[str, Fault] = {}
    numbers = {field.name: _number(field, values[field.name], language, faults) for field in NUMBERS}
    mac = _mac(values, market, faults)
    macs = _known(values, "macs", {str(each): each for each in CLUSTERS}.get, faults)
    model = _known(values, "model", market.model, faults)
    currency = _known(values, "currency", _currency, faults)
    if faults or mac is None or macs is None or model is None or currency is None:
        return Form(values, faults, None, is_asked=True)
    choice = Choice(mac, macs, model, currency, _wishes(numbers))
    return Form(values, {}, answer_to(choice, market), is_asked=True)


def answer_to(choice: Choice, market: Market) -> Answer:
    """What the choice comes to."""
    model, wishes = choice.model.offer, choice.wishes
    here = network_umlx_per_million(
        model.input_umlx_per_million, model.output_umlx_per_million, wishes.written
    )
    return Answer(
        choice=choice,
        single=own(wishes, market.forecast(model.id, choice.mac, 1), 1),
        cluster=own(wishes, market.forecast(model.id, choice.mac, choice.macs), choice.macs),
        umlx_per_million=here,
        umlx_per_month=round(here * wishes.tokens_per_month / MILLION),
        lending=market.class_of(choice.mac.memory_bytes),
    )


def example(market: Market, language: str) -> dict[str, str]:
    """Fields of an invented example as this language writes numbers, for the address of a link."""
    model = next((each for each in EXAMPLE_MODELS if market.model(each)), market.models[0].offer.id)
    point = get_decimal_symbol(language, numbering_system=NUMBERING)
    numbers = {field.name: EXAMPLE[field.name].replace(".", point) for field in NUMBERS}
    return {"mac": _defaults(market, language)["mac"], "model": model, **EXAMPLE, **numbers}


def mac_key(chip: str, gpu_cores: int) -> str:
    """A chip's variant as one value of a field."""
    return f"{chip}:{gpu_cores}"


def _defaults(market: Market, language: str) -> dict[str, str]:
    keys = [mac_key(*chip) for chip in market.chips]
    mac = "M4 Pro:20" if "M4 Pro:20" in keys else next(iter(keys), "")
    chosen = {
        "mac": mac,
        "memory": "48",
        "macs": str(CLUSTERS[0]),
        "model": market.models[0].offer.id if market.models else "",
        "currency": CURRENCIES[language],
    }
    return chosen | {field.name: field.default for field in NUMBERS}


def _wishes(numbers: Mapping[str, float | None]) -> Wishes:
    found = {name: value for name, value in numbers.items() if value is not None}
    return Wishes(
        price=found["price"],
        years=found["years"],
        idle_watts=found["idle"],
        load_watts=found["load"],
        price_per_kwh=found["kwh"],
        hours_per_day=found["hours"],
        tokens_per_month=found["tokens"] * MILLION,
        written=found["written"] / 100,
        cloud_per_million=numbers["cloud"],
    )


def _number(field: NumberField, text: str, language: str, faults: dict[str, Fault]) -> float | None:
    if not text:
        if not field.is_optional:
            faults[field.name] = Fault(field.name, "missing", field.least, field.most)
        return None
    value = parse_number(text, language)
    if value is None:
        faults[field.name] = Fault(field.name, "not_a_number", field.least, field.most)
    elif not field.least <= value <= field.most:
        faults[field.name] = Fault(field.name, "out_of_range", field.least, field.most)
    else:
        return value
    return None


def parse_number(text: str, language: str) -> float | None:
    """A number as it is written in this language, or with one point or comma; digits of any script.

    None for what is no number.
    """
    if len(text) > VALUE_CHARACTERS_MAX:
        return None
    plain = "".join(_ascii(character) for character in text)
    if not WRITTEN.fullmatch(plain):
        return None
    try:
        value = float(parse_decimal(plain, locale=language, strict=True, numbering_system=NUMBERING))
    except NumberFormatError:
        try:
            value = float(plain.replace("\u00a0", "").replace(",", "."))
        except ValueError:
            return None
    return value if isfinite(value) else None


def _ascii(character: str) -> str:
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    return {"\u066b": ".", "\u066c": ",", "\u202f": "\u00a0", " ": "\u00a0"}.get(character, character)


def _mac(values: Mapping[str, str], market: Market, faults: dict[str, Fault]) -> Mac | None:
    chip = _known(values, "mac", {mac_key(*each): each for each in market.chips}.get, faults)
    memory = _known(values, "memory", {str(each // GIB): each for each in MEMORY_CLASSES}.get, faults)
    return None if chip is None or memory is None else Mac(chip[0], chip[1], memory)


def _known(
    values: Mapping[str, str],
    name: str,
    find: Callable[[str], Found | None],
    faults: dict[str, Fault],
) -> Found | None:
    found = find(values[name])
    if found is None:
        faults[name] = Fault(name, "unknown" if values[name] else "missing")
    return found


@lru_cache(maxsize=1)
def _currencies() -> frozenset[str]:
    return frozenset(Locale("en").currencies)


def _currency(text: str) -> str | None:
    return text.upper() if text.upper() in _currencies() else None
