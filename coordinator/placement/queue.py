"""Place a whole queue on the fleet, in fair order, each choice seen by the next.

An overdue job that finds no host gets one *held*: no job that is not overdue goes there, so that
what runs there ends and the overdue job starts, at the latest when the longest of them is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from coordinator.placement.fairness import OVERDUE_SECONDS, in_order
from coordinator.placement.fleet import HELD, Fleet
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
    forecast, seconds = choice.forecast, choice.forecast.total_seconds
    fleet.slots.clear_at[slot] = now_seconds + seconds - forecast.decode_seconds
    fleet.give(row, seconds - forecast.wait_seconds, now_seconds=now_seconds)
    idle_at = float(fleet.idle_at[row])
    ends_at = now_seconds + seconds
    idle_at = max(idle_at, ends_at) if np.isfinite(idle_at) else ends_at
    fleet.expect_free(row, seat_at=min(float(fleet.seat_at[row]), ends_at), idle_at=idle_at)
    return slot


def release_holds(fleet: Fleet) -> None:
    """Hold no host any longer; the jobs that still need one hold it anew."""
    fleet.held_for.clear()
    for row in np.flatnonzero(fleet.flags[: fleet.rows] & HELD):
        fleet.hold(int(row), is_held=False)


def hold_for(fleet: Fleet, decision: Decision) -> int:
    """Hold a busy host for the job of that decision; its row, or -1 if there is none left.

    One whose seats of the model are all taken goes before all others: there a single seat must
    become free, and holding it costs nobody anything. Any other host does ever less until the last
    of its attempts has ended, which all who wait pay for: it is held for as many jobs of a model as
    it has seats. Among equals the one that is free first, or has the fewest attempts where that is
    not known.
    """
    codes, is_held = decision.codes, (fleet.flags[: fleet.rows] & HELD) != 0
    for row, (revision, jobs) in fleet.held_for.items():
        if revision == decision.revision and jobs < fleet.width[row]:
            is_held[row] = False
    busy = np.isin(codes, [CODES["slot_full"], CODES["memory_busy"], CODES["on_probation"]])
    rows = np.flatnonzero(busy & ~is_held)
    if not len(rows):
        return NOBODY
    is_emptied = codes[rows] != CODES["slot_full"]
    until = np.where(is_emptied, fleet.idle_at[rows], fleet.seat_at[rows])
    row = int(rows[np.lexsort((fleet.tie[rows], fleet.live[rows], until, is_emptied))[0]])
    revision, jobs = fleet.held_for.get(row, ("", 0))
    fleet.held_for[row] = (decision.revision, jobs + 1 if revision == decision.revision else 1)
    fleet.hold(row, is_held=True)
    return row


def waiting(entries: Iterable[Entry]) -> list[Entry]:
    """Those that found no host, in the order of the queue."""
    return [entry for entry in entries if isinstance(entry.decision.choice, NotPlaced)]
