"""Ids of many rows, those of the network's own form in half as many bytes."""

from __future__ import annotations

from typing import Final, final

import numpy as np
from numpy.typing import NDArray


@final
class IdColumn:
    """An id by number. `prefix` and `digits` lowercase hexadecimal digits (an even count) are stored as
    bytes; an id of another form, as files may have, is kept beside them as it is.
    """

    def __init__(self, prefix: str, digits: int, capacity: int) -> None:
        self._prefix: Final = prefix
        self._digits: Final = digits
        self._packed: NDArray[np.uint8] = np.zeros((capacity, digits // 2), dtype=np.uint8)
        self._others: Final[dict[int, str]] = {}

    def set(self, number: int, text: str) -> None:
        """Give that number an id."""
        digits = text.removeprefix(self._prefix)
        is_ours = text == self._prefix + digits and len(digits) == self._digits
        raw = _bytes_of(digits) if is_ours else None
        if raw is None:
            self._others[number] = text
            return
        _ = self._others.pop(number, None)
        self._packed[number] = np.frombuffer(raw, dtype=np.uint8)

    def get(self, number: int) -> str:
        """The id of a number that has one."""
        found = self._others.get(number)
        return found if found is not None else self._prefix + self._packed[number].tobytes().hex()

    def grow(self, capacity: int) -> None:
        """Have room for so many numbers."""
        longer = np.zeros((capacity, self._digits // 2), dtype=np.uint8)
        longer[: len(self._packed)] = self._packed
        self._packed = longer

    def nbytes(self) -> int:
        """Bytes of all ids, those of another form left out."""
        return self._packed.nbytes


def _bytes_of(digits: str) -> bytes | None:
    """The bytes of lowercase hexadecimal digits; None if they are none."""
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    return raw if raw.hex() == digits else None
