"""Seeded randomness: a stream of its own for whoever draws.

Each is made from the seed and a name, so that a node or fault that is left out of a scenario
does not change what the others draw.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Draws:
    """All randomness of one world."""

    seed: int

    def of(self, name: str) -> random.Random:
        """The stream of that name, from its start."""
        return random.Random(f"{self.seed}/{name}")
