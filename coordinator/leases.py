"""How long an attempt may be silent, its node away, its submitter gone: a look each quarter second.

The clocks are this process's own. When it was itself away for a while (stopped, swapped out, its
machine asleep), every lease is extended by that time, and nobody is blamed for the silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

import structlog

from coordinator import clock, errors
from coordinator.endings import Endings
from coordinator.errors import ApiError
from coordinator.jobs.facts import COORDINATOR_RESTARTED
from coordinator.live import LiveAttempt, LiveJob, LiveJobs
from coordinator.nodes.channel import CLOSE_SILENT, Channel, Fleet
from coordinator.settings import Settings
from node_agent.protocol import messages as wire

log = structlog.get_logger()

SWEEP_SECONDS: Final = 0.25
NODE_DEADLINE_SHARE: Final = 0.8  # of the progress deadline; nodes report a stalled runner then
AWAY_SECONDS: Final = 3.0  # a look that comes so much late means that we were away


@final
class Leases:
    """Ends what has been silent for too long. All methods run on the event loop's thread."""

    def __init__(
        self,
        *,
        settings: Settings,
        fleet: Fleet,
        jobs: LiveJobs,
        endings: Endings,
        leave: Callable[[LiveJob, ApiError], None],
    ) -> None:
        """`leave` cancels a job whose submitter is gone."""
        self._settings: Final = settings
        self._fleet: Final = fleet
        self._jobs: Final = jobs
        self._endings: Final = endings
        self._leave: Final = leave
        self._closing: Final[set[asyncio.Task[None]]] = set()

    async def sweep_forever(self) -> None:
        """Look each quarter of a second until cancelled."""
        while True:
            looked_at = clock.monotonic()
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                now = clock.monotonic()
                away_seconds = now - looked_at - SWEEP_SECONDS
                if away_seconds > AWAY_SECONDS:
                    log.warning("was_away", seconds=round(away_seconds, 1))
                    self.pause(away_seconds)
                self.sweep(now)
            except Exception:
                log.exception("sweep_failed")

    def pause(self, seconds: float) -> None:
        """Extend all leases by a time in which this process heard nobody."""
        for channel in self._fleet.channels.values():
            channel.heard_at += seconds
        for live in self._jobs:
            if live.waiting_since is not None:
                live.waiting_since += seconds
            if live.unread_since is not None:
                live.unread_since += seconds
            if live.attempt is not None:
                live.attempt.last_progress_at += seconds
                # Its node may have given it up meanwhile, as it should.
                live.attempt.is_from_before = True
                if live.attempt.gone_since is not None:
                    live.attempt.gone_since += seconds

    def sweep(self, now: float) -> None:
        """One look over all nodes and jobs at monotonic time `now`."""
        for channel in list(self._fleet.channels.values()):
            if not channel.is_closed and now - channel.heard_at > self._settings.node_lost_seconds:
                self._lose(channel)
        for live in self._jobs:
            if live.ended_at is not None:
                if now - live.ended_at > self._settings.stream_keep_seconds and not live.stream.readers:
                    self._jobs.drop(live)
            elif not live.is_ending:
                self._sweep_job(live, now)

    def _lose(self, channel: Channel) -> None:
        """A node that has not said a word for so long is lost; if it lives, it dials again."""
        log.info("node_silent", node_id=channel.node_id)
        for live, _ in self._jobs.on_node(channel.node_id):
            self._endings.drop_attempt(live, "lost", "node_silent", is_fault=False)
        # From here on nothing is sent to it; the close itself may wait for a dead network.
        task = asyncio.get_running_loop().create_task(channel.close(CLOSE_SILENT, "nothing was heard"))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _sweep_job(self, live: LiveJob, now: float) -> None:
        if live.is_orphaned and self._is_given_up(live, now):
            self._leave(
                live,
                errors.conflict(
                    "submitter_gone",
                    "The coordinator restarted and nobody came back for this answer in time.",
                ),
            )
        elif live.attempt is None:
            self._sweep_waiting(live, now)
        else:
            self._sweep_attempt(live, live.attempt, now)

    def _is_given_up(self, live: LiveJob, now: float) -> bool:
        if live.stream.readers:
            live.unread_since = None
        elif live.unread_since is None:
            live.unread_since = now
        return live.unread_since is not None and now - live.unread_since > self._settings.rejoin_seconds

    def _sweep_attempt(self, live: LiveJob, attempt: LiveAttempt, now: float) -> None:
        settings = self._settings
        grace = settings.restart_grace_seconds if attempt.is_from_before else settings.socket_grace_seconds
        if attempt.gone_since is not None:
            if now - attempt.gone_since > grace:
                reason = COORDINATOR_RESTARTED if attempt.is_from_before else "node_lost"
                self._endings.drop_attempt(live, "lost", reason, is_fault=False)
        elif now - attempt.last_progress_at > attempt.deadline_seconds:
            cancel = wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="lost")
            self._endings.tell(attempt.node_id, cancel)
            is_fault = self._was_heard_late(attempt)
            reason = "no_progress" if is_fault else "node_silent"
            self._endings.drop_attempt(live, "lost", reason, is_fault=is_fault)

    def _was_heard_late(self, attempt: LiveAttempt) -> bool:
        """Whether the node was still heard when its own deadline had passed: a sound one would have
        said by then that its runner stands. Before that it may be the network that lost its words.
        """
        channel = self._fleet.get(attempt.node_id)
        heard_seconds = channel.heard_at - attempt.last_progress_at if channel is not None else 0.0
        return heard_seconds > NODE_DEADLINE_SHARE * attempt.deadline_seconds

    def _sweep_waiting(self, live: LiveJob, now: float) -> None:
        """A stream that has begun is not kept waiting for another host for ever."""
        limit = self._settings.resume_wait_seconds
        has_begun = live.stream.phase == "accepted" and not live.is_async
        if has_begun and live.waiting_since is not None and now - live.waiting_since > limit:
            self._endings.end(
                live,
                "failed",
                attempt_state="lost",
                error=errors.host_lost(f"no other Mac took over within {limit:g} s"),
            )
