"""The node's core: every event in, every instruction out, no I/O and no clock of its own.

Rules: several models (slots) side by side, one of them at work, as a Mac's memory has one bandwidth;
at most `width` runs in it; one attempt and one run for a job; a newer fence ends the older attempt;
tokens are kept until `settled`; after a reconnect nothing is sent for an attempt until the coordinator
says where to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from node_agent.admission import Situation, refusal
from node_agent.attempt_book import AttemptBook, CoreSettings
from node_agent.attempts import Answers, Attempt, Phase
from node_agent.events import (
    Drained,
    DrainRequested,
    Event,
    FactsMeasured,
    FetchEnded,
    FetchFailed,
    FetchProgressed,
    FrameReceived,
    Instruction,
    Lane,
    LinkDown,
    LinkUp,
    Outgoing,
    RunnerExited,
    RunnerSaid,
    SelfTestEnded,
    Send,
    Tick,
)
from node_agent.model_events import ModelEvents
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.room import Room
from node_agent.self_tests import SelfTests
from node_agent.slot import Slot, SlotKeeper, SlotPhase


@final
class NodeState:
    """Feed `handle` with events in the order they happen; carry out what it returns in order."""

    def __init__(self, settings: CoreSettings, sign: Callable[[bytes], str]) -> None:
        self.settings = settings
        self.draining: wire.Goodbye | None = None
        self._out: list[Instruction] = []
        self.keeper = SlotKeeper(self._out, settings.lent_bytes)
        self.book = AttemptBook(settings, self.keeper, self._out, sign)
        self._answers = Answers()
        self._self_tests = SelfTests(self._out)
        self._room = Room(settings, self.keeper, self._self_tests)
        self._models = ModelEvents(settings, self.keeper, self.book)
        self._now = 0.0
        self._link_is_up = False
        self._drain_due_seconds = 0.0
        self._drained = False

    # -- what others may read --------------------------------------------------------------------

    @property
    def live_count(self) -> int:
        return self.book.live_count

    @property
    def mode(self) -> wire.NodeMode:
        if self.draining is not None:
            return "draining"
        return "busy" if self.live_count >= self.settings.width else "ready"

    def live(self) -> tuple[wire.LiveAttempt, ...]:
        """Every attempt that runs or whose end is not settled."""
        return tuple(attempt.live() for attempt in self.book.attempts.values())

    def slots(self) -> tuple[wire.SlotReport, ...]:
        """The loaded models, the last used first."""
        found = reversed(self.keeper.others(None))
        return tuple(self._slot_report(slot) for slot in found if slot.phase is SlotPhase.READY)

    def _slot_report(self, slot: Slot) -> wire.SlotReport:
        return wire.SlotReport(
            card_id=slot.card.id,
            card_revision=slot.revision,
            bytes=slot.child_bytes,
            width=self.settings.width,
            live=len(self.book.live(slot.revision)),
        )

    @property
    def _is_idle(self) -> bool:
        is_still = self.live_count == 0 and not self.keeper.runs and self.draining is None
        slots = self.keeper.slots.values()
        return is_still and self._link_is_up and all(slot.phase is SlotPhase.READY for slot in slots)

    # -- the one way in --------------------------------------------------------------------------

    def handle(self, event: Event, now_seconds: float) -> list[Instruction]:
        """Take one event at a monotonic time and return what to do, in order.

        Raises `IllegalTransitionError` on a fault of this program only.
        """
        self._now = self.book.now_seconds = now_seconds
        self._out.clear()
        if self._drained:
            return []
        match event:
            case RunnerSaid():
                self._models.said(event)
            case FrameReceived():
                self._on_frame(event)
            case FactsMeasured():
                self._on_facts(event)
            case LinkUp():
                self._on_link(is_up=True)
            case LinkDown(silent_seconds=silent_seconds):
                self._on_link(is_up=False, silent_seconds=silent_seconds)
            case FetchProgressed() | FetchEnded() | FetchFailed():
                self._models.fetch(event)
            case RunnerExited():
                self._models.exited(event)
            case Tick():
                self._on_tick()
            case DrainRequested():
                self._on_drain(event)
            case SelfTestEnded():
                self._self_tests.ended(event)
        self._self_tests.keep_only_if(self._is_idle)
        self._advance()
        if self._link_is_up:
            return list(self._out)
        # Nothing is queued for a socket that is gone: the next one starts with `resume`.
        return [instruction for instruction in self._out if not isinstance(instruction, Send)]

    def _send(self, message: Outgoing, lane: Lane = Lane.CONTROL) -> None:
        self._out.append(Send(message, lane))

    # -- frames ----------------------------------------------------------------------------------

    def _on_frame(self, event: FrameReceived) -> None:
        match event.message:
            case wire.Offer() as offer:
                self._on_offer(offer, event.fetch_bytes)
            case wire.Cancel() as cancel:
                self._on_cancel(cancel)
            case wire.Resume() as resume:
                self._on_resume(resume)
            case wire.Settled(job_id=job_id, fence=fence):
                attempt = self.book.attempts.get(job_id)
                if attempt is not None and attempt.offer.fence == fence:
                    self.book.leave(attempt, Phase.SETTLED)
            case wire.Hold() as hold:
                self._on_hold(hold.card)
            case wire.SelfTest() as test:
                self._self_tests.ask(
                    test,
                    is_idle=self._is_idle,
                    available_bytes=self._room.available_bytes,
                    free_bytes=self._room.free_bytes,
                )
            case wire.Challenge() | wire.Welcome() | wire.Unsupported():
                pass  # the link's own business

    def _on_offer(self, offer: wire.Offer, fetch_bytes: int) -> None:
        known = self._answers.fence_of(offer.job_id)
        attempt = self.book.attempts.get(offer.job_id)
        if offer.fence > known:
            if attempt is not None:
                self.book.leave(attempt, Phase.LOST)
            self._answer(offer, fetch_bytes)
        elif offer.fence == known:
            declined = self._answers.decline_of(offer.job_id)
            if declined is not None:
                self._send(declined)
            elif attempt is not None:
                self._send(wire.Accept(job_id=offer.job_id, fence=offer.fence))

    def _answer(self, offer: wire.Offer, fetch_bytes: int) -> None:
        situation = self._situation(offer, fetch_bytes)
        decline = refusal(offer, situation)
        self._answers.remember(offer.job_id, offer.fence, decline)
        if decline is not None:
            self._send(decline)
            return
        attempt = self.book.open(offer)
        self._send(wire.Accept(job_id=offer.job_id, fence=offer.fence))
        longest = max(attempt.context_tokens, situation.live_context_tokens)
        width = situation.live_count + 1
        self._room.make(offer.card, offer.card_revision, longest, width, offer.evict)
        self.keeper.ensure(offer.card, offer.card_revision, held=False)

    def _situation(self, offer: wire.Offer, fetch_bytes: int) -> Situation:
        live = [attempt for attempt in self.book.attempts.values() if attempt.is_live]
        return Situation(
            draining=self.draining is not None,
            width=self.settings.width,
            live_count=len(live),
            live_context_tokens=max((attempt.context_tokens for attempt in live), default=0),
            is_other_at_work=any(map(self.book.is_at_work, self.keeper.others(offer.card_revision))),
            available_bytes=self._room.available_bytes,
            disk_free_bytes=self._room.facts.disk_free_bytes,
            fetch_bytes=fetch_bytes,
            unavailable_detail=self._models.unavailable_detail(offer.card_revision),
        )

    def _on_facts(self, facts: FactsMeasured) -> None:
        idle = [slot for slot in self.keeper.others(None) if not self.book.is_at_work(slot)]
        self._room.measured(facts, idle if self.draining is None else (), self._now)

    def _on_cancel(self, cancel: wire.Cancel) -> None:
        known = self._answers.fence_of(cancel.job_id)
        attempt = self.book.attempts.get(cancel.job_id)
        if cancel.fence > known:
            # The cancelled offer may still come, late; it must find the fence taken.
            self._answers.remember(cancel.job_id, cancel.fence, None)
            if attempt is not None:
                self.book.leave(attempt, Phase.LOST)
        elif attempt is not None and cancel.fence == known:
            if cancel.reason == "lost":
                self.book.leave(attempt, Phase.LOST)
            elif attempt.is_live:
                self.book.stop(attempt, None)

    def _on_resume(self, resume: wire.Resume) -> None:
        attempt = self.book.attempts.get(resume.job_id)
        if attempt is None or attempt.offer.fence != resume.fence:
            # Given up between our hello, which named it, and this answer to it.
            gone = wire.Failed(job_id=resume.job_id, fence=resume.fence, code="given_up")
            self._send(gone, Lane.DATA)
            return
        attempt.unheard_since_seconds = None
        for chunk in attempt.chunks_from(resume.offset):
            self._send(chunk, Lane.DATA)
        self.book.send_report(attempt)

    def _on_hold(self, card: ModelCard) -> None:
        revision = card.revision
        if revision not in self.keeper.slots:
            fault = self._room.fault(card)
            if self.live_count or self.keeper.runs or self.draining is not None:
                fault = "busy: another model is at work"
            if fault is not None:
                self.keeper.report_hold_failed(card, revision, fault)
                return
            self._room.make(card, revision, 1, 1, ())
        self.keeper.ensure(card, revision, held=True)
        self.keeper.report_hold(revision)

    def _on_link(self, *, is_up: bool, silent_seconds: float = 0.0) -> None:
        self._link_is_up = is_up
        self.book.link_changed(silent_seconds)

    # -- time ------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        for attempt in list(self.book.attempts.values()):
            if attempt.is_live:
                self._check_deadline(attempt)
            elif self._now >= attempt.report_due_seconds:
                self.book.send_report(attempt)
        overdue = self.keeper.overdue(self._now)
        if overdue is not None:
            self.keeper.close(overdue)
            self.book.fail_live("runner_stalled", "the runner did not stop a run in time", overdue)

    def _check_deadline(self, attempt: Attempt) -> None:
        unheard = attempt.unheard_since_seconds
        settings = self.settings
        patience = min(
            settings.deadline_share * attempt.offer.progress_deadline_seconds, settings.keep_seconds
        )
        if unheard is not None and self._now - unheard > patience:
            self.book.leave(attempt, Phase.LOST)
        elif self._now >= attempt.deadline_seconds:
            self._stall(attempt)

    def _stall(self, attempt: Attempt) -> None:
        slot = self.keeper.slots.get(attempt.revision)
        phase = slot.phase if slot is not None else SlotPhase.READY
        code: wire.FailureCode = "runner_stalled"
        if attempt.is_waiting and phase is SlotPhase.FETCHING:
            code = "download_failed"
        elif attempt.is_waiting and phase is SlotPhase.LOADING:
            code = "load_failed"
        self.book.fail(attempt, code, "no progress within the deadline")
        self.book.stop_run(attempt.key)
        if code == "load_failed" and self.live_count == 0:
            self.keeper.close(attempt.revision)

    def _on_drain(self, event: DrainRequested) -> None:
        if self.draining is not None:
            return
        self.draining = wire.Goodbye(reason=event.reason)
        self._drain_due_seconds = self._now + self.settings.drain_seconds
        for attempt in list(self.book.attempts.values()):
            if attempt.is_live:
                self.book.stop(attempt, "reclaimed")

    # -- after every event -----------------------------------------------------------------------

    def _advance(self) -> None:
        if self.draining is None:
            self.keeper.start_runners_if_clear()
            self._start_runs()
        elif not self._drained:
            self._advance_drain(self.draining)

    def _start_runs(self) -> None:
        # What a child that goes holds may be what the next run needs.
        if self.keeper.closing:
            return
        attempts = self.book.attempts.values()
        waiting = [one for one in attempts if one.is_waiting and self.keeper.is_ready(one.revision)]
        # A run that was left is still in the child until it says so: it keeps its place, and no
        # job has two runs.
        occupied = {run.job_id for run in self.keeper.runs.values()} if waiting else set[str]()
        for attempt in waiting:
            if len(self.keeper.runs) >= self.settings.width:
                return
            if attempt.offer.job_id not in occupied:
                attempt.move(Phase.PREFILL)
                self.book.touch(attempt)
                self.keeper.start_run(attempt.offer.job_id, attempt.revision, attempt.run())

    def _advance_drain(self, goodbye: wire.Goodbye) -> None:
        overdue = self._now >= self._drain_due_seconds
        if self.keeper.runs and not overdue:
            return
        self.keeper.close_all()
        self.book.fail_live("reclaimed", "")
        if self.keeper.closing and not overdue:
            return
        # On the data lane, so that it follows the last tokens and reports.
        self._send(goodbye, Lane.DATA)
        self._drained = True
        self._out.append(Drained())
