"""Seeded fleets, models and jobs. The same seed gives the same scene to every policy.

The fleet's shape: many Macs of 16 to 64 GB, few large ones; three in ten are dedicated, the others'
owners come and go. Jobs arrive in bursts; their lengths are drawn from logarithmic normal
distributions, or times and lengths are a trace's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log
from random import Random
from typing import Final

from coordinator.catalogue.cards import load_catalogue
from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing.chips import find_chip
from node_agent.sizing.hosts import usable_memory
from tests.benchmarks.placement.traces import Request

GIB: Final = 1 << 30
HOUR: Final = 3600.0
HORIZON: Final = 72 * HOUR
WIDTH: Final = 4
MODELS_MAX: Final = 4  # held by a Mac at once, where memory allows

# (chip, GPU cores, GiB, weight): what owners of Macs have.
MACS: Final = (
    ("M1", 8, 8, 5),
    ("M1", 8, 16, 16),
    ("M2", 10, 16, 12),
    ("M4", 10, 16, 10),
    ("M4", 10, 24, 10),
    ("M2 Pro", 19, 32, 10),
    ("M4 Pro", 20, 24, 8),
    ("M4 Pro", 20, 48, 10),
    ("M1 Max", 32, 64, 7),
    ("M4 Max", 40, 64, 5),
    ("M4 Max", 40, 128, 4),
    ("M2 Ultra", 76, 192, 2),
    ("M3 Ultra", 80, 512, 1),
)
# (model, weight): what is asked for.
MODELS: Final = (
    ("llama-3.2-3b-4bit", 28),
    ("llama-3.1-8b-4bit", 26),
    ("gpt-oss-20b-mxfp4-q8", 12),
    ("qwen3-30b-a3b-4bit", 12),
    ("qwen2.5-14b-4bit", 10),
    ("qwen3-32b-4bit", 6),
    ("llama-3.3-70b-4bit", 4),
    ("gpt-oss-120b-mxfp4-q8", 2),
)
# Dedicated in every fleet, so that each model can be served at all times.
ALWAYS: Final = (12, 10)
BANDS: Final = ((0, 12), (12, 20), (20, 28), (28, 40), (40, 56), (56, 100), (100, 1000))


@cache
def model(name: str) -> ModelFacts:
    """A card of the catalogue."""
    found = load_catalogue().known(name)
    if found is None:
        raise ValueError(f"no model {name}")
    return found


@dataclass(frozen=True)
class Mac:
    """A Mac, what it lends, how its true speed is off the forecast, and when it is lent."""

    name: str
    kind: int
    gib: int
    hardware: Hardware
    factor: float
    is_dedicated: bool
    first_model: str | None
    spans: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Job:
    """A job and the truth about its answer, which only the simulator knows."""

    name: str
    at: float
    model: str
    prompt: int
    answer: int
    expected: int
    longest: int
    submitter: str


@dataclass(frozen=True)
class Scene:
    """Macs and jobs; `seconds` is when the last job arrives.

    Jobs that arrive before `warm` seconds run too, and are not counted: until then the models in
    memory are those that chance put there.
    """

    macs: tuple[Mac, ...]
    jobs: tuple[Job, ...]
    seconds: float
    warm: float = 0.0


def hardware_of(kind: int) -> Hardware:
    """One of `MACS`, lending what macOS lets a process use."""
    chip, cores, gib, _ = MACS[kind]
    known = find_chip(chip, cores)
    if known is None:
        raise ValueError(f"no chip {chip}")
    return Hardware(
        chip=chip,
        memory_bytes=gib * GIB,
        lent_bytes=usable_memory(gib * GIB).bytes,
        bandwidth_bytes_per_second=known.bandwidth_bytes_per_second,
        gpu_cores=cores,
        width=WIDTH,
        models_max=MODELS_MAX,
        accelerated=True,
    )


def some_macs(seed: int, count: int) -> tuple[Mac, ...]:
    """A fleet, whose owners come and go for `HORIZON`. A larger one begins with the smaller's Macs."""
    return tuple(_mac(Random(f"{seed}/{number}"), number) for number in range(count))


def _mac(random: Random, number: int) -> Mac:
    kind = random.choices(range(len(MACS)), [mac[3] for mac in MACS])[0]
    is_dedicated = random.random() < 0.3
    if number < len(ALWAYS):
        kind, is_dedicated = ALWAYS[number], True
    hardware = hardware_of(kind)
    first = random.choices([name for name, _ in MODELS], [weight for _, weight in MODELS])[0]
    fits = model(first).weights_bytes * 1.3 + 2 * GIB < hardware.lent_bytes
    factor = random.lognormvariate(0, 0.1)
    name = f"node_{random.getrandbits(256):064x}"
    spans = ((0.0, HORIZON),) if is_dedicated else _spans(random)
    return Mac(name, kind, MACS[kind][2], hardware, factor, is_dedicated, first if fits else None, spans)


def _spans(random: Random) -> tuple[tuple[float, float], ...]:
    """When the owner is away: two hours on average, and there for one."""
    found: list[tuple[float, float]] = []
    at = 0.0 if random.random() < 2 / 3 else random.expovariate(1 / HOUR)
    while at < HORIZON:
        until = at + random.expovariate(1 / (2 * HOUR))
        found.append((at, until))
        at = until + random.expovariate(1 / HOUR)
    return tuple(found)


def some_jobs(
    seed: int, count: int, per_second: float, trace: Sequence[Request] | None = None
) -> tuple[Job, ...]:
    """Jobs at a mean rate: in bursts of a minute or so, whose rate differs by up to a half, or at a
    trace's times, drawn out or pushed together."""
    random = Random(seed)
    if trace is not None:
        stretch = len(trace) / per_second / trace[-1].at
        return tuple(
            _job(random, f"job_{seed}_{number}", request.at * stretch, request.prompt, request.answer)
            for number, request in enumerate(trace[:count])
        )
    found: list[Job] = []
    at, rate, until = 0.0, per_second, 0.0
    for number in range(count):
        if at >= until:
            rate, until = per_second * random.uniform(0.5, 1.5), at + random.expovariate(1 / 60)
        at += random.expovariate(rate)
        prompt = int(random.lognormvariate(log(900), 1.0))
        answer = int(random.lognormvariate(log(180), 0.8))
        found.append(_job(random, f"job_{seed}_{number}", at, prompt, answer))
    # So that the mean rate is what was asked for, whichever bursts were drawn.
    stretch = count / per_second / found[-1].at if found else 1.0
    return tuple(replace(job, at=job.at * stretch) for job in found)


def _job(random: Random, name: str, at: float, prompt: int, answer: int) -> Job:
    asked = random.choices([name for name, _ in MODELS], [weight for _, weight in MODELS])[0]
    prompt, answer = min(max(prompt, 8), 6000), min(max(answer, 4), 1500)
    # What placement expects is off by half as much again either way.
    expected = max(int(answer * random.lognormvariate(0, 0.5)), 1)
    submitter = f"acct_{min(int(random.paretovariate(1.0)), 30)}"
    return Job(name, at, asked, prompt, answer, min(expected, 2000), 2000, submitter)
