"""Match one job to the hosts: gates with their reasons, a forecast, then who is owed most.

Deterministic: the same facts give the same host, whatever their order. Every host is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.placement import survival
from coordinator.placement.fleet import VACANT, Fleet, tie_of
from coordinator.placement.gates import ABLE, Floats, Look, fail, look_at, seat_wait
from coordinator.placement.reject import CODES, PASSING_REASONS, REASONS, RejectReason
from coordinator.placement.slot_plans import slot_to_make
from coordinator.placement.slots import NOBODY
from coordinator.placement.types import (
    Forecast,
    HostFacts,
    JobFacts,
    NotPlaced,
    Outlook,
    Placed,
    Policy,
)

POLICY: Final = Policy()
OUTLOOK: Final = Outlook()
MIX: Final = np.uint64(0x9E3779B97F4A7C15)
BIG_NEEDS_MAX: Final = 8


@dataclass(frozen=True, eq=False)
class Decision:
    """What was decided, row and slot of the host (-1: none), and by row the code of the reason.

    `total_seconds` by row is the job's forecast there, where the reason is none of the gates'.
    `revision` is that of the job's model.
    """

    choice: Placed | NotPlaced
    row: int
    slot: int
    codes: NDArray[np.uint8]
    total_seconds: Floats
    revision: str = ""

    def reason(self, row: int) -> RejectReason | None:
        """Why the host of that row did not get the job; None for the one that did."""
        code = int(self.codes[row])
        return None if code in {ABLE, VACANT} else REASONS[code - 1]


def match(
    job: JobFacts,
    hosts: Iterable[HostFacts],
    *,
    policy: Policy = POLICY,
    outlook: Outlook = OUTLOOK,
) -> Placed | NotPlaced:
    """Choose a host for `job`, or say how many hosts were rejected for which reason."""
    fleet = Fleet()
    for host in hosts:
        _ = fleet.put(host)
    return decide(job, fleet, policy=policy, outlook=outlook).choice


def decide(
    job: JobFacts,
    fleet: Fleet,
    *,
    policy: Policy = POLICY,
    outlook: Outlook = OUTLOOK,
    now_seconds: float = 0.0,
) -> Decision:
    """The same on a fleet that is kept. `now_seconds` is on the clock that the fleet was told."""
    look = look_at(job, fleet, now_seconds=now_seconds)
    fleet.slots.note_weights(look.revision, look.weights)
    is_able = look.code == ABLE
    if not is_able.any():
        return _not_placed(look, now_seconds)
    scale = _Scale(
        policy, _kept_bytes(look, outlook), outlook.week_seconds, _horizon(look, is_able, policy), now_seconds
    )
    near = _near(look, is_able, scale, now_seconds)
    cost, staying, before = _weighed(look, near, scale)
    best = float(cost.min())
    # Memory that is kept for others sends a job to another host, and does not make it wait.
    plain = min(best, float(staying.min()))
    if not job.is_overdue and _soonest(look, now_seconds)[1] * policy.hold_factor < plain:
        fail(look, is_able, "better_soon")
        return _not_placed(look, now_seconds)
    limit = _limits(look, near, policy, best, now_seconds)
    in_band = np.flatnonzero(cost <= limit)
    chosen = in_band[_first(look, near[in_band], cost[in_band], policy, now_seconds)]
    fail(look, is_able, "slower")
    _tell_the_rest(look, near, (cost, staying, before), limit)
    row = int(near[chosen])
    look.code[row] = ABLE
    choice = choice_at(look, row, now_seconds=now_seconds)
    return Decision(choice, row, int(look.seat[row]), look.code, look.total, look.revision)


# -- weighing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    """What a decision weighs all hosts with: bytes kept for others, and for owners' habits the
    moment and how many seconds ahead are looked at. `now_seconds` is on the fleet's clock."""

    policy: Policy
    kept: int | None
    week_seconds: float | None
    ahead_seconds: float
    now_seconds: float


def _horizon(look: Look, is_able: NDArray[np.bool_], policy: Policy) -> float:
    return float(np.where(is_able, look.total, np.inf).min()) * policy.band


def _near(look: Look, is_able: NDArray[np.bool_], scale: _Scale, now: float) -> NDArray[np.intp]:
    """Rows of the able hosts that could be chosen: weighing adds to a cost, and only own Macs become
    cheaper by it, so that whoever is beyond the limit before it stays beyond."""
    if look.job.own == "prefer":
        return np.flatnonzero(is_able)
    plain = np.where(is_able, look.cost, np.inf)
    least = np.array([plain.argmin()])
    # The choice costs no more than this host does; the hungriest reaches furthest.
    most = float(_weighed(look, least, scale)[0][0])
    fed_at = look.fleet.fed_at[: len(plain)]
    hungriest = np.array([fed_at.argmin()])
    reach = max(
        float(_limits(look, least, scale.policy, most, now)[0]),
        float(_limits(look, hungriest, scale.policy, most, now)[0]),
    )
    near = np.flatnonzero(plain <= reach)
    return near[plain[near] <= _limits(look, near, scale.policy, most, now)]


def _weighed(look: Look, able: NDArray[np.intp], scale: _Scale) -> tuple[Floats, Floats, Floats]:
    """Seconds by able host, with what others lose, the owner's return, and memory kept for others;
    the same before memory is kept and own Macs are preferred; and before the owner's return too."""
    cost, total = look.cost[able], look.total[able]
    fleet, policy = look.fleet, scale.policy
    if not look.job.is_overdue:
        cost = cost + (policy.beside_factor - 1) * (cost - total)
        cost += _turned_over(look, able, scale)
    before = staying = cost
    if scale.week_seconds is not None and fleet.has_curves:
        rates = survival.return_rates(
            fleet.curves[:, : fleet.rows], scale.week_seconds, scale.ahead_seconds, rows=able
        )
        again = policy.leave_seconds + look.prompt[look.classes[able]]
        returns = 1 - np.exp(-rates * total)
        staying = cost * (1 + policy.leave_factor * returns) + returns * again
    cost = staying
    if look.job.is_overdue:
        return cost, staying, before
    if scale.kept is not None:
        cost = np.where(fleet.room[able] >= scale.kept, cost * policy.keep_factor, cost)
    if look.job.own == "prefer":
        mine = fleet.owner[able] == fleet.owner_number(look.job.submitter_id)
        cost = np.where(mine, cost / policy.own_factor, cost)
    return cost, staying, before


def _turned_over(look: Look, able: NDArray[np.intp], scale: _Scale) -> Floats:
    """What it costs by able host that a model goes to make room: the Mac loads, and what went must
    be loaded again, sooner the fewer others hold it and the later it was asked for. Of several models
    that may go the one that came last stands for them."""
    fleet, policy = look.fleet, scale.policy
    found = np.zeros(len(able))
    goes = (look.seat[able] == NOBODY) & (fleet.first_slot[able] != NOBODY)
    if fleet.has_room_beside:
        goes &= fleet.spare[able] < look.needed
    if look.held is not None:
        goes &= ~look.held[able]
    at = np.flatnonzero(goes)
    rows = able[at]
    load = look.load[look.classes[rows]]
    again = fleet.slots.weights_lost(fleet.first_slot[rows]) / max(look.weights, 1) * load
    idle = np.maximum(scale.now_seconds - fleet.fed_at[rows], 0.0)
    halvings = idle / policy.lost_half + look.job.waited_seconds / policy.lost_patience
    found[at] = policy.switch_factor * load + policy.lost_factor * again * 0.5**halvings
    return found


def _kept_bytes(look: Look, outlook: Outlook) -> int | None:
    """Hosts with so much room are kept back: jobs that need it are about, and few could take them."""
    larger = sorted(need for need in outlook.big_needs if need > look.needed)
    if not larger or look.job.is_overdue:
        return None
    rows = len(look.code)
    is_open = look.fleet.code[:rows] == ABLE
    room = look.fleet.room[:rows]
    # Of many needs the largest ones: what they lack the smaller lack too, or find elsewhere.
    for need in sorted(set(larger))[-BIG_NEEDS_MAX:]:
        wanted = sum(other >= need for other in larger)
        if int(np.count_nonzero(is_open & (room >= need))) <= wanted:
            return need
    return None


def _soonest(look: Look, now: float) -> tuple[int, float]:
    """(row, seconds) of the busy host where the job would end first; (-1, inf) if none is known."""
    fleet, rows = look.fleet, len(look.code)
    best = (NOBODY, float("inf"))
    kinds = ((CODES["slot_full"], fleet.seat_at, True), (CODES["memory_busy"], fleet.idle_at, False))
    for code, until, is_loaded in kinds:
        busy = np.flatnonzero((look.code == code) & np.isfinite(until[:rows]))
        if not len(busy):
            continue
        ends = np.maximum(until[busy] - now, 0.0) + (look.prompt + look.decode)[look.classes[busy]]
        if not is_loaded:
            ends += np.where(_is_warm(look, busy), 0.0, look.load[look.classes[busy]])
        first = np.flatnonzero(ends == ends.min())
        at = first[fleet.tie[busy[first]].argmin()]
        best = min(best, (int(busy[at]), float(ends[at])), key=lambda entry: entry[1])
    return best


def _is_warm(look: Look, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """By row, whether the host holds the model beside the one at work."""
    warm = np.zeros(len(look.code), dtype=bool)
    if look.beside is not None:
        warm[look.beside] = True
    return warm[rows]


def _limits(look: Look, able: NDArray[np.intp], policy: Policy, best: float, now: float) -> Floats:
    """What a host may cost and still be taken for an equal: more if it has long had no work."""
    limit = np.full(len(able), best * policy.band)
    if look.job.is_overdue:
        return limit
    hungry = now - look.fleet.fed_at[able] - policy.hungry_after
    at = np.flatnonzero(hungry > 0)
    if len(at):
        grown = hungry[at] / max(policy.hungry_full - policy.hungry_after, 1e-9)
        if tie_of(look.job.job_id.encode()) / 2**64 >= policy.trial_share:
            grown = np.minimum(grown, 1.0)
        # Seconds, not a ratio: short jobs lose little on a slow Mac, and go there first.
        spans = policy.hungry_stretch ** np.minimum(grown, 64.0)
        seconds = policy.trial_seconds * (spans - 1) / (policy.hungry_stretch - 1)
        limit[at] = np.maximum(limit[at], best + seconds)
    return limit


def _first(look: Look, rows: NDArray[np.intp], cost: Floats, policy: Policy, now: float) -> int:
    """Place of the hungriest, the most owed, the soonest done, the first by a hash of host and job."""
    fleet = look.fleet
    at = np.arange(len(rows))
    if not look.job.is_overdue:
        fed_at = fleet.fed_at[rows]
        if now - fed_at.min() >= policy.hungry_full:
            at = np.flatnonzero(fed_at == fed_at.min())
    given = fleet.given[rows[at]]
    at = at[given == given.min()]
    at = at[cost[at] == cost[at].min()]
    if len(at) > 1:
        mixed = (fleet.tie[rows[at]] ^ np.uint64(tie_of(look.job.job_id.encode()))) * MIX
        at = at[np.argsort(mixed, kind="stable")]
    return int(at[0])


# -- telling ---------------------------------------------------------------------------------------


def _tell_the_rest(
    look: Look, able: NDArray[np.intp], weighed: tuple[Floats, Floats, Floats], limit: Floats
) -> None:
    """Why the able hosts that were not chosen were not."""
    cost, staying, before = weighed
    is_out = cost > limit
    code = np.full(len(able), CODES["less_owed"], dtype=np.uint8)
    code[is_out] = CODES["slower"]
    code[is_out & (before <= limit)] = CODES["leaves_soon"]
    code[is_out & (staying <= limit)] = CODES["kept_for_big"]
    look.code[able] = code


def _counts(look: Look) -> dict[RejectReason, int]:
    # Comparing bytes one code after the other is faster than counting them all at once.
    counts: dict[RejectReason, int] = {
        reason: int(np.count_nonzero(look.code == code)) for reason, code in CODES.items()
    }
    return {reason: count for reason, count in counts.items() if count}


def _not_placed(look: Look, now: float) -> Decision:
    rejected = _counts(look)
    row, seconds = _soonest(look, now)
    fleet = look.fleet
    choice = NotPlaced(
        rejected=rejected,
        is_ever=not PASSING_REASONS.isdisjoint(rejected),
        needed_bytes=look.needed,
        largest_lent_bytes=int(fleet.lent[: fleet.rows].max(initial=0)),
        soonest_node_id=fleet.node_id(row) if row != NOBODY else None,
        soonest_seconds=seconds if row != NOBODY else None,
    )
    return Decision(choice, NOBODY, NOBODY, look.code, look.total, look.revision)


def choice_at(look: Look, row: int, *, now_seconds: float = 0.0) -> Placed:
    """The seat and forecast that an able host offers."""
    fleet, slot, job = look.fleet, int(look.seat[row]), look.job
    number = int(fleet.classes[row])
    is_seated = slot != NOBODY
    step = look.step(int(fleet.slots.live[slot]) + 1)[number] if is_seated else look.alone[number]
    wait, load = _until_read(look, row, slot, now_seconds)
    decode = float(step) * job.answer_tokens
    prompt = float(look.prompt[number])
    if is_seated and job.cached:
        prompt = max(float(look.total[row]) - wait - load - decode, 0.0)
    forecast = Forecast(
        load_seconds=load,
        prefill_seconds=prompt,
        decode_seconds=decode,
        tokens_per_second=1 / float(step),
        wait_seconds=wait,
    )
    node_id = fleet.node_id(row)
    if is_seated:
        return Placed(node_id, fleet.slots.slot_id(slot), None, forecast, _counts(look))
    return Placed(node_id, None, slot_to_make(job, fleet, row), forecast, _counts(look))


def _until_read(look: Look, row: int, slot: int, now: float) -> tuple[float, float]:
    """Seconds of waiting for what is under way there, and of loading, before the prompt is read."""
    if slot != NOBODY:
        seconds = float(seat_wait(look, np.array([slot], dtype=np.int32), now)[0])
        is_under_way = bool(look.fleet.slots.warm[slot]) or look.fleet.slots.clear_at[slot] > now
        return (seconds, 0.0) if is_under_way else (0.0, seconds)
    if look.held is not None and look.held[row]:
        read = float((look.prompt + look.decode)[int(look.fleet.classes[row])])
        return max(float(look.total[row]) - read, 0.0), 0.0
    load = float(look.load[int(look.fleet.classes[row])])
    return 0.0, load if look.fetch is None else load + float(look.fetch[row])
