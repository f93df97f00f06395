"""The gates: which hosts could take a job, why not the others, and the seat that each offers."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.placement.fleet import KINDS, PROVEN, VACANT, Fleet
from coordinator.placement.reject import CODES, RejectReason
from coordinator.placement.slots import BESIDE, FREE, FULL, NOBODY
from coordinator.placement.types import JobFacts
from node_agent.sizing import memory

Floats = NDArray[np.float64]

ABLE: Final = 0  # the code of a host that could take the job


@dataclass(slots=True)
class Look:
    """One job before all hosts, as far as it has been worked out.

    By class of speed: `prompt` and `decode` seconds of an idle host with the model loaded, `alone`
    seconds a token, and `load` seconds from its disk. By row: `code` of the reason (0: able), `seat` the slot that it would
    sit in (-1: one to make), `total` seconds of the job there, `cost` the same with what others
    lose by it. `fetch` seconds where a model is absent. `held` by row: whether the model is in memory
    in an idle slot that is too small for the job; `beside` are rows where it is in memory and another
    model is at work. `needed` and `weights` in bytes.
    """

    job: JobFacts
    fleet: Fleet
    revision: str
    needed: int
    weights: int
    prompt: Floats
    alone: Floats
    decode: Floats
    load: Floats
    code: NDArray[np.uint8]
    seat: NDArray[np.int32]
    total: Floats
    cost: Floats
    fetch: Floats | None = None
    held: NDArray[np.bool_] | None = None
    beside: NDArray[np.int32] | None = None

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class of speed by row."""
        return self.fleet.classes[: len(self.code)]

    @property
    def context(self) -> float:
        """Tokens that a decoding step has before it on average."""
        return self.job.prompt_tokens + self.job.answer_tokens / 2

    def step(self, batch: int) -> Floats:
        """Seconds a token by class among `batch` sequences."""
        speeds = self.fleet.speeds
        return speeds.step_seconds(self.job.card, self.revision, context_tokens=self.context, batch=batch)


def look_at(job: JobFacts, fleet: Fleet, *, now_seconds: float = 0.0) -> Look:
    """All hosts past all gates but those of the submitter's speed, each with its seat and seconds.

    `now_seconds` is on the clock that the fleet was told.
    """
    revision, rows, speeds = job.revision, fleet.rows, fleet.speeds
    middle = job.prompt_tokens + job.answer_tokens / 2
    alone = speeds.step_seconds(job.card, revision, context_tokens=middle)
    look = Look(
        job=job,
        fleet=fleet,
        revision=revision,
        needed=memory.needed_bytes(job.card, context_tokens=max(job.tokens, 1), width=1),
        weights=memory.weights_bytes(job.card),
        prompt=speeds.prompt_seconds(job.card, revision, job.prompt_tokens),
        alone=alone,
        decode=alone * job.answer_tokens,
        load=speeds.load_seconds(job.card),
        code=fleet.code[:rows].copy(),
        seat=np.full(rows, NOBODY, dtype=np.int32),
        total=np.empty(0),
        cost=np.empty(0),
    )
    _of_the_moment(look)
    absent = _absent(look)
    _of_the_host(look, absent)
    _of_the_job(look)
    if fleet.count != rows:
        look.code[fleet.base[:rows] == VACANT] = VACANT
    was_open = look.code == ABLE
    _room(look, was_open)
    _seconds(look, absent)
    _seats(look, was_open, now_seconds)
    _crowded(look)
    return look


def fail(look: Look, mask: NDArray[np.bool_], reason: RejectReason) -> None:
    """Give the hosts of `mask` a reason, whatever theirs was before."""
    # Arithmetic of bytes: ten times as fast as writing through a mask.
    chosen = np.negative(mask.view(np.uint8))
    look.code &= ~chosen
    look.code |= chosen & np.uint8(CODES[reason])


def _of_the_moment(look: Look) -> None:
    if look.job.is_overdue:
        # What is held for older jobs is held for this one.
        look.code[look.code == CODES["held_for_older"]] = ABLE
    if look.job.is_kept_apart:
        busy = look.fleet.live[: len(look.code)] > 0
        fail(look, (look.code == ABLE) & busy, "kept_apart")


def _absent(look: Look) -> NDArray[np.bool_] | None:
    """By row, whether the model must be fetched first; None if that holds nowhere."""
    fleet = look.fleet
    if not fleet.has_disks:
        return None
    absent = ~fleet.has_model(look.revision)
    absent[fleet.slots.row[fleet.slots.of_model(look.revision)]] = False
    return absent if absent.any() else None


def _of_the_host(look: Look, absent: NDArray[np.bool_] | None) -> None:
    """From the last of these gates to the first, each over those written before it."""
    job, fleet, code = look.job, look.fleet, look.code
    rows = len(code)
    if absent is not None:
        fail(look, absent & (fleet.disk_free[:rows] < look.weights), "disk_short")
        fail(look, absent & ~np.isfinite(fleet.fetch_rate[:rows]), "model_absent")
    if job.deadline_seconds < inf:
        late = look.prompt + look.decode > job.deadline_seconds
        if late.any():
            fail(look, late.take(look.classes), "too_late")
    if job.tokens_per_second_min > 0:
        slow = look.alone * job.tokens_per_second_min > 1
        if slow.any():
            fail(look, slow.take(look.classes), "too_slow")
    fail(look, fleet.lent[:rows] < look.needed, "memory_lent_short")
    if job.is_sealed:
        fail(look, (fleet.flags[:rows] & PROVEN) == 0, "unproven")
    bit = 1 << KINDS.index(job.card.kind)
    kinds = fleet.kinds[:rows]
    fail(look, (kinds & bit) == 0, "cannot_load_kind")


def _of_the_job(look: Look) -> None:
    job, fleet, code = look.job, look.fleet, look.code
    rows = len(code)
    if job.price_factor_max_ppm is not None:
        fail(look, (fleet.price[:rows] > job.price_factor_max_ppm) & ~_own(look), "too_dear")
    if job.regions:
        outside = np.ones(fleet.region_count, dtype=bool)
        outside[[n for region in job.regions if (n := fleet.region_number(region)) >= 0]] = False
        fail(look, outside.take(fleet.region[:rows]), "other_region")
    if job.own == "only":
        fail(look, ~_own(look), "not_own")
    if job.only_node_ids:
        named = np.zeros(rows, dtype=bool)
        named[fleet.rows_of(job.only_node_ids)] = True
        fail(look, ~named, "not_named")
    if job.excluded_node_ids:
        code[fleet.rows_of(job.excluded_node_ids)] = CODES["excluded"]
    if job.tokens > job.card.context_tokens:
        code[:] = CODES["context_too_long"]


def _own(look: Look) -> NDArray[np.bool_]:
    """By row, whether it is the submitter's own Mac; those cost nothing."""
    mine = look.fleet.owner_number(look.job.submitter_id)
    return look.fleet.owner[: len(look.code)] == mine


def _room(look: Look, was_open: NDArray[np.bool_]) -> None:
    rows = len(look.code)
    short = was_open & (look.fleet.room[:rows] < look.needed)
    busy = look.fleet.live[:rows] > 0
    fail(look, short & busy, "memory_busy")
    fail(look, short & ~busy, "memory_free_short")


def _seconds(look: Look, absent: NDArray[np.bool_] | None) -> None:
    """The job in a slot that is to be made: the model loaded, fetched first where it is absent."""
    look.total = (look.prompt + look.decode + look.load).take(look.classes)
    if absent is not None:
        rate = np.where(absent, look.fleet.fetch_rate[: len(look.code)], np.float32(0))
        look.fetch = np.multiply(rate, float(look.weights), dtype=np.float64)
        look.total += look.fetch
    look.cost = look.total.copy()


def _seats(look: Look, was_open: NDArray[np.bool_], now: float) -> None:
    """Seats in slots of the model, where the job's context fits into them."""
    slots = look.fleet.slots
    found = slots.of_model(look.revision)
    rows = slots.row[found]
    is_open = was_open[rows]
    found, rows = found[is_open], rows[is_open]
    state = slots.state[found]
    is_small = slots.tokens[found] < look.job.tokens
    if state.any():
        look.beside = rows[state == BESIDE]
        look.code[look.beside] = CODES["memory_busy"]
        look.code[rows[(state == FULL) & ~is_small]] = CODES["slot_full"]
    if is_small.any():
        _outgrown(look, found[is_small], now)
    is_seat = (state == FREE) & ~is_small
    found, rows = found[is_seat], rows[is_seat]
    look.code[rows] = ABLE
    prompt, decode, delay = _beside(look, found)
    total = seat_wait(look, found, now) + prompt + decode
    cost = total + delay
    if look.fleet.has_twins:
        # Where a host has two such slots the better one is written last.
        order = np.argsort(-cost, kind="stable")
        rows, found, total, cost = rows[order], found[order], total[order], cost[order]
    look.seat[rows], look.total[rows], look.cost[rows] = found, total, cost


def _outgrown(look: Look, found: NDArray[np.int32], now: float) -> None:
    """Idle slots of the model that are too small: one is made anew around what is loaded."""
    slots = look.fleet.slots
    ahead = np.maximum(slots.clear_at[found] - now, 0.0)
    is_held = (look.fleet.live[slots.row[found]] == 0) & ((slots.warm[found] > 0) | (ahead > 0))
    rows = slots.row[found[is_held]]
    look.held = np.zeros(len(look.code), dtype=bool)
    look.held[rows] = True
    look.total[rows] = ahead[is_held] + (look.prompt + look.decode)[look.classes[rows]]
    look.cost[rows] = look.total[rows]


def seat_wait(look: Look, found: NDArray[np.int32], now: float) -> Floats:
    """Seconds until these slots begin to read the job's prompt: those before it first, and the model
    loaded where it is not."""
    slots = look.fleet.slots
    ahead = np.maximum(slots.clear_at[found] - now, 0.0)
    is_ready = (slots.warm[found] > 0) | (ahead > 0)
    return np.where(is_ready, ahead, look.load.take(look.classes[slots.row[found]]))


def _beside(look: Look, found: NDArray[np.int32]) -> tuple[Floats, Floats, Floats]:
    """Seconds of prompt and answer in each slot, and what the attempts there lose together.

    They wait while the prompt is read, and their steps grow; how much of their answers is left is
    not known here, and is taken to be as much as this job's.
    """
    fleet, slots = look.fleet, look.fleet.slots
    classes, live = fleet.classes[slots.row[found]], slots.live[found].astype(np.int64)
    prompt = look.prompt[classes]
    for node_id, tokens in look.job.cached:
        before = min(tokens, look.job.prompt_tokens - 1)
        for row in fleet.rows_of(frozenset((node_id,))):
            here = (slots.row[found] == row) & (slots.warm[found] > 0)
            left = look.job.prompt_tokens - before
            prompt[here] = fleet.speeds.prompt_seconds(
                look.job.card, look.revision, left, before_tokens=before
            )[classes[here]]
    counts = range(int(live.max(initial=0)) + 1)
    # By attempts that run there, and by class: one look-up for all slots.
    steps = np.stack([look.step(count + 1) for count in counts])
    step = steps[live, classes]
    before_it = steps[np.maximum(live - 1, 0), classes]
    answer = look.job.answer_tokens
    delay = live * ((step - before_it) * answer + prompt)
    return prompt, step * answer, delay


def _crowded(look: Look) -> None:
    """The submitter's speed and deadline, beside what runs there and with the model to load."""
    job, code = look.job, look.code
    if job.deadline_seconds < inf:
        fail(look, (code == ABLE) & (look.total > job.deadline_seconds), "crowded")
    if job.tokens_per_second_min > 0:
        able = np.flatnonzero((code == ABLE) & (look.seat != NOBODY))
        live = look.fleet.slots.live[look.seat[able]]
        for count in np.unique(live):
            here = able[live == count]
            slow = look.step(int(count) + 1) * job.tokens_per_second_min > 1
            code[here[slow[look.classes[here]]]] = CODES["crowded"]
