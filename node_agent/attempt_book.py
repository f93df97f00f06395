"""The attempts of this node: their tokens, their ends, and the reports until these are settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from node_agent.attempts import REPORTED, Attempt, Phase, failed_of, finished_of
from node_agent.events import Instruction, Lane, Send
from node_agent.protocol import messages as wire
from node_agent.runner import messages as runner
from node_agent.slot import Slot, SlotKeeper

REPORTS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits of the core. Durations in seconds, memory in bytes."""

    lent_bytes: int
    width: int = 8
    # Models side by side in memory; one of them is at work.
    models_max: int = 4
    # An idle model stays beside another only where so much stays free besides.
    spare_bytes: int = 1 << 30
    # With less free for so long idle models go, until what is free is `spare_bytes` again.
    short_bytes: int = 512 << 20
    short_seconds: float = 4.0
    # The node gives up before the coordinator does, so that the reason reaches it.
    deadline_share: float = 0.8
    # Work is kept for so long after the coordinator was last heard; it gives it away after 30 s.
    keep_seconds: float = 24.0
    stop_seconds: float = 10.0
    drain_seconds: float = 5.0
    report_wait_seconds: float = 2.0
    report_wait_seconds_max: float = 30.0
    # A model that could not be fetched is not tried again for this long.
    unavailable_seconds: float = 60.0


@final
class AttemptBook:
    """Changes attempts in legal steps only; what must be said or done is appended to `out`."""

    def __init__(
        self,
        settings: CoreSettings,
        keeper: SlotKeeper,
        out: list[Instruction],
        sign: Callable[[bytes], str],
    ) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.now_seconds = 0.0
        self._settings = settings
        self._keeper = keeper
        self._out = out
        self._sign = sign
        self._run_count = 0

    @property
    def live_count(self) -> int:
        return sum(attempt.is_live for attempt in self.attempts.values())

    def open(self, offer: wire.Offer) -> Attempt:
        """A new attempt for an accepted offer."""
        # A number tells the child nothing of the job, and no other run ever had it.
        self._run_count += 1
        attempt = Attempt(offer=offer, key=f"r{self._run_count}", deadline_seconds=0.0)
        self.touch(attempt)
        self.attempts[offer.job_id] = attempt
        return attempt

    def live(self, revision: str) -> list[Attempt]:
        """Live attempts of this model."""
        return [one for one in self.attempts.values() if one.is_live and one.revision == revision]

    def is_at_work(self, slot: Slot) -> bool:
        """Whether attempts live on this model, or runs that they left are still in its child."""
        return bool(self.live(slot.revision)) or self._keeper.has_runs(slot)

    def link_changed(self, silent_seconds: float = 0.0) -> None:
        """The socket came or went: every attempt waits to be told where to go on.

        `silent_seconds` before now the coordinator was last heard.
        """
        for attempt in self.attempts.values():
            if attempt.unheard_since_seconds is None:
                attempt.unheard_since_seconds = self.now_seconds - silent_seconds
            attempt.report_wait_seconds = self._settings.report_wait_seconds
            attempt.report_due_seconds = self.now_seconds + self._settings.report_wait_seconds

    def progress(self, attempt: Attempt, phase: wire.Phase, done: int, total: int) -> None:
        self.touch(attempt)
        if attempt.unheard_since_seconds is not None:
            return
        job_id, fence = attempt.offer.job_id, attempt.offer.fence
        progress = wire.Progress(job_id=job_id, fence=fence, phase=phase, done=done, total=total)
        self._out.append(Send(progress, Lane.DATA))

    def attempt_of(self, key: str) -> Attempt | None:
        """The running attempt of a run; None if it was left or ended already."""
        run = self._keeper.runs.get(key)
        attempt = self.attempts.get(run.job_id) if run is not None else None
        if attempt is None or attempt.key != key or not attempt.is_running:
            return None
        return attempt

    def add_tokens(self, tokens: runner.Tokens) -> None:
        attempt = self.attempt_of(tokens.key)
        if attempt is None:
            return
        if attempt.phase is Phase.PREFILL:
            attempt.move(Phase.DECODING)
        start = len(attempt.token_ids)
        attempt.token_ids.extend(tokens.ids)
        if tokens.logprobs is not None:
            attempt.logprobs.extend(tokens.logprobs)
        self.touch(attempt)
        if attempt.unheard_since_seconds is None:
            chunk = attempt.chunk(start, len(attempt.token_ids))
            self._out.append(Send(chunk, Lane.DATA))

    def end_run(self, ended: runner.Ended) -> None:
        attempt = self.attempt_of(ended.key)
        self._keeper.runs.pop(ended.key, None)
        if attempt is None:
            return
        if ended.finish_reason == "cancelled" and attempt.stop_code is not None:
            self.fail(attempt, attempt.stop_code, "")
        else:
            self.finish(attempt, ended.finish_reason)

    def touch(self, attempt: Attempt) -> None:
        share = self._settings.deadline_share
        attempt.deadline_seconds = self.now_seconds + share * attempt.offer.progress_deadline_seconds

    def finish(self, attempt: Attempt, reason: wire.FinishReason) -> None:
        attempt.move(Phase.CANCELLED if reason == "cancelled" else Phase.DONE)
        self._report(attempt, finished_of(attempt, reason, self._sign))

    def fail(self, attempt: Attempt, code: wire.FailureCode, detail: str) -> None:
        attempt.move(Phase.FAILED)
        self._report(attempt, failed_of(attempt, code, detail))

    def fail_live(self, code: wire.FailureCode, detail: str, revision: str | None = None) -> None:
        """Fail all live attempts, or those of one model."""
        for attempt in list(self.attempts.values()):
            if attempt.is_live and revision in {None, attempt.revision}:
                self.fail(attempt, attempt.stop_code or code, detail)

    def _report(self, attempt: Attempt, report: wire.Finished | wire.Failed) -> None:
        attempt.report = report
        attempt.report_wait_seconds = self._settings.report_wait_seconds
        attempt.report_due_seconds = self.now_seconds + attempt.report_wait_seconds
        if attempt.unheard_since_seconds is None:
            self.send_report(attempt)
        reported = [other for other in self.attempts.values() if other.phase in REPORTED]
        if len(reported) > REPORTS_MAX:
            self.leave(reported[0], Phase.LOST)

    def send_report(self, attempt: Attempt) -> None:
        if attempt.report is None:
            return
        self._out.append(Send(attempt.report, Lane.DATA))
        attempt.report_due_seconds = self.now_seconds + attempt.report_wait_seconds
        longest = self._settings.report_wait_seconds_max
        attempt.report_wait_seconds = min(2 * attempt.report_wait_seconds, longest)

    def stop(self, attempt: Attempt, code: wire.FailureCode | None) -> None:
        """End a live attempt between two tokens: as cancelled, or as failed with a code."""
        attempt.stop_code = attempt.stop_code or code
        if attempt.is_running:
            if attempt.phase is not Phase.STOPPING:
                attempt.move(Phase.STOPPING)
                self.stop_run(attempt.key)
        elif code is None:
            self.finish(attempt, "cancelled")
        else:
            self.fail(attempt, code, "")

    def stop_run(self, key: str) -> None:
        self._keeper.stop_run(key, self.now_seconds + self._settings.stop_seconds)

    def leave(self, attempt: Attempt, phase: Phase) -> None:
        """Forget an attempt at once; its run, if any, is stopped and its tokens are dropped."""
        attempt.move(phase)
        self.stop_run(attempt.key)
        del self.attempts[attempt.offer.job_id]
