"""A node's key: made once, kept in its home, never sent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node_agent.protocol.ids import node_id_of
from node_agent.protocol.signing import encode_bytes
from node_agent.settings import SettingsError, write_atomically


@dataclass(frozen=True)
class Identity:
    """An Ed25519 key and the id that follows from it."""

    key: Ed25519PrivateKey

    @property
    def public_key(self) -> str:
        """The raw public key, base64url."""
        return encode_bytes(self.key.public_key().public_bytes_raw())

    @property
    def node_id(self) -> str:
        return node_id_of(self.key.public_key().public_bytes_raw())

    def sign(self, statement: bytes) -> str:
        """Signature over a statement's exact bytes, base64url."""
        return encode_bytes(self.key.sign(statement))


def load_identity(home: Path) -> Identity:
    """The node's key from `home`/node.key, made on the first call (file mode 0600).

    Raises `SettingsError` if the file is damaged or others may read it.
    """
    path = home / "node.key"
    try:
        seed = path.read_bytes()
    except FileNotFoundError:
        write_atomically(path, os.urandom(32))
        seed = path.read_bytes()
    if len(seed) != 32:
        raise SettingsError(f"{path}: not a key of 32 bytes. Remove it and join again")
    if path.stat().st_mode & 0o077:
        raise SettingsError(f"{path}: others may read this key. Run: chmod 600 {path}")
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))
