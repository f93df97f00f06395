"""An operator's private key: one file, readable by its owner alone. Needs the base install only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from node_agent.protocol.signing import encode_bytes

PRIVATE_MODE: Final = 0o600


class KeyFileError(ValueError):
    """A key file that cannot be made or used; the text says what to do."""


def public_key_of(key: Ed25519PrivateKey) -> str:
    """The public key as it is given to `operators key add`: 43 characters of base64url."""
    return encode_bytes(key.public_key().public_bytes_raw())


def make_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and write it, as PEM, mode 0600. Never overwrites. Raises KeyFileError, OSError."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    except FileExistsError:
        raise KeyFileError(f"{path} exists already; name another file, a key is never overwritten") from None
    with os.fdopen(descriptor, "wb") as file:
        _ = file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return key


def read_key(path: Path) -> Ed25519PrivateKey:
    """The key in the file. Raises KeyFileError if it holds something else or others may read it."""
    if path.stat().st_mode & 0o077:
        raise KeyFileError(f"{path} can be read by others; run: chmod 600 {path}")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} holds no operator's key; make one with: mlx-network operators keygen")
    return key
