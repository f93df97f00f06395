"""The one model a node holds, the child that runs it, and the runs that are in the child."""

from __future__ import annotations

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
    Send,
    StartRun,
    StartRunner,
    StopRun,
)
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.runner.messages import Run

HoldPhase = Literal["downloading", "loading", "ready", "failed"]


class SlotPhase(Enum):
    FETCHING = "downloading"
    LOADING = "loading"
    READY = "ready"


@dataclass(slots=True)
class Slot:
    """The model that this node holds or is about to hold."""

    card: ModelCard
    revision: str
    held: bool
    phase: SlotPhase = SlotPhase.FETCHING
    folder: Path | None = None
    generation: int | None = None


@dataclass(slots=True)
class KnownRun:
    """A run that the child has not ended yet; its attempt may be gone already."""

    job_id: str
    stop_due_seconds: float | None = None


@final
class SlotKeeper:
    """Changes the slot in legal steps only; what must be done is appended to `out`.

    A child of an older model counts, with its memory, until its exit is reported: no second one
    is started before.
    """

    def __init__(self, out: list[Instruction]) -> None:
        self.slot: Slot | None = None
        self.runs: dict[str, KnownRun] = {}
        # Bytes that our child holds; it gives them back when it exits.
        self.runner_bytes = 0
        self.closing: set[int] = set()
        self._generations = 0
        self._out = out

    @property
    def is_ready(self) -> bool:
        return self.slot is not None and self.slot.phase is SlotPhase.READY

    def holds(self, revision: str) -> bool:
        return self.slot is not None and self.slot.revision == revision

    def is_current(self, generation: int) -> bool:
        return self.slot is not None and self.slot.generation == generation

    def ensure(self, card: ModelCard, revision: str, *, held: bool) -> None:
        """Turn to this model; whatever else was loaded is closed, its runs with it."""
        if self.slot is not None and self.slot.revision == revision:
            self.slot.held = self.slot.held or held
            return
        self.close()
        self.slot = Slot(card=card, revision=revision, held=held)
        self._out.append(FetchModel(card))

    def close(self) -> None:
        """Forget the slot and end its child."""
        if self.slot is not None and self.slot.generation is not None:
            self.closing.add(self.slot.generation)
            self._out.append(CloseRunner(self.slot.generation))
        self.slot = None
        self.runs.clear()

    def fetched(self, event: FetchEnded) -> bool:
        """Note the folder; False if the event is not about the model that is awaited."""
        slot = self.slot
        awaited = slot is not None and slot.phase is SlotPhase.FETCHING
        if slot is None or not awaited or slot.revision != event.card_revision:
            return False
        slot.folder = event.folder
        slot.phase = SlotPhase.LOADING
        return True

    def start_runner_if_clear(self) -> None:
        """Start the child once the files are there and no older child is left."""
        slot = self.slot
        if slot is None or slot.folder is None or slot.generation is not None or self.closing:
            return
        self._generations += 1
        slot.generation = self._generations
        self._out.append(StartRunner(slot.generation, slot.card, slot.folder))

    def ready(self, active_bytes: int) -> None:
        self.runner_bytes = active_bytes
        if self.slot is not None:
            self.slot.phase = SlotPhase.READY

    def crashed(self) -> None:
        """The current child is gone: the model must be loaded again."""
        self.runner_bytes = 0
        self.runs.clear()
        if self.slot is not None:
            self.slot.phase, self.slot.generation = SlotPhase.LOADING, None

    def closed(self, generation: int) -> bool:
        """A child that was told to go has gone; False if it was not one of those."""
        if generation not in self.closing:
            return False
        self.closing.discard(generation)
        self.runner_bytes = 0
        return True

    def start_run(self, job_id: str, run: Run) -> None:
        if self.slot is not None and self.slot.generation is not None:
            self.runs[run.key] = KnownRun(job_id)
            self._out.append(StartRun(self.slot.generation, run))

    def stop_run(self, key: str, due_seconds: float) -> None:
        """Ask once for a run's end; nothing happens if the child has ended it already."""
        run = self.runs.get(key)
        if run is None or run.stop_due_seconds is not None:
            return
        run.stop_due_seconds = due_seconds
        if self.slot is not None and self.slot.generation is not None:
            self._out.append(StopRun(self.slot.generation, key))

    def is_stop_overdue(self, now_seconds: float) -> bool:
        """Whether the child has not obeyed an order to stop a run."""
        dues = (run.stop_due_seconds for run in self.runs.values())
        return any(due is not None and now_seconds >= due for due in dues)

    def report_hold(self, done: int = 0, total: int = 0) -> None:
        """Say how a model that was asked for by `hold` comes along."""
        slot = self.slot
        if slot is None or not slot.held:
            return
        phase = slot.phase.value
        self._hold_report(slot.card, slot.revision, phase, done=done, total=total)

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
