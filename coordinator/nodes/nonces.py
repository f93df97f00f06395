"""Challenges for signed requests of nodes: a nonce tells its own end, and is good once.

Only those that were used are kept, until their end: giving one out costs no memory.
"""

from __future__ import annotations

import heapq
import threading
from typing import Final, final

from coordinator import clock
from coordinator.mac_key import MacKey
from node_agent.protocol.signing import decode_bytes, encode_bytes

NONCE_SECONDS: Final = 60.0
_PURPOSE: Final = "mlxnet-v1-nonce"
_MAC_BYTES: Final = 32
_TIME_BYTES: Final = 8
_RANDOM_BYTES: Final = 8
USED_MAX: Final = 100_000  # about 20 MB, and far more signed requests than Macs send in a minute


@final
class Nonces:
    """Makes nonces, knows them again, and keeps those that were used. Thread safe.

    A nonce is good in the process that made it: another one could not know that it was used.
    """

    def __init__(self, key: MacKey) -> None:
        self._key: Final = key
        self._process: Final = clock.wall_us().to_bytes(_TIME_BYTES, "big")  # when it began
        self._used: Final = set[bytes]()
        self._ends: Final = list[tuple[int, bytes]]()  # a heap of the same, by their end
        self._lock: Final = threading.Lock()

    def make(self) -> str:
        """A nonce that is good for a minute: its end, randomness, and a mac, base64url."""
        ends_us = clock.wall_us() + int(NONCE_SECONDS * 1e6)
        content = ends_us.to_bytes(_TIME_BYTES, "big") + clock.random_bytes(_RANDOM_BYTES)
        return encode_bytes(self._key.mac(_PURPOSE, self._process + content) + content)

    def is_good(self, nonce: str) -> bool:
        """Whether it was made here, was not used, and its minute is not over."""
        content = self._content_of(nonce)
        return content is not None and content not in self._used

    def use(self, nonce: str) -> bool:
        """Use it up; False if it is not good (any more), or too many were used within a minute.

        To be asked when all else is proven: what a stranger sends then takes no room.
        """
        content = self._content_of(nonce)
        if content is None:
            return False
        with self._lock:
            self._forget_ended()
            if content in self._used or len(self._used) >= USED_MAX:
                return False
            self._used.add(content)
            heapq.heappush(self._ends, (_ends_us(content), content))
            return True

    def _content_of(self, nonce: str) -> bytes | None:
        """Its end and randomness, if it was made here and its minute is not over."""
        try:
            whole = decode_bytes(nonce)
        except ValueError:
            return None
        mac, content = whole[:_MAC_BYTES], whole[_MAC_BYTES:]
        is_ours = self._key.fits(mac, _PURPOSE, self._process + content)
        return content if is_ours and clock.wall_us() < _ends_us(content) else None

    def _forget_ended(self) -> None:
        while self._ends and self._ends[0][0] <= clock.wall_us():
            self._used.discard(heapq.heappop(self._ends)[1])


def _ends_us(content: bytes) -> int:
    return int.from_bytes(content[:_TIME_BYTES], "big")
