"""Models and the demand for them: what the coordinator tells, and what of it may be seen. Pure.

The rules are those of `web_world.privacy`, each held by a property test:
- A sum is told when at least `OWNERS_MIN` different people are in it, else not at all.
- It is renewed only when at least `OWNERS_MIN` people's parts of it have changed, so that no
  difference of two of them in time is one person's.
- Sums that stand beside each other do not overlap, or are made from sums that do not: the last day
  and the 29 days before it, and Macs by what they lend. Macs of a band with too few owners count as
  if they lent less, so "so many Macs can take it" is a least number.
- Tokens and MLX are rounded down to two digits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from web_world.privacy import OWNERS_MIN

GIB: Final = 1 << 30
MEMORY_CLASSES: Final = tuple(gib * GIB for gib in (8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512))
"""Bytes of memory that Macs on Apple silicon are sold with, those most met."""
LENT_BANDS: Final = tuple(
    gib * GIB for gib in (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
)
TOKENS_CONTEXT: Final = 4_096
"""Prompt and answer together, for which it is told whether a model fits and how fast it is."""
DIGITS_TOLD: Final = 2

Mode = Literal["single", "tensor", "pipeline"]


@dataclass(frozen=True, slots=True)
class Mac:
    """One kind of Mac: "M4 Pro", the cores of its GPU, the bytes of its memory."""

    chip: str
    gpu_cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Speeds:
    """A forecast for one model on a Mac or a cluster: tokens a second of a prompt that is read and
    of an answer that is written. `needed_bytes` against `usable_bytes` of the Mac with least to
    spare; they are what the speeds would be if it fitted."""

    mode: Mode
    fits: bool
    read_tokens_per_second: float
    write_tokens_per_second: float
    needed_bytes: int
    usable_bytes: int


Forecast = Callable[[str, Mac, int], Speeds]
"""(id of a model, a Mac, how many of them) -> speeds. Raises `KeyError` for an unknown model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffer:
    """A model of the catalogue. `least_memory_bytes` is the smallest class of Mac that runs it, None
    if none does; `writes` its tokens a second on each of the market's `examples`, None where it
    does not fit."""

    id: str
    name: str
    is_served: bool
    weights_bytes: int
    needed_bytes: int
    least_memory_bytes: int | None
    input_umlx_per_million: int
    output_umlx_per_million: int
    writes: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """What one account paid for with one model: tokens of the last day, and of the 29 before it."""

    model: str
    account: str
    day_tokens: int
    earlier_tokens: int


@dataclass(frozen=True, slots=True)
class Lent:
    """One Mac of the last 30 days: its owner, what others' settled jobs paid for its work, and
    whether it is connected now."""

    owner: str
    memory_bytes: int
    lent_bytes: int
    earned_umlx: int
    is_connected: bool


def _no_forecast(model: str, _mac: Mac, _macs: int) -> Speeds:
    raise KeyError(model)


@dataclass(frozen=True)
class MarketFacts:
    """Everything that the two pages are made from. `settled` and `lent` are never published."""

    models: tuple[ModelOffer, ...] = ()
    examples: tuple[Mac, ...] = ()
    chips: tuple[tuple[str, int], ...] = ()
    forecast: Forecast = _no_forecast
    settled: tuple[Settled, ...] = ()
    lent: tuple[Lent, ...] = ()


# -- what may be told ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """A sum as it was last told, and each person's part of it then."""

    parts: Mapping[str, int] = field(default_factory=dict[str, int])
    is_told: bool = False

    @property
    def total(self) -> int | None:
        """The sum, or None while it is withheld."""
        return sum(self.parts.values()) if self.is_told else None


def renewed(before: Sum | None, parts: Mapping[str, int]) -> Sum:
    """The sum for this hour: a new one if enough people's parts have changed, else the old one.

    Withheld at once when fewer than `OWNERS_MIN` people are left in it.
    """
    present = {person: part for person, part in parts.items() if part}
    is_enough = len(present) >= OWNERS_MIN
    if before is None or not before.parts:
        return Sum(present, is_told=True) if is_enough else Sum()
    changed = {person for person, _ in before.parts.items() ^ present.items()}
    if is_enough and len(changed) >= OWNERS_MIN:
        return Sum(present, is_told=True)
    return Sum(before.parts, is_told=is_enough)


def rounded(amount: int) -> int:
    """The amount with its first two digits, the others zero."""
    step = 10 ** max(0, len(str(amount)) - DIGITS_TOLD)
    return amount // step * step


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as everybody sees it. Tokens and Macs are None where they are not told; the month is
    the sum of what is told of its last day and of the days before."""

    offer: ModelOffer
    day_tokens: int | None
    month_tokens: int | None
    macs_now: int | None


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class of memory: how many models fit, the largest of them, and what a Mac of it earned on
    average in 30 days from settled work, None where that is not told."""

    memory_bytes: int
    models: int
    largest: str
    earned_umlx: int | None


@dataclass(frozen=True)
class Market:
    """Models and demand as the pages show them, and what is needed to renew them."""

    models: tuple[ModelView, ...] = ()
    classes: tuple[ClassView, ...] = ()
    examples: tuple[Mac, ...] = ()
    chips: tuple[tuple[str, int], ...] = ()
    forecast: Forecast = _no_forecast
    sums: Mapping[str, Sum] = field(default_factory=dict[str, Sum])

    def model(self, model: str) -> ModelView | None:
        """The model of this id, or None."""
        return next((view for view in self.models if view.offer.id == model), None)

    def class_of(self, memory_bytes: int) -> ClassView | None:
        """The class that a Mac with so much memory belongs to, or None below the smallest."""
        return next((each for each in reversed(self.classes) if each.memory_bytes <= memory_bytes), None)


def advance(before: Market | None, facts: MarketFacts) -> Market:
    """The market for this hour. Models that are served come first, then the smaller ones."""
    older: Mapping[str, Sum] = before.sums if before is not None else {}
    found = _parts(facts)
    sums = {key: renewed(older.get(key), found.get(key, {})) for key in {*older, *found}}
    offers = sorted(facts.models, key=lambda offer: (not offer.is_served, offer.weights_bytes, offer.id))
    return Market(
        models=tuple(_model(offer, sums) for offer in offers),
        classes=tuple(_class(memory, facts, sums) for memory in MEMORY_CLASSES),
        examples=facts.examples,
        chips=facts.chips,
        forecast=facts.forecast,
        sums=sums,
    )


def _parts(facts: MarketFacts) -> dict[str, dict[str, int]]:
    """Each person's part of each sum, by the sum's name."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for each in facts.settled:
        _add(found[f"day {each.model}"], each.account, each.day_tokens)
        _add(found[f"earlier {each.model}"], each.account, each.earlier_tokens)
    for mac in facts.lent:
        _add(found[f"earned {class_bytes(mac.memory_bytes)}"], mac.owner, mac.earned_umlx)
    for band, parts in banded(facts.lent).items():
        found[f"lent {band}"] = parts
    return found


def _add(parts: dict[str, int], person: str, part: int) -> None:
    parts[person] = parts.get(person, 0) + part


def class_bytes(memory_bytes: int) -> int:
    """The largest class that is not above so much memory; the smallest below that."""
    return max((each for each in MEMORY_CLASSES if each <= memory_bytes), default=MEMORY_CLASSES[0])


def banded(lent: Iterable[Lent]) -> dict[int, dict[str, int]]:
    """Connected Macs of each owner by the least that their band lends, bytes. A band with too few
    owners is added to the one below."""
    found: dict[int, dict[str, int]] = {band: {} for band in LENT_BANDS}
    for mac in lent:
        if mac.is_connected:
            _add(found[max(band for band in LENT_BANDS if band <= mac.lent_bytes)], mac.owner, 1)
    for band, below in pairwise(reversed(LENT_BANDS)):
        if len(found[band]) < OWNERS_MIN:
            for owner, macs in found[band].items():
                _add(found[below], owner, macs)
            found[band] = {}
    return found


def _model(offer: ModelOffer, sums: Mapping[str, Sum]) -> ModelView:
    day = sums.get(f"day {offer.id}", Sum()).total
    earlier = sums.get(f"earlier {offer.id}", Sum()).total
    macs = [sums.get(f"lent {band}", Sum()).total or 0 for band in LENT_BANDS if band >= offer.needed_bytes]
    return ModelView(
        offer=offer,
        day_tokens=None if day is None else rounded(day),
        month_tokens=None if day is None and earlier is None else rounded((day or 0) + (earlier or 0)),
        macs_now=sum(macs) or None,
    )


def _class(memory: int, facts: MarketFacts, sums: Mapping[str, Sum]) -> ClassView:
    fitting = [
        offer for offer in facts.models if offer.least_memory_bytes and offer.least_memory_bytes <= memory
    ]
    largest = max(fitting, key=lambda offer: (offer.weights_bytes, offer.id), default=None)
    macs = sum(class_bytes(mac.memory_bytes) == memory for mac in facts.lent)
    earned = sums.get(f"earned {memory}", Sum()).total
    return ClassView(
        memory_bytes=memory,
        models=len(fitting),
        largest=largest.name if largest is not None else "",
        earned_umlx=rounded(earned // macs) if earned and macs else None,
    )
