"""Where a token's randomness comes from: the request's seed and the token's place, nothing else.

A draw that depends on no shared generator is the same alone, among neighbours, on another Mac,
and after a resume from the tokens already delivered.
"""

from __future__ import annotations

from hashlib import blake2b


def draw_words(seed: int, position: int) -> tuple[int, int]:
    """The two 32-bit words that key the draw of the answer's token number `position` (from 0).

    `seed` is in [0, 2**63), `position` is not negative; both are 64-bit little-endian under
    BLAKE2b-64, whose output words are little-endian too.
    """
    message = seed.to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = blake2b(message, digest_size=8, person=b"mlxnet-draw").digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
