"""The largest numbers that the books can hold. Pure."""

from __future__ import annotations

from typing import Final

MAX_AMOUNT_UMLX: Final = 10**18
"""Largest amount of one command: a trillion MLX."""

MAX_BALANCE_UMLX: Final = 4 * 10**18
"""Largest magnitude of a balance; below 2**62, so that no sum of two leaves a BIGINT."""
