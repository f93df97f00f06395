"""What happens in one world: Macs, jobs and faults as explicit lists, made from a seed.

A list can lose entries and the rest still happens as before, so that a failing world can be made
small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, get_args

from tests.simulation.draws import Draws
from tests.simulation.model import CARDS

FaultKind = Literal[
    "crash",  # the node's process and its runner die; it starts again later
    "runner_crash",
    "runner_stall",  # the runner says nothing for a while
    "run_failure",  # one run fails, the runner goes on
    "freeze",  # the agent is stopped and goes on later
    "sleep",  # the whole Mac stops, its clock too
    "owner_returns",  # the agent hands back and closes; it starts again later
    "partition",
    "socket_close",
    "half_open",
    "fetch_failure",
    "memory_short",
    "clock_jump",  # the coordinator's wall clock
    "database",  # errors for a while
    "coordinator_crash",
    "coordinator_restart",  # in order
    "crash_at_commit",  # just before or just after a commit
]
Lie = Literal[
    "too_many",  # tokens beyond the last
    "wrong_digest",
    "wrong_signature",
    "early_length",  # says that the answer is whole before it is
    "early_end",  # says that the model ended
    "garbage",  # other tokens than the model's
    "impossible_ids",
    "old_fence",  # sends everything a second time under an older fence
    "newer_fence",
    "replay",  # says again what it said long ago
    "unknown_job",
    "foreign_job",  # sends tokens of a job that another node has
    "gap",  # leaves out a chunk
    "malformed",
    "cancels",  # says that it was cancelled
    "never_ends",  # sends tokens and no end
]
# These are no fault of the Mac's.
NETWORK_FAULTS: Final[frozenset[FaultKind]] = frozenset({"partition", "socket_close", "half_open"})
# After these nobody can tell which tokens were the model's.
FALSE_CONTENT: Final[frozenset[Lie]] = frozenset({"garbage", "early_end", "too_many"})

Mode = Literal["whole", "stream", "async"]


@dataclass(frozen=True)
class NodeSpec:
    """One Mac. `tokens_per_second` is how fast its runner really is."""

    index: int
    lent_bytes: int
    width: int
    bandwidth: int
    tokens_per_second: float
    tokens_per_message: int
    lie: Lie | None
    models_max: int


@dataclass(frozen=True)
class JobSpec:
    """One submitter and what it wants. Times in seconds; those of its moods count from its start."""

    index: int
    at: float
    card: int
    prompt_tokens: int
    max_tokens: int
    seed: int
    mode: Mode
    stop: str | None
    has_key: bool
    max_wait_seconds: float
    cancels_after: float | None
    leaves_after: float | None
    is_kept: bool
    returns: bool
    repeats: bool  # sends the same request twice at once, with its key


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, for `seconds` where it lasts."""

    index: int
    kind: FaultKind
    at: float
    seconds: float
    node: int
    amount: int


@dataclass(frozen=True)
class Scenario:
    """A world's script. All is well again `calm_at` seconds after its start."""

    seed: int
    nodes: tuple[NodeSpec, ...]
    jobs: tuple[JobSpec, ...]
    faults: tuple[Fault, ...]
    calm_at: float

    @property
    def draws(self) -> Draws:
        return Draws(self.seed)

    def smaller(self) -> Iterator[Scenario]:
        """All scenarios that lack one entry or one half of a list, the largest steps first."""
        for name in ("faults", "jobs", "nodes"):
            entries: tuple[object, ...] = getattr(self, name)
            size = len(entries) // 2
            while size >= 1:
                for start in range(0, len(entries), size):
                    rest = entries[:start] + entries[start + size :]
                    if rest or name == "faults":
                        yield replace(self, **{name: rest})  # type: ignore[arg-type]
                size //= 2

    @property
    def size(self) -> int:
        return len(self.nodes) + len(self.jobs) + len(self.faults)


GIB: Final = 1 << 30


def make(seed: int) -> Scenario:
    """The scenario of a seed."""
    draws = Draws(seed)
    shape = draws.of("shape")
    calm_at = shape.uniform(20.0, 120.0)
    nodes = tuple(_node(draws.of(f"node/{n}"), n) for n in range(shape.randint(1, 4)))
    nodes = (_able(nodes[0]), *nodes[1:])
    jobs = tuple(_job(draws.of(f"job/{n}"), n, calm_at) for n in range(shape.randint(1, 8)))
    kinds = shape.sample(get_args(FaultKind), shape.randint(1, 5))
    faults = tuple(
        _fault(draws.of(f"fault/{n}"), n, kinds, len(nodes), calm_at) for n in range(shape.randint(0, 8))
    )
    return Scenario(seed, nodes, jobs, faults, calm_at)


def _node(draws: Random, index: int) -> NodeSpec:
    tells_lies = draws.random() < 0.35
    return NodeSpec(
        index=index,
        lent_bytes=draws.choice((1, 2, 4, 12)) * GIB,
        width=draws.choice((1, 2, 4, 8)),
        bandwidth=draws.choice((50, 100, 400, 800)) * 10**9,
        tokens_per_second=draws.choice((0.5, 5.0, 20.0, 80.0)),
        tokens_per_message=draws.choice((1, 3, 8)),
        lie=draws.choice(get_args(Lie)) if tells_lies else None,
        models_max=draws.choice((1, 2, 3)),
    )


def _able(node: NodeSpec) -> NodeSpec:
    """One Mac at least can run everything and is honest, so that every job can end."""
    return replace(node, lent_bytes=12 * GIB, lie=None)


def _job(draws: Random, index: int, calm_at: float) -> JobSpec:
    mode: Mode = draws.choice(get_args(Mode))

    def may(chance: float, longest: float) -> float | None:
        return draws.uniform(0.0, longest) if draws.random() < chance else None

    return JobSpec(
        index=index,
        at=draws.choice((0.0, draws.uniform(0.0, calm_at))),
        card=draws.choices(range(len(CARDS)), (6, 2, 1))[0],
        prompt_tokens=draws.randint(1, 40),
        max_tokens=draws.choice((1, 2, 8, 30, 90)),
        seed=draws.getrandbits(40),
        mode=mode,
        stop=f"{draws.getrandbits(8):02x}" if draws.random() < 0.2 else None,
        has_key=draws.random() < 0.5,
        max_wait_seconds=draws.choice((5.0, 30.0, 120.0)),
        cancels_after=may(0.15, 30.0),
        leaves_after=may(0.25, 30.0),
        is_kept=draws.random() < 0.3,
        returns=draws.random() < 0.6,
        repeats=draws.random() < 0.1,
    )


def _fault(draws: Random, index: int, kinds: list[FaultKind], nodes: int, calm_at: float) -> Fault:
    return Fault(
        index=index,
        kind=draws.choice(kinds),
        at=draws.uniform(0.0, calm_at),
        seconds=draws.choice((0.2, 2.0, 10.0, 20.0, 45.0, 100.0)) * draws.uniform(0.5, 1.5),
        node=draws.randrange(nodes),
        amount=draws.randrange(1, 1 << 16),
    )
