"""What a safetensors file says it holds, checked against what it can hold.

A file is eight bytes with the length of a JSON header, the header, and the tensors one after the
other; the header gives each tensor's type, shape and place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, cast

HEADER_BYTES_MAX: Final = 100 * 1024**2
LENGTH_BYTES: Final = 8
TYPE_BITS: Final = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
}


class WeightsFaultError(ValueError):
    """Weights that are not what they say; the text names file and fault."""


@dataclass(frozen=True)
class TensorsOfFile:
    """Bytes of each tensor of one file, by name."""

    bytes_of: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.bytes_of.values())


def read_header(path: Path) -> TensorsOfFile:
    """The tensors of a local file. Raises `WeightsFaultError` if header and file do not agree."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 2 <= length <= min(HEADER_BYTES_MAX, size - LENGTH_BYTES):
            raise WeightsFaultError(f"{path.name}: not a safetensors file: its header cannot be that long")
        text = file.read(length)
    try:
        table = cast("dict[str, Any]", json.loads(text))
        return check_tensors(path.name, table, size - LENGTH_BYTES - length)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, WeightsFaultError):
            raise
        raise WeightsFaultError(f"{path.name}: its header cannot be read") from None


def check_tensors(name: str, header: Mapping[str, Any], data_bytes: int) -> TensorsOfFile:
    """The tensors of a header whose file has `data_bytes` after it. Raises `WeightsFaultError`."""
    found: dict[str, int] = {}
    end_most = 0
    for tensor, facts in header.items():
        if tensor == "__metadata__":
            continue
        begin, end = (int(value) for value in facts["data_offsets"])
        values = prod(int(value) for value in facts["shape"])
        bits = TYPE_BITS.get(str(facts["dtype"]))
        if bits is None:
            raise WeightsFaultError(f"{name}: {tensor}: type {facts['dtype']!r} is not known")
        if end - begin != values * bits // 8 or begin < 0:
            raise WeightsFaultError(f"{name}: {tensor}: its place is not as large as its shape and type")
        found[tensor] = end - begin
        end_most = max(end_most, end)
    if sum(found.values()) != data_bytes or end_most != data_bytes:
        raise WeightsFaultError(
            f"{name}: the header tells of {sum(found.values())} bytes, the file holds {data_bytes}"
        )
    return TensorsOfFile(found)


def check_index(index: Mapping[str, Any], files: Mapping[str, TensorsOfFile]) -> None:
    """Raise `WeightsFaultError` unless an index names exactly the tensors of the files and their size.

    A missing `total_size` is no fault: older converters wrote none.
    """
    placed = cast("Mapping[str, str]", index.get("weight_map") or {})
    for tensor, name in placed.items():
        if name not in files:
            raise WeightsFaultError(f"model.safetensors.index.json: {name} is named and is not there")
        if tensor not in files[name].bytes_of:
            raise WeightsFaultError(f"model.safetensors.index.json: {name} does not hold {tensor}")
    held = sum(file.total_bytes for file in files.values())
    metadata = cast("Mapping[str, Any]", index.get("metadata") or {})
    stated = metadata.get("total_size")
    if stated is not None and int(stated) != held:
        raise WeightsFaultError(
            f"model.safetensors.index.json: total_size is {stated}, the files hold {held} bytes"
        )
