"""What people read of a decision: why that Mac, why none, and what would change it. Pure.

Everything here is a count, a sum of seconds or a sentence: no id, owner or name of a Mac, and
nothing of another submitter's job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from coordinator.openai.strict_json import Json
from coordinator.placement.fleet import Fleet
from coordinator.placement.gates import ABLE
from coordinator.placement.queue import Entry
from coordinator.placement.reject import (
    ABLE_REASONS,
    CODES,
    EXPLAINED,
    PASSING_REASONS,
    REASONS,
    RejectReason,
)
from coordinator.placement.types import Forecast, JobFacts, NotPlaced, Placed
from node_agent.protocol.messages import Hardware
from node_agent.sizing import memory
from node_agent.sizing.chips import find_chip
from node_agent.sizing.words import memory_text

GIB: Final = 1 << 30
SOLD_SHARE_SEEN: Final = 0.95  # of the memory that is built in, where firmware keeps some to itself
# Sizes that Macs are sold with; one of another size counts as the next smaller.
MEMORY_CLASSES_GIB: Final = (8, 16, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)
# By code: whether the host could have taken the job.
_IS_ABLE: Final = np.isin(np.arange(256), [ABLE, *(CODES[reason] for reason in ABLE_REASONS)])
SOONEST_SLACK: Final = 1.001  # forecasts this close are the same

ChoiceReason = Literal[
    "overdue",
    "only_one",
    "soonest",
    "owed_most",
    "own",
    "owner_stays",
    "kept_for_big",
    "spares_others",
    "trial",
]
CHOICE_REASONS: Final[tuple[ChoiceReason, ...]] = get_args(ChoiceReason)

CHOSEN: Final[dict[ChoiceReason, str]] = {
    "overdue": "the job had waited so long that only the soonest end counted",
    "only_one": "it was the only Mac that could take the job at that moment",
    "soonest": "it was expected to end the job first",
    "owed_most": "as fast as the fastest within what a forecast is good for, and given less work lately",
    "own": "it is one of the submitter's own Macs, which were preferred",
    "owner_stays": "the owner of a faster Mac usually comes back before the job would end",
    "kept_for_big": "a faster Mac's memory was kept for jobs that need it",
    "spares_others": "on a faster Mac others would have lost more than this job gained: jobs that run there,"
    " or a model that would have had to go",
    "trial": "it had been without work for long, and every healthy Mac gets a share of the jobs that fit it",
}

# What the submitter of a job can do about each reason; where there is nothing, None.
SUBMITTER_CHANGES: Final[dict[RejectReason, str | None]] = {
    "context_too_long": "shorten the prompt or lower 'max_tokens'; or take a model with a longer context",
    "excluded": "nothing: Macs that declined or lost the job are left out for a while",
    "not_named": "name more Macs, or none",
    "not_own": "allow others' Macs",
    "other_region": "allow more regions",
    "too_dear": "raise the limit on the price",
    "cannot_load_kind": "take a model of another kind",
    "unproven": "send it without sealing, or wait until more Macs are proven",
    "memory_lent_short": "take a smaller model or quantisation, shorten the prompt or lower 'max_tokens'",
    "too_slow": "lower the least speed",
    "too_late": "allow a later end",
    "model_absent": "take a model that more Macs hold",
    "disk_short": "take a smaller model, or one that more Macs hold",
    "offline": None,
    "suspect": None,
    "draining": None,
    "owner_present": None,
    "paused_after_faults": None,
    "on_probation": None,
    "kept_apart": None,
    "held_for_older": None,
    "memory_free_short": None,
    "slot_full": "wait for a seat, or take a model that more Macs have loaded",
    "memory_busy": "wait until the other models' work ends, or ask for the model that is at work",
    "crowded": "lower the least speed, allow a later end, or wait",
    "better_soon": None,
    "kept_for_big": None,
    "leaves_soon": None,
    "slower": None,
    "less_owed": None,
}
PASSES: Final = "nothing: it passes by itself"


@dataclass(frozen=True)
class Note:
    """What is kept of a decision that gave a job to a Mac.

    `able` hosts could have taken it, the chosen one among them; `as_good` of them, the chosen one
    not counted, were equals. `at_us` is UTC.
    """

    node_id: str
    at_us: int
    reason: ChoiceReason
    forecast: Forecast
    was_loaded: bool
    has_new_slot: bool
    able: int
    as_good: int
    rejected: Mapping[RejectReason, int]
    waited_seconds: float


def note_of(entry: Entry, choice: Placed, fleet: Fleet, *, band: float, at_us: int) -> Note:
    """What to keep of an entry that was placed. `band` is the policy's."""
    return Note(
        node_id=choice.node_id,
        at_us=at_us,
        reason=reason_of(entry, fleet, band=band),
        forecast=choice.forecast,
        was_loaded=choice.forecast.load_seconds == 0,
        has_new_slot=choice.new_slot is not None,
        able=1 + sum(choice.rejected.get(reason, 0) for reason in ABLE_REASONS),
        as_good=choice.rejected.get("less_owed", 0),
        rejected=dict(choice.rejected),
        waited_seconds=entry.job.waited_seconds,
    )


def reason_of(entry: Entry, fleet: Fleet, *, band: float) -> ChoiceReason:
    """Why a placed job went where it went, from the decision alone."""
    job, decision = entry.job, entry.decision
    if job.is_overdue:
        return "overdue"
    able = np.flatnonzero(_IS_ABLE[decision.codes])
    if len(able) == 1:
        return "only_one"
    totals = decision.total_seconds[able]
    best, own = float(totals.min()), float(decision.total_seconds[decision.row])
    if own <= best * SOONEST_SLACK:
        return "soonest"
    if job.own == "prefer" and fleet.owner[decision.row] == fleet.owner_number(job.submitter_id):
        return "own"
    fastest = int(able[int(totals.argmin())])
    passed_over = decision.reason(fastest)
    if passed_over == "leaves_soon":
        return "owner_stays"
    if passed_over == "kept_for_big":
        return "kept_for_big"
    if own <= best * band:
        return "owed_most"
    # With nobody to disturb there the fastest costs just its own seconds: only hunger reaches further.
    return "spares_others" if passed_over == "slower" or _disturbs(job, fleet, fastest) else "trial"


def _disturbs(job: JobFacts, fleet: Fleet, row: int) -> bool:
    """Whether on that host jobs run, or another model would have to go."""
    held = [fleet.slots.revision(slot) for slot in fleet.slots.of(int(fleet.first_slot[row]))]
    return bool(fleet.live[row]) or (bool(held) and job.revision not in held)


# -- as JSON ---------------------------------------------------------------------------------------


def seconds_json(forecast: Forecast) -> dict[str, Json]:
    """A forecast's parts and their sum, seconds to the millisecond."""
    return {
        "wait": round(forecast.wait_seconds, 3),
        "load": round(forecast.load_seconds, 3),
        "prefill": round(forecast.prefill_seconds, 3),
        "decode": round(forecast.decode_seconds, 3),
        "total": round(forecast.total_seconds, 3),
    }


def rejected_json(rejected: Mapping[RejectReason, int]) -> list[Json]:
    """The counts in the order of the gates, each with its meaning."""
    return [
        {"reason": reason, "hosts": rejected[reason], "meaning": EXPLAINED[reason]}
        for reason in REASONS
        if rejected.get(reason)
    ]


def note_json(note: Note) -> dict[str, Json]:
    """Why that Mac, without saying which."""
    return {
        "at_us": note.at_us,
        "waited_seconds": round(note.waited_seconds, 3),
        "why": note.reason,
        "meaning": CHOSEN[note.reason],
        "model_was_loaded": note.was_loaded,
        "new_slot": note.has_new_slot,
        "could_have_taken_it": note.able,
        "as_good": note.as_good,
        "forecast_seconds": seconds_json(note.forecast),
        "tokens_per_second": round(note.forecast.tokens_per_second, 1),
        "rejected": rejected_json(note.rejected),
    }


def changes_json(job: JobFacts, choice: NotPlaced) -> list[Json]:
    """What would let the job run, or run sooner: the reasons that keep most hosts first.

    Reasons about which a submitter can do nothing are summed up in one line at the end.
    """
    found: list[Json] = []
    passing = 0
    for reason, hosts in sorted(choice.rejected.items(), key=lambda item: (-item[1], item[0])):
        change = SUBMITTER_CHANGES[reason]
        if change is None:
            passing += hosts
        else:
            found.append({"reason": reason, "hosts": hosts, "change": change + _room(reason, job, choice)})
    if passing:
        found.append({"reason": None, "hosts": passing, "change": PASSES})
    return found


def _room(reason: RejectReason, job: JobFacts, choice: NotPlaced) -> str:
    """For memory: how long a job the largest host could take."""
    if reason != "memory_lent_short" or choice.needed_bytes <= choice.largest_lent_bytes:
        return ""
    tokens = tokens_that_fit(job, choice.largest_lent_bytes)
    return f"; {_fitting(tokens)}"


def _fitting(tokens: int) -> str:
    if tokens:
        return f"prompt and answer of at most {tokens} tokens together fit the largest Mac"
    return "not even one token of this model fits the largest Mac"


def tokens_that_fit(job: JobFacts, lent_bytes: int) -> int:
    """The longest prompt and answer together for which one sequence fits; 0 if none does."""
    low, high = 0, job.card.context_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if memory.needed_bytes(job.card, context_tokens=middle, width=1) <= lent_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def unservable_text(job: JobFacts, choice: NotPlaced) -> str:
    """Why no host can ever run the job, the reason of most hosts first, and what to do.

    Bytes are told where memory is the reason, and nowhere else.
    """
    if not choice.rejected:
        return "no Mac is connected"
    if set(choice.rejected) == {"memory_lent_short"}:
        return _memory_text(job, choice)
    lasting: list[RejectReason] = [
        reason for reason in REASONS if choice.rejected.get(reason) and reason not in PASSING_REASONS
    ]
    lasting.sort(key=lambda reason: -choice.rejected[reason])
    parts = [f"{choice.rejected[reason]} {reason} ({_lasting(reason, job, choice)})" for reason in lasting]
    return f"of {sum(choice.rejected.values())} Macs: {', '.join(parts)}"


def _lasting(reason: RejectReason, job: JobFacts, choice: NotPlaced) -> str:
    """One reason with its numbers, if it has any, and what to change."""
    if reason == "context_too_long":
        why = (
            f"{job.tokens} tokens do not fit the context of {job.card.context_tokens} tokens of {job.card.id}"
        )
    elif reason == "memory_lent_short" and choice.needed_bytes > choice.largest_lent_bytes:
        return _memory_text(job, choice)
    else:
        why = EXPLAINED[reason]
    return f"{why}; {SUBMITTER_CHANGES[reason]}"


def _memory_text(job: JobFacts, choice: NotPlaced) -> str:
    needed, largest = choice.needed_bytes, choice.largest_lent_bytes
    tokens = tokens_that_fit(job, largest)
    what = (
        "shorten the prompt, lower 'max_tokens' or take a smaller model"
        if tokens
        else "take a smaller model or a smaller quantisation of it"
    )
    return (
        f"{job.card.id} with a prompt of {job.prompt_tokens} tokens and an answer of up to"
        f" {job.max_tokens} needs {needed} bytes ({memory_text(needed, is_need=True)}) of lent memory, and"
        f" the largest Mac lends {largest} bytes ({memory_text(largest)}); {_fitting(tokens)}: {what}"
    )


def class_of_mac(hardware: Hardware) -> dict[str, Json]:
    """A kind of Mac that says nothing about whose it is: chip as the table has it, memory as sold."""
    chip = find_chip(hardware.chip, hardware.gpu_cores)
    gib = hardware.memory_bytes / GIB
    sizes = [size for size in MEMORY_CLASSES_GIB if size * SOLD_SHARE_SEEN <= gib]
    return {
        "chip": chip.name if chip is not None else "other",
        "memory_gib": sizes[-1] if sizes else int(gib),
    }
