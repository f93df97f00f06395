"""Quotes: a price that is promised for a minute, carried by its own id.

Nothing is stored: the id is what was promised and an HMAC-SHA-256 over it, so that any replica can
read it and nobody else can make one. What holds is the rate (of a card's revision and a rate card):
the bound of a request follows from it and the request's own tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final, final

from coordinator import errors
from coordinator.errors import ApiError
from node_agent.protocol.signing import decode_bytes, encode_bytes

HEADER: Final = "x-mlxnet-quote"
PREFIX: Final = "quote_"
ID_CHARACTERS_MAX: Final = 2048
_KEY_BYTES: Final = 32
_MAC_BYTES: Final = 32
_PURPOSE: Final = b"mlxnet-v1-quote\0"


class QuoteKeyError(RuntimeError):
    """The file of the key holds something else."""


@dataclass(frozen=True)
class Quote:
    """What was promised, to whom, until when (database time, UTC)."""

    expires_us: int
    account_id: str
    card_id: str
    card_revision: str
    rate_card_id: str


@final
class Quotes:
    """Makes and reads ids of quotes with one key. Replicas that share a database share its file."""

    def __init__(self, key: bytes) -> None:
        self._key: Final = key

    @classmethod
    def from_file(cls, path: Path) -> Quotes:
        """Read the 32-byte key at `path`; make it (mode 0600) if there is none yet.

        Raises `QuoteKeyError` if the file is there and holds something else.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            key = path.read_bytes()
        else:
            key = secrets.token_bytes(_KEY_BYTES)
            with os.fdopen(descriptor, "wb") as file:
                _ = file.write(key)
        if len(key) != _KEY_BYTES:
            raise QuoteKeyError(f"{path} must hold {_KEY_BYTES} random bytes and holds {len(key)}")
        return cls(key)

    def id_of(self, quote: Quote) -> str:
        """The quote as one word of URL-safe characters."""
        content = json.dumps(astuple(quote), separators=(",", ":")).encode()
        return PREFIX + encode_bytes(self._mac(content) + content)

    def read(self, quote_id: str) -> Quote:
        """The quote of an id. Raises 400 for one that is not ours or was altered."""
        whole = _bytes_of(quote_id)
        mac, content = whole[:_MAC_BYTES], whole[_MAC_BYTES:]
        # The canonical form, so that one quote has one id.
        if not hmac.compare_digest(mac, self._mac(content)) or quote_id != PREFIX + encode_bytes(whole):
            raise _altered()
        fields: list[Any] = json.loads(content)
        return Quote(*fields)

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._key, _PURPOSE + content, hashlib.sha256).digest()


def _bytes_of(quote_id: str) -> bytes:
    if not quote_id.startswith(PREFIX) or len(quote_id) > ID_CHARACTERS_MAX:
        raise _altered()
    try:
        return decode_bytes(quote_id.removeprefix(PREFIX))
    except ValueError:
        raise _altered() from None


def check_terms(quote: Quote, *, account_id: str, card_id: str, card_revision: str, now_us: int) -> None:
    """Whether the quote holds for this request, now.

    Raises 400 for another account's quote or another model's, 409 `quote_expired` when its time is
    over or the model has a new revision since.
    """
    if quote.account_id != account_id:
        raise _altered()
    if quote.card_id != card_id:
        raise errors.invalid_value(
            HEADER, f"this quote is for {quote.card_id}, and the request for {card_id}"
        )
    if now_us >= quote.expires_us:
        raise expired(f"It ended {(now_us - quote.expires_us) / 1e6:.0f} s ago.")
    if quote.card_revision != card_revision:
        raise expired(f"{card_id} has a new revision since.")


def expired(why: str) -> ApiError:
    """The quote holds no longer."""
    return errors.conflict(
        "quote_expired",
        f"This quote holds no longer. {why} Ask POST /v1/quotes again, or leave {HEADER} out to pay the "
        "rates of now.",
    )


def _altered() -> ApiError:
    return errors.invalid_value(
        HEADER, "it must be the id of a quote that this network gave to you, unaltered; see POST /v1/quotes"
    )
