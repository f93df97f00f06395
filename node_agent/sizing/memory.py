"""How many bytes a model needs in memory: weights, key-value cache, and what is kept in reserve.

The formulas of weights and cache were checked byte for byte against mlx-lm 0.32.2; those of the
activations are estimates and marked so.
"""

from __future__ import annotations

from typing import Final

from node_agent.protocol.cards import ModelCard, Shape

# mlx-lm grows a cache in steps of this many token slots.
SLOT_TOKENS: Final = 256
PREFILL_CHUNK_TOKENS: Final = 512
# The interpreter, mlx and its compiled kernels (estimate).
PROCESS_BYTES: Final = 512 * 1024**2
RESERVE_PPM: Final = 100_000


def weights_bytes(card: ModelCard) -> int:
    """Bytes of the loaded weights: the exact sum over the safetensors headers, from the card."""
    return card.weights_bytes


def kv_bytes_per_token(card: ModelCard) -> int:
    """Bytes of keys and values that one token slot takes over all layers (MHA and GQA)."""
    shape = card.shape
    return shape.layers * 2 * shape.kv_heads * shape.head_dim * shape.activation_bytes


def slot_tokens(context_tokens: int) -> int:
    """The token slots that mlx-lm allocates for a sequence: the next multiple of 256."""
    if context_tokens < 0:
        raise ValueError("context_tokens must not be negative")
    return -(-context_tokens // SLOT_TOKENS) * SLOT_TOKENS


def kv_bytes(card: ModelCard, context_tokens: int, width: int) -> int:
    """Bytes of a batch's cache: sequences are padded, so it is width times the longest."""
    if width < 1:
        raise ValueError("width must be at least 1")
    return width * slot_tokens(context_tokens) * kv_bytes_per_token(card)


def activation_bytes(shape: Shape, width: int) -> int:
    """Working memory of one prefill chunk and of two steps' logits (estimate).

    chunk x (6 x hidden + 3 x intermediate) x type + width x vocab x 4 bytes x 3.
    """
    chunk = PREFILL_CHUNK_TOKENS * (6 * shape.hidden + 3 * shape.intermediate)
    return chunk * shape.activation_bytes + width * shape.vocab * 4 * 3


def needed_bytes(card: ModelCard, context_tokens: int, width: int) -> int:
    """Bytes that `width` sequences of up to `context_tokens` (prompt and answer) need in all.

    Weights with a tenth in reserve, cache, activations, and the process itself.
    Raises `ValueError` if `width` is below 1 or `context_tokens` is negative.
    """
    weights = weights_bytes(card)
    reserve = weights * RESERVE_PPM // 1_000_000 + PROCESS_BYTES
    working = activation_bytes(card.shape, width)
    return weights + kv_bytes(card, context_tokens, width) + working + reserve
