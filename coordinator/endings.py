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
from coordinator.jobs.payloads import PayloadBox
from coordinator.jobs.schemas import AttemptEnd, JobEnd
from coordinator.jobs.states import AttemptState, InvalidTransitionError
from coordinator.jobs.stream import Delta, Ending
from coordinator.live import LiveAttempt, LiveJob
from coordinator.nodes.channel import Fleet
from coordinator.settings import Settings
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import tokens_digest

log = structlog.get_logger()

T = TypeVar("T")

RETRY_SECONDS: Final = (0.05, 0.2, 1.0, 5.0)
DRAIN_SECONDS: Final = 10.0  # what is not written by then is made up for at the next start
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
        self.wake_dispatch: Callable[[], None] = lambda: None
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
        nor charged.
        """
        attempt = live.attempt
        if attempt is None or live.is_ending:
            return
        if not attempt.answered.done():
            attempt.answered.set_result("busy")
        now = clock.monotonic()
        live.failed_attempts += is_fault
        if is_fault:
            live.excluded[attempt.node_id] = now + self._settings.fault_pause_seconds
        if not is_proven:
            live.unproven_tokens += len(attempt.received)
            attempt.is_proven = False
        is_whole = len(live.token_ids) >= live.work.max_tokens
        if is_whole and not live.unproven_tokens:
            self.end(
                live,
                "done",
                attempt_state=state,
                attempt_reason=reason,
                finish_reason="length",
            )
        elif is_whole or live.failed_attempts >= self._settings.attempts_max:
            self.end(
                live,
                "failed",
                attempt_state=state,
                attempt_reason=reason,
                error=errors.host_lost(reason),
            )
        else:
            live.attempt, live.waiting_since = None, now
            end = self._attempt_end(attempt, state, reason)
            live.requeueing = self._spawn(self._requeue(live, end))

    async def _requeue(self, live: LiveJob, end: AttemptEnd) -> None:
        def write(session: Session) -> Written[bool]:
            return Written(settlement.requeue(session, live.job_id, end))

        await self._until_done(write, what="requeue", job_id=live.job_id)
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
        if state == "done":
            last = live.answer.finish("eos" if finish_reason == "stop" else "length")
            if last.finished == "stop":
                finish_reason = "stop"
            if last.text or last.logprobs:
                live.stream.append(Delta(len(live.token_ids), last.text, last.logprobs))
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
        self.jobs_ended += 1
        live.stream.end(replace(ending, charge_umlx=settled.charge_umlx, error=error))
        self.wake_dispatch()

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

    async def _until_done(self, write: Write[T], *, what: str, job_id: str) -> T:
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
