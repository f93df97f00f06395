"""What a node signs, as exact bytes, and how the other side checks it (Ed25519, RFC 8032)."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def encode_bytes(value: bytes) -> str:
    """URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def decode_bytes(text: str) -> bytes:
    """Inverse of `encode_bytes`. Raises `ValueError` on anything else."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _statement(purpose: str, *parts: str) -> bytes:
    """Length-prefixed parts, so that no two different lists give the same bytes."""
    fields = (f"mlxnet-v1-{purpose}", *parts)
    encoded = [field.encode("utf-8") for field in fields]
    return b"".join(struct.pack(">I", len(field)) + field for field in encoded)


def enrolment_statement(*, audience: str, public_key: str, nonce: str) -> bytes:
    """Signed when a node first shows its key to the coordinator at `audience` (its origin)."""
    return _statement("enrol", audience, public_key, nonce)


def hello_statement(*, audience: str, node_id: str, nonce: str) -> bytes:
    """Signed in answer to a socket's challenge."""
    return _statement("hello", audience, node_id, nonce)


def place_statement(
    *, audience: str, node_id: str, sequence: int, kind: str, country: str, cell: str
) -> bytes:
    """Signed when a node's owner chooses what the public map shows of its place."""
    return _statement("place", audience, node_id, str(sequence), kind, country, cell)


def why_statement(*, audience: str, node_id: str, nonce: str) -> bytes:
    """Signed when a node asks what it was counted under, with a nonce that the coordinator gave."""
    return _statement("why", audience, node_id, nonce)


def result_statement(
    *, job_id: str, fence: int, card_revision: str, token_count: int, output_digest: str
) -> bytes:
    """Signed at the end of an attempt; part of the receipt."""
    return _statement("result", job_id, str(fence), card_revision, str(token_count), output_digest)


def tokens_digest(token_ids: Iterable[int]) -> str:
    """SHA-256 of the token ids as little-endian 32-bit integers, in hex."""
    ids = list(token_ids)
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


# Encodings of the points of small order, their sign bit masked (RFC 8032 curve; the list is that
# of libsodium's ge25519_has_small_order). Anyone can sign for such a key.
_SMALL_ORDER: Final = frozenset(
    bytes.fromhex(encoded)
    for encoded in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)


def is_weak_key(public_key: bytes) -> bool:
    """Whether an Ed25519 public key is one that anybody can sign for."""
    return public_key[:31] + bytes([public_key[31] & 0x7F]) in _SMALL_ORDER


def is_signed_by(public_key: bytes, signature: str, statement: bytes) -> bool:
    """Whether `signature` (base64url) over `statement` was made by the key's owner."""
    if len(public_key) != 32 or is_weak_key(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(decode_bytes(signature), statement)
    except (InvalidSignature, ValueError):
        return False
    return True
