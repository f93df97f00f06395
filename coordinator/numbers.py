"""Numbers in headers and addresses, read strictly: ASCII digits and at most one point. Pure.

Python's own `int` and `float` also take underscores, signs, spaces, digits of other scripts,
exponents and `nan`, so that what a proxy or a log reads can be another number than ours.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

_WHOLE: Final = re.compile(r"[0-9]{1,19}")  # as many digits as a 64-bit integer has
_DECIMAL: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?")


def whole_of(text: str) -> int | None:
    """The whole number that `text` is, not negative; None if it is none."""
    return int(text) if _WHOLE.fullmatch(text) else None


def decimal_of(text: str) -> float | None:
    """The number that `text` is, as `12` or `0.25`, not negative; None if it is none."""
    return float(text) if _DECIMAL.fullmatch(text) else None


def _whole(value: object) -> object:
    found = whole_of(value) if isinstance(value, str) else None
    if found is None:
        raise PydanticCustomError("whole_number", "must be a whole number, in digits")
    return found


Whole = Annotated[int, BeforeValidator(_whole)]
"""The type of a whole number in an address's query."""
