"""The hash chain over the journal. Pure.

leaf(n) = SHA-256(0x00 || canonical JSON of entry n), head(n) = SHA-256(0x01 || head(n-1) || leaf(n)),
head(0) = SHA-256 of nothing. The prefixes keep leaves and inner values apart as RFC 6962,
section 2.1 does: the leaves are those of the Merkle tree, too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ledger.commands import canonical_json

GENESIS_HEAD: Final = hashlib.sha256(b"").digest()


@dataclass(frozen=True)
class Entry:
    """One journal entry: all that its leaf covers. `legs` are (account id, uMLX) in leg order."""

    seq: int
    id: UUID
    kind: str
    reference: str
    recorded_us: int
    request_digest: bytes
    result: str
    needed_umlx: int | None
    available_umlx: int | None
    legs: tuple[tuple[str, int], ...]


def leaf_text(entry: Entry) -> str:
    """The canonical JSON that an entry's leaf is the hash of."""
    content = [
        entry.seq,
        str(entry.id),
        entry.kind,
        entry.reference,
        entry.recorded_us,
        entry.request_digest.hex(),
        entry.result,
        entry.needed_umlx,
        entry.available_umlx,
        [list(leg) for leg in entry.legs],
    ]
    return canonical_json(content)


def leaf_of(entry: Entry) -> bytes:
    """The 32-byte leaf of an entry; any change of a field changes it."""
    return leaf_of_text(leaf_text(entry).encode("ascii"))


def leaf_of_text(text: bytes) -> bytes:
    """The 32-byte leaf of an entry's canonical JSON."""
    return hashlib.sha256(b"\x00" + text).digest()


def next_head(head: bytes, leaf: bytes) -> bytes:
    """The 32-byte head after `leaf` was appended."""
    return hashlib.sha256(b"\x01" + head + leaf).digest()
