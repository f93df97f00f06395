"""The books as plain-text accounting, for Beancount and hledger, so that others' tools check them.

Amounts are MLX with six decimals (1 MLX = 1,000,000 uMLX), written from integers. Every account's
balance is asserted at the end with no tolerance, and each transaction must sum to zero, so a
change of a single uMLX makes the checker fail. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

_FIRST_DATE: Final = date(1970, 1, 1)
_ESCAPES: Final = {"_": "-", ".": "Zd", "-": "Zh", "Z": "ZZ"}
_ROOTS: Final = {
    "issuance": "Equity:Issuance",
    "fee": "Assets:Fee",
    "treasury": "Assets:Treasury",
    "pool": "Assets:Pool",
    "user": "Assets:User",
    "escrow": "Assets:Escrow",
}
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]|[\"\\;|]")


@dataclass(frozen=True)
class PlainEntry:
    """One entry of the journal that moved something; `legs` are (account, uMLX) and sum to 0."""

    seq: int
    id: str
    recorded_us: int
    kind: str
    reference: str
    legs: tuple[tuple[str, int], ...]


def mlx(amount_umlx: int) -> str:
    """An amount in MLX with six decimals: -1 is "-0.000001"."""
    whole, part = divmod(abs(amount_umlx), 1_000_000)
    return f"{'-' if amount_umlx < 0 else ''}{whole}.{part:06d}"


def beancount_account(account_id: str) -> str:
    """The Beancount name of an account: `user:acct_1` is `Assets:User:N-acct-1`.

    Beancount allows letters, digits and hyphens, so `_` is written as `-`, and `.`, `-` and `Z` as
    `Zd`, `Zh` and `ZZ`: two accounts never get one name. Raises ValueError for an unknown kind.
    """
    kind, _, name = account_id.partition(":")
    if kind not in _ROOTS:
        raise ValueError(f"account {account_id!r} is of no known kind")
    escaped = "".join(_ESCAPES.get(character, character) for character in name)
    return f"{_ROOTS[kind]}:N-{escaped}" if name else _ROOTS[kind]


def beancount_text(
    entries: Iterable[PlainEntry], closing_umlx: Mapping[str, int], *, title: str = "MLX Network"
) -> Iterator[str]:
    """The lines of a Beancount file, without line ends: accounts, transactions, closing balances.

    `closing_umlx` are the balances that the ledger itself states, for every account named in an
    entry; they are not computed here, else they would prove nothing. `entries` are read once, in
    order. Raises ValueError if an entry names an account without a closing balance.
    """
    yield f'option "title" "{_safe(title)}"'
    yield 'option "operating_currency" "MLX"'
    yield f"{_FIRST_DATE} commodity MLX"
    for account_id in sorted(closing_umlx):
        yield f"{_FIRST_DATE} open {beancount_account(account_id)} MLX"
    last = _FIRST_DATE
    for entry in entries:
        _check_known(entry, closing_umlx)
        last = max(last, _day(entry))
        yield ""
        yield f'{_day(entry)} * "{entry.kind}" "{_safe(entry.reference)}"'
        yield f"  seq: {entry.seq}"
        yield f'  id: "{entry.id}"'
        for account_id, amount_umlx in entry.legs:
            yield f"  {beancount_account(account_id)}  {mlx(amount_umlx)} MLX"
    yield ""
    # A balance is asserted as of the beginning of a day.
    for account_id, amount_umlx in sorted(closing_umlx.items()):
        day = last + timedelta(days=1)
        yield f"{day} balance {beancount_account(account_id)}  {mlx(amount_umlx)} ~ 0 MLX"


def hledger_text(
    entries: Iterable[PlainEntry], closing_umlx: Mapping[str, int], *, title: str = "MLX Network"
) -> Iterator[str]:
    """The lines of an hledger journal, without line ends; as `beancount_text`, with the ledger's
    own account names. `hledger check` verifies sums and closing balances.
    """
    yield f"; {_safe(title)}"
    yield "commodity 1000.000000 MLX"
    for account_id in sorted(closing_umlx):
        yield f"account {account_id}"
    last = _FIRST_DATE
    for entry in entries:
        _check_known(entry, closing_umlx)
        last = max(last, _day(entry))
        yield ""
        yield f"{_day(entry)} * ({entry.seq}) {entry.kind} | {_safe(entry.reference)}"
        yield f"    ; id:{entry.id}"
        for account_id, amount_umlx in entry.legs:
            yield f"    {account_id}  {mlx(amount_umlx)} MLX"
    yield ""
    yield f"{last} * closing balances"
    for account_id, amount_umlx in sorted(closing_umlx.items()):
        yield f"    {account_id}  0.000000 MLX = {mlx(amount_umlx)} MLX"


def statement_entries(
    account_id: str, opening_umlx: int, since_us: int, entries: Iterable[PlainEntry]
) -> Iterator[PlainEntry]:
    """The entries of one account's statement, the opening balance first.

    For a file about one account alone: the other side of every leg is `issuance`'s name, which
    there stands for everybody else. Legs of other accounts are dropped.
    """
    if opening_umlx:
        yield PlainEntry(0, "", since_us, "opening", "", _against_others(account_id, opening_umlx))
    for entry in entries:
        amount = sum(umlx for name, umlx in entry.legs if name == account_id)
        if amount:
            yield PlainEntry(
                entry.seq,
                entry.id,
                entry.recorded_us,
                entry.kind,
                entry.reference,
                _against_others(account_id, amount),
            )


def _against_others(account_id: str, amount_umlx: int) -> tuple[tuple[str, int], ...]:
    return ((account_id, amount_umlx), ("issuance", -amount_umlx))


def _check_known(entry: PlainEntry, closing_umlx: Mapping[str, int]) -> None:
    for account_id, _ in entry.legs:
        if account_id not in closing_umlx:
            raise ValueError(f"entry {entry.seq} names {account_id}, which has no closing balance")


def _day(entry: PlainEntry) -> date:
    return datetime.fromtimestamp(entry.recorded_us // 1_000_000, tz=UTC).date()


def _safe(text: str) -> str:
    return _UNSAFE.sub("?", text)
