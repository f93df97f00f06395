"""Challenges for signed requests of nodes that need no memory: a nonce tells its own end.

Within its minute a nonce can be used again, so it guards only what reads.
"""

from __future__ import annotations

from typing import Final, final

from coordinator import clock
from coordinator.mac_key import MacKey
from node_agent.protocol.signing import decode_bytes, encode_bytes

NONCE_SECONDS: Final = 60.0
_PURPOSE: Final = "mlxnet-v1-nonce"
_MAC_BYTES: Final = 32
_TIME_BYTES: Final = 8


@final
class Nonces:
    """Makes nonces and knows them again."""

    def __init__(self, key: MacKey) -> None:
        self._key: Final = key

    def make(self) -> str:
        """A nonce that is good for a minute: its end, randomness, and a mac, base64url."""
        ends_us = clock.wall_us() + int(NONCE_SECONDS * 1e6)
        content = ends_us.to_bytes(_TIME_BYTES, "big") + clock.random_bytes(8)
        return encode_bytes(self._key.mac(_PURPOSE, content) + content)

    def is_good(self, nonce: str) -> bool:
        """Whether it was made here and its minute is not over."""
        try:
            whole = decode_bytes(nonce)
        except ValueError:
            return False
        mac, content = whole[:_MAC_BYTES], whole[_MAC_BYTES:]
        ends_us = int.from_bytes(content[:_TIME_BYTES], "big")
        return self._key.fits(mac, _PURPOSE, content) and clock.wall_us() < ends_us
