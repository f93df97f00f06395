"""Times that no online policy can beat, and what load a rate of jobs is. Pure arithmetic.

The bound is a fluid linear programme over jobs, kinds of Mac and sizes of batch. Why it holds:

- While a job sits in a batch of b on a Mac of kind c, each of its tokens takes a step of b, so that
  alone and uninterrupted it would be done in `t[j, c, b]` seconds: its prompt, and its answer at that
  step with its own context. Loading, waiting, prompts of others and an owner's return only add.
  A job that sees several sizes or Macs is a mixture of their t, each with the share of its work.
- A step of b serves b tokens, so that the job takes at least `s[j, c, b]` seconds of that Mac away
  from others: its prompt, its share of each step, its own context.
- Macs of a kind are as fast as the fastest in a step of 5 %, rounded up, and have `k[c]` lent seconds
  from the first counted job's arrival until the last one of the slowest policy is done. Jobs that are
  not counted take none.

So every policy's mean is a feasible value of: the least sum of t, the sum of s at most k. Its
Lagrangian bounds it from below: for any prices p >= 0, the sum over j of the least over c and b of
(t + p s), less p k. Prices are found by subgradient steps; whatever they are, the bound holds.

What it leaves out makes it loose, and no policy can have it: one Mac holds one model at a time here
and may hold all of them at once in the programme, models load in no time, work can be split between
Macs, and nobody waits for a burst to pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from node_agent.sizing import memory
from node_agent.sizing.speed import prompt_seconds, step_seconds
from node_agent.sizing.work import machine_of, work_of
from tests.benchmarks.placement.scenes import MACS, WIDTH, Job, Mac, hardware_of, model

Floats = NDArray[np.float64]
STEPS = 400
KINDS = len(MACS)
FACTOR_STEP = 0.05
ROUNDED = 128  # tokens by which the worlds' contexts may be rounded down


def job_tables(jobs: Sequence[Job], factors: Floats) -> tuple[Floats, Floats]:
    """(t, s) by job, kind of Mac and batch, infinite where it does not fit.

    `factors` by kind: true speed over the forecast's.
    """
    shape = (len(jobs), len(MACS), WIDTH)
    alone, shared = np.full(shape, np.inf), np.full(shape, np.inf)
    for kind in range(len(MACS)):
        hardware = hardware_of(kind)
        machine = machine_of(hardware)
        for number, job in enumerate(jobs):
            card = model(job.model)
            tokens = job.prompt + job.longest
            if memory.needed_bytes(card, context_tokens=tokens, width=1) > hardware.lent_bytes:
                continue
            work, middle = work_of(card), max(job.prompt + job.answer / 2 - ROUNDED, 0)
            prompt = prompt_seconds(work, machine, job.prompt)
            own = step_seconds(work, machine, context_tokens=middle) - step_seconds(work, machine)
            for batch in range(1, WIDTH + 1):
                step = step_seconds(work, machine, batch=batch)
                alone[number, kind, batch - 1] = (prompt + job.answer * (step + own)) / factors[kind]
                shared[number, kind, batch - 1] = (prompt + job.answer * (step / batch + own)) / factors[kind]
    return alone, shared


def kinds_of(macs: Sequence[Mac]) -> tuple[NDArray[np.intp], Floats]:
    """Kinds that are there, split by true speed rounded up: (kind, factor) of each."""
    pairs = sorted({_split(mac) for mac in macs})
    return np.array([kind for kind, _ in pairs], dtype=np.intp), np.array([factor for _, factor in pairs])


def _split(mac: Mac) -> tuple[int, float]:
    return mac.kind, ceil(mac.factor / FACTOR_STEP) * FACTOR_STEP


def supply_of(
    macs: Sequence[Mac], since: float, until: float, kinds: NDArray[np.intp], factors: Floats
) -> Floats:
    """Lent seconds of each of those kinds between two moments."""
    pairs = list(zip(kinds.tolist(), factors.tolist(), strict=True))
    found = np.zeros(len(pairs))
    for mac in macs:
        found[pairs.index(_split(mac))] += _lent(mac, since, until)
    return found


def supply(macs: Sequence[Mac], seconds: float) -> Floats:
    """Seconds that the Macs of each of `MACS` are lent until then."""
    found = np.zeros(KINDS)
    for mac in macs:
        found[mac.kind] += _lent(mac, 0.0, seconds)
    return found


def _lent(mac: Mac, since: float, until: float) -> float:
    return sum(max(min(end, until) - max(start, since), 0.0) for start, end in mac.spans)


def least_mean_seconds(alone: Floats, shared: Floats, capacity: Floats) -> float:
    """A lower bound of the mean completion time."""
    usable = capacity > 0
    alone, shared, capacity = alone[:, usable], shared[:, usable], capacity[usable]
    kinds = np.repeat(np.arange(len(capacity)), WIDTH)
    jobs = np.arange(len(alone))
    alone = alone.reshape(len(alone), -1)
    filled = np.where(np.isfinite(shared), shared, 0.0).reshape(len(alone), -1)
    prices, best = np.zeros(len(capacity)), -np.inf
    for step in range(1, STEPS + 1):
        priced = alone + prices[kinds] * filled
        chosen = priced.argmin(axis=1)
        best = max(best, float(priced[jobs, chosen].sum() - prices @ capacity))
        used = np.bincount(kinds[chosen], filled[jobs, chosen], minlength=len(capacity))
        prices = np.maximum(prices + (used / capacity - 1) * 0.5 / step**0.5, 0.0)
    return best / len(alone)


def load_of(shared: Floats, capacity: Floats) -> float:
    """The least share of every kind's time in which all the work could be done, in full batches.

    By multiplicative weights on the dual: max over prices of the sum of the cheapest places.
    """
    usable = capacity > 0
    costs = shared[:, usable, WIDTH - 1] / capacity[usable]
    jobs = np.arange(len(costs))
    weights = np.ones(costs.shape[1]) / costs.shape[1]
    best = 0.0
    for _ in range(STEPS):
        priced = costs * weights
        chosen = priced.argmin(axis=1)
        best = max(best, float(priced[jobs, chosen].sum()))
        used = np.bincount(chosen, costs[jobs, chosen], minlength=len(weights))
        weights *= np.exp(0.05 * used / max(used.max(), 1e-12))
        weights /= weights.sum()
    return best
