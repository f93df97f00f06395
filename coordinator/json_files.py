"""JSON from a person's file: a key that is there twice is refused, since one of the two was meant."""

from __future__ import annotations

import json
from typing import Any


class DuplicateKeyError(ValueError):
    """One key twice in one object; the text names it."""


def load_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `DuplicateKeyError`, or ValueError if it is not JSON."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DuplicateKeyError(f"the key {key!r} is there twice in one object; keep one of them")
        found[key] = value
    return found
