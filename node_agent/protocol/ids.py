"""Identifiers: UUIDv7 shown with a prefix, and a node's id made from its key.

Time and randomness are passed in, so that the simulator can replay them.
"""

from __future__ import annotations

import hashlib


def make_id(prefix: str, *, unix_ms: int, random_bytes: bytes) -> str:
    """Return `prefix_` and 32 hex digits of a UUIDv7 (RFC 9562, section 5.7).

    `random_bytes` must be 10 bytes long; 74 of its 80 bits are used.
    """
    if len(random_bytes) != 10:
        raise ValueError("random_bytes must be 10 bytes")
    bits = int.from_bytes(random_bytes, "big")
    value = (unix_ms & (2**48 - 1)) << 80
    value |= 0x7 << 76
    value |= ((bits >> 64) & 0xFFF) << 64
    value |= 0b10 << 62
    value |= bits & (2**62 - 1)
    return f"{prefix}_{value:032x}"


def node_id_of(public_key: bytes) -> str:
    """A node's id: `node_` and the SHA-256 of its raw 32-byte Ed25519 public key, in hex."""
    if len(public_key) != 32:
        raise ValueError("an Ed25519 public key is 32 bytes long")
    return "node_" + hashlib.sha256(public_key).hexdigest()
