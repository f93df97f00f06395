"""Tokens from host to submitter, counted here.

The relay owns the jobs under way in this process: their delivered prefix, their readers' stream
and the attempt that may add to it. It takes frames from channels, drops what carries an old fence
or a gap, derives text and stop strings itself, and ends jobs through `settlement`. It never waits
for a reader. All methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import structlog
from starlette.concurrency import run_in_threadpool

from coordinator import errors, settlement
from coordinator.answer import AnswerText
from coordinator.db import Database
from coordinator.errors import ApiError
from coordinator.jobs.payloads import PayloadBox
from coordinator.jobs.schemas import AttemptEnd, JobEnd, Work
from coordinator.jobs.states import AttemptState, InvalidTransitionError
from coordinator.jobs.stream import Delta, Ending, JobStream
from coordinator.nodes.channel import Channel, Fleet
from coordinator.placement.types import JobFacts
from coordinator.settings import Settings
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.protocol.signing import (
    decode_bytes,
    is_signed_by,
    result_statement,
    tokens_digest,
)

log = structlog.get_logger()

T = TypeVar("T")

SETTLE_RETRY_SECONDS: Final = (0.05, 0.2, 1.0, 5.0)
SWEEP_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 10.0  # what is not written by then is made up for at the next start

CancelReason = Literal["client", "expired"]


@dataclass
class LiveAttempt:
    """The attempt whose frames count; its chunks' offsets count from its own first token."""

    fence: int
    node_id: str
    deadline_seconds: float
    answered: asyncio.Future[wire.DeclineReason | None]
    received: list[int] = field(default_factory=list[int])
    last_progress_at: float = field(default_factory=time.monotonic)
    progress: wire.Progress | None = None
    accepted_us: int | None = None
    first_token_us: int | None = None
    gone_since: float | None = None
    is_proven: bool = True


@dataclass
class LiveJob:
    """One job under way, with everything secret about it: in memory only."""

    job_id: str
    account_id: str
    card: ModelCard
    work: Work
    is_async: bool
    answer: AnswerText
    make_result: Callable[[JobStream, Ending], bytes] | None = None
    stream: JobStream = field(default_factory=JobStream)
    token_ids: list[int] = field(default_factory=list[int])
    attempt: LiveAttempt | None = None
    failed_attempts: int = 0
    unproven_tokens: int = 0  # relayed, but from an attempt whose result did not hold
    waiting_since: float | None = None  # monotonic; set while the job looks for another host
    requeueing: asyncio.Task[None] | None = None
    excluded: dict[str, float] = field(default_factory=dict[str, float])
    is_ending: bool = False
    ended_at: float | None = None

    def facts(self, now: float) -> JobFacts:
        """What placement decides from; `now` is monotonic seconds."""
        return JobFacts(
            job_id=self.job_id,
            card=self.card,
            prompt_tokens=len(self.work.prompt_ids),
            max_tokens=self.work.max_tokens,
            excluded_node_ids=frozenset(n for n, until in self.excluded.items() if until > now),
        )


class Relay:
    """The jobs under way in this process."""

    def __init__(self, *, settings: Settings, database: Database, fleet: Fleet, payloads: PayloadBox) -> None:
        self._settings = settings
        self._database = database
        self._fleet = fleet
        self._payloads = payloads
        self._jobs: dict[str, LiveJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.wake_dispatch: Callable[[], None] = lambda: None
        self.tokens_relayed = 0
        self.jobs_ended = 0

    # -- jobs ------------------------------------------------------------------------------------

    def add(self, live: LiveJob) -> LiveJob:
        """Take a queued job under way; the job as it is carried, if it already was."""
        carried = self._jobs.setdefault(live.job_id, live)
        self.wake_dispatch()
        return carried

    def get(self, job_id: str) -> LiveJob | None:
        """A job under way, or one that ended lately and can still be read."""
        return self._jobs.get(job_id)

    def live_attempts(self) -> dict[str, int]:
        """How many attempts run on each node."""
        counts: dict[str, int] = {}
        for live in self._jobs.values():
            if live.attempt is not None:
                counts[live.attempt.node_id] = counts.get(live.attempt.node_id, 0) + 1
        return counts

    def forecast_seconds(self) -> float:
        """When the first seat may come free, from the progress of what runs; a guess, no promise."""
        now = time.time_ns() // 1000
        left = [self._settings.max_wait_seconds]
        for live in self._jobs.values():
            first_us = live.attempt.first_token_us if live.attempt is not None else None
            if first_us is not None and live.token_ids:
                per_token = (now - first_us) / 1e6 / len(live.token_ids)
                left.append(per_token * (live.work.max_tokens - len(live.token_ids)))
        return min(left)

    def cancel(self, job_id: str, *, reason: CancelReason, error: ApiError | None = None) -> bool:
        """End a job now at what was relayed, and tell its node. False if it had ended."""
        live = self._jobs.get(job_id)
        if live is None or live.is_ending:
            return False
        attempt = live.attempt
        if attempt is not None:
            self._tell(attempt.node_id, wire.Cancel(job_id=job_id, fence=attempt.fence, reason=reason))
        self._end(
            live,
            "cancelled" if reason == "client" else "expired",
            attempt_state="cancelled",
            error=error or errors.conflict("job_cancelled", "The job was cancelled."),
            is_charged=bool(live.token_ids),
        )
        return True

    # -- attempts --------------------------------------------------------------------------------

    def begin(self, live: LiveJob, *, fence: int, node_id: str, deadline_seconds: float) -> LiveAttempt:
        """From now on frames of this fence from this node count."""
        live.waiting_since = None
        live.attempt = LiveAttempt(
            fence=fence,
            node_id=node_id,
            deadline_seconds=deadline_seconds,
            answered=asyncio.get_running_loop().create_future(),
        )
        return live.attempt

    def offer_of(self, live: LiveJob, attempt: LiveAttempt) -> wire.Offer:
        """The frame that asks the node to run the attempt."""
        return wire.Offer(
            job_id=live.job_id,
            fence=attempt.fence,
            card=live.card,
            card_revision=live.card.revision,
            prompt_ids=live.work.prompt_ids,
            prefix_ids=tuple(live.token_ids),
            max_tokens=live.work.max_tokens - len(live.token_ids),
            stop_token_ids=live.card.tokenizer.eos_ids,
            sampling=live.work.sampling,
            top_logprobs=live.work.top_logprobs,
            progress_deadline_seconds=attempt.deadline_seconds,
        )

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
        now = time.monotonic()
        live.failed_attempts += is_fault
        if is_fault:
            live.excluded[attempt.node_id] = now + self._settings.fault_pause_seconds
        if not is_proven:
            live.unproven_tokens += len(attempt.received)
            attempt.is_proven = False
        is_whole = len(live.token_ids) >= live.work.max_tokens
        if is_whole and not live.unproven_tokens:
            self._end(
                live,
                "done",
                attempt_state=state,
                attempt_reason=reason,
                finish_reason="length",
                is_charged=True,
            )
        elif is_whole or live.failed_attempts >= self._settings.attempts_max:
            self._end(
                live,
                "failed",
                attempt_state=state,
                attempt_reason=reason,
                error=errors.host_lost(reason),
                is_charged=False,
            )
        else:
            live.attempt, live.waiting_since = None, now
            end = self._attempt_end(attempt, state, reason)
            live.requeueing = self._spawn(self._requeue(live, end))

    async def _requeue(self, live: LiveJob, end: AttemptEnd) -> None:
        def write() -> bool:
            with self._database.write() as session:
                return settlement.requeue(session, live.job_id, end)

        await self._until_done(write, what="requeue", job_id=live.job_id)
        self.wake_dispatch()

    # -- frames ----------------------------------------------------------------------------------

    def frame(self, channel: Channel, message: wire.ToCoordinator) -> None:
        """One frame about an attempt."""
        if not isinstance(
            message,
            wire.Accept | wire.Decline | wire.Progress | wire.Chunk | wire.Finished | wire.Failed,
        ):
            return
        live = self._jobs.get(message.job_id)
        attempt = live.attempt if live is not None else None
        is_current = (
            live is not None
            and attempt is not None
            and not live.is_ending
            and attempt.fence == message.fence
            and attempt.node_id == channel.node_id
        )
        if not is_current or live is None or attempt is None:
            self._answer_stale(channel, live, message)
            return
        match message:
            case wire.Accept():
                self._accepted(live, attempt)
            case wire.Decline():
                if not attempt.answered.done():
                    attempt.answered.set_result(message.reason)
            case wire.Progress():
                if attempt.progress is None or message != attempt.progress:
                    attempt.last_progress_at = time.monotonic()
                attempt.progress = message
            case wire.Chunk():
                self._chunk(channel, live, attempt, message)
            case wire.Finished():
                self._finished(channel, live, attempt, message)
            case wire.Failed():
                self._failed(live, attempt, message)

    def _answer_stale(
        self,
        channel: Channel,
        live: LiveJob | None,
        message: wire.Accept | wire.Decline | wire.Progress | wire.Chunk | wire.Finished | wire.Failed,
    ) -> None:
        """Old news changes nothing; the node is told so that it can stop and forget."""
        if live is not None and live.is_ending and live.ended_at is None:
            return  # `settled` follows the commit
        if isinstance(message, wire.Accept | wire.Progress | wire.Chunk):
            channel.send(wire.Cancel(job_id=message.job_id, fence=message.fence, reason="lost"))
        elif isinstance(message, wire.Finished | wire.Failed):
            channel.send(wire.Settled(job_id=message.job_id, fence=message.fence))

    def _accepted(self, live: LiveJob, attempt: LiveAttempt) -> None:
        if attempt.answered.done():
            return
        attempt.accepted_us = time.time_ns() // 1000
        attempt.last_progress_at = time.monotonic()
        attempt.answered.set_result(None)
        live.stream.accept()

    def _chunk(self, channel: Channel, live: LiveJob, attempt: LiveAttempt, chunk: wire.Chunk) -> None:
        self._accepted(live, attempt)
        known = len(attempt.received) - chunk.offset
        if known < 0:
            self._ask_again(channel, live, attempt)
            return
        room = live.work.max_tokens - len(live.token_ids)
        ids = chunk.token_ids[known : known + room]
        if not ids:
            return
        logprobs = chunk.logprobs[known : known + room] if chunk.logprobs is not None else None
        if live.work.top_logprobs is None:
            logprobs = None
        elif logprobs is None:
            self._refuse(live, attempt, "logprobs_missing")
            return
        try:
            made = live.answer.push(ids, logprobs)
        except ValueError:
            self._refuse(live, attempt, "bad_chunk")
            return
        attempt.last_progress_at = time.monotonic()
        if attempt.first_token_us is None:
            attempt.first_token_us = time.time_ns() // 1000
        taken = ids[: live.answer.completion_tokens - len(live.token_ids)]
        attempt.received.extend(taken)
        live.token_ids.extend(taken)
        self.tokens_relayed += len(taken)
        live.stream.append(Delta(len(live.token_ids), made.text, made.logprobs))
        if made.finished is not None:
            self._tell(
                attempt.node_id,
                wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="stop_string"),
            )
            self._end(live, "done", attempt_state="done", finish_reason="stop", is_charged=True)
        elif len(chunk.token_ids) - known > room:
            self._tell(attempt.node_id, wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="lost"))
            self.drop_attempt(live, "failed", "too_many_tokens", is_fault=True)

    def _refuse(self, live: LiveJob, attempt: LiveAttempt, reason: str) -> None:
        """Such a chunk never comes from a sound node: nothing more is taken of this attempt."""
        cancel = wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="lost")
        self._tell(attempt.node_id, cancel)
        self.drop_attempt(live, "failed", reason, is_fault=True, is_proven=False)

    def _ask_again(self, channel: Channel, live: LiveJob, attempt: LiveAttempt) -> None:
        """Have the node send from the first token on that is not here."""
        channel.send(wire.Resume(job_id=live.job_id, fence=attempt.fence, offset=len(attempt.received)))

    def _finished(
        self, channel: Channel, live: LiveJob, attempt: LiveAttempt, message: wire.Finished
    ) -> None:
        self._accepted(live, attempt)
        if message.token_count > len(attempt.received):
            self._ask_again(channel, live, attempt)
            return
        if message.finish_reason == "cancelled":
            # Nobody here asked: whoever did is an older self of the node or of us.
            self.drop_attempt(live, "failed", "cancelled_by_node", is_fault=True, is_proven=False)
            return
        digest = tokens_digest(attempt.received)
        statement = result_statement(
            job_id=live.job_id,
            fence=attempt.fence,
            card_revision=live.card.revision,
            token_count=len(attempt.received),
            output_digest=digest,
        )
        public_key = self._public_key_of(attempt.node_id)
        is_whole = message.token_count == len(attempt.received) and message.output_digest == digest
        if not is_whole or not is_signed_by(public_key, message.signature, statement):
            self.drop_attempt(live, "failed", "result_not_proven", is_fault=True, is_proven=False)
            return
        self._end(
            live,
            "done",
            attempt_state="done",
            finish_reason="stop" if message.finish_reason == "eos" else "length",
            is_charged=True,
            signature=message.signature,
        )

    def _failed(self, live: LiveJob, attempt: LiveAttempt, message: wire.Failed) -> None:
        log.info("attempt_failed", job_id=live.job_id, fence=attempt.fence, code=message.code)
        self._tell(attempt.node_id, wire.Settled(job_id=live.job_id, fence=attempt.fence))
        if message.code == "request_invalid":
            self._end(
                live,
                "failed",
                attempt_state="failed",
                error=ApiError(400, "request_invalid", "The model's runner refused this request."),
                is_charged=False,
            )
        elif message.code == "reclaimed":
            live.excluded[attempt.node_id] = time.monotonic() + self._settings.node_lost_seconds
            self.drop_attempt(live, "reclaimed", "owner_returned", is_fault=False)
        else:
            self.drop_attempt(live, "failed", message.code, is_fault=True)

    # -- nodes coming and going ------------------------------------------------------------------

    def node_connected(self, channel: Channel, live: Iterable[wire.LiveAttempt]) -> None:
        """Go on with the attempts that node and relay both know; close all others."""
        theirs = {(attempt.job_id, attempt.fence) for attempt in live}
        for job in list(self._jobs.values()):
            attempt = job.attempt
            if attempt is None or attempt.node_id != channel.node_id or job.is_ending:
                continue
            attempt.gone_since = None
            if (job.job_id, attempt.fence) in theirs:
                theirs.discard((job.job_id, attempt.fence))
                self._ask_again(channel, job, attempt)
            else:
                self.drop_attempt(job, "lost", "node_restarted", is_fault=True)
        for job_id, fence in theirs:
            channel.send(wire.Cancel(job_id=job_id, fence=fence, reason="lost"))
            channel.send(wire.Settled(job_id=job_id, fence=fence))
        self.wake_dispatch()

    def node_disconnected(self, channel: Channel, *, graceful: bool) -> None:
        """A goodbye ends the node's attempts at once; a broken socket gets time to come back."""
        for live in list(self._jobs.values()):
            attempt = live.attempt
            if attempt is None or attempt.node_id != channel.node_id or live.is_ending:
                continue
            if graceful:
                self.drop_attempt(live, "lost", "node_left", is_fault=False)
            else:
                attempt.gone_since = time.monotonic()

    async def sweep_forever(self) -> None:
        """End attempts that stopped making progress; forget streams that ended long ago."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                self.sweep(time.monotonic())
            except Exception:
                log.exception("sweep_failed")

    def sweep(self, now: float) -> None:
        """One look over all attempts at monotonic time `now`."""
        for live in list(self._jobs.values()):
            attempt = live.attempt
            if live.ended_at is not None:
                if now - live.ended_at > self._settings.stream_keep_seconds and not live.stream.readers:
                    del self._jobs[live.job_id]
            elif live.is_ending:
                continue
            elif attempt is None:
                self._sweep_waiting(live, now)
            elif (
                attempt.gone_since is not None
                and now - attempt.gone_since > self._settings.socket_grace_seconds
            ):
                self.drop_attempt(live, "lost", "node_lost", is_fault=True)
            elif now - attempt.last_progress_at > attempt.deadline_seconds:
                self._tell(
                    attempt.node_id,
                    wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="lost"),
                )
                self.drop_attempt(live, "lost", "no_progress", is_fault=True)

    def _sweep_waiting(self, live: LiveJob, now: float) -> None:
        """A stream that has begun is not kept waiting for another host for ever."""
        limit = self._settings.resume_wait_seconds
        has_begun = live.stream.phase == "accepted" and not live.is_async
        if has_begun and live.waiting_since is not None and now - live.waiting_since > limit:
            self._end(
                live,
                "failed",
                attempt_state="lost",
                error=errors.host_lost(f"no other Mac took over within {limit:g} s"),
                is_charged=False,
            )

    # -- ends ------------------------------------------------------------------------------------

    def _end(
        self,
        live: LiveJob,
        state: Literal["done", "failed", "cancelled", "expired"],
        *,
        attempt_state: AttemptState,
        attempt_reason: str | None = None,
        finish_reason: Literal["stop", "length"] | None = None,
        error: ApiError | None = None,
        is_charged: bool,
        signature: str | None = None,
    ) -> None:
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
            charged_tokens=len(live.token_ids) - live.unproven_tokens,
            output_digest=tokens_digest(live.token_ids) if live.token_ids else None,
            attempt=self._attempt_end(attempt, attempt_state, reason, signature) if attempt else None,
            is_charged=is_charged,
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

        def write() -> settlement.Settled:
            with self._database.write() as session:
                return settlement.end_job(
                    session,
                    live.job_id,
                    end,
                    price=live.card.price,
                    fee_ppm=self._settings.fee_ppm,
                    payloads=self._payloads,
                    result=result,
                    result_keep_us=int(self._settings.result_keep_seconds * 1e6),
                )

        try:
            settled = await self._until_done(write, what="settle", job_id=live.job_id)
        except (settlement.SettlementError, InvalidTransitionError):
            # Nothing was moved. The submitter must not wait for what only an operator can mend.
            settled, error = settlement.Settled(0), errors.internal_error(live.job_id)
        attempt, live.attempt = live.attempt, None
        if attempt is not None:
            if not attempt.answered.done():
                attempt.answered.set_result("busy")
            self._tell(attempt.node_id, wire.Settled(job_id=live.job_id, fence=attempt.fence))
        live.ended_at = time.monotonic()
        self.jobs_ended += 1
        live.stream.end(
            Ending(
                finish_reason=ending.finish_reason,
                prompt_tokens=ending.prompt_tokens,
                output_tokens=ending.output_tokens,
                charge_umlx=settled.charge_umlx,
                error=error,
            )
        )
        self.wake_dispatch()

    def _attempt_end(
        self, attempt: LiveAttempt, state: AttemptState, reason: str | None, signature: str | None = None
    ) -> AttemptEnd:
        return AttemptEnd(
            fence=attempt.fence,
            state=state,
            reason=reason,
            delivered_tokens=len(attempt.received) if attempt.is_proven else 0,
            accepted_us=attempt.accepted_us,
            first_token_us=attempt.first_token_us,
            node_signature=signature,
        )

    async def _until_done(self, write: Callable[[], T], *, what: str, job_id: str) -> T:
        """Run a database write until it is committed: money and states are never given up."""
        tries = 0
        while True:
            try:
                return await run_in_threadpool(write)
            except (settlement.SettlementError, InvalidTransitionError):
                log.exception(f"{what}_refused", job_id=job_id)
                raise
            except Exception as error:  # noqa: BLE001
                delay = SETTLE_RETRY_SECONDS[min(tries, len(SETTLE_RETRY_SECONDS) - 1)]
                tries += 1
                log.warning(f"{what}_retried", job_id=job_id, error=type(error).__name__, tries=tries)
                await asyncio.sleep(delay)

    # -- small things ----------------------------------------------------------------------------

    def _tell(self, node_id: str, message: wire.Message) -> None:
        channel = self._fleet.get(node_id)
        if channel is not None:
            channel.send(message)

    def _public_key_of(self, node_id: str) -> bytes:
        channel = self._fleet.get(node_id)
        return decode_bytes(channel.public_key) if channel is not None else b""

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
