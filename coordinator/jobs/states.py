"""The state machines of jobs and attempts: one table each; anything else raises. Pure."""

from __future__ import annotations

from typing import Final, Literal

JobState = Literal["queued", "running", "cancelling", "done", "failed", "cancelled", "expired"]
AttemptState = Literal[
    "offered",
    "accepted",
    "loading",
    "prefill",
    "decoding",
    "done",
    "declined",
    "lost",
    "reclaimed",
    "failed",
    "cancelled",
]

JOB_TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    "queued": frozenset({"running", "cancelling", "failed", "cancelled", "expired"}),
    "running": frozenset({"queued", "cancelling", "done", "failed", "expired"}),
    "cancelling": frozenset({"cancelled"}),
    "done": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "expired": frozenset(),
}

ATTEMPT_TRANSITIONS: Final[dict[AttemptState, frozenset[AttemptState]]] = {
    "offered": frozenset({"accepted", "declined", "lost", "cancelled"}),
    "accepted": frozenset(
        {"loading", "prefill", "decoding", "done", "lost", "reclaimed", "failed", "cancelled"}
    ),
    "loading": frozenset({"prefill", "decoding", "done", "lost", "reclaimed", "failed", "cancelled"}),
    "prefill": frozenset({"decoding", "done", "lost", "reclaimed", "failed", "cancelled"}),
    "decoding": frozenset({"done", "lost", "reclaimed", "failed", "cancelled"}),
    "done": frozenset(),
    "declined": frozenset(),
    "lost": frozenset(),
    "reclaimed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

FINAL_JOB_STATES: Final[frozenset[JobState]] = frozenset(
    s for s, next_states in JOB_TRANSITIONS.items() if not next_states
)
LIVE_ATTEMPT_STATES: Final[frozenset[AttemptState]] = frozenset(
    s for s, next_states in ATTEMPT_TRANSITIONS.items() if next_states
)


class InvalidTransitionError(RuntimeError):
    """A job or attempt was asked to go where its table does not lead."""


def check_job_transition(start: JobState, end: JobState) -> None:
    """Raise `InvalidTransitionError` unless the table leads from `start` to `end`."""
    if end not in JOB_TRANSITIONS[start]:
        raise InvalidTransitionError(f"job: {start} to {end}")


def check_attempt_transition(start: AttemptState, end: AttemptState) -> None:
    """Raise `InvalidTransitionError` unless the table leads from `start` to `end`."""
    if end not in ATTEMPT_TRANSITIONS[start]:
        raise InvalidTransitionError(f"attempt: {start} to {end}")
