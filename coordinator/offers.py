"""Seats that were chosen are reserved, and their jobs offered to the hosts.

All methods run on the event loop's thread; the database's work runs in others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import structlog
from starlette.concurrency import run_in_threadpool

from coordinator import clock
from coordinator.endings import Endings
from coordinator.live import LiveAttempt, LiveJob, lease_seconds
from coordinator.nodes.channel import Fleet
from coordinator.placement.types import JobFacts, Placed
from coordinator.relay import Relay
from coordinator.reservations import AcceptedOffer, Reservation, Reservations, Wanted
from coordinator.settings import Settings
from node_agent.protocol import messages as wire

log = structlog.get_logger()

BUSY_PAUSE_SECONDS: Final = 2.0  # a node that said "busy" is asked again after this
OFFER_DECLINES_PAUSE_SECONDS: Final = 60.0
ACCEPT_GATHER_SECONDS: Final = 0.1  # how far the recorded state may lag behind an accept


@dataclass(frozen=True, eq=False)
class Chosen:
    """A job and the seat that was chosen for it, with the slot's number in the table of hosts."""

    live: LiveJob
    facts: JobFacts
    choice: Placed
    slot: int


@final
class Offers:
    """Reserves and offers for one dispatcher."""

    def __init__(
        self,
        *,
        settings: Settings,
        fleet: Fleet,
        relay: Relay,
        endings: Endings,
        reservations: Reservations,
    ) -> None:
        self._settings: Final = settings
        self._fleet: Final = fleet
        self._relay: Final = relay
        self._endings: Final = endings
        self._reservations: Final = reservations
        self._accepts: list[AcceptedOffer] = []
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    async def reserve(self, group: Sequence[Chosen]) -> list[Reservation | None]:
        """Reserve all in one transaction. A slot that is to be made comes in a group of its own."""
        wanted = [Wanted(one.live.job_id, one.live.card, one.choice) for one in group]
        try:
            return await run_in_threadpool(self._reservations.reserve, wanted)
        except Exception:
            # Nobody knows whether it was committed: what runs without us is queued again.
            for one in group:
                self._endings.requeue_unsent(one.live, one.choice.node_id)
            raise

    def offer(self, one: Chosen, reservation: Reservation) -> None:
        """Begin the attempt, send the offer, and see to its answer."""
        live, choice = one.live, one.choice
        deadline = lease_seconds(
            self._settings,
            prefill_seconds=choice.forecast.prefill_seconds,
            step_seconds=1 / choice.forecast.tokens_per_second,
        )
        channel = self._fleet.get(choice.node_id)
        attempt = self._relay.begin(
            live,
            fence=reservation.fence,
            node_id=choice.node_id,
            device=channel.device if channel is not None else "",
            deadline_seconds=deadline,
            is_loaded=choice.forecast.load_seconds + choice.forecast.wait_seconds == 0,
        )
        attempt.ends_at = attempt.begun_at + choice.forecast.total_seconds
        attempt.read_at = attempt.ends_at - choice.forecast.decode_seconds
        attempt.tokens_expected = one.facts.answer_tokens
        if choice.new_slot is not None:
            attempt.evicts = choice.new_slot.evict_revisions
        if channel is None or not channel.send(self._relay.offer_of(live, attempt)):
            self._endings.drop_attempt(live, "lost", "node_left", is_fault=False)
            return
        self._spawn(self._await_answer(live, reservation.fence, choice.node_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_answer(self, live: LiveJob, fence: int, node_id: str) -> None:
        attempt = live.attempt
        if attempt is None or attempt.fence != fence:
            return
        try:
            async with asyncio.timeout(self._settings.offer_seconds_max):
                declined = await asyncio.shield(attempt.answered)
        except TimeoutError:
            if live.attempt is attempt:
                self._unanswered(live, attempt)
            return
        if live.attempt is not attempt or live.is_ending:
            return
        if declined is not None:
            pause = BUSY_PAUSE_SECONDS if declined == "busy" else OFFER_DECLINES_PAUSE_SECONDS
            live.excluded[node_id] = clock.monotonic() + pause
            log.info("offer_declined", job_id=live.job_id, node_id=node_id, reason=declined)
            self._endings.drop_attempt(live, "declined", declined, is_fault=False)
            return
        self._accepts.append(AcceptedOffer(live.job_id, fence, attempt.accepted_us))
        if len(self._accepts) == 1:
            self._spawn(self._record_accepts())

    def _unanswered(self, live: LiveJob, attempt: LiveAttempt) -> None:
        """A node that spoke meanwhile could have answered; one that did not is silent, not at fault."""
        channel = self._fleet.get(attempt.node_id)
        has_spoken = channel is not None and channel.heard_at > attempt.begun_at
        live.excluded[attempt.node_id] = clock.monotonic() + self._settings.node_lost_seconds
        cancel = wire.Cancel(job_id=live.job_id, fence=attempt.fence, reason="lost")
        self._endings.tell(attempt.node_id, cancel)
        self._endings.drop_attempt(live, "lost", "offer_unanswered", is_fault=has_spoken)

    async def _record_accepts(self) -> None:
        """Write the accepts of a moment together, once their prompts are under way."""
        await asyncio.sleep(ACCEPT_GATHER_SECONDS)
        accepts, self._accepts = self._accepts, []
        try:
            await run_in_threadpool(self._reservations.record_accepts, accepts)
        except Exception as error:  # noqa: BLE001
            # The end's transaction writes the same facts; only the view of the moment is poorer.
            log.warning("accepts_not_recorded", count=len(accepts), error=type(error).__name__)
