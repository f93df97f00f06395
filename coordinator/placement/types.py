"""Frozen facts that placement decides from, and the values that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from node_agent.protocol.cards import ModelCard
from node_agent.protocol.messages import Hardware

RejectReason = Literal[
    "offline",
    "suspect",
    "draining",
    "owner_present",
    "excluded",
    "paused_after_faults",
    "on_probation",
    "kept_apart",
    "cannot_load_kind",
    "memory_lent_short",
    "context_too_long",
    "slot_full",
    "memory_busy",
]

# Reasons that time or other jobs' ends can remove; the others hold for as long as the host is
# what it says it is.
PASSING_REASONS: frozenset[RejectReason] = frozenset(
    {
        "offline",
        "suspect",
        "draining",
        "owner_present",
        "paused_after_faults",
        "on_probation",
        "kept_apart",
        "slot_full",
        "memory_busy",
    }
)


@dataclass(frozen=True)
class SlotFacts:
    """A slot as the database knows it."""

    slot_id: str
    card_revision: str
    bytes: int
    width: int
    tokens_max: int
    live: int
    is_warm: bool


@dataclass(frozen=True)
class HostFacts:
    """One host at the moment of decision.

    `standing` follows from its faults: paused takes nothing, on probation one job at a time.
    `is_kept_apart`: it runs a job that shares no host.
    """

    node_id: str
    owner_id: str
    hardware: Hardware
    lent_bytes: int
    is_online: bool
    is_suspect: bool
    mode: Literal["ready", "busy", "draining", "away"]
    slots: tuple[SlotFacts, ...] = ()
    given_tokens: int = 0
    standing: Literal["sound", "paused", "on_probation"] = "sound"
    is_kept_apart: bool = False

    @property
    def live(self) -> int:
        """Attempts running on this host."""
        return sum(slot.live for slot in self.slots)


@dataclass(frozen=True)
class JobFacts:
    """What a job needs. `tokens` is prompt and answer together at most.

    `is_kept_apart`: it may be what crashed a host, and shares the next one with no other.
    """

    job_id: str
    card: ModelCard
    prompt_tokens: int
    max_tokens: int
    excluded_node_ids: frozenset[str] = frozenset()
    is_kept_apart: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens


@dataclass(frozen=True)
class Forecast:
    """Seconds until the whole answer is there, in its parts, and the speed when it flows."""

    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float

    @property
    def total_seconds(self) -> float:
        return self.load_seconds + self.prefill_seconds + self.decode_seconds


@dataclass(frozen=True)
class SlotPlan:
    """A slot to make on the host, after its idle slots named here have gone."""

    bytes: int
    width: int
    tokens_max: int
    evict_slot_ids: tuple[str, ...]


@dataclass(frozen=True)
class Placed:
    """The chosen host, in an existing slot or in one that is to be made."""

    node_id: str
    slot_id: str | None
    new_slot: SlotPlan | None
    forecast: Forecast


@dataclass(frozen=True)
class NotPlaced:
    """No host now. `is_ever` says whether any host could take it once it is free."""

    rejected: Mapping[RejectReason, int] = field(default_factory=dict[RejectReason, int])
    is_ever: bool = False
    needed_bytes: int = 0
    largest_lent_bytes: int = 0
