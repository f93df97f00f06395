"""The node's core: every event in, every instruction out, no I/O and no clock of its own.

Rules: one model (slot) at a time; at most `width` attempts in it; one attempt and one run for a
job; a newer fence ends the older attempt; tokens are kept until `settled`; after a reconnect
nothing is sent for an attempt until the coordinator says where to go on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, final

from node_agent.admission import Situation, memory_fault, refusal
from node_agent.attempts import REPORTED, Attempt, Phase
from node_agent.events import (
    CloseRunner,
    Drained,
    DrainRequested,
    Event,
    FactsMeasured,
    FetchEnded,
    FetchFailed,
    FetchModel,
    FetchProgressed,
    FrameReceived,
    Instruction,
    Lane,
    LinkDown,
    LinkUp,
    Outgoing,
    RunnerExited,
    RunnerSaid,
    Send,
    StartRun,
    StartRunner,
    StopRun,
    Tick,
)
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.protocol.signing import result_statement, tokens_digest
from node_agent.runner import messages as runner

FENCES_MAX: Final = 4096
REPORTS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits of the core. Durations in seconds, memory in bytes."""

    lent_bytes: int
    width: int = 4
    # The node gives up before the coordinator does, so that the reason reaches it.
    deadline_share: float = 0.8
    stop_seconds: float = 10.0
    drain_seconds: float = 5.0
    report_wait_seconds: float = 2.0
    report_wait_seconds_max: float = 30.0
    # A model that could not be fetched is not tried again for this long.
    unavailable_seconds: float = 60.0


class SlotPhase(Enum):
    FETCHING = "downloading"
    LOADING = "loading"
    READY = "ready"


@dataclass(slots=True)
class Slot:
    """The one model that this node holds or is about to hold."""

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
class NodeState:
    """Feed `handle` with events in the order they happen; carry out what it returns in order."""

    def __init__(self, settings: CoreSettings, sign: Callable[[bytes], str]) -> None:
        self.settings = settings
        self.slot: Slot | None = None
        self.attempts: dict[str, Attempt] = {}
        self.runs: dict[str, KnownRun] = {}
        self.draining: wire.Goodbye | None = None
        self._sign = sign
        self._out: list[Instruction] = []
        self._now = 0.0
        self._link_is_up = False
        self._closing: set[int] = set()
        self._generations = 0
        self._run_count = 0
        self._runner_bytes = 0
        self._facts = FactsMeasured(free_bytes=0, disk_free_bytes=0)
        self._answered: OrderedDict[str, tuple[int, wire.Decline | None]] = OrderedDict()
        self._unavailable: dict[str, tuple[float, str]] = {}
        self._drain_due_seconds = 0.0
        self._drained = False

    # -- what others may read --------------------------------------------------------------------

    @property
    def live_count(self) -> int:
        return sum(attempt.is_live for attempt in self.attempts.values())

    @property
    def mode(self) -> wire.NodeMode:
        if self.draining is not None:
            return "draining"
        return "busy" if self.live_count >= self.settings.width else "ready"

    def live(self) -> tuple[wire.LiveAttempt, ...]:
        """Every attempt that runs or whose end is not settled."""
        return tuple(attempt.live() for attempt in self.attempts.values())

    def slots(self) -> tuple[wire.SlotReport, ...]:
        """The loaded model, if it is loaded."""
        slot = self.slot
        if slot is None or slot.phase is not SlotPhase.READY:
            return ()
        return (
            wire.SlotReport(
                card_id=slot.card.id,
                card_revision=slot.revision,
                bytes=self._runner_bytes,
                width=self.settings.width,
                live=self.live_count,
            ),
        )

    # -- the one way in --------------------------------------------------------------------------

    def handle(self, event: Event, now_seconds: float) -> list[Instruction]:
        """Take one event at a monotonic time and return what to do, in order.

        Raises `IllegalTransitionError` on a fault of this program only.
        """
        self._now = now_seconds
        self._out = []
        match event:
            case RunnerSaid():
                self._on_runner(event)
            case FrameReceived():
                self._on_frame(event)
            case FactsMeasured():
                self._facts = event
            case LinkUp() | LinkDown():
                self._on_link(isinstance(event, LinkUp))
            case FetchProgressed():
                self._on_fetch_progress(event)
            case FetchEnded():
                self._on_fetch_ended(event)
            case FetchFailed():
                self._on_fetch_failed(event)
            case RunnerExited():
                self._on_runner_exited(event)
            case Tick():
                self._on_tick()
            case DrainRequested():
                self._on_drain(event)
        self._advance()
        return self._out

    def _send(self, message: Outgoing, lane: Lane = Lane.CONTROL) -> None:
        # Nothing is queued for a socket that is gone: the next one starts with `resume`.
        if self._link_is_up:
            self._out.append(Send(message, lane))

    def _send_data(self, message: Outgoing) -> None:
        self._send(message, Lane.DATA)

    # -- frames ----------------------------------------------------------------------------------

    def _on_frame(self, event: FrameReceived) -> None:
        match event.message:
            case wire.Offer() as offer:
                self._on_offer(offer, event.fetch_bytes)
            case wire.Cancel() as cancel:
                self._on_cancel(cancel)
            case wire.Resume() as resume:
                self._on_resume(resume)
            case wire.Settled() as settled:
                self._on_settled(settled)
            case wire.Hold() as hold:
                self._on_hold(hold.card)
            case wire.Challenge() | wire.Welcome() | wire.Unsupported():
                pass  # the link's own business

    def _on_offer(self, offer: wire.Offer, fetch_bytes: int) -> None:
        fence, declined = self._answered.get(offer.job_id, (0, None))
        if offer.fence < fence:
            return
        attempt = self.attempts.get(offer.job_id)
        if offer.fence == fence:
            if declined is not None:
                self._send(declined)
            elif attempt is not None:
                self._send(wire.Accept(job_id=offer.job_id, fence=offer.fence))
            return
        if attempt is not None:
            self._leave(attempt, Phase.LOST)
        decline = refusal(offer, self._situation(offer, fetch_bytes))
        self._remember(offer.job_id, offer.fence, decline)
        if decline is not None:
            self._send(decline)
            return
        self._accept(offer)

    def _accept(self, offer: wire.Offer) -> None:
        self._run_count += 1
        attempt = Attempt(offer=offer, key=f"r{self._run_count}", deadline_seconds=0.0)
        self._touch(attempt)
        self.attempts[offer.job_id] = attempt
        self._send(wire.Accept(job_id=offer.job_id, fence=offer.fence))
        self._ensure_slot(offer.card, offer.card_revision, held=False)
        if self.slot is not None and self.slot.phase is SlotPhase.LOADING:
            attempt.move(Phase.LOADING)

    def _situation(self, offer: wire.Offer, fetch_bytes: int) -> Situation:
        live = [attempt for attempt in self.attempts.values() if attempt.is_live]
        until, detail = self._unavailable.get(offer.card_revision, (0.0, ""))
        return Situation(
            draining=self.draining is not None,
            width=self.settings.width,
            live_count=len(live),
            live_context_tokens=max((attempt.context_tokens for attempt in live), default=0),
            card_revision=self.slot.revision if self.slot is not None else None,
            available_bytes=self._available_bytes(),
            disk_free_bytes=self._facts.disk_free_bytes,
            fetch_bytes=fetch_bytes,
            unavailable_detail=detail if self._now < until else None,
        )

    def _available_bytes(self) -> int:
        # What our own runner holds is either kept or given back before the next model is loaded.
        return min(self.settings.lent_bytes, self._facts.free_bytes + self._runner_bytes)

    def _remember(self, job_id: str, fence: int, decline: wire.Decline | None) -> None:
        self._answered[job_id] = (fence, decline)
        self._answered.move_to_end(job_id)
        while len(self._answered) > FENCES_MAX:
            self._answered.popitem(last=False)

    def _on_cancel(self, cancel: wire.Cancel) -> None:
        fence, _ = self._answered.get(cancel.job_id, (0, None))
        if cancel.fence < fence:
            return
        attempt = self.attempts.get(cancel.job_id)
        if cancel.fence > fence:
            # The cancelled offer may still come, late; it must find the fence taken.
            self._remember(cancel.job_id, cancel.fence, None)
            if attempt is not None:
                self._leave(attempt, Phase.LOST)
        elif attempt is not None and cancel.reason == "lost":
            self._leave(attempt, Phase.LOST)
        elif attempt is not None and attempt.is_live:
            self._stop(attempt, None)

    def _on_resume(self, resume: wire.Resume) -> None:
        attempt = self.attempts.get(resume.job_id)
        if attempt is None or attempt.offer.fence != resume.fence:
            return
        attempt.unheard_since_seconds = None
        for chunk in attempt.chunks_from(resume.offset):
            self._send_data(chunk)
        if attempt.report is not None:
            self._send_report(attempt, attempt.report)

    def _on_settled(self, settled: wire.Settled) -> None:
        attempt = self.attempts.get(settled.job_id)
        if attempt is not None and attempt.offer.fence == settled.fence:
            self._leave(attempt, Phase.SETTLED)

    def _on_hold(self, card: ModelCard) -> None:
        revision = card.revision
        fault = None
        if self.slot is None or self.slot.revision != revision:
            if self.live_count or self.draining is not None:
                fault = "busy: another model is at work"
            else:
                fault = memory_fault(card, 1, 1, self._available_bytes())
        if fault is not None:
            report = wire.HoldReport(
                card_id=card.id, card_revision=revision, phase="failed", detail=fault[:300]
            )
            self._send(report)
            return
        self._ensure_slot(card, revision, held=True)
        self._report_hold(0, 0)

    def _report_hold(self, done: int, total: int) -> None:
        slot = self.slot
        if slot is not None and slot.held:
            report = wire.HoldReport(
                card_id=slot.card.id,
                card_revision=slot.revision,
                phase=slot.phase.value,
                done=done,
                total=total,
            )
            self._send(report)

    # -- the link --------------------------------------------------------------------------------

    def _on_link(self, is_up: bool) -> None:
        self._link_is_up = is_up
        for attempt in self.attempts.values():
            if attempt.unheard_since_seconds is None:
                attempt.unheard_since_seconds = self._now
            if attempt.report is not None:
                attempt.report_wait_seconds = self.settings.report_wait_seconds
                attempt.report_due_seconds = self._now + self.settings.report_wait_seconds

    # -- the slot --------------------------------------------------------------------------------

    def _ensure_slot(self, card: ModelCard, revision: str, *, held: bool) -> None:
        if self.slot is not None and self.slot.revision == revision:
            self.slot.held = self.slot.held or held
            return
        self._close_runner()
        self.slot = Slot(card=card, revision=revision, held=held)
        self._out.append(FetchModel(card))

    def _close_runner(self) -> None:
        """Forget the slot and end its child; the memory counts as ours until the child is gone."""
        if self.slot is not None and self.slot.generation is not None:
            self._closing.add(self.slot.generation)
            self._out.append(CloseRunner(self.slot.generation))
        self.slot = None
        self.runs.clear()

    def _on_fetch_progress(self, event: FetchProgressed) -> None:
        if self.slot is None or self.slot.revision != event.card_revision:
            return
        self._report_hold(event.done_bytes, event.total_bytes)
        self._progress_waiting("downloading", event.done_bytes, event.total_bytes)

    def _progress_waiting(self, phase: wire.Phase, done: int, total: int) -> None:
        for attempt in self.attempts.values():
            if attempt.is_waiting:
                self._progress(attempt, phase, done, total)

    def _progress(self, attempt: Attempt, phase: wire.Phase, done: int, total: int) -> None:
        self._touch(attempt)
        if attempt.unheard_since_seconds is None:
            offer = attempt.offer
            self._send_data(
                wire.Progress(
                    job_id=offer.job_id, fence=offer.fence, phase=phase, done=done, total=total
                )
            )

    def _on_fetch_ended(self, event: FetchEnded) -> None:
        slot = self.slot
        if (
            slot is None
            or slot.revision != event.card_revision
            or slot.phase is not SlotPhase.FETCHING
        ):
            return
        slot.folder = event.folder
        slot.phase = SlotPhase.LOADING
        self._report_hold(0, 0)
        for attempt in self.attempts.values():
            if attempt.phase is Phase.ACCEPTED:
                attempt.move(Phase.LOADING)
                self._touch(attempt)

    def _on_fetch_failed(self, event: FetchFailed) -> None:
        until = self._now + self.settings.unavailable_seconds
        self._unavailable[event.card_revision] = (until, event.detail)
        slot = self.slot
        if slot is None or slot.revision != event.card_revision or slot.folder is not None:
            return
        if slot.held:
            self._send(
                wire.HoldReport(
                    card_id=slot.card.id,
                    card_revision=slot.revision,
                    phase="failed",
                    detail=event.detail[:300],
                )
            )
        self.slot = None
        self._fail_live("download_failed", event.detail)

    # -- the runner ------------------------------------------------------------------------------

    def _on_runner(self, event: RunnerSaid) -> None:
        slot = self.slot
        if slot is None or slot.generation != event.generation:
            return
        match event.message:
            case runner.Tokens() as tokens:
                self._on_tokens(tokens)
            case runner.Alive(active_bytes=active_bytes):
                self._runner_bytes = active_bytes
            case runner.Prefilled() as prefilled:
                attempt = self._attempt_of(prefilled.key)
                if attempt is not None:
                    self._progress(
                        attempt, "prefill", prefilled.done_tokens, prefilled.total_tokens
                    )
            case runner.Ended() as ended:
                self._on_ended(ended)
            case runner.RunFailed() as failed:
                attempt = self._attempt_of(failed.key)
                self.runs.pop(failed.key, None)
                if attempt is not None:
                    self._fail(attempt, failed.code, failed.message)
            case runner.LoadFailed():
                pass  # the child's exit follows and says the same
            case runner.Loading(done_bytes=done, total_bytes=total):
                self._report_hold(done, total)
                self._progress_waiting("loading", done, total)
            case runner.Ready(active_bytes=active_bytes):
                slot.phase = SlotPhase.READY
                self._runner_bytes = active_bytes
                self._report_hold(0, 0)
                for attempt in self.attempts.values():
                    if attempt.is_waiting:
                        self._touch(attempt)

    def _attempt_of(self, key: str) -> Attempt | None:
        """The running attempt of a run; None if it was left or ended already."""
        run = self.runs.get(key)
        attempt = self.attempts.get(run.job_id) if run is not None else None
        if attempt is None or attempt.key != key or not attempt.is_running:
            return None
        return attempt

    def _on_tokens(self, tokens: runner.Tokens) -> None:
        attempt = self._attempt_of(tokens.key)
        if attempt is None:
            return
        if attempt.phase is Phase.PREFILL:
            attempt.move(Phase.DECODING)
        start = len(attempt.token_ids)
        attempt.token_ids.extend(tokens.ids)
        if tokens.logprobs is not None:
            attempt.logprobs.extend(tokens.logprobs)
        self._touch(attempt)
        if attempt.unheard_since_seconds is None and self._link_is_up:
            chunk = attempt.chunk(start, len(attempt.token_ids))
            self._out.append(Send(chunk, Lane.DATA))

    def _on_ended(self, ended: runner.Ended) -> None:
        attempt = self._attempt_of(ended.key)
        self.runs.pop(ended.key, None)
        if attempt is None:
            return
        if ended.finish_reason == "cancelled" and attempt.stop_code is not None:
            self._fail(attempt, attempt.stop_code, "")
        else:
            self._finish(attempt, ended.finish_reason)

    def _on_runner_exited(self, event: RunnerExited) -> None:
        if event.generation in self._closing:
            self._closing.discard(event.generation)
        elif self.slot is not None and self.slot.generation == event.generation:
            self._on_crash(self.slot, event.detail)
        else:
            return
        self._runner_bytes = 0

    def _on_crash(self, slot: Slot, detail: str) -> None:
        self.runs.clear()
        if slot.phase is not SlotPhase.READY:
            self.slot = None
            self._fail_live("load_failed", detail)
            return
        for attempt in list(self.attempts.values()):
            if attempt.is_running:
                self._fail(attempt, attempt.stop_code or "runner_crashed", detail)
        # Who only waited has not failed: the model is loaded once more for them.
        slot.phase, slot.generation = SlotPhase.LOADING, None
        if self.live_count == 0:
            self.slot = None

    # -- ends ------------------------------------------------------------------------------------

    def _touch(self, attempt: Attempt) -> None:
        share = self.settings.deadline_share
        attempt.deadline_seconds = self._now + share * attempt.offer.progress_deadline_seconds

    def _finish(self, attempt: Attempt, reason: wire.FinishReason) -> None:
        offer, count = attempt.offer, len(attempt.token_ids)
        digest = tokens_digest(attempt.token_ids)
        statement = result_statement(
            job_id=offer.job_id,
            fence=offer.fence,
            card_revision=offer.card_revision,
            token_count=count,
            output_digest=digest,
        )
        attempt.move(Phase.CANCELLED if reason == "cancelled" else Phase.DONE)
        report = wire.Finished(
            job_id=offer.job_id,
            fence=offer.fence,
            finish_reason=reason,
            token_count=count,
            output_digest=digest,
            signature=self._sign(statement),
        )
        self._report(attempt, report)

    def _fail(self, attempt: Attempt, code: wire.FailureCode, detail: str) -> None:
        attempt.move(Phase.FAILED)
        offer = attempt.offer
        self._report(
            attempt,
            wire.Failed(job_id=offer.job_id, fence=offer.fence, code=code, message=detail[:300]),
        )

    def _fail_live(self, code: wire.FailureCode, detail: str) -> None:
        for attempt in list(self.attempts.values()):
            if attempt.is_live:
                self._fail(attempt, attempt.stop_code or code, detail)

    def _report(self, attempt: Attempt, report: wire.Finished | wire.Failed) -> None:
        attempt.report = report
        attempt.report_wait_seconds = self.settings.report_wait_seconds
        if attempt.unheard_since_seconds is None:
            self._send_report(attempt, report)
        else:
            attempt.report_due_seconds = self._now + attempt.report_wait_seconds
        reported = [a for a in self.attempts.values() if a.phase in REPORTED]
        if len(reported) > REPORTS_MAX:
            self._leave(reported[0], Phase.LOST)

    def _send_report(self, attempt: Attempt, report: wire.Finished | wire.Failed) -> None:
        self._send_data(report)
        wait = attempt.report_wait_seconds
        attempt.report_due_seconds = self._now + wait
        attempt.report_wait_seconds = min(2 * wait, self.settings.report_wait_seconds_max)

    def _stop(self, attempt: Attempt, code: wire.FailureCode | None) -> None:
        """End a live attempt between two tokens: as cancelled, or as failed with a code."""
        if attempt.is_waiting:
            if code is None:
                self._finish(attempt, "cancelled")
            else:
                self._fail(attempt, code, "")
            return
        attempt.stop_code = attempt.stop_code or code
        if attempt.phase is not Phase.STOPPING:
            attempt.move(Phase.STOPPING)
            self._stop_run(attempt.key)

    def _stop_run(self, key: str) -> None:
        run = self.runs.get(key)
        if run is None or run.stop_due_seconds is not None:
            return
        run.stop_due_seconds = self._now + self.settings.stop_seconds
        if self.slot is not None and self.slot.generation is not None:
            self._out.append(StopRun(self.slot.generation, key))

    def _leave(self, attempt: Attempt, phase: Phase) -> None:
        """Forget an attempt at once; its run, if any, is stopped and its tokens are dropped."""
        attempt.move(phase)
        self._stop_run(attempt.key)
        del self.attempts[attempt.offer.job_id]

    # -- time ------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        for attempt in list(self.attempts.values()):
            if attempt.is_live:
                self._check_deadline(attempt)
            elif attempt.report is not None and self._now >= attempt.report_due_seconds:
                self._send_report(attempt, attempt.report)
        if any(
            run.stop_due_seconds is not None and self._now >= run.stop_due_seconds
            for run in self.runs.values()
        ):
            self._close_runner()
            self._fail_live("runner_stalled", "the runner did not stop a run in time")

    def _check_deadline(self, attempt: Attempt) -> None:
        unheard = attempt.unheard_since_seconds
        patience = attempt.offer.progress_deadline_seconds
        if unheard is not None and self._now - unheard > patience:
            self._leave(attempt, Phase.LOST)
        elif self._now >= attempt.deadline_seconds:
            self._stall(attempt)

    def _stall(self, attempt: Attempt) -> None:
        phase = self.slot.phase if self.slot is not None else SlotPhase.READY
        code: wire.FailureCode = "runner_stalled"
        if attempt.is_waiting and phase is SlotPhase.FETCHING:
            code = "download_failed"
        elif attempt.is_waiting and phase is SlotPhase.LOADING:
            code = "load_failed"
            self._close_runner()
        self._fail(attempt, code, "no progress within the deadline")
        self._stop_run(attempt.key)

    def _on_drain(self, event: DrainRequested) -> None:
        if self.draining is not None:
            return
        self.draining = wire.Goodbye(reason=event.reason)
        self._drain_due_seconds = self._now + self.settings.drain_seconds
        for attempt in list(self.attempts.values()):
            if attempt.is_live:
                self._stop(attempt, "reclaimed")

    # -- after every event -----------------------------------------------------------------------

    def _advance(self) -> None:
        self._start_runner()
        self._start_runs()
        if self.draining is not None and not self._drained:
            self._advance_drain(self.draining)

    def _start_runner(self) -> None:
        slot = self.slot
        if (
            slot is None
            or slot.folder is None
            or slot.generation is not None
            or self._closing
            or self.draining is not None
        ):
            return
        self._generations += 1
        slot.generation = self._generations
        self._out.append(StartRunner(self._generations, slot.card, slot.folder))

    def _start_runs(self) -> None:
        slot = self.slot
        if slot is None or slot.generation is None or slot.phase is not SlotPhase.READY:
            return
        if not any(attempt.is_waiting for attempt in self.attempts.values()):
            return
        # A run that was left is still in the child until it says so: it keeps its place, and no
        # job has two runs.
        occupied = {run.job_id for run in self.runs.values()}
        for attempt in self.attempts.values():
            job_id = attempt.offer.job_id
            if not attempt.is_waiting or job_id in occupied:
                continue
            if len(self.runs) >= self.settings.width:
                return
            attempt.move(Phase.PREFILL)
            self._touch(attempt)
            self.runs[attempt.key] = KnownRun(job_id)
            self._out.append(StartRun(slot.generation, attempt.run()))

    def _advance_drain(self, goodbye: wire.Goodbye) -> None:
        if self.runs and self._now < self._drain_due_seconds:
            return
        self._close_runner()
        self._fail_live("reclaimed", "")
        if self._closing and self._now < self._drain_due_seconds:
            return
        # On the data lane, so that it follows the last tokens and reports.
        self._send_data(goodbye)
        self._drained = True
        self._out.append(Drained())
