"""What a Mac that did wrong may do next: a pause that doubles, a probe, and then full trust. Pure.

Faults belong to the device and not to the node, so that enrolling anew forgets nothing. Times are
seconds of one clock that only goes forward; which one is the caller's choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Standing = Literal["sound", "paused", "on_probation"]

FAULTS: Final = frozenset(
    {
        "runner_crashed",
        "runner_stalled",
        "load_failed",
        "internal",
        "node_restarted",
        "no_progress",
        "offer_unanswered",
        "bad_chunk",
        "logprobs_missing",
        "too_many_tokens",
        "result_not_proven",
        "cancelled_by_node",
        "request_invalid",
    }
)
"""Ends of attempts that speak against the Mac: it crashed, stalled, or sent what no sound node sends.

Not among them: sleep, goodbye, an owner who returns, a lost network, a restart of the coordinator,
an offer that was declined, a model that cannot be downloaded. A request that was refused speaks
against the Mac once another one has answered it.
"""

JOBS_OWN_FAULTS: Final = frozenset({"runner_crashed", "runner_stalled", "load_failed", "internal"})
"""Faults that a job itself can cause: when it fails alike on two Macs, it is the job."""

_DOUBLINGS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long a device is left alone: doubling from the first to the longest, in seconds."""

    first_seconds: float
    longest_seconds: float

    def after(self, faults: int) -> float:
        """Seconds of pause after so many faults in a row (at least one)."""
        doublings = min(faults - 1, _DOUBLINGS_MAX)
        return min(self.first_seconds * 2.0**doublings, self.longest_seconds)


@dataclass(frozen=True, slots=True)
class Health:
    """A device with faults since its last good result. A sound device has no record."""

    faults: int
    last_fault: str
    last_fault_at: float
    paused_until: float

    def standing(self, now: float) -> Standing:
        """Whether it gets work: not yet, or one job at a time until one has succeeded."""
        return "paused" if now < self.paused_until else "on_probation"


def after_fault(health: Health | None, fault: str, *, begun_at: float, now: float, pauses: Pauses) -> Health:
    """The record after one more fault.

    Attempts that ran side by side die of one crash together: whatever had begun before the last
    fault adds nothing to it.
    """
    if health is not None and begun_at <= health.last_fault_at:
        return health
    faults = 1 if health is None else health.faults + 1
    return Health(faults, fault, last_fault_at=now, paused_until=now + pauses.after(faults))


def after_success(health: Health | None, *, begun_at: float) -> Health | None:
    """The record after a good result: none, unless that attempt had begun before the last fault."""
    if health is not None and begun_at <= health.last_fault_at:
        return health
    return None


def taken_back(health: Health | None, *, now: float) -> Health | None:
    """The record after its last fault turned out to be somebody else's: one fault less, no pause."""
    if health is None or health.faults <= 1:
        return None
    return replace(health, faults=health.faults - 1, paused_until=min(health.paused_until, now))
