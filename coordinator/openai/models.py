"""What /v1/models tells: every card and alias, with context, price, and Macs and speed now."""

from __future__ import annotations

from coordinator.openai.strict_json import Json
from coordinator.placement.slot_plans import plan_slot
from coordinator.placement.types import JobFacts
from coordinator.runtime import Runtime
from node_agent.protocol.cards import ModelCard
from node_agent.sizing import speed

OWNER = "mlx-network"


def list_models(runtime: Runtime) -> list[dict[str, Json]]:
    """One entry a card and one an alias, in the catalogue's order. Amounts as decimal strings."""
    catalogue = runtime.catalogue
    entries = {card.id: _entry(runtime, card) for card in catalogue.cards.values()}
    found = list(entries.values())
    for alias, target in sorted(catalogue.aliases.items()):
        found.append({**entries[target], "id": alias, "alias_of": target})
    return found


def _entry(runtime: Runtime, card: ModelCard) -> dict[str, Json]:
    least = JobFacts(job_id="", card=card, prompt_tokens=1, max_tokens=1)
    able = [
        channel
        for channel in runtime.fleet.channels.values()
        if plan_slot(least, channel.hardware.lent_bytes) is not None
    ]
    speeds = [1 / speed.decode_seconds_per_token(card, channel.hardware) for channel in able]
    return {
        "id": card.id,
        "object": "model",
        "created": 0,
        "owned_by": OWNER,
        "name": card.name,
        "kind": card.kind,
        "licence": card.licence,
        "revision": card.revision,
        "context_length": card.context_tokens,
        "price": {
            "input_umlx_per_million_tokens": str(card.price.input_umlx_per_million),
            "cached_input_umlx_per_million_tokens": str(card.price.cached_input_umlx_per_million),
            "output_umlx_per_million_tokens": str(card.price.output_umlx_per_million),
            "minimum_umlx": str(card.price.minimum_umlx),
        },
        "macs_now": len(able),
        "macs_warm_now": sum(channel.is_warm(card.revision) for channel in able),
        "tokens_per_second_now": round(max(speeds), 1) if speeds else None,
    }
