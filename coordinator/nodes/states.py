"""The state machine of nodes. Pure."""

from __future__ import annotations

from typing import Final, Literal

NodeState = Literal["offline", "asleep", "away", "draining", "ready", "busy", "quarantined"]

_PRESENT: Final[frozenset[NodeState]] = frozenset({"ready", "busy", "away", "draining"})

NODE_TRANSITIONS: Final[dict[NodeState, frozenset[NodeState]]] = {
    "offline": _PRESENT | {"quarantined"},
    "asleep": _PRESENT | {"offline", "quarantined"},
    "away": (_PRESENT - {"away"}) | {"offline", "asleep", "quarantined"},
    "draining": (_PRESENT - {"draining"}) | {"offline", "asleep", "quarantined"},
    "ready": (_PRESENT - {"ready"}) | {"offline", "asleep", "quarantined"},
    "busy": (_PRESENT - {"busy"}) | {"offline", "asleep", "quarantined"},
    "quarantined": frozenset({"offline", "ready"}),
}


def may_become(start: NodeState, end: NodeState) -> bool:
    """Whether the table leads from `start` to `end`; staying is always allowed."""
    return start == end or end in NODE_TRANSITIONS[start]
