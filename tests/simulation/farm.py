"""Many worlds in several processes, and what they came to together."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final

import structlog

from tests.simulation.mutants import SILENT_LEVEL, begin_process
from tests.simulation.scenario import make
from tests.simulation.world import Outcome, World, simulate

CHUNK_SEEDS: Final = 20
HASH_SEED: Final = "0"  # sets of words are walked in the order of their hashes


@dataclass
class Tally:
    """What some worlds came to together. `failed` are (seed, first violation)."""

    seeds: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    attempts: int = 0
    commits: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    def add(self, outcome: Outcome) -> None:
        """One world more."""
        self.seeds += 1
        self.virtual_seconds += outcome.virtual_seconds
        self.faults.update(outcome.faults)
        self.ends.update(outcome.ends)
        self.attempts += outcome.attempts
        self.commits += outcome.commits
        if outcome.violations:
            self.failed.append((outcome.seed, outcome.violations[0]))

    def join(self, other: Tally) -> None:
        """Another process's worlds."""
        self.seeds += other.seeds
        self.virtual_seconds += other.virtual_seconds
        self.cpu_seconds += other.cpu_seconds
        self.faults.update(other.faults)
        self.ends.update(other.ends)
        self.attempts += other.attempts
        self.commits += other.commits
        self.failed.extend(other.failed)


def be_silent() -> None:
    """Nothing is logged: a world tells its own story."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(SILENT_LEVEL))


def tell_logs() -> None:
    """What the product logs becomes part of the story of the world that runs."""
    structlog.configure(processors=[_into_story], wrapper_class=structlog.BoundLogger)


def _into_story(_logger: object, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    world = World.running
    if world is not None:
        error = event.pop("exc_info", None)
        event = {**event, "raised": repr(sys.exc_info()[1])} if error else event
        words = " ".join(f"{name}={value}" for name, value in event.items() if name != "event")
        world.tell(level, f"{event['event']} {words}")
    raise structlog.DropEvent


def live_through(seeds: range) -> Tally:
    """All these worlds, one after another, in this process."""
    tally = Tally()
    began = time.process_time()
    # Worlds are full of cycles; to look for them a hundred times in each costs a sixth of the time.
    gc.disable()
    try:
        for seed in seeds:
            tally.add(simulate(make(seed)))
    finally:
        gc.enable()
        _ = gc.collect()
    tally.cpu_seconds = time.process_time() - began
    return tally


def farm(seeds: range, processes: int) -> Iterator[Tally]:
    """The worlds of all seeds, a part at a time, in the order of the seeds."""
    chunks = [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]
    if processes <= 1:
        be_silent()
        yield from map(live_through, chunks)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=begin_process) as pool:
        yield from pool.map(live_through, chunks)


def figures(tally: Tally, wall_seconds: float) -> dict[str, Any]:
    """The figures of a run, as its last line tells them."""
    virtual_hours = tally.virtual_seconds / 3600
    return {
        "seeds": tally.seeds,
        "violations": len(tally.failed),
        "virtual_hours": round(virtual_hours, 1),
        "virtual_hours_per_second": round(virtual_hours / wall_seconds, 3),
        "seconds": round(wall_seconds, 1),
        "cpu_milliseconds_per_seed": round(1000 * tally.cpu_seconds / max(tally.seeds, 1)),
        "faults_injected": sum(tally.faults.values()),
        "jobs": sum(tally.ends.values()),
        "attempts": tally.attempts,
        "commits_checked": tally.commits,
        "failed_seeds": [seed for seed, _ in tally.failed],
    }


def default_processes() -> int:
    """One a core."""
    return os.cpu_count() or 1
