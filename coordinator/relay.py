"""Tokens from host to submitter, counted here.

The relay takes frames from channels, drops what carries an old fence or a gap, derives text and
stop strings itself, and hands what ended to `endings`. It never waits for a reader. All methods
run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Literal, final

import structlog

from coordinator import clock, errors
from coordinator.endings import Endings
from coordinator.errors import ApiError
from coordinator.jobs.facts import COORDINATOR_RESTARTED
from coordinator.leases import Leases
from coordinator.live import LiveAttempt, LiveJob, LiveJobs
from coordinator.nodes.channel import Channel, Fleet
from coordinator.settings import Settings
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import decode_bytes, is_signed_by, result_statement, tokens_digest

log = structlog.get_logger()

CancelReason = Literal["client", "expired"]


@final
class Relay:
    """The jobs under way in this process."""

    def __init__(self, *, settings: Settings, fleet: Fleet, jobs: LiveJobs, endings: Endings) -> None:
        self._settings: Final = settings
        self._fleet: Final = fleet
        self.jobs: Final = jobs
        self._endings: Final = endings
        self.leases: Final = Leases(
            settings=settings, fleet=fleet, jobs=jobs, endings=endings, leave=self._leave
        )
        self.tokens_relayed = 0

    # -- jobs ------------------------------------------------------------------------------------

    def add(self, live: LiveJob) -> LiveJob:
        """Take a queued job under way; the job as it is carried, if it already was."""
        carried = self.jobs.add(live)
        self._endings.wake_dispatch()
        return carried

    def cancel(self, job_id: str, *, reason: CancelReason, error: ApiError | None = None) -> bool:
        """End a job now at what was relayed, and tell its node. False if it had ended."""
        live = self.jobs.get(job_id)
        if live is None or live.is_ending:
            return False
        attempt = live.attempt
        if attempt is not None:
            self._endings.tell(
                attempt.node_id, wire.Cancel(job_id=job_id, fence=attempt.fence, reason=reason)
            )
        self._endings.end(
            live,
            "cancelled" if reason == "client" else "expired",
            attempt_state="cancelled",
            error=error or errors.conflict("job_cancelled", "The job was cancelled."),
        )
        return True

    def give_up(self, live: LiveJob, waited_seconds: float) -> None:
        """End a job that no host took in all that time."""
        waited = f"{waited_seconds / 3600:.0f} hours" if waited_seconds >= 3600 else f"{waited_seconds:.0f} s"
        why = f"none took it within {waited}"
        error = errors.no_host_available(why, retry_after_seconds=None)
        _ = self.cancel(live.job_id, reason="expired", error=error)

    def _leave(self, live: LiveJob, error: ApiError) -> None:
        _ = self.cancel(live.job_id, reason="client", error=error)

    # -- attempts --------------------------------------------------------------------------------

    def begin(
        self,
        live: LiveJob,
        *,
        fence: int,
        node_id: str,
        device: str,
        deadline_seconds: float,
        is_loaded: bool = False,
    ) -> LiveAttempt:
        """From now on frames of this fence from this node count. `is_loaded`: it has the model in
        memory, so that the time until a first token is that of reading the prompt."""
        live.waiting_since = None
        neighbours = [attempt for _, attempt in self.jobs.on_node(node_id)]
        for neighbour in neighbours:
            neighbour.had_company = True
        live.attempt = LiveAttempt(
            fence=fence,
            node_id=node_id,
            device=device,
            deadline_seconds=deadline_seconds,
            answered=asyncio.get_running_loop().create_future(),
            had_company=bool(neighbours),
        )
        self._endings.paces.began(live, live.attempt, is_loaded=is_loaded)
        return live.attempt

    def take_up(
        self,
        live: LiveJob,
        *,
        fence: int,
        node_id: str,
        device: str,
        deadline_seconds: float,
        received: int,
        accepted_us: int | None,
    ) -> None:
        """Carry an attempt that an earlier process began: its node gets some time to come back.

        The last `received` tokens of what was delivered are its own.
        """
        attempt = self.begin(
            live, fence=fence, node_id=node_id, device=device, deadline_seconds=deadline_seconds
        )
        attempt.received.extend(live.token_ids[len(live.token_ids) - received :])
        attempt.accepted_us = accepted_us
        attempt.is_from_before = attempt.was_taken_up = True
        attempt.gone_since = clock.monotonic()
        _ = self.jobs.add(live)

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
            evict=attempt.evicts,
        )

    # -- frames ----------------------------------------------------------------------------------

    def frame(self, channel: Channel, message: wire.ToCoordinator) -> None:
        """One frame about an attempt."""
        if not isinstance(
            message,
            wire.Accept | wire.Decline | wire.Progress | wire.Chunk | wire.Finished | wire.Failed,
        ):
            return
        live = self.jobs.get(message.job_id)
        attempt = live.attempt if live is not None else None
        is_current = (
            live is not None
            and attempt is not None
            and not live.is_ending
            and attempt.fence == message.fence
            and attempt.node_id == channel.node_id
            and not attempt.is_declined
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
                    attempt.last_progress_at = clock.monotonic()
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
        if live is not None and isinstance(message, wire.Finished):
            live.late.add((message.fence, channel.node_id))
        if isinstance(message, wire.Accept | wire.Progress | wire.Chunk):
            channel.send(wire.Cancel(job_id=message.job_id, fence=message.fence, reason="lost"))
        elif isinstance(message, wire.Finished | wire.Failed):
            channel.send(wire.Settled(job_id=message.job_id, fence=message.fence))

    def _accepted(self, live: LiveJob, attempt: LiveAttempt) -> None:
        if attempt.answered.done():
            return
        attempt.accepted_us = clock.wall_us()
        attempt.last_progress_at = clock.monotonic()
        attempt.answered.set_result(None)
        live.stream.accept()

    def _chunk(self, channel: Channel, live: LiveJob, attempt: LiveAttempt, chunk: wire.Chunk) -> None:
        self._accepted(live, attempt)
        known = len(attempt.received) - chunk.offset
        if known < 0:
            self._ask_again(channel, live, attempt)
            return
        ids = chunk.token_ids[known:]
        if not ids:
            return
        if len(ids) > live.work.max_tokens - len(live.token_ids):
            self._refuse(live, attempt, "too_many_tokens")
            return
        if not live.ends.isdisjoint(ids):
            # The token that ends an answer is none of it, and nothing comes behind it.
            self._refuse(live, attempt, "bad_chunk")
            return
        logprobs = chunk.logprobs[known:] if chunk.logprobs is not None else None
        if live.work.top_logprobs is None:
            logprobs = None
        elif logprobs is None:
            self._refuse(live, attempt, "logprobs_missing")
            return
        before = len(live.token_ids)
        try:
            finished = live.push(ids, logprobs)
        except ValueError:
            self._refuse(live, attempt, "bad_chunk")
            return
        attempt.last_progress_at = attempt.last_token_at = clock.monotonic()
        if attempt.first_token_us is None:
            attempt.first_token_us = clock.wall_us()
        taken = live.token_ids[before:]
        attempt.received.extend(taken)
        self._endings.paces.arrived(live, attempt)
        self.tokens_relayed += len(taken)
        if finished is not None:
            self._endings.tell(
                attempt.node_id,
                wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="stop_string"),
            )
            self._endings.end(live, "done", attempt_state="done", finish_reason="stop")

    def _refuse(self, live: LiveJob, attempt: LiveAttempt, reason: str) -> None:
        """Such a chunk never comes from a sound node: nothing more is taken of this attempt."""
        cancel = wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="lost")
        self._endings.tell(attempt.node_id, cancel)
        self._endings.drop_attempt(live, "failed", reason, is_fault=True, is_proven=False)

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
            if attempt.was_taken_up:
                # An older self of ours asked, and died before the job's end was on record.
                self._endings.drop_attempt(live, "lost", COORDINATOR_RESTARTED, is_fault=False)
                return
            self._endings.drop_attempt(live, "failed", "cancelled_by_node", is_fault=True, is_proven=False)
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
        if message.finish_reason == "length":
            is_whole = is_whole and len(live.token_ids) >= live.work.max_tokens
        if not is_whole or not is_signed_by(public_key, message.signature, statement):
            self._endings.drop_attempt(live, "failed", "result_not_proven", is_fault=True, is_proven=False)
            return
        self._endings.end(
            live,
            "done",
            attempt_state="done",
            finish_reason="stop" if message.finish_reason == "eos" else "length",
            signature=message.signature,
        )

    def _failed(self, live: LiveJob, attempt: LiveAttempt, message: wire.Failed) -> None:
        log.info("attempt_failed", job_id=live.job_id, fence=attempt.fence, code=message.code)
        self._endings.tell(attempt.node_id, wire.Settled(job_id=live.job_id, fence=attempt.fence))
        if message.code == "reclaimed":
            live.excluded[attempt.node_id] = clock.monotonic() + self._settings.node_lost_seconds
            self._endings.drop_attempt(live, "reclaimed", "owner_returned", is_fault=False)
        elif message.code == "given_up":
            self._endings.drop_attempt(live, "lost", "given_up", is_fault=False)
        else:
            self._endings.drop_attempt(live, "failed", message.code, is_fault=True)

    # -- nodes coming and going ------------------------------------------------------------------

    def node_connected(self, channel: Channel, live: Iterable[wire.LiveAttempt]) -> None:
        """Go on with the attempts that node and relay both know; close all others."""
        theirs = {(attempt.job_id, attempt.fence) for attempt in live}
        for job, attempt in self.jobs.on_node(channel.node_id):
            was_before, attempt.is_from_before = attempt.is_from_before, False
            if (job.job_id, attempt.fence) in theirs:
                theirs.discard((job.job_id, attempt.fence))
                # The time on no socket, or on one that was dead and had not been missed, is no time
                # without progress.
                attempt.last_progress_at, attempt.gone_since = clock.monotonic(), None
                self._accepted(job, attempt)
                self._ask_again(channel, job, attempt)
            elif not attempt.answered.done() and not was_before:
                # The offer may have been lost with the socket; it is the same, however often it comes.
                attempt.gone_since = None
                _ = channel.send(self.offer_of(job, attempt))
            elif was_before:
                self._endings.drop_attempt(job, "lost", COORDINATOR_RESTARTED, is_fault=False)
            else:
                self._endings.drop_attempt(job, "lost", "node_restarted", is_fault=True)
        for job_id, fence in theirs:
            channel.send(wire.Cancel(job_id=job_id, fence=fence, reason="lost"))
            channel.send(wire.Settled(job_id=job_id, fence=fence))
        self._endings.wake_dispatch()

    def node_disconnected(self, channel: Channel, *, goodbye: wire.Goodbye | None) -> None:
        """A goodbye ends the node's attempts at once; a broken socket gets time to come back."""
        self._endings.paces.interrupted(channel.node_id)
        for live, attempt in self.jobs.on_node(channel.node_id):
            if goodbye is not None:
                reason = "asleep" if goodbye.reason == "sleep" else "node_left"
                self._endings.drop_attempt(live, "lost", reason, is_fault=False)
            else:
                attempt.gone_since = clock.monotonic()

    # -- small things ----------------------------------------------------------------------------

    def _public_key_of(self, node_id: str) -> bytes:
        channel = self._fleet.get(node_id)
        return decode_bytes(channel.public_key) if channel is not None else b""
