"""The models a node holds side by side, the children that run them, and the runs that are in a child."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, final

from node_agent.events import (
    CloseRunner,
    FetchEnded,
    FetchModel,
    Instruction,
    Lane,
    LimitRunner,
    Send,
    StartRun,
    StartRunner,
    StopRun,
)
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.runner.messages import Run
from node_agent.sizing.memory import PROCESS_BYTES, needed_bytes

HoldPhase = Literal["downloading", "loading", "ready", "failed"]


class SlotPhase(Enum):
    FETCHING = "downloading"
    LOADING = "loading"
    READY = "ready"


@dataclass(slots=True)
class Slot:
    """A model that this node holds or is about to hold.

    `used` orders models by their last use, the latest has the most. `child_bytes` is what its child
    said it holds. `limit_bytes` is what the child was last told to stay below; None: all that is lent.
    """

    card: ModelCard
    revision: str
    held: bool
    used: int
    phase: SlotPhase = SlotPhase.FETCHING
    folder: Path | None = None
    generation: int | None = None
    child_bytes: int = 0
    limit_bytes: int | None = None

    @property
    def planned_bytes(self) -> int:
        """What it takes of the memory that is lent while it has no run."""
        if self.phase is SlotPhase.READY:
            return self.child_bytes + PROCESS_BYTES
        return needed_bytes(self.card, 1, 1)

    @property
    def coming_bytes(self) -> int:
        """What it will still take of the memory that is free now, without a run."""
        return 0 if self.phase is SlotPhase.READY else max(0, self.planned_bytes - self.child_bytes)


@dataclass(slots=True)
class KnownRun:
    """A run that the child has not ended yet; its attempt may be gone already."""

    job_id: str
    revision: str
    stop_due_seconds: float | None = None


@final
class SlotKeeper:
    """Changes slots in legal steps only; what must be done is appended to `out`.

    A child that was told to go counts, with its memory, until its exit is reported: none is started,
    and no run, before. All runs are in one child.
    """

    def __init__(self, out: list[Instruction], lent_bytes: int) -> None:
        self.slots: dict[str, Slot] = {}
        self.runs: dict[str, KnownRun] = {}
        # Bytes of the children that were told to go, by generation; they come back with the exit.
        self.closing: dict[int, int] = {}
        self._lent_bytes = lent_bytes
        self._generations = 0
        self._uses = 0
        self._out = out

    @property
    def children_bytes(self) -> int:
        """What all our children hold, those that were told to go too."""
        return sum(slot.child_bytes for slot in self.slots.values()) + sum(self.closing.values())

    def is_ready(self, revision: str) -> bool:
        slot = self.slots.get(revision)
        return slot is not None and slot.phase is SlotPhase.READY

    def slot_of(self, generation: int) -> Slot | None:
        """The slot whose child this is; None for one that was told to go, or is gone."""
        return next((slot for slot in self.slots.values() if slot.generation == generation), None)

    def others(self, revision: str | None) -> list[Slot]:
        """All but this one, the least recently used first."""
        found = (slot for slot in self.slots.values() if slot.revision != revision)
        return sorted(found, key=lambda slot: slot.used)

    def has_runs(self, slot: Slot) -> bool:
        return any(run.revision == slot.revision for run in self.runs.values())

    def ensure(self, card: ModelCard, revision: str, *, held: bool) -> None:
        """Turn to this model; there must be room for it."""
        self._uses += 1
        slot = self.slots.get(revision)
        if slot is None:
            self.slots[revision] = Slot(card=card, revision=revision, held=held, used=self._uses)
            self._out.append(FetchModel(card))
        else:
            slot.held, slot.used = slot.held or held, self._uses

    def close(self, revision: str) -> None:
        """Forget a slot and its runs, and end its child."""
        slot = self.slots.pop(revision, None)
        if slot is not None and slot.generation is not None:
            self.closing[slot.generation] = slot.child_bytes
            self._out.append(CloseRunner(slot.generation))
        self._forget_runs(revision)

    def close_all(self) -> None:
        for revision in list(self.slots):
            self.close(revision)

    def drop(self, slots: Iterable[Slot], why: str) -> None:
        """Close these for want of memory; who waits for one that was asked for is told."""
        for slot in slots:
            if slot.held and slot.phase is not SlotPhase.READY:
                self.report_hold_failed(slot.card, slot.revision, why)
            self.close(slot.revision)

    def fetched(self, event: FetchEnded) -> bool:
        """Note the folder; False if nobody waits for it."""
        slot = self.slots.get(event.card_revision)
        if slot is None or slot.phase is not SlotPhase.FETCHING:
            return False
        slot.folder = event.folder
        slot.phase = SlotPhase.LOADING
        return True

    def start_runners_if_clear(self) -> None:
        """Start children for what is on the disk, once no older child is left; the latest first."""
        if self.closing:
            return
        for slot in reversed(self.others(None)):
            if slot.folder is not None and slot.generation is None:
                self._generations += 1
                slot.generation = self._generations
                self._out.append(StartRunner(slot.generation, slot.card, slot.folder))

    def ready(self, slot: Slot, active_bytes: int) -> None:
        slot.phase, slot.child_bytes = SlotPhase.READY, active_bytes

    def crashed(self, slot: Slot) -> None:
        """Its child is gone: the model must be loaded again."""
        slot.phase, slot.generation = SlotPhase.LOADING, None
        slot.child_bytes, slot.limit_bytes = 0, None
        self._forget_runs(slot.revision)

    def _forget_runs(self, revision: str) -> None:
        for key in [key for key, run in self.runs.items() if run.revision == revision]:
            del self.runs[key]

    def closed(self, generation: int) -> bool:
        """A child that was told to go has gone; False if it was not one of those."""
        return self.closing.pop(generation, None) is not None

    def start_run(self, job_id: str, revision: str, run: Run) -> None:
        slot = self.slots.get(revision)
        if slot is not None and slot.generation is not None:
            self._limit(slot, slot.generation)
            self.runs[run.key] = KnownRun(job_id, revision)
            self._out.append(StartRun(slot.generation, run))

    def _limit(self, slot: Slot, generation: int) -> None:
        """Only a child with runs grows, and only one has runs: it may have what the others leave."""
        left = self._lent_bytes - sum(other.planned_bytes for other in self.others(slot.revision))
        left = max(left, slot.planned_bytes)
        if left != (self._lent_bytes if slot.limit_bytes is None else slot.limit_bytes):
            slot.limit_bytes = left
            self._out.append(LimitRunner(generation, left))

    def stop_run(self, key: str, due_seconds: float) -> None:
        """Ask once for a run's end; nothing happens if the child has ended it already."""
        run = self.runs.get(key)
        if run is None or run.stop_due_seconds is not None:
            return
        run.stop_due_seconds = due_seconds
        slot = self.slots.get(run.revision)
        if slot is not None and slot.generation is not None:
            self._out.append(StopRun(slot.generation, key))

    def overdue(self, now_seconds: float) -> str | None:
        """The revision of a child that has not obeyed an order to stop a run."""
        for run in self.runs.values():
            if run.stop_due_seconds is not None and now_seconds >= run.stop_due_seconds:
                return run.revision
        return None

    def report_hold(self, revision: str, done: int = 0, total: int = 0) -> None:
        """Say how a model that was asked for by `hold` comes along."""
        slot = self.slots.get(revision)
        if slot is not None and slot.held:
            self._hold_report(slot.card, revision, slot.phase.value, done=done, total=total)

    def report_hold_failed(self, card: ModelCard, revision: str, detail: str) -> None:
        self._hold_report(card, revision, "failed", detail=detail[:300])

    def _hold_report(
        self,
        card: ModelCard,
        revision: str,
        phase: HoldPhase,
        *,
        done: int = 0,
        total: int = 0,
        detail: str = "",
    ) -> None:
        report = wire.HoldReport(
            card_id=card.id,
            card_revision=revision,
            phase=phase,
            done=done,
            total=total,
            detail=detail,
        )
        self._out.append(Send(report, Lane.CONTROL))
