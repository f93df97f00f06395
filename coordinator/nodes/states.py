"""The state machine of nodes. Pure."""

from __future__ import annotations

from typing import Final, Literal

NodeState = Literal["offline", "asleep", "away", "draining", "ready", "busy", "quarantined"]

NODE_TRANSITIONS: Final[dict[NodeState, frozenset[NodeState]]] = {
    "offline": frozenset({"ready", "busy", "away", "draining", "quarantined"}),
    "asleep": frozenset({"ready", "busy", "away", "draining", "offline", "quarantined"}),
    "away": frozenset({"ready", "busy", "draining", "offline", "asleep", "quarantined"}),
    "draining": frozenset({"ready", "busy", "away", "offline", "asleep", "quarantined"}),
    "ready": frozenset({"busy", "away", "draining", "offline", "asleep", "quarantined"}),
    "busy": frozenset({"ready", "away", "draining", "offline", "asleep", "quarantined"}),
    "quarantined": frozenset({"offline", "ready"}),
}


def may_become(start: NodeState, end: NodeState) -> bool:
    """Whether the table leads from `start` to `end`; staying is always allowed."""
    return start == end or end in NODE_TRANSITIONS[start]
