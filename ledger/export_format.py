"""The text of an exported ledger: how its lines are written and taken apart. Pure.

Version 1, one value a line, every line in canonical JSON (sorted keys, no spaces, ASCII):

1. `{"checkpoint":NOTE,"format":"mlx-network-ledger","version":1}`: NOTE is the signed checkpoint
   that the file ends at.
2. For each entry `{"body":BODY,"entry":ENTRY,"head":HEX,"leaf":HEX}`: BODY is the command, ENTRY
   the array whose text the leaf is the hash of; its sixth value is the SHA-256 of BODY's text.
   Among them may stand `{"checkpoint":NOTE}` lines, each after the last entry that it covers.
3. `{"checkpoints":N,"entries":N,"head":HEX,"postings":N}`, what the lines between hold.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, cast

from ledger.commands import canonical_json

FORMAT: Final = "mlx-network-ledger"
VERSION: Final = 1
MAX_LINE_BYTES: Final = 1 << 20

ENTRY_START: Final = b'{"body":'
CHECKPOINT_START: Final = b'{"checkpoint":'
FOOTER_START: Final = b'{"checkpoints":'
_ENTRY_MIDDLE: Final = b',"entry":'
_HEAD: Final = b',"head":"'
_LEAF: Final = b'","leaf":"'
_END: Final = b'"}\n'
_HEX_BYTES: Final = 64
_HEAD_AT: Final = len(_LEAF) + len(_END) + 2 * _HEX_BYTES
_TAIL_BYTES: Final = len(_HEAD) + _HEAD_AT


class EntryLine(NamedTuple):
    """The parts of an entry's line as bytes, just as they stand there."""

    body: bytes
    entry: bytes
    head_hex: bytes
    leaf_hex: bytes


def header_line(note: str) -> bytes:
    """The first line, with the checkpoint that the file ends at."""
    return _line({"checkpoint": note, "format": FORMAT, "version": VERSION})


def checkpoint_line(note: str) -> bytes:
    """An earlier checkpoint, to narrow down where a rewritten history begins."""
    return _line({"checkpoint": note})


def entry_line(body: str, entry_text: str, head: bytes, leaf: bytes) -> bytes:
    """One entry; body and leaf text stand in it byte for byte as they were hashed."""
    return (f'{{"body":{body},"entry":{entry_text},"head":"{head.hex()}","leaf":"{leaf.hex()}"}}\n').encode(
        "ascii"
    )


def footer_line(entries: int, head: bytes, postings: int, checkpoints: int) -> bytes:
    """The last line: what the lines between it and the first one hold."""
    return _line({"checkpoints": checkpoints, "entries": entries, "head": head.hex(), "postings": postings})


def split_entry_line(line: bytes) -> EntryLine | None:
    """Inverse of `entry_line`; None if the line is not framed as one."""
    middle = line.find(_ENTRY_MIDDLE)
    tail = len(line) - _TAIL_BYTES
    head_at = len(line) - _HEAD_AT
    leaf_at = len(line) - len(_END) - _HEX_BYTES
    is_framed = (
        line.startswith(ENTRY_START)
        and line.endswith(_END)
        and 0 < middle < tail
        # Quotes inside strings are escaped, so a second one means that two lines ran together.
        and line.find(_HEAD) == tail
        and line[leaf_at - len(_LEAF) : leaf_at] == _LEAF
    )
    if not is_framed:
        return None
    return EntryLine(
        line[len(ENTRY_START) : middle],
        line[middle + len(_ENTRY_MIDDLE) : tail],
        line[head_at : head_at + _HEX_BYTES],
        line[leaf_at : leaf_at + _HEX_BYTES],
    )


def read_object(line: bytes) -> dict[str, Any]:
    """The object of a header, checkpoint or footer line. Raises ValueError unless it is canonical."""
    try:
        value = json.loads(line.decode("ascii"))
        is_canonical = isinstance(value, dict) and _line(cast("dict[str, object]", value)) == line
    except (ValueError, RecursionError):
        raise ValueError("the line is not the JSON that an export has there") from None
    if not is_canonical:
        raise ValueError("the line is not written as an export writes it")
    return cast("dict[str, Any]", value)


def _line(value: dict[str, object]) -> bytes:
    return canonical_json(value).encode("ascii") + b"\n"
