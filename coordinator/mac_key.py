"""One secret key for what the coordinator hands out and recognises again, without storing it.

HMAC-SHA-256 (RFC 2104), the purpose first, so that a mac made for one purpose fits no other.
Replicas that share a database must share the key's file.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final, final

from coordinator.secret_file import read_or_make_key


class MacKeyError(RuntimeError):
    """The file of the key holds something else."""


@final
class MacKey:
    """Makes and checks macs."""

    def __init__(self, key: bytes) -> None:
        self._key: Final = key

    @classmethod
    def from_file(cls, path: Path) -> MacKey:
        """Read the 32-byte key at `path`; make it (mode 0600) if there is none yet.

        Raises `MacKeyError` if the file is there and holds something else.
        """
        try:
            return cls(read_or_make_key(path))
        except ValueError as error:
            raise MacKeyError(str(error)) from None

    def mac(self, purpose: str, content: bytes) -> bytes:
        """32 bytes. `purpose` must not contain a zero character."""
        return hmac.digest(self._key, purpose.encode() + b"\0" + content, hashlib.sha256)

    def fits(self, mac: bytes, purpose: str, content: bytes) -> bool:
        """Whether `mac` is that of the content; takes the same time whatever is wrong with it."""
        return hmac.compare_digest(mac, self.mac(purpose, content))
