"""What each Mac of a pod must hold: tensor parallel (every layer cut) or pipeline (layers dealt out).

As mlx-lm does it: tensor parallelism cuts matrices by rows or columns and leaves embedding, output
layer, norms, routers and the down-projections of latent attention whole on every rank; keys and
values are divided by heads, a latent cache and sliding windows' bookkeeping are not. A pipeline rank
holds its own layers, and embedding, norm and output layer besides. Rank 0 holds the last layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Literal

from node_agent.protocol.cards import ModelFacts
from node_agent.sizing.memory import (
    MemoryParts,
    activation_bytes,
    layer_cache_bytes,
    layer_state_bytes,
    needed_bytes,
    reserve_bytes,
)
from node_agent.sizing.weights import layer_plans, weights_of

Mode = Literal["single", "tensor", "pipeline"]

# Buffers of the collectives, on each rank (estimate).
LINK_BYTES: Final = 256 * 1024**2


def tensor_parts(card: ModelFacts, context_tokens: int, width: int, ranks: int) -> MemoryParts:
    """Bytes by part of every rank of a tensor-parallel pod of `ranks` Macs: all hold the same."""
    if ranks < 1:
        raise ValueError("ranks must be at least 1")
    shape, weights = card.shape, weights_of(card)
    split = sum(weights.layer_split_bytes)
    held = card.weights_bytes - split + split / ranks
    plans = layer_plans(shape)
    is_whole = shape.latent is not None and not shape.latent.expanded
    caches = 0.0
    for plan in plans:
        state = layer_state_bytes(shape, plan) if context_tokens else 0
        grown = layer_cache_bytes(shape, plan, context_tokens) - state
        # Where there are more ranks than KV heads, each holds one, repeated.
        cut = 1 if is_whole else min(ranks, shape.kv_heads)
        caches += state / ranks + grown / cut
    working = activation_bytes(shape, width, context_tokens=context_tokens)
    extra = LINK_BYTES if ranks > 1 else 0
    return MemoryParts(round(held), round(width * caches), working, reserve_bytes(round(held)) + extra)


def pipeline_parts(
    card: ModelFacts, context_tokens: int, width: int, split: Sequence[int]
) -> tuple[MemoryParts, ...]:
    """Bytes by part of each rank when rank r has `split[r]` layers; rank 0 has the last ones.

    Raises `ValueError` unless every rank has a layer and all layers are dealt out.
    """
    shape, weights = card.shape, weights_of(card)
    if not split or min(split) < 1 or sum(split) != shape.layers:
        raise ValueError(f"split must give every rank a layer and {shape.layers} layers in all")
    plans = layer_plans(shape)
    caches = [layer_cache_bytes(shape, plan, context_tokens) for plan in plans]
    working = activation_bytes(shape, width, context_tokens=context_tokens)
    extra = LINK_BYTES if len(split) > 1 else 0
    found: list[MemoryParts] = []
    for last in accumulate(split):
        layers = slice(shape.layers - last, shape.layers - last + split[len(found)])
        held = round(weights.outer_bytes + sum(weights.layer_bytes[layers]))
        cache = round(width * sum(caches[layers]))
        found.append(MemoryParts(held, cache, working, reserve_bytes(held) + extra))
    return tuple(found)


def even_split(layers: int, ranks: int) -> tuple[int, ...]:
    """`layers` dealt out as mlx-lm does by itself: evenly, what is over to the low ranks."""
    each, over = divmod(layers, ranks)
    return tuple(each + (rank < over) for rank in range(ranks))


def pipeline_split(
    card: ModelFacts, context_tokens: int, width: int, usable_bytes: Sequence[int]
) -> tuple[int, ...] | None:
    """How many layers each rank gets so that all fit into what each may use, or None.

    Layers are dealt out in proportion to what is left beside the parts that every rank holds;
    a layer is then moved from the rank that is most over its limit to the one with most to spare.
    """
    shape, ranks = card.shape, len(usable_bytes)
    if not 1 <= ranks <= shape.layers:
        return None
    split = list(_proportional(shape.layers, [max(value, 1) for value in usable_bytes]))
    for _ in range(2 * shape.layers):
        parts = pipeline_parts(card, context_tokens, width, split)
        spare = [usable - part.total_bytes for usable, part in zip(usable_bytes, parts, strict=True)]
        worst = min(range(ranks), key=lambda rank: spare[rank])
        if spare[worst] >= 0:
            return tuple(split)
        best = max(range(ranks), key=lambda rank: spare[rank])
        if split[worst] == 1 or spare[best] <= 0:
            return None
        split[worst] -= 1
        split[best] += 1
    return None


def _proportional(layers: int, shares: Sequence[int]) -> tuple[int, ...]:
    """At least one layer each, the rest in proportion, by largest remainder."""
    total, free = sum(shares), layers - len(shares)
    exact = [free * share / total for share in shares]
    whole = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda rank: whole[rank] - exact[rank])
    for rank in by_remainder[: free - sum(whole)]:
        whole[rank] += 1
    return tuple(value + 1 for value in whole)


def fits_alone(card: ModelFacts, context_tokens: int, width: int, usable_bytes: int) -> bool:
    """Whether one Mac holds it all."""
    return needed_bytes(card, context_tokens, width) <= usable_bytes
