"""Quotes: a price that is promised for a minute, carried by its own id.

Nothing is stored: the id is what was promised and an HMAC-SHA-256 over it, so that any replica can
read it and nobody else can make one. What holds is the rate (of a card's revision and a rate card):
the bound of a request follows from it and the request's own tokens.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Any, Final, final

from coordinator import errors
from coordinator.errors import ApiError
from coordinator.mac_key import MacKey
from node_agent.protocol.signing import decode_bytes, encode_bytes

HEADER: Final = "x-mlxnet-quote"
PREFIX: Final = "quote_"
ID_CHARACTERS_MAX: Final = 2048
_MAC_BYTES: Final = 32
_PURPOSE: Final = "mlxnet-v1-quote"


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
    """Makes and reads ids of quotes with one key."""

    def __init__(self, key: MacKey) -> None:
        self._key: Final = key

    def id_of(self, quote: Quote) -> str:
        """The quote as one word of URL-safe characters."""
        content = json.dumps(astuple(quote), separators=(",", ":")).encode()
        return PREFIX + encode_bytes(self._key.mac(_PURPOSE, content) + content)

    def read(self, quote_id: str) -> Quote:
        """The quote of an id. Raises 400 for one that is not ours or was altered."""
        whole = _bytes_of(quote_id)
        mac, content = whole[:_MAC_BYTES], whole[_MAC_BYTES:]
        # The canonical form, so that one quote has one id.
        is_ours = self._key.fits(mac, _PURPOSE, content)
        if not is_ours or quote_id != PREFIX + encode_bytes(whole):
            raise _altered()
        fields: list[Any] = json.loads(content)
        return Quote(*fields)


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
