"""Why a host did not get a job: a closed list. Every host is counted under one word a decision.

The order of `REASONS` is the order of the gates: a host that fails several is counted under the
first. Gates that only a change of the job or of the host itself can open come first, so that
`is_ever` follows from the counts.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

RejectReason = Literal[
    # What the job is, or its submitter wishes.
    "context_too_long",
    "excluded",
    "not_named",
    "not_own",
    "other_region",
    "too_dear",
    # What the host is.
    "cannot_load_kind",
    "unproven",
    "memory_lent_short",
    "too_slow",
    "too_late",
    "model_absent",
    "disk_short",
    # How the host is just now.
    "offline",
    "suspect",
    "draining",
    "owner_present",
    "paused_after_faults",
    "on_probation",
    "kept_apart",
    "held_for_older",
    "memory_free_short",
    "slot_full",
    "memory_busy",
    "crowded",
    # It could have taken the job, and another host is better.
    "better_soon",
    "kept_for_big",
    "leaves_soon",
    "slower",
    "less_owed",
]

REASONS: Final[tuple[RejectReason, ...]] = get_args(RejectReason)
# Zero stands for "no reason"; a host's reason takes one byte.
CODES: Final[dict[RejectReason, int]] = {reason: code for code, reason in enumerate(REASONS, start=1)}

# It could take the job now.
ABLE_REASONS: Final[frozenset[RejectReason]] = frozenset(
    {"better_soon", "kept_for_big", "leaves_soon", "slower", "less_owed"}
)

# Reasons that time or other jobs' ends can remove; the others hold for as long as the host is
# what it says it is.
PASSING_REASONS: Final[frozenset[RejectReason]] = ABLE_REASONS | frozenset[RejectReason](
    {
        "offline",
        "suspect",
        "draining",
        "owner_present",
        "paused_after_faults",
        "on_probation",
        "kept_apart",
        "held_for_older",
        "memory_free_short",
        "slot_full",
        "memory_busy",
        "crowded",
    }
)

# What each reason means to the owner of the Mac, and what could be changed.
EXPLAINED: Final[dict[RejectReason, str]] = {
    "context_too_long": "the job is longer than its model's context",
    "excluded": "this Mac declined or lost the job before",
    "not_named": "the submitter named other Macs",
    "not_own": "the submitter wants Macs of their own",
    "other_region": "the submitter wants another region",
    "too_dear": "its price is above the submitter's limit",
    "cannot_load_kind": "it does not run this kind of model",
    "unproven": "sealed jobs need more valid checks than this Mac has",
    "memory_lent_short": "the model and the job's context need more memory than is lent",
    "too_slow": "it is slower than the submitter's least speed, even idle",
    "too_late": "it would miss the deadline, even idle and with the model loaded",
    "model_absent": "the model is not on its disk, and it fetches none",
    "disk_short": "the model is not on its disk, and there is no room for it",
    "offline": "it is not connected",
    "suspect": "it has not been heard of lately",
    "draining": "it takes no more jobs before it stops",
    "owner_present": "its owner uses it",
    "paused_after_faults": "it failed several jobs and rests",
    "on_probation": "it failed lately and takes one job at a time",
    "kept_apart": "a job that shares no Mac runs there, or this job shares none",
    "held_for_older": "it becomes free for a job that has waited too long",
    "memory_free_short": "other programs use the memory that is lent",
    "slot_full": "the model is loaded and all its seats are taken",
    "memory_busy": "another model is at work there",
    "crowded": "too slow or too late beside the jobs that run there, or with the model to load",
    "better_soon": "a better Mac becomes free so soon that waiting ends earlier",
    "kept_for_big": "its memory is kept for jobs that need it",
    "leaves_soon": "its owner usually comes back before the job would end",
    "slower": "another Mac is expected to finish clearly sooner",
    "less_owed": "as fast as the chosen Mac, and given more work lately",
}
