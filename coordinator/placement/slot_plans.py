"""The slot to make for a job's model on a host: how large, and what goes for it. Pure.

Where a host holds several models, each slot takes its part of the memory and not all that is free: the
next model finds room beside it. Only one of them is at work at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from coordinator.placement.fleet import Fleet
from coordinator.placement.residency import CONTEXT_TOKENS
from coordinator.placement.types import JobFacts, SlotPlan
from node_agent.sizing import memory

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


def bytes_at_most(job: JobFacts, limit_bytes: int, slots_max: int, width: int) -> int:
    """What a slot for the job's model takes at most of a host that holds `slots_max` models: its part
    of the memory, or, if that is more, what the usual context needs at that width."""
    if slots_max == 1:
        return limit_bytes
    context = max(job.tokens, min(CONTEXT_TOKENS, job.card.context_tokens))
    usual = memory.needed_bytes(job.card, context_tokens=context, width=width)
    return min(limit_bytes, max(limit_bytes // slots_max, usual))


def slot_to_make(job: JobFacts, fleet: Fleet, row: int) -> SlotPlan:
    """The slot to make for a model on an idle host, and the slots that go for it: all where one model
    is held, else the model's own, and of the others no more than must: cold ones first, then those
    that are missed least. The host must have room for the job once they have gone.
    """
    slots = fleet.slots
    here = list(slots.of(int(fleet.first_slot[row])))
    limit, slots_max = int(fleet.limit[row]), int(fleet.slots_max[row])
    width = min(WIDTH_MAX, int(fleet.width[row]))
    needed = memory.needed_bytes(job.card, context_tokens=max(job.tokens, 1), width=1)
    going = [slot for slot in here if slots_max == 1 or slots.revision(slot) == job.revision]
    for slot in sorted(here, key=lambda slot: _missed(fleet, slot)):
        room = limit - sum(int(slots.bytes[slot]) for slot in here if slot not in going)
        if room >= needed and len(here) - len(going) < slots_max:
            break
        if slot not in going:
            going.append(slot)
    room = limit - sum(int(slots.bytes[slot]) for slot in here if slot not in going)
    plan = plan_slot(job, min(room, bytes_at_most(job, limit, slots_max, width)), width)
    if plan is None:
        raise AssertionError("a host past the gates has room for the job")
    return replace(
        plan,
        evict_slot_ids=tuple(slots.slot_id(slot) for slot in going),
        evict_revisions=tuple(sorted({slots.revision(slot) for slot in going} - {job.revision})),
    )


def _missed(fleet: Fleet, slot: int) -> tuple[bool, float, str]:
    lost = float(fleet.slots.weights_lost(np.array([slot], dtype=np.int32))[0])
    return bool(fleet.slots.warm[slot]), lost, fleet.slots.slot_id(slot)
