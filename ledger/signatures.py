"""Signatures of operators over what one person alone must not do. Pure, no clock.

What is signed begins with a line that says what it is, so that a signature under one thing can
stand for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, signature, message) to whether it is valid."""


class SignatureError(ValueError):
    """Too few operators have signed; the text says how many did and how many must."""


def signed_message(what: str, text: str) -> bytes:
    """The bytes to sign: a line that names `what` (as `budget`), and an ASCII text."""
    return f"mlx-network {what} v1\n{text}".encode("ascii")


def verify_ed25519(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether an Ed25519 signature (64 bytes) by a raw public key (32 bytes) is valid."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def valid_signers(
    message: bytes,
    signatures: Mapping[str, bytes],
    operator_keys: Mapping[str, bytes],
    verify: Verify = verify_ed25519,
) -> tuple[str, ...]:
    """The operators whose signatures over `message` are valid, sorted.

    `operator_keys` maps names to raw public keys. Signatures of others do not count, and one key
    counts once, whatever names it goes by.
    """
    valid: dict[bytes, str] = {}
    for name, signature in sorted(signatures.items()):
        key = operator_keys.get(name)
        if key is not None and verify(key, signature, message):
            valid.setdefault(key, name)
    return tuple(sorted(valid.values()))


def require_signers(
    what: str,
    message: bytes,
    signatures: Mapping[str, bytes],
    operator_keys: Mapping[str, bytes],
    *,
    needed: int,
    verify: Verify = verify_ed25519,
) -> tuple[str, ...]:
    """`valid_signers`, or SignatureError if they are fewer than `needed`; `what` as `budget b1`."""
    found = valid_signers(message, signatures, operator_keys, verify)
    if len(found) < needed:
        raise SignatureError(f"{what} has {len(found)} valid signatures of operators and needs {needed}")
    return found
