"""What contributors and submitters see of their money, as sums over rows. Pure; amounts in uMLX.

The rows are values that the caller reads from its tables; nothing is added up anywhere else, so a
page, a CSV file and the API cannot differ. Months, days and hours are those of UTC.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeVar, cast

from ledger.policy import HoldReason, coming_on
from ledger.pricing import PER_MILLION, Rate, charge_umlx
from ledger.ratecard import HOUR_US

Key = TypeVar("Key", str, int)
EarningKind = Literal["work", "second_reading", "availability", "grant"]


@dataclass(frozen=True, kw_only=True)
class EarningRow:
    """One payment to an owner, or a zero with its reason. `card_id` is empty where no model is meant.

    `release_us` is set while the pay lies in escrow; `is_forfeited` if it never came out of it.
    """

    earned_us: int
    node_id: str
    card_id: str
    kind: EarningKind
    reference: str
    amount_umlx: int
    zero_reason: str | None = None
    hold_reason: HoldReason | None = None
    release_us: int | None = None
    is_forfeited: bool = False


@dataclass(frozen=True)
class Coming:
    """Held-back pay with one date and reason: never shown as missing."""

    shown: str
    release_us: int
    reason: HoldReason
    amount_umlx: int


@dataclass(frozen=True)
class ContributorView:
    """An owner's earnings of a period; paid + held + forfeited = total = the sum of each table.

    `by_hour` has the start of the hour (UTC microseconds), `by_month` has "2026-03". `zeros`
    counts what was not paid, by reason.
    """

    total_umlx: int
    paid_umlx: int
    held_umlx: int
    forfeited_umlx: int
    by_node: tuple[tuple[str, int], ...]
    by_model: tuple[tuple[str, int], ...]
    by_kind: tuple[tuple[str, int], ...]
    by_hour: tuple[tuple[int, int], ...]
    by_month: tuple[tuple[str, int], ...]
    coming: tuple[Coming, ...]
    zeros: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class AttemptShare:
    """One attempt's (or pod member's) part of a charge."""

    fence: int
    node_id: str
    tokens: int
    amount_umlx: int


@dataclass(frozen=True, kw_only=True)
class SpendRow:
    """One job that was charged. `rate`, `factor_ppm` and `rate_card` are those of its quote."""

    ended_us: int
    job_id: str
    key_id: str
    card_id: str
    card_revision: str
    rate_card: str
    rate: Rate
    factor_ppm: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    bound_umlx: int
    charge_umlx: int
    refunded_umlx: int
    fee_umlx: int
    shares: tuple[AttemptShare, ...]


@dataclass(frozen=True)
class CostLine:
    """Tokens x rate, in millionths of a uMLX, so that nothing is rounded before the sum."""

    what: str
    tokens: int
    umlx_per_million: int

    @property
    def millionths(self) -> int:
        """The exact product."""
        return self.tokens * self.umlx_per_million


@dataclass(frozen=True)
class Cost:
    """A job's charge as its sum. `rule` says what made the last step: the sum rounded up, the
    least that a job costs, or the bound of the quote.
    """

    job_id: str
    card: str
    rate_card: str
    lines: tuple[CostLine, ...]
    factor_ppm: int
    rule: Literal["sum", "minimum", "bound"]
    charge_umlx: int
    fee_umlx: int
    shares: tuple[AttemptShare, ...]

    def as_text(self) -> tuple[str, ...]:
        """The arithmetic in words and numbers, a line each."""
        lines = [
            f"{line.tokens} {line.what} x {line.umlx_per_million} uMLX per million = {_exact(line.millionths)} uMLX"
            for line in self.lines
        ]
        total = sum(line.millionths for line in self.lines)
        if self.factor_ppm != PER_MILLION:
            lines.append(f"x factor {_exact(self.factor_ppm)}")
        ending = {"sum": "rounded up", "minimum": "the least that a job costs", "bound": "the bound quoted"}
        lines.append(f"sum {_exact(total)} uMLX -> {self.charge_umlx} uMLX ({ending[self.rule]})")
        lines += [
            f"attempt {share.fence} on {share.node_id}: {share.tokens} tokens, {share.amount_umlx} uMLX"
            for share in self.shares
        ]
        lines.append(f"fee {self.fee_umlx} uMLX; shares + fee = {self.charge_umlx} uMLX")
        return tuple(lines)


@dataclass(frozen=True)
class SubmitterView:
    """A submitter's spending of a period, refunds taken off; each table sums to the total."""

    total_umlx: int
    by_key: tuple[tuple[str, int], ...]
    by_model: tuple[tuple[str, int], ...]
    by_month: tuple[tuple[str, int], ...]
    costs: tuple[Cost, ...]


class StatementError(ValueError):
    """A row contradicts itself: a charge that its tokens and rates do not give, or shares that do
    not sum to it.
    """


def contributor_view(rows: Sequence[EarningRow]) -> ContributorView:
    """Add up an owner's earnings by Mac, model, kind, hour and month."""
    held = [row for row in rows if row.release_us is not None and row.amount_umlx]
    forfeited_umlx = sum(row.amount_umlx for row in rows if row.is_forfeited)
    total = sum(row.amount_umlx for row in rows)
    held_umlx = sum(row.amount_umlx for row in held)
    return ContributorView(
        total_umlx=total,
        paid_umlx=total - held_umlx - forfeited_umlx,
        held_umlx=held_umlx,
        forfeited_umlx=forfeited_umlx,
        by_node=_sums(rows, lambda row: row.node_id),
        by_model=_sums(rows, lambda row: row.card_id),
        by_kind=_sums(rows, lambda row: row.kind),
        by_hour=_sums(rows, lambda row: row.earned_us // HOUR_US * HOUR_US),
        by_month=_sums(rows, lambda row: month_of(row.earned_us)),
        coming=tuple(
            coming_by_day(
                (row.release_us or 0, row.hold_reason or "new_owner", row.amount_umlx) for row in held
            )
        ),
        zeros=_counts(row.zero_reason for row in rows if row.zero_reason is not None),
    )


def submitter_view(rows: Sequence[SpendRow]) -> SubmitterView:
    """Add up a submitter's spending by key, model and month. Raises StatementError."""
    spent: list[tuple[SpendRow, int]] = [(row, row.charge_umlx - row.refunded_umlx) for row in rows]
    return SubmitterView(
        total_umlx=sum(amount for _, amount in spent),
        by_key=_totals((row.key_id, amount) for row, amount in spent),
        by_model=_totals((row.card_id, amount) for row, amount in spent),
        by_month=_totals((month_of(row.ended_us), amount) for row, amount in spent),
        costs=tuple(cost_of(row) for row in rows),
    )


def cost_of(row: SpendRow) -> Cost:
    """A job's charge as its sum, computed anew. Raises StatementError if the row's differs."""
    price = charge_umlx(row.rate, row.input_tokens, row.cached_tokens, row.output_tokens, row.factor_ppm)
    expected = min(price, row.bound_umlx)
    if row.charge_umlx != expected:
        raise StatementError(f"{row.job_id}: charge_umlx is {row.charge_umlx}, its tokens give {expected}")
    paid = sum(share.amount_umlx for share in row.shares) + row.fee_umlx
    if paid != row.charge_umlx:
        raise StatementError(f"{row.job_id}: shares + fee are {paid}, charge_umlx is {row.charge_umlx}")
    lines = (
        CostLine("input tokens", row.input_tokens - row.cached_tokens, row.rate.input_umlx_per_million),
        CostLine("cached input tokens", row.cached_tokens, row.rate.cached_input_umlx_per_million),
        CostLine("output tokens", row.output_tokens, row.rate.output_umlx_per_million),
    )
    millionths = sum(line.millionths for line in lines)
    is_minimum = millionths * row.factor_ppm <= (row.rate.minimum_umlx - 1) * PER_MILLION**2
    rule = "bound" if price > row.bound_umlx else "minimum" if is_minimum else "sum"
    return Cost(
        row.job_id,
        f"{row.card_id}@{row.card_revision}",
        row.rate_card,
        lines,
        row.factor_ppm,
        rule,
        row.charge_umlx,
        row.fee_umlx,
        row.shares,
    )


def month_of(at_us: int) -> str:
    """The month of a moment: "2026-03"."""
    return f"{datetime.fromtimestamp(at_us // 1_000_000, tz=UTC):%Y-%m}"


def month_bounds_us(month: str) -> tuple[int, int]:
    """The first moment of a month ("2026-03") and that of the next. Raises ValueError."""
    try:
        start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"month {month!r} must be written as 2026-03") from None
    after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return int(start.timestamp()) * 1_000_000, int(after.timestamp()) * 1_000_000


def write_csv(rows: Sequence[Any], out: TextIO) -> None:
    """Write dataclass rows of one type as CSV with a head line; times also as ISO 8601 text.

    Amounts stay integers of uMLX. Nested values are left out. Text that a spreadsheet would run as
    a formula is written with an apostrophe before it. No rows write nothing.
    """
    if not rows:
        return
    names = [field.name for field in fields(rows[0]) if _is_plain(getattr(rows[0], field.name))]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, *(f"{name.removesuffix('_us')}_utc" for name in names if name.endswith("_us"))])
    for row in rows:
        times = (_utc(getattr(row, name)) for name in names if name.endswith("_us"))
        writer.writerow([*(_cell(getattr(row, name)) for name in names), *times])


def coming_by_day(held: Iterable[tuple[int, HoldReason, int]]) -> list[Coming]:
    """Held-back pay, as (release_us, reason, uMLX), added up by the day on which it has come.

    `release_us` is the last moment of those that share a day and a reason.
    """
    found: dict[tuple[str, HoldReason], Coming] = {}
    for release_us, reason, amount in sorted(held):
        key = (coming_on(release_us), reason)
        before = found[key].amount_umlx if key in found else 0
        found[key] = Coming(key[0], release_us, reason, before + amount)
    return list(found.values())


def to_json(value: Any) -> Any:
    """A view or row as plain JSON values; amounts become decimal strings, tables lists of objects."""
    return _json(asdict(value))


_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def _json(value: Any, name: str = "") -> Any:
    if name.startswith("by_"):
        return [{"key": key, "amount_umlx": str(amount)} for key, amount in value]
    if name == "zeros":
        return [{"reason": reason, "count": count} for reason, count in value]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {key: _json(item, key) for key, item in items.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in cast("tuple[Any, ...]", value)]
    return str(value) if type(value) is int and name.endswith("_umlx") else value


def _is_plain(value: object) -> bool:
    return not isinstance(value, tuple | Rate)


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA_STARTS) else text


def _utc(at_us: int | None) -> str:
    if at_us is None:
        return ""
    moment = datetime.fromtimestamp(at_us // 1_000_000, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06d}Z"


def _exact(millionths: int) -> str:
    whole, part = divmod(millionths, PER_MILLION)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".")


def _sums(rows: Iterable[EarningRow], key: Callable[[EarningRow], Key]) -> tuple[tuple[Key, int], ...]:
    return _totals((key(row), row.amount_umlx) for row in rows)


def _totals(pairs: Iterable[tuple[Key, int]]) -> tuple[tuple[Key, int], ...]:
    totals: dict[Key, int] = {}
    for name, amount in pairs:
        totals[name] = totals.get(name, 0) + amount
    return tuple(sorted(totals.items()))


def _counts(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return _totals((name, 1) for name in names)
