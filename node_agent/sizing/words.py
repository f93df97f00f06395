"""Memory in words, the same wherever people read of it. Pure."""

from __future__ import annotations

from math import ceil, floor
from typing import Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20
_TENTHS: Final = 10


def memory_text(size_bytes: int, *, is_need: bool = False) -> str:
    """Memory as macOS tells it: GB of 2**30 bytes, to a tenth; MB below a tenth of one.

    What is there is rounded down and what is needed (`is_need`) up, so that a need which is larger
    never reads like what is there. Files are told in GB of 10**9 bytes, as the Finder does.
    """
    rounded = ceil if is_need else floor
    tenths = rounded(size_bytes * _TENTHS / GIB)
    if tenths < 1 or (is_need and size_bytes * _TENTHS < GIB):
        return f"{rounded(size_bytes / MIB)} MB"
    return f"{tenths / _TENTHS:g} GB"
