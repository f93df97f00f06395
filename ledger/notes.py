"""Signed notes and checkpoints, as C2SP's signed-note and tlog-checkpoint specify them.

A checkpoint is three lines (origin, number of entries, root in base64), a blank line, and the
signature line of the ledger's Ed25519 key. Its *verifier key* is public:
`name+hash+base64(1 || public key)`, the hash being the first four bytes of
SHA-256(name || newline || 1 || public key) in hexadecimal.

Needs `cryptography` only, so that anyone can check a ledger with the base install.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ED25519: Final = b"\x01"
NAME_PATTERN: Final = re.compile(r"^[^\s+]{1,200}$")
SECRET_PREFIX: Final = "PRIVATE+KEY+"  # noqa: S105 - how such a key begins, not one
MAX_NOTE_BYTES: Final = 64 << 10
_DASH: Final = "\u2014"


class NoteError(ValueError):
    """A key, note or checkpoint that cannot be used; the text says why and what to do."""


@dataclass(frozen=True)
class VerifierKey:
    """The public half of a ledger's key: its name and 32 bytes."""

    name: str
    public: bytes

    @property
    def key_hash(self) -> bytes:
        """Four bytes that tell keys of one name apart."""
        return hashlib.sha256(self.name.encode() + b"\n" + ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_hash.hex()}+{_encode(ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Inverse of `str`. Raises NoteError."""
        name, first, rest = text.strip().partition("+")
        key_hash, second, encoded = rest.partition("+")
        content = _decode(encoded)
        if not first or not second or not NAME_PATTERN.fullmatch(name) or content is None:
            raise NoteError("the key must be one line name+hash+base64, as /v1/ledger/key shows it")
        if len(content) != 33 or content[:1] != ED25519:
            raise NoteError("the key is not an Ed25519 key; take the one that /v1/ledger/key shows")
        key = cls(name, content[1:])
        if key.key_hash.hex() != key_hash:
            raise NoteError("the key's hash does not fit its bytes; it was not copied whole")
        return key


@dataclass(frozen=True)
class Checkpoint:
    """The ledger's tree at one size: `root` (32 bytes) over the first `size` entries."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{_encode(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Inverse of `text`. Raises NoteError; extension lines are refused, we never write any."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3]:
            raise NoteError("a checkpoint has three lines: origin, size, root")
        root = _decode(lines[2])
        if not lines[0] or not re.fullmatch(r"0|[1-9][0-9]{0,18}", lines[1]) or root is None:
            raise NoteError("a checkpoint has an origin, a decimal size and a root in base64")
        if len(root) != 32:
            raise NoteError("a checkpoint's root has 32 bytes")
        return cls(lines[0], int(lines[1]), root)


class Signer:
    """The ledger's private key and its name, which is the checkpoints' origin."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        if not NAME_PATTERN.fullmatch(name):
            raise NoteError("a key's name must be 1 to 200 characters without spaces and plus signs")
        self._private = private
        self.key: Final = VerifierKey(name, private.public_key().public_bytes_raw())

    def sign(self, text: str) -> str:
        """`text`, which must end in a newline, as a signed note."""
        if not text.endswith("\n"):
            raise NoteError("a note's text must end in a newline")
        signature = self._private.sign(text.encode())
        return f"{text}\n{_DASH} {self.key.name} {_encode(self.key.key_hash + signature)}\n"

    def sign_checkpoint(self, size: int, root: bytes) -> str:
        """The signed checkpoint of a tree with that many entries and that root."""
        return self.sign(Checkpoint(self.key.name, size, root).text)

    @classmethod
    def generate(cls, name: str) -> Signer:
        """A new key. Raises NoteError for a name that cannot be one."""
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def from_file(cls, path: Path, name: str) -> Signer:
        """The key in the file at `path`; made (mode 0600) with `name` if there is none yet.

        A key that exists keeps the name it was made with. Several processes may call this at
        once: all get the same key. Raises NoteError if the file holds something else.
        """
        if not path.exists():
            _write_once(path, cls.generate(name).secret() + "\n")
        try:
            return cls._from_secret(path.read_text("ascii").strip())
        except (NoteError, ValueError):
            raise NoteError(
                f"{path} does not hold a ledger key; restore it, for a new one cannot go on with old checkpoints"
            ) from None

    def secret(self) -> str:
        """The private key as one line; for the key file alone."""
        seed = _encode(ED25519 + self._private.private_bytes_raw())
        return f"{SECRET_PREFIX}{self.key.name}+{self.key.key_hash.hex()}+{seed}"

    @classmethod
    def _from_secret(cls, text: str) -> Signer:
        name, _, rest = text.removeprefix(SECRET_PREFIX).partition("+")
        key_hash, _, encoded = rest.partition("+")
        content = _decode(encoded)
        if not text.startswith(SECRET_PREFIX) or content is None or content[:1] != ED25519:
            raise NoteError("not a secret key")
        signer = cls(name, Ed25519PrivateKey.from_private_bytes(content[1:]))
        if signer.key.key_hash.hex() != key_hash:
            raise NoteError("not a whole secret key")
        return signer


def open_note(note: str, key: VerifierKey) -> str:
    """The text of a note that `key` has signed; signatures of other keys are ignored.

    Raises NoteError if the note is malformed, has no signature of this key, or a false one.
    """
    text, blank, signatures = note.rpartition("\n\n")
    if not blank or not signatures.endswith("\n") or len(note.encode()) > MAX_NOTE_BYTES:
        raise NoteError("not a signed note: text, a blank line and signature lines")
    if any(ord(character) < 32 and character != "\n" for character in note):
        raise NoteError("a note has no control characters but newlines")
    text += "\n"
    is_signed = False
    for line in signatures[:-1].split("\n"):
        dash, name, content = _signature_of(line)
        if dash != _DASH or content is None:
            raise NoteError("a signature line is malformed")
        if (name, content[:4]) == (key.name, key.key_hash):
            _check(key, content[4:], text)
            is_signed = True
    if not is_signed:
        raise NoteError(f"the note is not signed by the key {key.name}+{key.key_hash.hex()}")
    return text


def open_checkpoint(note: str, key: VerifierKey) -> Checkpoint:
    """The checkpoint that `key` has signed under its own name. Raises NoteError."""
    checkpoint = Checkpoint.parse(open_note(note, key))
    if checkpoint.origin != key.name:
        raise NoteError("the checkpoint is of another ledger than the key")
    return checkpoint


def _check(key: VerifierKey, signature: bytes, text: str) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(signature, text.encode())
    except (InvalidSignature, ValueError):
        raise NoteError("the signature is false") from None


def _signature_of(line: str) -> tuple[str, str, bytes | None]:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    content = _decode(encoded)
    return dash, name, content if content is not None and len(content) > 4 else None


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _decode(text: str) -> bytes | None:
    """The bytes, or None unless `text` is the one way to write them."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return content if _encode(content) == text else None


def _write_once(path: Path, content: str) -> None:
    """Make the file whole or not at all; whoever comes first wins."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
