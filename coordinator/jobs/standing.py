"""Where a job stands among those that wait, and when its turn comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool

from coordinator import clock
from coordinator.jobs import waiting
from coordinator.live import LiveJob
from coordinator.placement.fairness import in_order
from coordinator.placement.match import decide
from coordinator.placement.types import Forecast, JobFacts, NotPlaced, Placed
from coordinator.runtime import Runtime

AHEAD_AT_ONCE: Final = 20  # so short is the table of hosts kept from the dispatcher


@dataclass(frozen=True)
class Standing:
    """A job as the matcher sees it now. Jobs that no host can ever run stand in nobody's way:
    `before` counts the others that come first, `queued` all that wait, `unservable` those left out.
    `forecast` is None if no host that could take it says when it is free.
    """

    job: JobFacts
    choice: Placed | NotPlaced
    before: int
    queued: int
    unservable: int
    forecast: Forecast | None


def is_waiting(live: LiveJob) -> bool:
    """Whether the job is in the queue."""
    return live.attempt is None and not live.is_ending and live.ended_at is None


def facts_of(live: LiveJob) -> JobFacts:
    """What placement decides from."""
    return live.facts(clock.monotonic(), clock.wall_us())


async def stand(runtime: Runtime, job: JobFacts) -> Standing:
    """Where `job` stands, whether it is in the queue already or not.

    The queue is read on the event loop; ordering and forecasting it is for a thread.
    """
    others = [
        facts_of(live) for live in runtime.jobs.open() if is_waiting(live) and live.job_id != job.job_id
    ]
    dispatcher = runtime.dispatcher
    used = dispatcher.shares.used.all(now_seconds=clock.monotonic())
    looks = dispatcher.last_look
    never = frozenset(job_id for job_id, look in looks.items() if look.rejected and not look.is_ever)
    return await run_in_threadpool(_stand, runtime, job, others, used, never)


def _stand(
    runtime: Runtime,
    job: JobFacts,
    others: Sequence[JobFacts],
    used: Mapping[str, float],
    never: frozenset[str],
) -> Standing:
    order = in_order([*others, job], used, overdue_seconds=runtime.settings.overdue_seconds)
    at = next(n for n, other in enumerate(order) if other.job_id == job.job_id)
    ahead = [other for other in order[:at] if other.job_id not in never]
    choice, forecast = _look(runtime, order[at], ahead)
    return Standing(
        job=order[at],
        choice=choice,
        before=len(ahead),
        queued=len(order),
        unservable=at - len(ahead),
        forecast=forecast,
    )


def _look(
    runtime: Runtime, job: JobFacts, ahead: Sequence[JobFacts]
) -> tuple[Placed | NotPlaced, Forecast | None]:
    """What the matcher would say now, and the forecast behind the jobs ahead."""
    dispatcher, now = runtime.dispatcher, clock.monotonic()
    book = dispatcher.book
    with book.lock:
        decision = decide(job, book.table, outlook=dispatcher.outlook, now_seconds=now)
        seats = waiting.seats_of(job, decision, book.table, now_seconds=now)
    choice = decision.choice
    if isinstance(choice, Placed):
        # It is next, or those before it need other Macs: what is free for it stays so.
        return choice, choice.forecast
    first = ahead[: waiting.AHEAD_MAX]
    in_the_way: list[waiting.Ahead] = []
    for start in range(0, len(first), AHEAD_AT_ONCE):
        with book.lock:
            in_the_way += waiting.ahead_of(first[start : start + AHEAD_AT_ONCE], book.table)
    further = len(ahead) - len(first)
    return choice, waiting.forecast(seats, in_the_way, further=further, answer_tokens=job.answer_tokens)
