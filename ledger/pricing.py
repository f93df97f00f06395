"""What a job costs and how its price is shared. Pure; integers of uMLX, no floats.

A price is rounded once per job, up. A fee is rounded up, too, so that its payer can never gain by
cutting a job in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PER_MILLION: Final = 1_000_000
FEE_PPM: Final = 100_000
"""The network's fee: 10 % of the charge, in parts per million."""

MAX_TOKENS: Final = 10**9
MAX_FACTOR_PPM: Final = 10 * PER_MILLION
MAX_RATE_UMLX_PER_MILLION: Final = 10**15


@dataclass(frozen=True)
class Rate:
    """A model's price: uMLX per million tokens, and the least that a job costs in uMLX.

    Raises ValueError if a number is negative or too large, or if cached input costs more than
    input (the bound of a job would then be no bound).
    """

    input_umlx_per_million: int
    cached_input_umlx_per_million: int
    output_umlx_per_million: int
    minimum_umlx: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or not 0 <= value <= MAX_RATE_UMLX_PER_MILLION:
                raise ValueError(f"{name} must be an integer from 0 to {MAX_RATE_UMLX_PER_MILLION}")
        if self.cached_input_umlx_per_million > self.input_umlx_per_million:
            raise ValueError("cached_input_umlx_per_million must not exceed input_umlx_per_million")


def charge_umlx(
    rate: Rate, input_tokens: int, cached_tokens: int, output_tokens: int, factor_ppm: int = PER_MILLION
) -> int:
    """The price of a job: max(minimum, ceil(tokens x rates / 10**6 x factor)).

    `input_tokens` are all tokens of the prompt; `cached_tokens` are those among them that were
    served from a cache. `factor_ppm` is what a reserved seat or a pod costs on top, in parts per
    million; it is applied before the one rounding. Raises ValueError if a number is negative, too
    large, or cached_tokens > input_tokens.
    """
    _check_tokens("input_tokens", input_tokens, MAX_TOKENS)
    _check_tokens("cached_tokens", cached_tokens, input_tokens)
    _check_tokens("output_tokens", output_tokens, MAX_TOKENS)
    _check_tokens("factor_ppm", factor_ppm, MAX_FACTOR_PPM)
    total = (
        (input_tokens - cached_tokens) * rate.input_umlx_per_million
        + cached_tokens * rate.cached_input_umlx_per_million
        + output_tokens * rate.output_umlx_per_million
    )
    return max(rate.minimum_umlx, divide_up(total * factor_ppm, PER_MILLION**2))


def bound_umlx(rate: Rate, input_tokens: int, max_output_tokens: int, factor_ppm: int = PER_MILLION) -> int:
    """The most that a job can cost: what its hold must cover."""
    return charge_umlx(rate, input_tokens, 0, max_output_tokens, factor_ppm)


def split_charge(charge: int, fee_ppm: int = FEE_PPM) -> tuple[int, int]:
    """Cut a charge in uMLX into (owner's part, fee); their sum is the charge, the fee rounded up."""
    if charge < 0 or not 0 <= fee_ppm <= PER_MILLION:
        raise ValueError("charge must not be negative and fee_ppm must be from 0 to 1000000")
    fee = divide_up(charge * fee_ppm, PER_MILLION)
    return charge - fee, fee


def split_shares(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Cut `amount` uMLX by weight among account ids: largest remainder, ties by account id.

    The parts sum to `amount` exactly and each is within 1 uMLX of its ratio; the order of
    `weights` does not matter. Raises ValueError if a weight is negative or all are 0.
    """
    total = sum(weights.values())
    if amount < 0 or total <= 0 or min(weights.values()) < 0:
        raise ValueError("amount and weights must not be negative, and one weight must be positive")
    parts = {name: amount * weight // total for name, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda name: (-(amount * weights[name] % total), name))
    for name in by_remainder[: amount - sum(parts.values())]:
        parts[name] += 1
    return parts


def _check_tokens(name: str, value: int, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} must be an integer from 0 to {most}")


def divide_up(numerator: int, denominator: int) -> int:
    """The quotient rounded up; for numbers that are not negative."""
    return -(-numerator // denominator)


def divide_nearest(numerator: int, denominator: int) -> int:
    """The quotient rounded to the nearest integer, a half up; for numbers that are not negative."""
    return (2 * numerator + denominator) // (2 * denominator)
