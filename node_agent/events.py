"""What happens to a node, and what it decides to do: the vocabulary of its pure core."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from node_agent.protocol.cards import ModelCard
from node_agent.protocol.messages import (
    Accept,
    Chunk,
    Decline,
    Failed,
    Finished,
    Goodbye,
    HoldReport,
    Progress,
    SelfTest,
    SelfTestResult,
    ToNode,
)
from node_agent.runner.messages import FromRunner, Run

# -- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A socket was opened, challenged and welcomed; `live` was said in the hello."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The socket is gone; whatever was queued on it may be lost.

    `silent_seconds`: how long nothing had been heard from the coordinator by then.
    """

    silent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """One message from the coordinator; `fetch_bytes` is what its card still needs of the disk."""

    message: ToNode
    fetch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FactsMeasured:
    """Live facts of this machine, measured each second and before every offer and heartbeat."""

    free_bytes: int
    disk_free_bytes: int


@dataclass(frozen=True, slots=True)
class FetchProgressed:
    """Bytes of a model's download so far."""

    card_revision: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """The model's folder is ready."""

    card_revision: str
    folder: Path


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The model could not be fetched; `detail` says why and what to do."""

    card_revision: str
    detail: str


@dataclass(frozen=True, slots=True)
class RunnerSaid:
    """One message from the runner child of that generation."""

    generation: int
    message: FromRunner


@dataclass(frozen=True, slots=True)
class RunnerExited:
    """The runner child of that generation is gone, wanted or not."""

    generation: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Stop between two tokens, hand back what is running, take nothing new."""

    reason: Literal["shutdown", "sleep", "leave"] = "shutdown"


@dataclass(frozen=True, slots=True)
class SelfTestEnded:
    """The measuring child has ended; None if it found nothing."""

    nonce: str
    result: SelfTestResult | None


Event = (
    LinkUp
    | LinkDown
    | FrameReceived
    | FactsMeasured
    | FetchProgressed
    | FetchEnded
    | FetchFailed
    | RunnerSaid
    | RunnerExited
    | Tick
    | DrainRequested
    | SelfTestEnded
)

# -- instructions --------------------------------------------------------------------------------


class Lane(Enum):
    """Frames of the control lane overtake those of the data lane; each lane keeps its order."""

    CONTROL = "control"
    DATA = "data"


Outgoing = Accept | Decline | Progress | Chunk | Finished | Failed | HoldReport | SelfTestResult | Goodbye


@dataclass(frozen=True, slots=True)
class Send:
    message: Outgoing
    lane: Lane


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Fetch the card's files; answer with `FetchEnded` or `FetchFailed`."""

    card: ModelCard


@dataclass(frozen=True, slots=True)
class StartRunner:
    """Start a child that loads `folder`; every message of it carries the generation."""

    generation: int
    card: ModelCard
    folder: Path


@dataclass(frozen=True, slots=True)
class CloseRunner:
    """End the child, by force if it does not go; answer with `RunnerExited`."""

    generation: int


@dataclass(frozen=True, slots=True)
class LimitRunner:
    """The child must not hold more than `memory_bytes` from now on; no answer is needed."""

    generation: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class StartRun:
    generation: int
    run: Run


@dataclass(frozen=True, slots=True)
class StopRun:
    """End a run between two tokens; the runner answers with its end."""

    generation: int
    key: str


@dataclass(frozen=True, slots=True)
class StartSelfTest:
    """Measure over an array of `size_bytes` in a child; answer with `SelfTestEnded`."""

    test: SelfTest
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StopSelfTest:
    """End the measuring child at once; no answer is needed."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing runs and everything that could be said was said: the node may close."""


Instruction = (
    Send
    | FetchModel
    | StartRunner
    | CloseRunner
    | LimitRunner
    | StartRun
    | StopRun
    | StartSelfTest
    | StopSelfTest
    | Drained
)
