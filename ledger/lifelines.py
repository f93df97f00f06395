"""Check what only shows when all entries of one id are laid side by side, with little memory.

Each entry, capture and refund leaves a record of 41 bytes; they are sorted by id on disk. Then an
id that two entries have, and a refund of more than was captured or to someone else, are neighbours.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from itertools import groupby
from typing import Final, Self
from uuid import UUID

from ledger.audit import Finding, Settled
from ledger.sorting import RecordSorter

# Id, what it is, entry number, amount, who paid: big-endian, so that bytes sort as numbers do.
_RECORD: Final = struct.Struct(">16sBQQ8s")
_ENTRY: Final = 0
_CAPTURE: Final = 1
_REFUND: Final = 2
_NOBODY: Final = bytes(8)


class Lifelines:
    """Takes what happened in journal order; `findings` tells what does not fit. Use with `with`."""

    def __init__(self) -> None:
        self._sorter: Final = RecordSorter(_RECORD.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sorter.__exit__()

    def entry(self, seq: int, identity: str) -> None:
        """An entry with that id. Raises ValueError if the id is no UUID as we write them."""
        self._sorter.add(_RECORD.pack(_id(identity), _ENTRY, seq, 0, _NOBODY))

    def settled(self, seq: int, settled: Settled) -> None:
        """A capture or refund of a hold."""
        kind = _REFUND if settled.is_refund else _CAPTURE
        payer = hashlib.sha256(settled.payer.encode()).digest()[:8]
        self._sorter.add(_RECORD.pack(_id(settled.hold_id), kind, seq, settled.amount_umlx, payer))

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """(entry number, what is wrong there), by id."""
        records = map(_RECORD.unpack, self._sorter.sorted())
        for _, group in groupby(records, key=lambda record: record[0]):
            yield from _of_one_id(group)


def _of_one_id(records: Iterator[tuple[bytes, int, int, int, bytes]]) -> Iterator[tuple[int, Finding]]:
    entries, left, payer, captured_seq = 0, 0, _NOBODY, None
    for _, kind, seq, amount, account in records:
        if kind == _ENTRY:
            entries += 1
            if entries > 1:
                yield seq, Finding("id_is_used_once", "an earlier entry has the same id")
        elif kind == _CAPTURE:
            if captured_seq is not None:
                yield seq, Finding("hold_ends_once", "the hold was captured before")
            left, payer, captured_seq = amount, account, seq
        elif captured_seq is None or seq < captured_seq:
            yield seq, Finding("refund_follows_a_capture", "nothing was captured from this hold before")
        elif amount > left or account != payer:
            yield (
                seq,
                Finding("refund_within_capture", f"gives back {amount} of {left} left, to the payer only"),
            )
        else:
            left -= amount


def _id(text: str) -> bytes:
    content = bytes.fromhex(text.replace("-", ""))
    if len(content) != 16 or str(UUID(bytes=content)) != text:
        raise ValueError("an id is not a UUID")
    return content
