"""Whether this node takes an offer: the rules as one pure function, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from node_agent.protocol.cards import ModelCard
from node_agent.protocol.messages import Decline, DeclineReason, Offer
from node_agent.sizing.memory import needed_bytes


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rules look at. Bytes as they are when the offer comes.

    `available_bytes` is what the model could have if all that are idle went.
    """

    draining: bool
    width: int
    live_count: int
    live_context_tokens: int
    is_other_at_work: bool
    available_bytes: int
    disk_free_bytes: int
    fetch_bytes: int
    unavailable_detail: str | None


def refusal(offer: Offer, situation: Situation) -> Decline | None:
    """The first rule that speaks against the offer, or None if the node takes it."""
    found = _request_fault(offer) or _situation_fault(offer, situation)
    if found is None:
        return None
    reason, detail = found
    return Decline(job_id=offer.job_id, fence=offer.fence, reason=reason, detail=detail[:300])


def _request_fault(offer: Offer) -> tuple[DeclineReason, str] | None:
    card = offer.card
    if card.revision != offer.card_revision:
        return "card_mismatch", "card_revision is not the digest of the card"
    ids = (*offer.prompt_ids, *offer.prefix_ids)
    if not offer.prompt_ids or min(ids) < 0 or max(ids) >= card.shape.vocab:
        return "card_mismatch", f"prompt_ids: expected ids from 0 to {card.shape.vocab - 1}"
    tokens = len(ids) + offer.max_tokens
    if tokens > card.context_tokens:
        return "context_too_long", f"{tokens} tokens asked, the card allows {card.context_tokens}"
    return None


def _situation_fault(offer: Offer, now: Situation) -> tuple[DeclineReason, str] | None:
    if now.draining:
        return "draining", "this node is closing"
    if now.unavailable_detail is not None:
        return "model_unavailable", now.unavailable_detail
    if now.is_other_at_work:
        return "busy", "another model is at work"
    if now.live_count >= now.width:
        return "busy", f"{now.live_count} attempts run, the width is {now.width}"
    tokens = len(offer.prompt_ids) + len(offer.prefix_ids) + offer.max_tokens
    longest = max(tokens, now.live_context_tokens)
    short = memory_fault(offer.card, longest, now.live_count + 1, now.available_bytes)
    if short is not None:
        return "memory_short", short
    if now.fetch_bytes > now.disk_free_bytes:
        needed, free = now.fetch_bytes, now.disk_free_bytes
        return "disk_short", f"{needed} bytes of disk are needed, {free} are free"
    return None


def memory_fault(card: ModelCard, longest: int, width: int, available_bytes: int) -> str | None:
    """Why the model with that cache does not fit into the bytes available, or None."""
    needed = needed_bytes(card, longest, width)
    if needed <= available_bytes:
        return None
    return f"{needed} bytes of memory are needed, {available_bytes} are lent and free"
