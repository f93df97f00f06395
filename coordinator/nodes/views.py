"""What an owner is told of a Mac: how it stands, why, and when it gets work again."""

from __future__ import annotations

import math
from typing import Final

from coordinator import clock
from coordinator.nodes.channel import Channel
from coordinator.nodes.health_book import HealthBook
from coordinator.nodes.models import Node
from coordinator.openai.strict_json import Json
from coordinator.settings import Settings

WORDS: Final = {
    "draining": "it is closing",
    "away": "its owner is using it",
    "asleep": "it sleeps",
    "quarantined": "it was taken out of service by an operator",
}


def state_of(node: Node, channel: Channel | None, book: HealthBook, settings: Settings) -> dict[str, Json]:
    """`state` in one word, `why` it gets no or less work (None if it gets all), and its `health`."""
    standing = book.standing(node.device)
    state, why = _state(node, channel, settings)
    if why is None and standing != "sound":
        state, why = standing, _why_not_sound(book, node.device)
    return {"state": state, "why": why, "health": _health(book, node.device)}


def _state(node: Node, channel: Channel | None, settings: Settings) -> tuple[str, str | None]:
    if node.state == "quarantined":
        return node.state, WORDS[node.state]
    if channel is None:
        state = "asleep" if node.state == "asleep" else "offline"
        return state, WORDS.get(state, "it is not connected")
    silent_seconds = clock.monotonic() - channel.heard_at
    if silent_seconds > settings.node_suspect_seconds:
        return "suspect", f"nothing was heard of it for {silent_seconds:.0f} s"
    return channel.mode, WORDS.get(channel.mode)


def _health(book: HealthBook, device: str) -> dict[str, Json]:
    found = book.get(device)
    if found is None:
        return {"standing": "sound", "faults": 0, "last_fault": None, "work_again_in_seconds": 0}
    return {
        "standing": book.standing(device),
        "faults": found.faults,
        "last_fault": found.last_fault,
        "work_again_in_seconds": _pause_seconds(found.paused_until),
    }


def _pause_seconds(paused_until: float) -> int:
    return max(0, math.ceil(paused_until - clock.monotonic()))


def _why_not_sound(book: HealthBook, device: str) -> str | None:
    found = book.get(device)
    if found is None:
        return None
    faults = "1 fault" if found.faults == 1 else f"{found.faults} faults in a row"
    seconds = _pause_seconds(found.paused_until)
    when = (
        f"it gets a job again in {seconds} s"
        if seconds
        else "it gets one job at a time until one has ended well"
    )
    return f"{faults}, the last: {found.last_fault}; {when}"
