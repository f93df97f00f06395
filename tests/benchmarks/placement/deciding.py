"""How long a decision takes on fleets of growing size, changes of the fleet between decisions included."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import numpy as np

from coordinator.placement.fleet import Fleet
from coordinator.placement.match import Decision, decide
from coordinator.placement.queue import take
from coordinator.placement.types import HostFacts, JobFacts, Outlook, Placed, SlotFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing import memory
from tests.benchmarks.placement.scenes import MACS, MODELS, hardware_of, model

DECISIONS: Final = 300
STOCK: Final = 100_000  # hosts that are drawn; a larger fleet has several of each
CHANGES: Final = 5  # hosts that say something new between two decisions
NAMES: Final = tuple(name for name, _ in MODELS)
REGIONS: Final = ("eu", "us", "asia")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one decision: by the wall's clock and by this thread's processor time."""

    hosts: int
    p50_ms: float
    p99_ms: float
    cpu_p50_ms: float
    cpu_p99_ms: float
    changes_us: float
    bytes_per_host: float
    build_seconds: float

    @property
    def per_second(self) -> float:
        """Decisions a second of one thread, changes left out."""
        return 1000 / self.p50_ms


def some_host(random: Random, number: int) -> HostFacts:
    """A Mac with all that can be told of one: self-test, habits, disk, region, a slot."""
    hardware = hardware_of(random.choices(range(len(MACS)), [mac[3] for mac in MACS])[0])
    slots = _some_slots(random, hardware) if random.random() < 0.8 else ()
    return HostFacts(
        node_id=f"node_{random.getrandbits(256):064x}",
        owner_id=f"acct_{number // 2}",
        hardware=hardware,
        lent_bytes=hardware.lent_bytes,
        is_online=random.random() < 0.95,
        is_suspect=False,
        mode=random.choice(("ready", "ready", "ready", "away")),
        slots=slots,
        slots_max=hardware.models_max,
        given_seconds=random.random() * 1000,
        on_disk=frozenset(random.sample(NAMES, 4)),
        network_bytes_per_second=random.choice((None, 10**7, 10**8)),
        decode_factor=random.choice((0.8, 0.9, 1.0, 1.0)),
        region=random.choice(REGIONS),
        hungry_seconds=random.random() * 900,
        seat_free_seconds=random.random() * 60,
        idle_in_seconds=random.random() * 300,
        survival=CURVES[random.randrange(len(CURVES))],
    )


def _some_slots(random: Random, hardware: Hardware) -> tuple[SlotFacts, ...]:
    """Models side by side as far as memory goes, the first of them at work on most hosts."""
    found: list[SlotFacts] = []
    free = hardware.lent_bytes
    for name in random.sample(NAMES, hardware.models_max):
        held = memory.weights_bytes(model(name)) + (1 << 30)
        if held > free:
            continue
        live = random.choice((0, 0, 1, 2, 4)) if not found else 0
        slot_id = f"slot_{random.getrandbits(128):032x}"
        found.append(SlotFacts(slot_id, name, held, 4, 8192, live, is_warm=True))
        free -= held
    return tuple(found)


def _another(host: HostFacts, random: Random, number: int) -> HostFacts:
    slots = tuple(replace(slot, slot_id=f"slot_{random.getrandbits(128):032x}") for slot in host.slots)
    return replace(
        host, node_id=f"node_{random.getrandbits(256):064x}", owner_id=f"acct_{number // 2}", slots=slots
    )


def some_job(random: Random, number: int) -> JobFacts:
    """A job, one in three of them with wishes."""
    name = random.choices(NAMES, [weight for _, weight in MODELS])[0]
    has_wishes = random.random() < 1 / 3
    return JobFacts(
        job_id=f"job_{number}",
        card=model(name),
        prompt_tokens=random.randint(10, 4000),
        max_tokens=random.randint(10, 1000),
        card_revision=name,
        regions=frozenset({"eu", "us"}) if has_wishes else frozenset(),
        deadline_seconds=300.0 if has_wishes else float("inf"),
        tokens_per_second_min=5.0 if has_wishes else 0.0,
    )


def _curve(seed: int) -> tuple[float, ...]:
    random = Random(seed)
    return tuple(min(1.0, 0.5 + random.random()) for _ in range(168))


CURVES: Final = tuple(_curve(seed) for seed in range(12))


def measure(hosts: int, *, decisions: int = DECISIONS, seed: int = 1) -> Timing:
    """Decide for so many jobs, each entered in the fleet, with other hosts' changes between."""
    random = Random(seed)
    began = time.perf_counter()
    fleet = Fleet(hosts)
    stock = [some_host(random, number) for number in range(min(hosts, STOCK))]
    rows = [
        fleet.put(_another(stock[n % STOCK], random, n) if n >= STOCK else stock[n]) for n in range(hosts)
    ]
    built = time.perf_counter() - began
    spare = [some_host(random, number) for number in range(CHANGES * 20)]
    wall, cpu, changing = np.empty(decisions), np.empty(decisions), 0.0
    outlook = Outlook(big_needs=(60 << 30, 60 << 30), week_seconds=200_000.0)
    # As a server would: what a collection of garbage costs is the process's, not a decision's.
    gc.collect()
    gc.disable()
    for number in range(decisions + len(NAMES) * 4):
        job = some_job(random, number)
        at, at_cpu = time.perf_counter(), time.thread_time()
        found: Decision = decide(job, fleet, outlook=outlook)
        spent, spent_cpu = time.perf_counter() - at, time.thread_time() - at_cpu
        at = time.perf_counter()
        if isinstance(found.choice, Placed):
            _ = take(fleet, found, found.choice, job, now_seconds=0.0)
        for _ in range(CHANGES):
            fleet.replace(rows[random.randrange(hosts)], random.choice(spare))
        # The first ones of each model fill the tables of speeds.
        if number >= len(NAMES) * 4:
            place = number - len(NAMES) * 4
            wall[place], cpu[place] = spent, spent_cpu
            changing += time.perf_counter() - at
    gc.enable()
    p50, p99 = np.percentile(wall, [50, 99]) * 1000
    cpu50, cpu99 = np.percentile(cpu, [50, 99]) * 1000
    return Timing(
        hosts,
        float(p50),
        float(p99),
        float(cpu50),
        float(cpu99),
        changing / decisions / (CHANGES + 1) * 1e6,
        fleet.nbytes() / hosts,
        built,
    )
