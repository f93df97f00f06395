"""*Buy, lend or send?*: what a million tokens cost on a Mac of one's own, on a cluster, in a cloud
and on this network, and when buying pays. Pure arithmetic over what a reader typed.

Money is in the reader's own currency; MLX are credits for services and never become money here.
Speeds are forecasts, and every figure made from them comes three times: as forecast, and with the
speeds that nine in ten published runs stay within (docs/placement.md, "How far it is off").
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from web_world.market import Speeds

MONTHS_PER_YEAR: Final = 12
DAYS_PER_MONTH: Final = 365.25 / MONTHS_PER_YEAR
SECONDS_PER_HOUR: Final = 3600.0
MILLION: Final = 1_000_000
MONTHS_MAX: Final = 100 * MONTHS_PER_YEAR
"""What takes longer counts as never."""
WRITE_ERROR_MEDIAN: Final = 0.066
WRITE_ERROR: Final = 0.257
READ_ERROR_MEDIAN: Final = 0.129
READ_ERROR: Final = 0.412
"""Error of a forecast of tokens a second as a part of the published figure: of half the runs, and of
nine in ten. Single Macs; a test holds them to the table in docs/placement.md."""

Verdict = Literal["does_not_fit", "too_slow", "buy", "unclear", "do_not_buy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a reader typed. Prices in any one currency: of one Mac, of a kWh, and of a million tokens
    elsewhere (None: not typed). `written` of 0 to 1 is the part of the tokens that the model writes,
    the others it reads."""

    price: float
    years: float
    idle_watts: float
    load_watts: float
    price_per_kwh: float
    hours_per_day: float
    tokens_per_month: float
    written: float
    cloud_per_million: float | None = None

    @property
    def months(self) -> float:
        """How long the Mac is used."""
        return self.years * MONTHS_PER_YEAR

    @property
    def hours_per_month(self) -> float:
        """How long the Mac is on in a month."""
        return self.hours_per_day * DAYS_PER_MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A month on Macs of one's own, all together: hours of each in work and idle, energy, money."""

    macs: int
    work_hours: float
    idle_hours: float
    kwh: float
    price: float
    purchase_per_month: float
    power_per_month: float
    per_month: float
    per_million: float
    is_enough: bool
    """Whether the month's tokens are done in the hours that the Mac is on."""


@dataclass(frozen=True, slots=True)
class Span:
    """The same as forecast, and at the slowest and the fastest that the forecast allows for."""

    likely: Running
    slow: Running
    fast: Running


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The first month after which buying has cost no more than the cloud; None: never."""

    likely: int | None
    early: int | None
    late: int | None


@dataclass(frozen=True, slots=True)
class Own:
    """Buying so many Macs: what they do, what that costs, when it pays; `pays` without a price
    elsewhere is None, and so is `verdict`, unless they cannot do the work anyway."""

    speeds: Speeds
    span: Span
    pays: BreakEven | None
    verdict: Verdict | None


def work_hours(wishes: Wishes, read_rate: float, write_rate: float) -> float:
    """Hours that a month's tokens take, prompts read and answers written one after the other.

    Rates in tokens a second, above 0.
    """
    read = wishes.tokens_per_month * (1 - wishes.written) / read_rate
    write = wishes.tokens_per_month * wishes.written / write_rate
    return (read + write) / SECONDS_PER_HOUR


def running(wishes: Wishes, macs: int, hours: float) -> Running:
    """A month's costs on `macs` Macs that each work for so many hours; in the others they idle."""
    idle_hours = max(wishes.hours_per_month - hours, 0.0)
    kwh = macs * (hours * wishes.load_watts + idle_hours * wishes.idle_watts) / 1000
    price = macs * wishes.price
    purchase, power = price / wishes.months, kwh * wishes.price_per_kwh
    return Running(
        macs=macs,
        work_hours=hours,
        idle_hours=idle_hours,
        kwh=kwh,
        price=price,
        purchase_per_month=purchase,
        power_per_month=power,
        per_month=purchase + power,
        per_million=(purchase + power) / wishes.tokens_per_month * MILLION,
        is_enough=hours <= wishes.hours_per_month,
    )


def span(wishes: Wishes, speeds: Speeds, macs: int) -> Span:
    """The running costs with the error of the forecast: an error e of f tokens a second means that
    the truth lies from f / (1 + e) to f / (1 - e). Macs that do not split the model share the work."""
    read, write = speeds.read_tokens_per_second, speeds.write_tokens_per_second
    sharing = macs if speeds.mode == "single" else 1
    hours = (
        work_hours(wishes, read, write),
        work_hours(wishes, read / (1 + READ_ERROR), write / (1 + WRITE_ERROR)),
        work_hours(wishes, read / (1 - READ_ERROR), write / (1 - WRITE_ERROR)),
    )
    likely, slow, fast = (running(wishes, macs, each / sharing) for each in hours)
    return Span(likely, slow, fast)


def own_until(month: int, found: Running) -> float:
    """What Macs of one's own have cost after so many months."""
    return found.price + month * found.power_per_month


def cloud_until(month: int, wishes: Wishes) -> float:
    """What the typed price has cost after so many months. Raises `ValueError` if none was typed."""
    if wishes.cloud_per_million is None:
        raise ValueError("cloud_per_million must be given to compare with")
    return month * (wishes.cloud_per_million * wishes.tokens_per_month / MILLION)


def break_even_month(wishes: Wishes, found: Running) -> int | None:
    """The first month after which `own_until` is no more than `cloud_until`; None: never, or not
    within `MONTHS_MAX`."""
    saved = cloud_until(1, wishes) - found.power_per_month
    if found.price == 0 and saved >= 0:
        return 0
    if saved <= 0 or found.price > saved * MONTHS_MAX:
        return None
    month = ceil(found.price / saved)
    # A quotient of floats may round to the wrong side of a whole number.
    while month > 0 and own_until(month - 1, found) <= cloud_until(month - 1, wishes):
        month -= 1
    while month <= MONTHS_MAX and own_until(month, found) > cloud_until(month, wishes):
        month += 1
    return month if month <= MONTHS_MAX else None


def own(wishes: Wishes, speeds: Speeds, macs: int) -> Own:
    """Buying `macs` Macs with these speeds."""
    costs = span(wishes, speeds, macs)
    pays = None
    if wishes.cloud_per_million is not None:
        months = [break_even_month(wishes, each) for each in (costs.likely, costs.fast, costs.slow)]
        pays = BreakEven(*months)
    return Own(speeds, costs, pays, _verdict(wishes, speeds, costs, pays))


def _verdict(wishes: Wishes, speeds: Speeds, costs: Span, pays: BreakEven | None) -> Verdict | None:
    if not speeds.fits:
        return "does_not_fit"
    if not costs.fast.is_enough:
        return "too_slow"
    if pays is None:
        return None
    ends = [
        each.is_enough and month is not None and month <= wishes.months
        for each, month in ((costs.fast, pays.early), (costs.slow, pays.late))
    ]
    return "buy" if all(ends) else "unclear" if any(ends) else "do_not_buy"


def network_umlx_per_million(input_umlx: int, output_umlx: int, written: float) -> int:
    """What a million tokens cost here, uMLX, rounded up: the two prices by the part that is written.

    The price is fixed, so nothing is uncertain about it; the least price of a job is left out.
    """
    ppm = round(written * MILLION)
    return -(-(input_umlx * (MILLION - ppm) + output_umlx * ppm) // MILLION)
