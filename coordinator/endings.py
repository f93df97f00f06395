"""How attempts and jobs end: written once, in order, and until the database has taken it.

The relay says that something has ended; the charge, the states and the reader's last word follow
here, and only after the commit. All methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar, final

import structlog
from sqlalchemy.orm import Session

from coordinator import clock, errors, settlement
from coordinator.commits import GroupCommit, LedgerRefusedError, Write, Written
from coordinator.errors import ApiError
from coordinator.jobs import prefixes
from coordinator.jobs.models import Job
from coordinator.jobs.payloads import PayloadBox
from coordinator.jobs.schemas import AttemptEnd, JobEnd
from coordinator.jobs.states import AttemptState, InvalidTransitionError
from coordinator.jobs.stream import Delta, Ending
from coordinator.live import Fault, LiveAttempt, LiveJob
from coordinator.nodes.channel import Fleet
from coordinator.nodes.health import JOBS_OWN_FAULTS
from coordinator.nodes.health_book import HealthBook
from coordinator.nodes.pace_book import PaceBook
from coordinator.settings import Settings
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import tokens_digest

log = structlog.get_logger()

T = TypeVar("T")

RETRY_SECONDS: Final = (0.05, 0.2, 1.0, 5.0)
DRAIN_SECONDS: Final = 10.0  # what is not written by then is made up for at the next start
REFUSED: Final = "request_invalid"
REFUSED_PAUSE_SECONDS: Final = 2.0  # another Mac that is free has it by then
LOSSES: Final = frozenset({"node_lost", "node_silent"})  # of the network: nobody is to blame
REFUSALS: Final = (settlement.SettlementError, InvalidTransitionError, LedgerRefusedError)


@final
class Endings:
    """Ends attempts and jobs of one process."""

    def __init__(
        self, *, settings: Settings, commits: GroupCommit, fleet: Fleet, payloads: PayloadBox
    ) -> None:
        self._settings: Final = settings
        self._commits: Final = commits
        self._fleet: Final = fleet
        self._payloads: Final = payloads
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self.health: Final = HealthBook(settings)
        self.health.on_change = self._store_health
        self.paces: Final = PaceBook(fleet)
        self.paces.on_change = self._store_pace
        self.wake_dispatch: Callable[[], None] = lambda: None
        # Called when an end is on record, with the node that an attempt of the job has left.
        self.on_left: Callable[[LiveJob, str | None], None] = lambda _live, _node_id: None
        self.jobs_ended = 0

    # -- attempts --------------------------------------------------------------------------------

    def drop_attempt(
        self,
        live: LiveJob,
        state: AttemptState,
        reason: str,
        *,
        is_fault: bool,
        is_proven: bool = True,
    ) -> None:
        """End the attempt and queue the job again, unless its answer is whole already, or fail it
        after too many faults. What an attempt that is not proven delivered is neither paid for
        nor charged; where nobody has had it, the next attempt delivers it anew.
        """
        attempt = live.attempt
        if attempt is None or live.is_ending:
            return
        if not attempt.answered.done():
            attempt.answered.set_result("busy")
        self.paces.left(live, attempt)
        now = clock.monotonic()
        error = self._count(live, attempt, state, reason, is_fault=is_fault)
        if not is_proven:
            attempt.is_proven = False
            if live.take_back(len(attempt.received)):
                attempt.received.clear()
            live.unproven_tokens += len(attempt.received)
        if live.is_whole and not live.unproven_tokens:
            self.end_whole(live, attempt_state=state, attempt_reason=reason)
        elif live.is_whole or error is not None:
            self.end(
                live,
                "failed",
                attempt_state=state,
                attempt_reason=reason,
                error=error or errors.host_lost(reason),
            )
        else:
            live.attempt, live.waiting_since = None, now
            end = self._attempt_end(attempt, state, reason)
            live.requeueing = self._spawn(self._requeue(live, attempt.node_id, end))

    def _count(
        self, live: LiveJob, attempt: LiveAttempt, state: AttemptState, reason: str, *, is_fault: bool
    ) -> ApiError | None:
        """Note against Mac and job how the attempt ended; the job's error if it was once too often."""
        if reason == REFUSED:
            return self._count_refusal(live, attempt)
        if not is_fault:
            is_loss = state == "lost" and reason in LOSSES
            live.losses = live.losses + 1 if is_loss and not attempt.received else 0
            return errors.host_lost(reason) if live.losses >= self._settings.losses_max else None
        live.failed_attempts += 1
        live.excluded[attempt.node_id] = clock.monotonic() + self._settings.fault_pause_seconds
        fault = _fault_of(attempt, reason)
        alike = [other for other in live.faults if other.reason == reason and other.device != attempt.device]
        live.faults.append(fault)
        if reason in JOBS_OWN_FAULTS and alike and fault.was_alone:
            for other in alike:
                self.health.take_back(other.device)
            return fails_alike(reason)
        self.health.note_fault(attempt.device, reason, begun_at=attempt.begun_at)
        # Whether it or its neighbours crash Macs is seen when it runs alone.
        live.is_kept_apart = reason in JOBS_OWN_FAULTS and (bool(alike) or live.is_kept_apart)
        return errors.host_lost(reason) if live.failed_attempts >= self._settings.attempts_max else None

    def _count_refusal(self, live: LiveJob, attempt: LiveAttempt) -> ApiError | None:
        """One Mac's word that the request is none does not end a job: another is asked, or, where there
        is no other, the same once more. Nobody is blamed before the job has succeeded elsewhere.
        """
        is_second = any(other.reason == REFUSED for other in live.faults)
        live.faults.append(_fault_of(attempt, REFUSED))
        live.failed_attempts += 1
        live.excluded[attempt.node_id] = clock.monotonic() + REFUSED_PAUSE_SECONDS
        if is_second:
            return ApiError(400, "request_invalid", "The model's runner refused this request.")
        is_last = live.failed_attempts >= self._settings.attempts_max
        return errors.host_lost(REFUSED) if is_last else None

    def _note_success(self, live: LiveJob, attempt: LiveAttempt) -> None:
        """A result that is proven speaks for its Mac, if there is any, and against those that had
        refused the request."""
        if attempt.received:
            self.health.note_success(attempt.device, begun_at=attempt.begun_at)
        for fault in live.faults:
            if fault.reason == REFUSED and fault.device != attempt.device:
                self.health.note_fault(fault.device, REFUSED, begun_at=fault.begun_at)

    async def _requeue(self, live: LiveJob, node_id: str, end: AttemptEnd) -> None:
        changes, prefix = live.changes, live.prefix()

        def write(session: Session) -> Written[bool]:
            is_done = settlement.requeue(session, live.job_id, end)
            # With the end of its attempt, so that attempts and prefix never tell two stories.
            if changes:
                prefixes.store(session, {live.job_id: prefix}, self._payloads)
            return Written(is_done)

        await self._until_done(write, what="requeue", job_id=live.job_id)
        live.stored_changes = max(live.stored_changes, changes)
        self.on_left(live, node_id)
        self.wake_dispatch()

    def requeue_unsent(self, live: LiveJob, node_id: str) -> None:
        """Queue a job again whose reservation may or may not have been committed: nobody knows."""
        if live.attempt is None and not live.is_ending:
            live.requeueing = self._spawn(self._requeue_unsent(live, node_id))

    async def _requeue_unsent(self, live: LiveJob, node_id: str) -> None:
        def write(session: Session) -> Written[bool]:
            return Written(requeue_unsent(session, live.job_id, reason="offer_not_sent"))

        await self._until_done(write, what="requeue_unsent", job_id=live.job_id)
        self.on_left(live, node_id)
        self.wake_dispatch()

    # -- jobs ------------------------------------------------------------------------------------

    def end(
        self,
        live: LiveJob,
        state: Literal["done", "failed", "cancelled", "expired"],
        *,
        attempt_state: AttemptState,
        attempt_reason: str | None = None,
        finish_reason: Literal["stop", "length"] | None = None,
        error: ApiError | None = None,
        signature: str | None = None,
    ) -> None:
        """End a job now; the stream ends when this is committed. What was proven and has reached the
        submitter is charged; whoever cancels pays for what was relayed.
        """
        live.is_ending = True
        if live.attempt is not None:
            self.paces.left(live, live.attempt)
        if state == "done" and attempt_state == "done" and live.attempt is not None:
            self._note_success(live, live.attempt)
        if state == "done":
            last = live.answer.finish("eos" if finish_reason == "stop" else "length")
            if last.finished == "stop":
                finish_reason = "stop"
            if last.text or last.logprobs:
                # Behind all tokens, so that a reader who had these goes on with it.
                live.stream.append(Delta(len(live.token_ids) + 1, last.text, last.logprobs))
        attempt = live.attempt
        reason = attempt_reason or (error.code if error is not None else finish_reason)
        end = JobEnd(
            state=state,
            finish_reason=finish_reason,
            error_code=error.code if error is not None else None,
            output_tokens=len(live.token_ids),
            received_tokens=(
                len(live.token_ids) if state in {"done", "cancelled"} else live.stream.received_end
            ),
            output_digest=tokens_digest(live.token_ids) if live.token_ids else None,
            attempt=self._attempt_end(attempt, attempt_state, reason, signature) if attempt else None,
            late=frozenset(live.late),
        )
        _ = self._spawn(self._settle(live, end, error))

    def end_whole(
        self, live: LiveJob, *, attempt_state: AttemptState = "lost", attempt_reason: str | None = None
    ) -> None:
        """End a job well that has all its tokens, though nobody is left to say so."""
        finish: Literal["stop", "length"] = "stop" if live.answer.finished == "stop" else "length"
        self.end(
            live, "done", attempt_state=attempt_state, attempt_reason=attempt_reason, finish_reason=finish
        )

    async def _settle(self, live: LiveJob, end: JobEnd, error: ApiError | None) -> None:
        if live.requeueing is not None:
            # Its attempt's end must be on record before the shares are worked out.
            await asyncio.wait({live.requeueing})
        ending = Ending(
            finish_reason=end.finish_reason,
            prompt_tokens=len(live.work.prompt_ids),
            output_tokens=end.output_tokens,
            charge_umlx=0,
            error=error,
        )
        result = None
        if live.is_async and live.make_result is not None and end.state == "done":
            result = live.make_result(live.stream, ending)

        def write(session: Session) -> Written[settlement.Settled]:
            return settlement.end_job(
                session,
                live.job_id,
                end,
                price=live.card.price,
                payloads=self._payloads,
                result=result,
                result_keep_us=int(self._settings.result_keep_seconds * 1e6),
            )

        try:
            settled = await self._until_done(write, what="settle", job_id=live.job_id)
        except REFUSALS:
            # Nothing was moved. The submitter must not wait for what only an operator can mend.
            settled, error = settlement.Settled(0), errors.internal_error(live.job_id)
        attempt, live.attempt = live.attempt, None
        if attempt is not None:
            if not attempt.answered.done():
                attempt.answered.set_result("busy")
            self.tell(attempt.node_id, wire.Settled(job_id=live.job_id, fence=attempt.fence))
        live.ended_at = clock.monotonic()
        self.on_left(live, attempt.node_id if attempt is not None else None)
        self.jobs_ended += 1
        live.stream.end(replace(ending, charge_umlx=settled.charge_umlx, error=error))
        self.wake_dispatch()

    def _store_health(self, device: str) -> None:
        def write(session: Session) -> Written[None]:
            self.health.store(session, device)
            return Written(None)

        self.have_written(write, what="health")

    def _store_pace(self, device: str) -> None:
        store = self.paces.writer(device)

        def write(session: Session) -> Written[None]:
            store(session)
            return Written(None)

        self.have_written(write, what="pace")

    def have_written(self, write: Write[None], *, what: str) -> None:
        """Have a small write committed some time soon, however often it takes."""

        async def until_done() -> None:
            await self._until_done(write, what=what, job_id=None)

        _ = self._spawn(until_done())

    def _attempt_end(
        self, attempt: LiveAttempt, state: AttemptState, reason: str | None, signature: str | None = None
    ) -> AttemptEnd:
        return AttemptEnd(
            fence=attempt.fence,
            state=state,
            reason=reason,
            delivered_tokens=len(attempt.received),
            is_proven=attempt.is_proven,
            accepted_us=attempt.accepted_us,
            first_token_us=attempt.first_token_us,
            node_signature=signature,
        )

    async def _until_done(self, write: Write[T], *, what: str, job_id: str | None) -> T:
        """Have a write committed, however often it takes: money and states are never given up.

        Raises one of `REFUSALS` where trying again is of no use.
        """
        tries = 0
        while True:
            try:
                return await self._commits.written(write)
            except REFUSALS:
                log.exception("end_refused", what=what, job_id=job_id)
                raise
            except Exception as error:  # noqa: BLE001
                delay = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                tries += 1
                log.warning("end_retried", what=what, job_id=job_id, error=type(error).__name__, tries=tries)
                await asyncio.sleep(delay)

    def tell(self, node_id: str, message: wire.Message) -> None:
        """Send a frame to a node, if it is there."""
        channel = self._fleet.get(node_id)
        if channel is not None:
            _ = channel.send(message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Wait for the ends that are being written, while the database takes them."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=DRAIN_SECONDS)
            for task in late:
                task.cancel()


def requeue_unsent(session: Session, job_id: str, *, reason: str) -> bool:
    """Queue a running job again whose attempt nobody carries. False if it does not run."""
    job = session.get(Job, job_id, with_for_update=True)
    if job is None or job.state != "running":
        return False
    lost = AttemptEnd(fence=job.fence, state="lost", reason=reason, delivered_tokens=0)
    return settlement.requeue(session, job_id, lost)


def _fault_of(attempt: LiveAttempt, reason: str) -> Fault:
    is_alone = not attempt.had_company
    return Fault(reason, attempt.device, was_alone=is_alone, begun_at=attempt.begun_at)


def fails_alike(reason: str) -> ApiError:
    """Two Macs failed on this job in the same way: it is the job, and no third is tried."""
    return ApiError(
        422,
        "job_fails_alike",
        f"Two Macs failed on this request in the same way ({reason}), so no other was tried. "
        "Change the request: a shorter prompt, a smaller max_tokens, or another model.",
        should_retry=False,
    )
