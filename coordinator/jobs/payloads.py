"""Encrypts what submitters send and get: AES-256-GCM, one key per job part, bound to job and part.

The job's key is wrapped by the key in the coordinator's secret file, so that the database alone
reads nothing.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coordinator.secret_file import read_or_make_key

Part = Literal["request", "prefix", "result"]
_NONCE_BYTES: Final = 12


class PayloadError(RuntimeError):
    """A payload that cannot be opened: another secret file, or changed bytes."""


class PayloadBox:
    """Seals and opens payloads with the key from one secret file."""

    def __init__(self, key: bytes) -> None:
        self._wrapper = AESGCM(key)

    @classmethod
    def from_file(cls, path: Path) -> PayloadBox:
        """Read the 32-byte key at `path`; make it (mode 0600) if there is none yet.

        Raises `PayloadError` if the file is there and holds something else.
        """
        try:
            return cls(read_or_make_key(path))
        except ValueError as error:
            raise PayloadError(str(error)) from None

    def seal(self, content: bytes, *, job_id: str, part: Part) -> tuple[bytes, bytes]:
        """Return (wrapped key, ciphertext) for `content`."""
        bound = f"{job_id}/{part}".encode()
        key = AESGCM.generate_key(bit_length=256)
        key_nonce = secrets.token_bytes(_NONCE_BYTES)
        wrapped = key_nonce + self._wrapper.encrypt(key_nonce, key, bound)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return wrapped, nonce + AESGCM(key).encrypt(nonce, content, bound)

    def open(self, wrapped: bytes, ciphertext: bytes, *, job_id: str, part: Part) -> bytes:
        """Inverse of `seal`. Raises `PayloadError`."""
        bound = f"{job_id}/{part}".encode()
        try:
            key = self._wrapper.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], bound)
            return AESGCM(key).decrypt(ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise PayloadError(f"the {part} of {job_id} cannot be opened") from None
