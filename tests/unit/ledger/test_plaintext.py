"""Beancount's own checker accepts the books, and refuses them once a single uMLX is changed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from beancount import loader
from beancount.core.account import is_valid
from hypothesis import given
from hypothesis import strategies as st

from ledger.commands import ACCOUNT_PATTERN
from ledger.plaintext import (
    PlainEntry,
    beancount_account,
    beancount_text,
    hledger_text,
    mlx,
    statement_entries,
)

DAY_US = 86_400_000_000
START_US = 20_513 * DAY_US
ENTRIES = (
    PlainEntry(1, "id-1", START_US, "mint", "grant", (("issuance", -5_000_001), ("user:acct_1", 5_000_001))),
    PlainEntry(
        3,
        "id-3",
        START_US + DAY_US + 5,
        "capture",
        'job "1"\\; | x',
        (("fee", 200), ("user:acct-1", 1_800), ("user:acct_1", -2_000)),
    ),
    PlainEntry(
        4, "id-4", START_US + DAY_US + 6, "transfer", "", (("pool:availability", 1), ("user:acct.1", -1))
    ),
    PlainEntry(
        5, "id-5", START_US + 2 * DAY_US, "refund", "job_1", (("user:acct-1", -2), ("user:acct.1", 2))
    ),
)
CLOSING = {
    "issuance": -5_000_001,
    "fee": 200,
    "pool:availability": 1,
    "user:acct_1": 4_998_001,
    "user:acct-1": 1_798,
    "user:acct.1": 1,
}


def errors_of(lines: Iterable[str]) -> list[str]:
    _, errors, _ = loader.load_string("\n".join(lines) + "\n")  # pyright: ignore[reportUnknownMemberType]
    return [str(error.message) for error in errors]


def test_beancount_accepts_the_books() -> None:
    assert errors_of(beancount_text(ENTRIES, CLOSING)) == []


def test_one_umlx_changed_in_any_amount_is_found() -> None:
    """Each amount in the file, posting or balance, is raised by 0.000001 in turn."""
    text = "\n".join(beancount_text(ENTRIES, CLOSING))
    places = list(re.finditer(r"-?\d+\.\d{6}(?= )", text))
    assert len(places) == sum(len(entry.legs) for entry in ENTRIES) + len(CLOSING)
    for place in places:
        sign = -1 if place[0].startswith("-") else 1
        umlx = sign * int(place[0].lstrip("-").replace(".", "")) + 1
        changed = text[: place.start()] + mlx(umlx) + text[place.end() :]
        assert errors_of([changed]), place


def test_an_entry_left_out_or_moved_to_another_account_is_found() -> None:
    assert errors_of(beancount_text((*ENTRIES[:2], ENTRIES[3]), CLOSING))
    moved = replace(ENTRIES[2], legs=(("pool:availability", 1), ("user:acct-1", -1)))
    assert errors_of(beancount_text((*ENTRIES[:2], moved, ENTRIES[3]), CLOSING))


def test_an_empty_ledger_is_accepted() -> None:
    assert errors_of(beancount_text((), {"issuance": 0, "fee": 0})) == []


def test_an_entry_of_an_unknown_account_is_refused() -> None:
    for text in (beancount_text, hledger_text):
        with pytest.raises(ValueError, match="entry 1 names"):
            list(text(ENTRIES, {"issuance": 0}))


@pytest.mark.parametrize(
    ("umlx", "text"),
    [
        (0, "0.000000"),
        (1, "0.000001"),
        (-1, "-0.000001"),
        (-1_500_000, "-1.500000"),
        (10**18, "1000000000000.000000"),
        (-(10**18) + 1, "-999999999999.999999"),
    ],
)
def test_amounts_are_written_from_integers(umlx: int, text: str) -> None:
    assert mlx(umlx) == text


@pytest.mark.parametrize(
    ("account_id", "name"),
    [
        ("issuance", "Equity:Issuance"),
        ("fee", "Assets:Fee"),
        ("pool:availability", "Assets:Pool:N-availability"),
        ("user:acct_1", "Assets:User:N-acct-1"),
        ("escrow:a.b-Z", "Assets:Escrow:N-aZdbZhZZ"),
    ],
)
def test_account_names(account_id: str, name: str) -> None:
    assert beancount_account(account_id) == name


@given(st.lists(st.from_regex(ACCOUNT_PATTERN, fullmatch=True), min_size=2, max_size=20, unique=True))
def test_every_account_has_its_own_valid_name(account_ids: list[str]) -> None:
    names = [beancount_account(account_id) for account_id in account_ids]
    assert len(set(names)) == len(names)
    assert all(is_valid(name) for name in names)


def test_an_account_of_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no known kind"):
        beancount_account("cash:1")


def test_one_accounts_statement_is_a_whole_file() -> None:
    entries = tuple(statement_entries("user:acct_1", 7, START_US - 1, ENTRIES))
    closing = {"user:acct_1": 4_998_008, "issuance": -4_998_008}
    assert [entry.kind for entry in entries] == ["opening", "mint", "capture"]
    assert errors_of(beancount_text(entries, closing)) == []
    assert errors_of(beancount_text(entries, {**closing, "user:acct_1": 4_998_009}))


def test_the_hledger_journal_states_each_leg_and_closing_balance() -> None:
    lines = list(hledger_text(ENTRIES, CLOSING))
    assert "2026-03-02 * (3) capture | job ?1??? ? x" in lines
    assert "    user:acct_1  -0.002000 MLX" in lines
    assert "    user:acct_1  0.000000 MLX = 4.998001 MLX" in lines


@pytest.mark.skipif(shutil.which("hledger") is None, reason="hledger is not installed")
def test_hledger_accepts_the_books_and_finds_one_umlx(tmp_path: Path) -> None:
    def check(closing_umlx: dict[str, int]) -> int:
        path = tmp_path / "books.journal"
        path.write_text("\n".join(hledger_text(ENTRIES, closing_umlx)) + "\n")
        return subprocess.run(
            ["hledger", "-f", path, "check", "-s"], capture_output=True, check=False
        ).returncode

    assert check(CLOSING) == 0
    assert check({**CLOSING, "fee": 201}) != 0
