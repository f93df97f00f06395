"""What is remembered of decisions, so that they can be explained: in memory, for the latest jobs.

An observer of the dispatcher; it and all that reads it run on the event loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, final

from coordinator import clock
from coordinator.explain import Note, note_of
from coordinator.placement.fleet import Fleet
from coordinator.placement.match import POLICY
from coordinator.placement.queue import Entry
from coordinator.placement.types import Placed

JOBS_MAX: Final = 20_000  # about 1.5 kB each
NOTES_MAX: Final = 8  # of one job: more attempts than that are rare


@final
class Decisions:
    """Notes of the decisions that placed jobs."""

    def __init__(self) -> None:
        self._notes: Final[OrderedDict[str, list[Note]]] = OrderedDict()

    def __call__(self, entry: Entry, fleet: Fleet) -> None:
        """Remember one decision."""
        choice = entry.decision.choice
        if not isinstance(choice, Placed):
            return
        job_id = entry.job.job_id
        notes = self._notes.pop(job_id, [])
        notes.append(note_of(entry, choice, fleet, band=POLICY.band, at_us=clock.wall_us()))
        self._notes[job_id] = notes[-NOTES_MAX:]
        while len(self._notes) > JOBS_MAX:
            _ = self._notes.popitem(last=False)

    def of(self, job_id: str) -> Sequence[Note]:
        """A job's notes, the oldest first; empty where they are no longer kept."""
        return tuple(self._notes.get(job_id, ()))


def notes_of_attempts(notes: Sequence[Note], node_ids: Sequence[str]) -> list[Note | None]:
    """For each attempt, by its Mac and in their order, the decision that led to it, if it is kept.

    A decision whose reservation failed led to none.
    """
    found: list[Note | None] = []
    rest = list(notes)
    for node_id in node_ids:
        at = next((n for n, note in enumerate(rest) if note.node_id == node_id), None)
        found.append(None if at is None else rest[at])
        if at is not None:
            del rest[: at + 1]
    return found
