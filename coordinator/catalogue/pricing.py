"""A card's prices, computed from its size by the rate card's rule."""

from __future__ import annotations

from ledger.ratecard import CARD, RateCard, prices_for
from node_agent.protocol.cards import Price
from node_agent.protocol.shapes import Shape
from node_agent.sizing.memory import layer_cache_bytes
from node_agent.sizing.weights import layer_plans
from node_agent.sizing.work import work_for


def priced_bytes(shape: Shape, weights_bytes: int, context_tokens: int) -> tuple[int, int]:
    """(bytes that one output token reads, bytes resident): of a mixture's experts those that one
    token chooses are read; weights and the cache of one sequence of full length are resident.
    """
    work = work_for(shape, weights_bytes)
    read = round(work.always_bytes + work.expert_bytes_read(1))
    cache = sum(layer_cache_bytes(shape, plan, context_tokens) for plan in layer_plans(shape))
    return min(read, weights_bytes), weights_bytes + round(cache)


def price_of(shape: Shape, weights_bytes: int, context_tokens: int, rates: RateCard = CARD) -> Price:
    """Prices of a model, from its bytes. Raises `ValueError` if the shape reads more than it holds."""
    rate = prices_for(*priced_bytes(shape, weights_bytes, context_tokens), rates)
    return Price(
        input_umlx_per_million=rate.input_umlx_per_million,
        cached_input_umlx_per_million=rate.cached_input_umlx_per_million,
        output_umlx_per_million=rate.output_umlx_per_million,
        minimum_umlx=rate.minimum_umlx,
    )
