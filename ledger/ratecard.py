"""The rate card: every rate, factor and threshold of the network's money in one frozen value.

A job, a quote and an availability slot name the card they were made under by its `id`, the digest
of its content, so a rate can only change by a new card. All numbers are integers: amounts in uMLX,
shares and factors in parts per million (ppm), times in microseconds. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal, Self, cast

from ledger.pricing import PER_MILLION, Rate, divide_nearest

GIGABYTE: Final = 10**9
"""Bytes of model data are counted in decimal gigabytes, as makers state bandwidth."""

GIBIBYTE: Final = 2**30
"""A Mac's memory is counted in binary gigabytes, as makers state memory."""

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
SLOT_US: Final = 600_000_000
SLOTS_PER_DAY: Final = DAY_US // SLOT_US

Seat = Literal["idle", "dedicated", "ultra"]
Trust = Literal["claimed", "measured", "audited"]

SEATS: Final[tuple[Seat, ...]] = ("idle", "dedicated", "ultra")
"""Seats in ascending order of promise, conditions and pay."""


@dataclass(frozen=True, kw_only=True)
class PriceRates:
    """What a model's price follows from. Output: uMLX per million tokens for each GB that is read
    per token, and for each GB that stays resident; input and cached input follow from output.
    """

    read_umlx_per_million_per_gb: int = 10_000_000
    resident_umlx_per_million_per_gb: int = 20_000
    input_ppm: int = 100_000
    cached_input_ppm: int = 250_000
    minimum_umlx: int = 100
    reserved_seat_ppm: int = 1_250_000
    pod_cap_ppm: int = 1_500_000


@dataclass(frozen=True, kw_only=True)
class FeeRates:
    """The fee as a part of the charge, and where a fee goes (parts of the fee; they sum to 10**6)."""

    fee_ppm: int = 100_000
    treasury_ppm: int = 600_000
    availability_pool_ppm: int = 200_000
    audit_pool_ppm: int = 200_000


@dataclass(frozen=True, kw_only=True)
class AvailabilityRates:
    """Pay for standing ready: uMLX per point and hour of each seat, what a point is, and the cap.

    `service_levels`: (least share of the promised time that the Mac was up, factor), both in ppm,
    best first. Below the last level a seat is paid as idle: a broken promise is none.
    """

    idle_umlx_per_point_hour: int = 20_000
    dedicated_umlx_per_point_hour: int = 50_000
    ultra_umlx_per_point_hour: int = 100_000
    bandwidth_bytes_per_second_per_point: int = 100 * GIGABYTE
    memory_bytes_per_point: int = 64 * GIBIBYTE
    cap_umlx_per_day: int = 10_000_000_000
    claimed_ppm: int = 0
    measured_ppm: int = 300_000
    audited_ppm: int = 1_000_000
    service_levels: tuple[tuple[int, int], ...] = ((990_000, 1_000_000), (950_000, 500_000))


@dataclass(frozen=True, kw_only=True)
class SeatRules:
    """What a seat asks for; see `ledger.seats`."""

    dedicated_seconds_per_day: int = 20 * 3600
    dedicated_days: int = 7
    ultra_bandwidth_bytes_per_second: int = 650 * GIGABYTE
    ultra_self_tests: int = 3
    ultra_lent_ppm: int = 600_000
    ultra_lent_bytes: int = 40 * GIBIBYTE
    checks_passed: int = 10
    upkeep_seconds_per_week: int = 2 * 3600


@dataclass(frozen=True, kw_only=True)
class PolicyRates:
    """Probation, grants, public work and notice; see `ledger.policy` and `ledger.budgets`."""

    probation_us: int = 7 * DAY_US
    attested_probation_us: int = DAY_US
    suspicion_us: int = 3 * DAY_US
    first_hour_grant_umlx: int = 5_000_000
    commons_below_paid_ppm: int = 500_000
    commons_pool_ppm: int = 250_000
    notice_us: int = 14 * DAY_US
    budget_signatures: int = 2


def _check_integers(name: str, value: object) -> None:
    if isinstance(value, tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _check_integers(name, item)  # pyright: ignore[reportUnknownArgumentType]
    elif type(value) is not int or not 0 <= value <= 10**18:
        raise ValueError(f"{name} must be an integer from 0 to {10**18}, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class RateCard:
    """All rates of one version.

    Raises ValueError, naming the field, if a number is not an integer, is negative, or if the
    parts contradict each other.
    """

    version: int
    prices: PriceRates = PriceRates()
    fees: FeeRates = FeeRates()
    availability: AvailabilityRates = AvailabilityRates()
    seats: SeatRules = SeatRules()
    policy: PolicyRates = PolicyRates()

    def __post_init__(self) -> None:
        _check_integers("version", self.version)
        for part in (self.prices, self.fees, self.availability, self.seats, self.policy):
            for name, value in vars(part).items():
                _check_integers(name, value)
        self._check_prices()
        self._check_availability()

    def _check_prices(self) -> None:
        fees = self.fees
        if fees.fee_ppm > PER_MILLION:
            raise ValueError("fee_ppm must be at most 1000000")
        if fees.treasury_ppm + fees.availability_pool_ppm + fees.audit_pool_ppm != PER_MILLION:
            raise ValueError("treasury_ppm, availability_pool_ppm and audit_pool_ppm must sum to 1000000")
        if self.prices.cached_input_ppm > PER_MILLION:
            raise ValueError(
                "cached_input_ppm must be at most 1000000: cached input costs no more than input"
            )
        if min(self.prices.reserved_seat_ppm, self.prices.pod_cap_ppm) < PER_MILLION:
            raise ValueError("reserved_seat_ppm and pod_cap_ppm must be at least 1000000")

    def _check_availability(self) -> None:
        rates = self.availability
        hourly = tuple(self.umlx_per_point_hour(seat) for seat in SEATS)
        if not 0 < hourly[0] < hourly[1] < hourly[2]:
            raise ValueError("umlx_per_point_hour must rise from idle over dedicated to ultra")
        if min(rates.bandwidth_bytes_per_second_per_point, rates.memory_bytes_per_point) < 1:
            raise ValueError(
                "bandwidth_bytes_per_second_per_point and memory_bytes_per_point must be positive"
            )
        if not rates.claimed_ppm <= rates.measured_ppm <= rates.audited_ppm <= PER_MILLION:
            raise ValueError("claimed_ppm, measured_ppm and audited_ppm must rise, to at most 1000000")
        levels = rates.service_levels
        if levels != tuple(sorted(set(levels), reverse=True)) or any(
            part > PER_MILLION for part in sum(levels, ())
        ):
            raise ValueError("service_levels must fall, from at most 1000000")
        # Even at its worst service level a kept promise must earn more than a seat below it.
        worst_ppm = min((factor for _, factor in levels), default=PER_MILLION)
        if hourly[1] * worst_ppm <= hourly[0] * PER_MILLION:
            raise ValueError("service_levels must leave a dedicated seat more than an idle one earns")

    def umlx_per_point_hour(self, seat: Seat) -> int:
        """The availability rate of a seat."""
        return {
            "idle": self.availability.idle_umlx_per_point_hour,
            "dedicated": self.availability.dedicated_umlx_per_point_hour,
            "ultra": self.availability.ultra_umlx_per_point_hour,
        }[seat]

    def trust_ppm(self, trust: Trust) -> int:
        """The availability factor of a Mac: measured and audited is enough for the whole rate."""
        return {
            "claimed": self.availability.claimed_ppm,
            "measured": self.availability.measured_ppm,
            "audited": self.availability.audited_ppm,
        }[trust]

    @cached_property
    def body(self) -> str:
        """Canonical JSON of the card: sorted keys, no spaces, integers only."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def id(self) -> str:
        """SHA-256 of the body, 64 hex digits."""
        return hashlib.sha256(self.body.encode("ascii")).hexdigest()

    @classmethod
    def from_body(cls, body: str) -> Self:
        """The card that a JSON text describes; the inverse of `body`, in any order and spacing.

        Every part and every rate must be there: a rate left out would silently be today's default.
        Raises ValueError, naming the field, if one is missing, unknown or not allowed.
        """
        try:
            found: object = json.loads(body)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"the card is not JSON: {error}") from None
        whole = _fields_of("the card", found, {"version", *_PARTS})
        parts = {name: _part(name, kind, whole[name]) for name, kind in _PARTS.items()}
        return cls(version=_whole("version", whole["version"]), **cast("dict[str, Any]", parts))


_PARTS: Final[Mapping[str, type[Any]]] = {
    "prices": PriceRates,
    "fees": FeeRates,
    "availability": AvailabilityRates,
    "seats": SeatRules,
    "policy": PolicyRates,
}


def _fields_of(name: str, found: object, wanted: set[str]) -> dict[str, object]:
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be an object, as in {{...}}")  # noqa: TRY004 - one error for bad input
    whole = cast("dict[str, object]", found)
    for field_name in sorted(wanted - whole.keys()):
        raise ValueError(f"{field_name} is missing in {name}")
    for field_name in sorted(whole.keys() - wanted):
        raise ValueError(f"{field_name} is no field of {name}; remove it")
    return whole


def _part(name: str, kind: type[Any], found: object) -> object:
    values = _fields_of(name, found, {field.name for field in fields(kind)})
    return kind(
        **{
            field_name: _levels(value) if field_name == "service_levels" else _whole(field_name, value)
            for field_name, value in values.items()
        }
    )


def _whole(name: str, value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{name} must be an integer, not {value!r}")
    return value


def _levels(value: object) -> tuple[tuple[int, ...], ...]:
    """Pairs of integers as tuples, as the card holds them."""
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    levels: list[tuple[int, ...]] = []
    for item in items:
        pair = cast("list[object]", item) if isinstance(item, list) else []
        if len(pair) != 2:
            raise ValueError("service_levels must be a list of pairs [least part in ppm, factor in ppm]")
        levels.append(tuple(_whole("service_levels", part) for part in pair))
    return tuple(levels)


CARD: Final = RateCard(version=1)
"""The first card, in force until another one is announced and its day has come."""


def prices_for(bytes_read_per_token: int, bytes_resident: int, card: RateCard = CARD) -> Rate:
    """A model's price from the bytes that one output token reads (quantised active weights, scales
    included) and the bytes that it keeps resident (weights and reserved KV cache).

    Output: the two products divided by 10**9 and rounded once, to the nearest uMLX per million
    tokens, a half up. Input is rounded from output, cached input from input, in the same way.
    Raises ValueError if a count is not a positive integer or fewer bytes are resident than read.
    """
    _check_integers("bytes_read_per_token", bytes_read_per_token)
    _check_integers("bytes_resident", bytes_resident)
    if not 0 < bytes_read_per_token <= bytes_resident:
        raise ValueError("bytes_read_per_token must be positive and at most bytes_resident")
    rates = card.prices
    total = (
        bytes_read_per_token * rates.read_umlx_per_million_per_gb
        + bytes_resident * rates.resident_umlx_per_million_per_gb
    )
    output = divide_nearest(total, GIGABYTE)
    input_price = divide_nearest(output * rates.input_ppm, PER_MILLION)
    return Rate(
        input_umlx_per_million=input_price,
        cached_input_umlx_per_million=divide_nearest(input_price * rates.cached_input_ppm, PER_MILLION),
        output_umlx_per_million=output,
        minimum_umlx=rates.minimum_umlx,
    )


def output_tokens_per_mlx(rate: Rate) -> int | None:
    """How many answer tokens of a model one MLX buys, rounded down; None if they are free."""
    price = rate.output_umlx_per_million
    return PER_MILLION**2 // price if price else None


def pod_factor_ppm(members: int, speedup_ppm: int, card: RateCard = CARD) -> int:
    """What a model that only pods can hold costs on top: members / measured speed-up, from 1 to the
    card's cap, rounded down. It keeps each member's owner from earning less than alone.
    """
    if members < 1 or speedup_ppm < 1:
        raise ValueError("members and speedup_ppm must be positive")
    return min(card.prices.pod_cap_ppm, max(PER_MILLION, members * PER_MILLION**2 // speedup_ppm))


@dataclass(frozen=True)
class FeeSplit:
    """Where a fee goes, in uMLX; the three sum to the fee."""

    treasury_umlx: int
    availability_pool_umlx: int
    audit_pool_umlx: int


def split_fee(fee_umlx: int, card: RateCard = CARD) -> FeeSplit:
    """Cut a fee (of one job or of a day): the pools' parts rounded down, the treasury takes the rest."""
    if fee_umlx < 0:
        raise ValueError("fee_umlx must not be negative")
    availability = fee_umlx * card.fees.availability_pool_ppm // PER_MILLION
    audit = fee_umlx * card.fees.audit_pool_ppm // PER_MILLION
    return FeeSplit(fee_umlx - availability - audit, availability, audit)


def changes(old: RateCard, new: RateCard) -> dict[str, tuple[object, object]]:
    """Every rate that differs, as `part.name` to (old, new)."""
    found: dict[str, tuple[object, object]] = {}
    for part in _PARTS:
        before, after = getattr(old, part), getattr(new, part)
        for field in fields(before):
            pair = (getattr(before, field.name), getattr(after, field.name))
            if pair[0] != pair[1]:
                found[f"{part}.{field.name}"] = pair
    return found
