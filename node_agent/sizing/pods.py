"""How fast a pod runs a model: tensor parallel, as a pipeline, or one of its Macs alone.

Tensor parallel, n ranks: the bytes and arithmetic that are cut take 1/n of their time, kernels are
started on every rank all the same, and each layer adds two all-reduces of
`alpha + message / beta`. Alpha is the cost inside a running model, two to ten times that of the
wire, and differs between software stacks: it must be measured, on each pod, with a model.
A pipeline's step passes every Mac in turn: the sum of their parts and a hop between each two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from node_agent.sizing.constants import SpeedConstants, speed_constants
from node_agent.sizing.speed import (
    CHUNK_TOKENS,
    launch_seconds,
    prompt_seconds,
    step_seconds,
)
from node_agent.sizing.work import Machine, Work

ALL_REDUCES_PER_LAYER: Final = 2
VALUE_BYTES: Final = 2
WIRE_SECONDS: Final = 25e-6


@dataclass(frozen=True, slots=True)
class Link:
    """What passing numbers between a pod's Macs costs.

    `alpha_seconds` of an all-reduce inside a model, `hop_seconds` from one pipeline rank to the next
    in a decoding step, `bytes_per_second` of large messages. `is_measured` tells whether alpha and
    hop come from this pod. Defaults: RDMA over Thunderbolt 5, the slower of two published stacks (74
    and 256 us), so that a pod which was not measured is not preferred to a Mac that was; a hop of
    1.35 ms; 5.2 GB/s a cable.
    """

    alpha_seconds: float = 256e-6
    hop_seconds: float = 1.35e-3
    bytes_per_second: float = 5.2e9
    is_measured: bool = False


# Over TCP: a hop as published for pipelines (4.8 ms); for alpha there is no published figure, and
# a round trip over a Thunderbolt bridge takes 380 to 950 us.
TCP: Final = Link(alpha_seconds=800e-6, hop_seconds=4.8e-3, bytes_per_second=4.2e9)


def _replicated_share(work: Work) -> float:
    """Part of the bytes that a step reads which no rank is spared: output layer and embedding."""
    return work.whole_bytes / (work.always_bytes + work.expert_bytes_read(1))


def tensor_step_seconds(
    work: Work,
    machine: Machine,
    ranks: int,
    link: Link,
    *,
    context_tokens: float = 0,
    batch: int = 1,
    single_seconds: float | None = None,
    constants: SpeedConstants | None = None,
) -> float:
    """Seconds of a step on `ranks` Macs like `machine` (the slowest of them).

    `single_seconds` is the measured step of one Mac alone; without it the forecast's.
    """
    if ranks < 1:
        raise ValueError("ranks must be at least 1")
    found = constants or speed_constants()
    forecast = step_seconds(work, machine, context_tokens=context_tokens, batch=batch, constants=found)
    whole = single_seconds if single_seconds is not None else forecast
    if ranks == 1:
        return whole
    starts = min(launch_seconds(work, machine, found.decode), whole)
    kept = (whole - starts) * _replicated_share(work)
    cut = whole - starts - kept
    return starts + kept + cut / ranks + all_reduce_seconds(work, link, batch)


def all_reduce_seconds(work: Work, link: Link, tokens: int) -> float:
    """Seconds that all of a step's all-reduces take for `tokens` rows."""
    message = tokens * work.hidden * VALUE_BYTES
    each = link.alpha_seconds + message / link.bytes_per_second
    return ALL_REDUCES_PER_LAYER * work.layers * each


def alpha_of(
    work: Work,
    machine: Machine,
    ranks: int,
    pod_seconds: float,
    single_seconds: float | None = None,
    *,
    context_tokens: float = 0,
    link: Link | None = None,
) -> float:
    """The cost of an all-reduce inside a model, from one measured step of a pod.

    `link` says how fast large messages pass. At least the wire's cost: less would be an error of
    the forecast. Raises `ValueError` below 2 ranks.
    """
    if ranks < 2:
        raise ValueError("ranks must be at least 2")
    free = replace(link or Link(), alpha_seconds=0.0)
    without = tensor_step_seconds(
        work, machine, ranks, free, context_tokens=context_tokens, single_seconds=single_seconds
    )
    return max((pod_seconds - without) / (ALL_REDUCES_PER_LAYER * work.layers), WIRE_SECONDS)


def pipeline_step_seconds(
    work: Work,
    machines: Sequence[Machine],
    split: Sequence[int],
    link: Link,
    *,
    context_tokens: float = 0,
    batch: int = 1,
) -> float:
    """Seconds of a step when machine r runs `split[r]` of the layers."""
    if len(machines) != len(split) or sum(split) != work.layers:
        raise ValueError("split must name every machine's layers, and all of them")
    stages = [
        step_seconds(work, machine, context_tokens=context_tokens, batch=batch) * layers / work.layers
        for machine, layers in zip(machines, split, strict=True)
    ]
    return sum(stages) + (len(split) - 1) * link.hop_seconds


def tensor_prompt_seconds(work: Work, machine: Machine, ranks: int, tokens: int, link: Link) -> float:
    """Seconds to read a prompt tensor parallel: arithmetic cut by the ranks, and every chunk's
    all-reduces beside it."""
    single = prompt_seconds(work, machine, tokens)
    if ranks == 1 or tokens <= 0:
        return single
    starts = work.layers * speed_constants().prefill.layer_seconds.of(machine.engine)
    chunk = machine.chunk_tokens or CHUNK_TOKENS[machine.engine]
    chunks = ceil(tokens / chunk)
    message = tokens * work.hidden * VALUE_BYTES / link.bytes_per_second
    reduces = ALL_REDUCES_PER_LAYER * work.layers * (chunks * link.alpha_seconds + message)
    return starts + max(single - starts, 0.0) / ranks + reduces


def pipeline_prompt_seconds(
    work: Work, machines: Sequence[Machine], split: Sequence[int], tokens: int, link: Link
) -> float:
    """Seconds to read a prompt as a pipeline: chunks follow each other, the slowest stage sets the
    pace, and the first chunk must pass them all."""
    if tokens <= 0:
        return 0.0
    chunk = machines[0].chunk_tokens or CHUNK_TOKENS[machines[0].engine]
    chunks = ceil(tokens / chunk)
    stages = [
        prompt_seconds(work, machine, tokens) * layers / work.layers / chunks + link.hop_seconds
        for machine, layers in zip(machines, split, strict=True)
    ]
    return sum(stages) + (chunks - 1) * max(stages)
