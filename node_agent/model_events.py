"""What files and children say of the models that a node holds, and what follows for its attempts."""

from __future__ import annotations

from typing import final

from node_agent.attempt_book import AttemptBook, CoreSettings
from node_agent.attempts import Phase
from node_agent.events import FetchEnded, FetchFailed, FetchProgressed, RunnerExited, RunnerSaid
from node_agent.protocol import messages as wire
from node_agent.runner import messages as runner
from node_agent.slot import Slot, SlotKeeper, SlotPhase


@final
class ModelEvents:
    """Each event touches one model, and the attempts of that model alone."""

    def __init__(self, settings: CoreSettings, keeper: SlotKeeper, book: AttemptBook) -> None:
        self._settings = settings
        self._keeper = keeper
        self._book = book
        self._unavailable: dict[str, tuple[float, str]] = {}

    def unavailable_detail(self, revision: str) -> str | None:
        """Why a model that could not be fetched is not tried again yet, or None."""
        until, detail = self._unavailable.get(revision, (0.0, ""))
        return detail if self._book.now_seconds < until else None

    def fetch(self, event: FetchProgressed | FetchEnded | FetchFailed) -> None:
        revision = event.card_revision
        match event:
            case FetchProgressed(done_bytes=done, total_bytes=total):
                self._progress(revision, "downloading", done, total)
            case FetchEnded():
                if self._keeper.fetched(event):
                    self._keeper.report_hold(revision)
                    for attempt in self._book.live(revision):
                        if attempt.phase is Phase.ACCEPTED:
                            attempt.move(Phase.LOADING)
                            self._book.touch(attempt)
            case FetchFailed(detail=detail):
                self._fetch_failed(revision, detail)

    def _fetch_failed(self, revision: str, detail: str) -> None:
        until = self._book.now_seconds + self._settings.unavailable_seconds
        self._unavailable[revision] = (until, detail)
        slot = self._keeper.slots.get(revision)
        if slot is None or slot.phase is not SlotPhase.FETCHING:
            return
        if slot.held:
            self._keeper.report_hold_failed(slot.card, revision, detail)
        self._keeper.close(revision)
        self._book.fail_live("download_failed", detail, revision)

    def _progress(self, revision: str, phase: wire.Phase, done: int, total: int) -> None:
        self._keeper.report_hold(revision, done, total)
        for attempt in self._book.live(revision):
            if attempt.is_waiting:
                self._book.progress(attempt, phase, done, total)

    def said(self, event: RunnerSaid) -> None:
        """One message of a child; those of a child that was told to go come to nothing."""
        slot = self._keeper.slot_of(event.generation)
        if slot is None:
            return
        match event.message:
            case runner.Tokens() as tokens:
                self._book.add_tokens(tokens)
            case runner.Alive(active_bytes=active_bytes):
                slot.child_bytes = active_bytes
            case runner.Prefilled(key=key, done_tokens=done, total_tokens=total):
                attempt = self._book.attempt_of(key)
                if attempt is not None:
                    self._book.progress(attempt, "prefill", done, total)
            case runner.Ended() as ended:
                self._book.end_run(ended)
            case runner.RunFailed(key=key, code=code, message=message):
                attempt = self._book.attempt_of(key)
                self._keeper.runs.pop(key, None)
                if attempt is not None:
                    self._book.fail(attempt, attempt.stop_code or code, message)
            case runner.Loading() | runner.Ready() | runner.LoadFailed() as loading:
                self._loads(slot, loading)

    def _loads(self, slot: Slot, said: runner.Loading | runner.Ready | runner.LoadFailed) -> None:
        match said:
            case runner.Loading(done_bytes=done, total_bytes=total):
                slot.child_bytes = done
                self._progress(slot.revision, "loading", done, total)
            case runner.Ready(active_bytes=active_bytes):
                self._keeper.ready(slot, active_bytes)
                self._keeper.report_hold(slot.revision)
            case runner.LoadFailed():
                pass  # the child's exit follows and says the same

    def exited(self, event: RunnerExited) -> None:
        """A child is gone. Its model goes, too, unless attempts still wait for it."""
        slot = self._keeper.slot_of(event.generation)
        if self._keeper.closed(event.generation) or slot is None:
            return
        was_ready = slot.phase is SlotPhase.READY
        self._keeper.crashed(slot)
        for attempt in self._book.live(slot.revision):
            if attempt.is_running:
                self._book.fail(attempt, attempt.stop_code or "runner_crashed", event.detail)
            elif attempt.is_waiting and not was_ready:
                self._book.fail(attempt, "load_failed", event.detail)
        if self._book.live(slot.revision):
            return  # who waited for a place has not failed: the model is loaded once more
        if slot.held and not was_ready:
            self._keeper.report_hold_failed(slot.card, slot.revision, event.detail)
        self._keeper.close(slot.revision)
