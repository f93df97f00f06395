"""What the public may see of the network: one frozen snapshot, already coarsened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MacState = Literal["ready", "busy", "away", "draining"]


@dataclass(frozen=True)
class PublicMac:
    """One Mac, without anything that could tell whose it is or where it stands."""

    label: str
    chip: str
    memory_gib: int
    lent_gib: int
    state: MacState
    models: tuple[str, ...]
    live_jobs: int


@dataclass(frozen=True)
class WorldSnapshot:
    """The network at one moment."""

    macs: tuple[PublicMac, ...]
    jobs_ended: int
    tokens_relayed: int
    jobs_waiting: int
