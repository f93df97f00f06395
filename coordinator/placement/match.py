"""Match one job to the hosts: gates with their reasons, a forecast, then the least loaded.

Deterministic: the same facts give the same host. Every host is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from coordinator.placement.types import (
    PASSING_REASONS,
    Forecast,
    HostFacts,
    JobFacts,
    NotPlaced,
    Placed,
    RejectReason,
    SlotFacts,
    SlotPlan,
)
from node_agent.sizing import memory, speed

# Hosts forecast to finish within this factor of the best are taken as equals, and the one that
# has been given least work for its bandwidth goes first: forecasts are no better than this.
BAND: Final = 1.15

WIDTH_MAX: Final = 8


def plan_slot(job: JobFacts, lent_bytes: int, width_max: int = WIDTH_MAX) -> SlotPlan | None:
    """The widest slot (at most `width_max` sequences) for the job's model within `lent_bytes`.

    The context per sequence is the model's own where that fits at full width; else it is halved
    until it fits or is just what the job needs, and only then is the slot made narrower. None if
    even one sequence of this job does not fit.
    """
    card = job.card
    tokens_max = card.context_tokens
    while (
        tokens_max > job.tokens
        and memory.needed_bytes(card, context_tokens=tokens_max, width=width_max) > lent_bytes
    ):
        tokens_max = max(tokens_max // 2, job.tokens)
    for width in range(width_max, 0, -1):
        needed = memory.needed_bytes(card, context_tokens=tokens_max, width=width)
        if needed <= lent_bytes:
            return SlotPlan(needed, width, tokens_max, ())
    return None


def _gate(job: JobFacts, host: HostFacts) -> RejectReason | None:
    if job.tokens > job.card.context_tokens:
        return "context_too_long"
    if host.node_id in job.excluded_node_ids:
        return "excluded"
    if plan_slot(job, host.lent_bytes, width_max=1) is None:
        return "memory_lent_short"
    if not host.is_online:
        return "offline"
    if host.is_suspect:
        return "suspect"
    if host.mode == "draining":
        return "draining"
    if host.mode == "away":
        return "owner_present"
    return _health_gate(job, host)


def _health_gate(job: JobFacts, host: HostFacts) -> RejectReason | None:
    """A host that failed lately gets work by degrees; a job that may be at fault goes alone."""
    if host.standing == "paused":
        return "paused_after_faults"
    if host.standing == "on_probation" and host.live:
        return "on_probation"
    if host.is_kept_apart or (job.is_kept_apart and host.live):
        return "kept_apart"
    return None


def _seat(job: JobFacts, host: HostFacts) -> SlotFacts | SlotPlan | RejectReason:
    """A place in a slot of the host, a slot to make, or why neither is possible now."""
    revision = job.card.revision
    for slot in host.slots:
        if slot.card_revision == revision and slot.tokens_max >= job.tokens:
            return slot if slot.live < slot.width else "slot_full"
    if any(slot.live for slot in host.slots):
        return "memory_busy"
    plan = plan_slot(job, host.lent_bytes, min(WIDTH_MAX, host.hardware.width))
    if plan is None:
        return "memory_lent_short"
    return SlotPlan(plan.bytes, plan.width, plan.tokens_max, tuple(slot.slot_id for slot in host.slots))


def forecast(job: JobFacts, host: HostFacts, *, is_warm: bool, live: int) -> Forecast:
    """Seconds for this job on this host. Attempts in one slot share the weights' reads, so a
    further one costs far less than a whole turn; half its share is counted."""
    step = speed.decode_seconds_per_token(job.card, host.hardware) * (1 + 0.5 * live)
    return Forecast(
        load_seconds=0.0 if is_warm else speed.load_seconds(job.card),
        prefill_seconds=speed.prefill_seconds(job.card, job.prompt_tokens, host.hardware),
        decode_seconds=step * job.max_tokens,
        tokens_per_second=1 / step,
    )


def match(job: JobFacts, hosts: Iterable[HostFacts]) -> Placed | NotPlaced:
    """Choose a host for `job`, or say how many hosts were rejected for which reason."""
    rejected: Counter[RejectReason] = Counter()
    candidates: list[tuple[HostFacts, Placed]] = []
    largest = 0
    is_ever = False
    for host in hosts:
        largest = max(largest, host.lent_bytes)
        verdict = _gate(job, host)
        seat = verdict if verdict is not None else _seat(job, host)
        if isinstance(seat, str):
            rejected[seat] += 1
            is_ever = is_ever or seat in PASSING_REASONS
            continue
        is_warm = isinstance(seat, SlotFacts) and seat.is_warm
        expected = forecast(job, host, is_warm=is_warm, live=host.live)
        if isinstance(seat, SlotFacts):
            candidates.append((host, Placed(host.node_id, seat.slot_id, None, expected)))
        else:
            candidates.append((host, Placed(host.node_id, None, seat, expected)))
    if not candidates:
        needed = memory.needed_bytes(job.card, context_tokens=max(job.tokens, 1), width=1)
        return NotPlaced(dict(rejected), is_ever, needed, largest)
    best = min(placed.forecast.total_seconds for _, placed in candidates)
    band = [entry for entry in candidates if entry[1].forecast.total_seconds <= best * BAND]
    return min(band, key=_precedence)[1]


def _precedence(entry: tuple[HostFacts, Placed]) -> tuple[float, float, str]:
    """The most owed first, then the soonest done; the id makes it deterministic."""
    host, placed = entry
    return (_given_share(host), placed.forecast.total_seconds, host.node_id)


def _given_share(host: HostFacts) -> float:
    """Work given lately against what the host could do: the smaller, the more it is owed."""
    return host.given_tokens / host.hardware.bandwidth_bytes_per_second
