"""Ids of quotes: read back as made, and never otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ApiError
from coordinator.jobs.quotes import Quote, Quotes, check_terms
from coordinator.mac_key import MacKey, MacKeyError
from coordinator.nodes.nonces import Nonces

KEY = MacKey(b"k" * 32)
QUOTE = Quote(1_000_000, "acct_1", "tiny", "ab" * 32, "cd" * 32)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def test_an_id_is_the_quote() -> None:
    assert Quotes(KEY).read(Quotes(KEY).id_of(QUOTE)) == QUOTE
    with pytest.raises(ApiError):
        Quotes(MacKey(b"l" * 32)).read(Quotes(KEY).id_of(QUOTE))


@given(at=st.integers(0, 400), letter=st.sampled_from(ALPHABET))
def test_no_changed_letter_is_read(at: int, letter: str) -> None:
    good = Quotes(KEY).id_of(QUOTE)
    at %= len(good)
    changed = good[:at] + letter + good[at + 1 :]
    if changed != good:
        with pytest.raises(ApiError) as refused:
            Quotes(KEY).read(changed)
        assert (refused.value.status, refused.value.param) == (400, "x-mlxnet-quote")


@given(st.text(max_size=300))
def test_no_made_up_id_is_read(text: str) -> None:
    for quote_id in (text, f"quote_{text}"):
        with pytest.raises(ApiError):
            Quotes(KEY).read(quote_id)


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({}, None, None),
        ({"now_us": 999_999}, None, None),
        ({"now_us": 1_000_000}, 409, "quote_expired"),
        ({"card_revision": "00" * 32}, 409, "quote_expired"),
        ({"card_id": "other"}, 400, "invalid_value"),
        ({"account_id": "acct_2"}, 400, "invalid_value"),
    ],
)
def test_terms(changes: dict[str, object], status: int | None, code: str | None) -> None:
    terms = {"account_id": "acct_1", "card_id": "tiny", "card_revision": "ab" * 32, "now_us": 0, **changes}
    if status is None:
        check_terms(QUOTE, **terms)  # pyright: ignore[reportArgumentType]
        return
    with pytest.raises(ApiError) as refused:
        check_terms(QUOTE, **terms)  # pyright: ignore[reportArgumentType]
    assert (refused.value.status, refused.value.code) == (status, code)


def test_the_key_is_made_once_and_only_for_us(tmp_path: Path) -> None:
    path = tmp_path / "mac.key"
    first = MacKey.from_file(path)
    assert MacKey.from_file(path).mac("a", b"b") == first.mac("a", b"b") != first.mac("b", b"b")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    with pytest.raises(MacKeyError, match="32 random bytes"):
        MacKey.from_file(path)


def test_a_nonce_is_no_quote_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    nonces = Nonces(KEY)
    nonce = nonces.make()
    assert nonces.is_good(nonce)
    assert not nonces.is_good(nonce[:-2])
    assert not nonces.is_good("")
    assert not nonces.is_good("é")
    with pytest.raises(ApiError):
        Quotes(KEY).read(f"quote_{nonce}")
    from coordinator import clock

    later = clock.wall_us() + 61_000_000
    monkeypatch.setattr(clock, "wall_us", lambda: later)
    assert not nonces.is_good(nonce)
