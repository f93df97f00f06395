"""Place a whole queue on the fleet, in fair order, each choice seen by the next.

An overdue job that finds no host gets one *held*: no younger job goes there, so that what runs
there ends and the overdue job starts, at the latest when the longest of them is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from coordinator.placement.fairness import OVERDUE_SECONDS, in_order
from coordinator.placement.fleet import HELD, VACANT, Fleet
from coordinator.placement.match import OUTLOOK, POLICY, Decision, decide
from coordinator.placement.reject import CODES
from coordinator.placement.slots import NOBODY
from coordinator.placement.types import JobFacts, NotPlaced, Outlook, Placed, Policy, SlotFacts


@dataclass(frozen=True, eq=False)
class Entry:
    """One job of the queue, what was decided, the slot it sits in, and the host that is held for it
    (-1: none)."""

    job: JobFacts
    decision: Decision
    slot: int = NOBODY
    held_row: int = NOBODY


def place_queue(
    jobs: Iterable[JobFacts],
    fleet: Fleet,
    *,
    usage: Mapping[str, float] | None = None,
    policy: Policy = POLICY,
    outlook: Outlook = OUTLOOK,
    now_seconds: float = 0.0,
    overdue_seconds: float = OVERDUE_SECONDS,
) -> list[Entry]:
    """Decide for each job and enter each choice in `fleet`, holds included."""
    release_holds(fleet)
    found: list[Entry] = []
    for job in in_order(jobs, usage or {}, overdue_seconds=overdue_seconds):
        decision = decide(job, fleet, policy=policy, outlook=outlook, now_seconds=now_seconds)
        slot = held = NOBODY
        if isinstance(decision.choice, Placed):
            slot = take(fleet, decision, decision.choice, job, now_seconds=now_seconds)
        elif job.is_overdue and decision.choice.is_ever:
            held = hold_for(fleet, decision)
        found.append(Entry(job, decision, slot, held))
    return found


def take(fleet: Fleet, decision: Decision, choice: Placed, job: JobFacts, *, now_seconds: float) -> int:
    """Enter a choice in the fleet: a seat taken, or a slot made after others have gone; its number."""
    row, slot = decision.row, decision.slot
    if choice.new_slot is not None:
        plan = choice.new_slot
        facts = SlotFacts(
            slot_id=f"new-{job.job_id}"[:48],
            card_revision=job.revision,
            bytes=plan.bytes,
            width=plan.width,
            tokens_max=plan.tokens_max,
            live=0,
            is_warm=False,
        )
        slot = fleet.make_slot(row, facts, plan.evict_slot_ids)
    fleet.set_live(slot, int(fleet.slots.live[slot]) + 1)
    seconds = choice.forecast.total_seconds
    fleet.give(row, seconds, now_seconds=now_seconds)
    idle_at = float(fleet.idle_at[row])
    ends_at = now_seconds + seconds
    idle_at = max(idle_at, ends_at) if np.isfinite(idle_at) else ends_at
    fleet.expect_free(row, seat_at=min(float(fleet.seat_at[row]), ends_at), idle_at=idle_at)
    return slot


def release_holds(fleet: Fleet) -> None:
    """Hold no host any longer; the jobs that still need one hold it anew."""
    for row in np.flatnonzero(fleet.flags[: fleet.rows] & HELD):
        fleet.hold(int(row), is_held=False)


def hold_for(fleet: Fleet, decision: Decision) -> int:
    """Hold the busy host that will be free first; its row, or -1 if every one is held already.

    Where ends are not known, the one with the fewest attempts: what runs there only becomes fewer.
    """
    codes = decision.codes
    busy = np.isin(codes, [CODES["slot_full"], CODES["memory_busy"], CODES["on_probation"]])
    rows = np.flatnonzero(busy & (codes != VACANT) & ((fleet.flags[: fleet.rows] & HELD) == 0))
    if not len(rows):
        return NOBODY
    order = np.lexsort((fleet.tie[rows], fleet.live[rows], fleet.idle_at[rows]))
    row = int(rows[order[0]])
    fleet.hold(row, is_held=True)
    return row


def waiting(entries: Iterable[Entry]) -> list[Entry]:
    """Those that found no host, in the order of the queue."""
    return [entry for entry in entries if isinstance(entry.decision.choice, NotPlaced)]
