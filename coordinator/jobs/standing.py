"""Where a job stands among those that wait, and when its turn comes. On the event loop's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator import clock
from coordinator.jobs import waiting
from coordinator.live import LiveJob
from coordinator.placement.fairness import in_order
from coordinator.placement.match import decide
from coordinator.placement.types import Forecast, JobFacts, NotPlaced, Placed
from coordinator.runtime import Runtime


@dataclass(frozen=True)
class Standing:
    """A job as the matcher sees it now. Jobs that no host can ever run stand in nobody's way:
    `before` counts the others that come first, `queued` all that wait, `unservable` those left out.
    """

    job: JobFacts
    choice: Placed | NotPlaced
    before: int
    queued: int
    unservable: int
    seats: waiting.Seats | None
    ahead: Sequence[waiting.Ahead]

    def forecast(self) -> Forecast | None:
        """Its seconds in parts; None if no host that could take it says when it is free.

        Takes milliseconds for each hundred jobs ahead: not for the event loop.
        """
        if isinstance(self.choice, Placed) and not self.before:
            return self.choice.forecast
        if self.seats is None:
            return None
        further = self.before - len(self.ahead)
        return waiting.forecast(self.seats, self.ahead, further=further, answer_tokens=self.job.answer_tokens)


def waiting_facts(runtime: Runtime) -> list[JobFacts]:
    """The jobs that wait for a host, as the matcher takes them."""
    return [facts_of(live) for live in runtime.jobs.open() if is_waiting(live)]


def is_waiting(live: LiveJob) -> bool:
    """Whether the job is in the queue."""
    return live.attempt is None and not live.is_ending and live.ended_at is None


def facts_of(live: LiveJob) -> JobFacts:
    """What placement decides from."""
    return live.facts(clock.monotonic(), clock.wall_us())


def stand(runtime: Runtime, job: JobFacts) -> Standing:
    """Where `job` stands, whether it is in the queue already or not."""
    dispatcher, now = runtime.dispatcher, clock.monotonic()
    others = [other for other in waiting_facts(runtime) if other.job_id != job.job_id]
    order = in_order(
        [*others, job],
        dispatcher.shares.used.all(now_seconds=now),
        overdue_seconds=runtime.settings.overdue_seconds,
    )
    at = next(n for n, other in enumerate(order) if other.job_id == job.job_id)
    looks = dispatcher.last_look
    never = {job_id for job_id, look in looks.items() if look.rejected and not look.is_ever}
    ahead = [other for other in order[:at] if other.job_id not in never]
    with dispatcher.book.lock:
        table = dispatcher.book.table
        decision = decide(order[at], table, outlook=dispatcher.outlook, now_seconds=now)
        waits = isinstance(decision.choice, NotPlaced) or bool(ahead)
        seats = waiting.seats_of(order[at], decision, table, now_seconds=now) if waits else None
        in_the_way = waiting.ahead_of(ahead, table) if waits else ()
    return Standing(
        job=order[at],
        choice=decision.choice,
        before=len(ahead),
        queued=len(order),
        unservable=at - len(ahead),
        seats=seats,
        ahead=in_the_way,
    )
