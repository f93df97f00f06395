"""What one measured run is, and how its processor time is counted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

CpuClock = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Prompt:
    """A chat of one system and one user message."""

    system: str
    user: str

    def messages(self) -> list[dict[str, str]]:
        """The chat as OpenAI's API takes it."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user},
        ]


@dataclass(frozen=True)
class Answer:
    """One stream as its reader saw it; times are seconds since the run began."""

    first_token_seconds: float
    last_token_seconds: float
    tokens: int
    text: str


@dataclass(frozen=True)
class Run:
    """Streams that ran together on one system.

    `cpu_seconds` is by process and spans the whole run, `decode_cpu_seconds` (of all serving
    processes) only the time from the first token of any stream on. `client_cpu_seconds` is the
    reader's own, 0 where the reader and the model are one process.
    """

    answers: tuple[Answer, ...]
    wall_seconds: float
    cpu_seconds: dict[str, float] = field(default_factory=dict[str, float])
    decode_cpu_seconds: float = 0.0
    client_cpu_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def serving_cpu_seconds(self) -> float:
        """Processor time of all serving processes."""
        return sum(self.cpu_seconds.values())

    @property
    def decode_tokens_per_second(self) -> float:
        """A single stream's speed after its first token."""
        (answer,) = self.answers
        return (answer.tokens - 1) / (answer.last_token_seconds - answer.first_token_seconds)

    @property
    def tokens_per_second(self) -> float:
        """All streams' tokens over the time of the whole run, prompts included."""
        return self.tokens / self.wall_seconds


def check_tokens(run: Run, wanted: int, system: str) -> None:
    """Raise `RuntimeError` unless every answer has exactly `wanted` tokens: runs of different
    lengths cannot be compared."""
    for answer in run.answers:
        if answer.tokens != wanted:
            raise RuntimeError(f"{system}: an answer has {answer.tokens} tokens instead of {wanted}")


def cpu_clock(pids: Mapping[str, int]) -> CpuClock:
    """A clock of the processor seconds that named processes, and all below each of them, used so far."""

    def read() -> dict[str, float]:
        seconds: dict[str, float] = {}
        for name, pid in pids.items():
            process = psutil.Process(pid)
            seconds[name] = _seconds(process)
            seconds[f"{name}'s children"] = sum(map(_seconds, process.children(recursive=True)))
        return seconds

    return read


def own_cpu_seconds() -> float:
    """Processor seconds of this process."""
    return _seconds(psutil.Process())


class OtherLoad:
    """How much of the machine others use meanwhile: the bench wants it for itself."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._ours = _machine_busy_seconds(), _family_seconds()

    def cores(self) -> float:
        """Cores kept busy by processes that do not descend from this one, on average until now.

        What descendants used that have ended counts as ours only if their parent waited for them.
        """
        elapsed = time.monotonic() - self._began
        ours = _family_seconds() - self._ours
        return max(0.0, (_machine_busy_seconds() - self._busy - ours) / elapsed)


def _machine_busy_seconds() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def _family_seconds() -> float:
    """Of this process and all its descendants, those that have ended included."""
    found = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found += times.user + times.system
            # Only Linux tells of children that have ended.
            found += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return found


def _seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0
