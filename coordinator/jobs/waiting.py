"""When a queued job begins and ends, as far as that can be forecast. Pure.

The jobs that stand before it and can be served take, one after the other, the seat that comes free
first on a host where they fit; what is left then is the job's. A host's later seats follow its first
at the pace of what was put there. Forecasts of seats come from the fleet; a host that does not say
when it is free counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.placement.fleet import Fleet
from coordinator.placement.match import Decision
from coordinator.placement.reject import CODES
from coordinator.placement.types import Forecast, JobFacts
from node_agent.sizing import memory

Floats = NDArray[np.float64]

AHEAD_MAX: Final = 200  # of those before it; the rest are taken to be like these
# Reasons that end when the host's running jobs do.
UNTIL_IDLE: Final = ("memory_busy", "on_probation", "kept_apart", "held_for_older")


@dataclass(frozen=True)
class Ahead:
    """A job that stands before: bytes it needs, and its seconds by class of speed, the model loaded."""

    needed_bytes: int
    seconds: Floats


@dataclass(frozen=True)
class Seats:
    """The hosts that could take the job once they are free, by number.

    `free_in` seconds until the first seat, `load` seconds before the job can begin there, `prompt`
    and `decode` its own, `width` seats that follow one another.
    """

    lent_bytes: NDArray[np.int64]
    classes: NDArray[np.int64]
    width: NDArray[np.int64]
    free_in: Floats
    load: Floats
    prompt: Floats
    decode: Floats


def ahead_of(jobs: Sequence[JobFacts], fleet: Fleet) -> list[Ahead]:
    """The first of `jobs` as they compete for hosts, at most `AHEAD_MAX`."""
    return [_ahead(job, fleet) for job in jobs[:AHEAD_MAX]]


def _ahead(job: JobFacts, fleet: Fleet) -> Ahead:
    context = job.prompt_tokens + job.answer_tokens / 2
    step = fleet.speeds.step_seconds(job.card, job.revision, context_tokens=context)
    prompt = fleet.speeds.prompt_seconds(job.card, job.revision, job.prompt_tokens)
    needed = memory.needed_bytes(job.card, context_tokens=max(job.tokens, 1), width=1)
    return Ahead(needed, prompt + step * job.answer_tokens)


def seats_of(job: JobFacts, decision: Decision, fleet: Fleet, *, now_seconds: float) -> Seats:
    """The seats that a decision leaves to wait for. `now_seconds` is on the fleet's clock."""
    codes = decision.codes
    free_at = np.full(len(codes), inf)
    full = codes == CODES["slot_full"]
    busy = np.isin(codes, [CODES[reason] for reason in UNTIL_IDLE])
    free_at[full] = fleet.seat_at[: len(codes)][full]
    free_at[busy] = fleet.idle_at[: len(codes)][busy]
    free_at[codes == CODES["better_soon"]] = now_seconds
    rows = np.flatnonzero(np.isfinite(free_at))
    classes = fleet.classes[rows]
    speeds, revision = fleet.speeds, job.revision
    context = job.prompt_tokens + job.answer_tokens / 2
    step = speeds.step_seconds(job.card, revision, context_tokens=context)
    load = np.where(full[rows], 0.0, speeds.load_seconds(job.card)[classes])
    return Seats(
        lent_bytes=fleet.lent[rows],
        classes=classes,
        width=np.maximum(fleet.width[rows].astype(np.int64), 1),
        free_in=np.maximum(free_at[rows] - now_seconds, 0.0),
        load=load,
        prompt=speeds.prompt_seconds(job.card, revision, job.prompt_tokens)[classes],
        decode=(step * job.answer_tokens)[classes],
    )


def forecast(
    seats: Seats, ahead: Sequence[Ahead], *, further: int = 0, answer_tokens: int
) -> Forecast | None:
    """The job's own forecast behind those `ahead` and `further` ones like them; None if nobody knows.

    Jobs that fit none of the job's hosts do not stand in its way.
    """
    if not len(seats.free_in):
        return None
    free_in = seats.free_in.copy()
    taken = 0
    for other in ahead:
        taken += _take_seat(seats, free_in, other)
    added = float((free_in - seats.free_in).sum()) / len(free_in)
    wait_more = added * further / len(ahead) if ahead and taken else 0.0
    ends = free_in + seats.load + seats.prompt + seats.decode
    at = int(ends.argmin())
    decode = float(seats.decode[at])
    wait = float(free_in[at]) + wait_more
    if not isfinite(wait):
        return None
    return Forecast(
        load_seconds=float(seats.load[at]),
        prefill_seconds=float(seats.prompt[at]),
        decode_seconds=decode,
        tokens_per_second=answer_tokens / decode if decode else 0.0,
        wait_seconds=wait,
    )


def _take_seat(seats: Seats, free_in: Floats, other: Ahead) -> bool:
    """Give the seat that is free first to a job before ours; whether it fits any of the hosts."""
    when = np.where(seats.lent_bytes >= other.needed_bytes, free_in, inf)
    at = int(when.argmin())
    if not isfinite(when[at]):
        return False
    free_in[at] += float(other.seconds[seats.classes[at]]) / float(seats.width[at])
    return True
