"""How many bytes a model needs in memory: weights, caches, activations, and what is kept in reserve.

Weights and caches were checked against mlx-lm 0.32.2, model families one by one; activations and
reserve are estimates, set against published peaks (docs/placement.md).

Caches, for one sequence, a layer and the token slots S that mlx-lm allocates:
full attention 2*S*kv_heads*head_dim, sliding window the same with S at most the window, latent
attention S*(kv_rank + rope_dim + 2*index_dim), recurrent (kernel-1)*channels and the state, whatever
the context; numbers of the activation type. A batch holds as many slots for every sequence as for
its longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.shapes import Shape
from node_agent.sizing.weights import LayerPlan, heads_of, layer_plans

# mlx-lm grows a cache in steps of this many token slots.
SLOT_TOKENS: Final = 256
PREFILL_CHUNK_TOKENS: Final = 512
# The interpreter, mlx and its compiled kernels (estimate).
PROCESS_BYTES: Final = 512 * 1024**2
# Kept free beside the weights: a tenth of them, at most 2 GB. On 184 published peaks the excess over
# weights and cache was 0.8 GB in the median and 1.5 GB in the 95th percentile, whatever the model.
RESERVE_PPM: Final = 100_000
RESERVE_BYTES_MAX: Final = 2_000_000_000
# Head sizes for which MLX on Metal never writes the matrix of attention scores. Newer versions may
# fuse 96 and 256 as well; published peaks of models with 256 are those of an unfused kernel.
FUSED_HEAD_DIMS: Final = frozenset({64, 80, 128})
# Bytes a score when it does: scores, softmax and a copy in two types. Measured at 1.3 to 2.8 times
# four bytes on MLX's CPU backend; six published peaks agree within 7 %.
SCORE_BYTES: Final = 10
# Latent attention writes the scores of the rotary part and hands them to a fused kernel as a mask
# (published: +5 GB for 128 heads, 2048 tokens against 4096).
LATENT_SCORE_BYTES: Final = 5


def weights_bytes(card: ModelFacts) -> int:
    """Bytes of the loaded weights: the exact sum over the safetensors headers, from the card."""
    return card.weights_bytes


def _row_bytes(values: int, shape: Shape, kv_bits: int | None, kv_group: int) -> float:
    """Bytes of one cached row of `values` numbers, quantised with a scale and a bias a group."""
    if kv_bits is None:
        return values * shape.activation_bytes
    return values * kv_bits / 8 + 2 * values / kv_group * shape.activation_bytes


def layer_kv_bytes_per_token(
    shape: Shape, plan: LayerPlan, *, kv_bits: int | None = None, kv_group: int = 64
) -> float:
    """Bytes that one token slot takes in one layer; 0 without attention."""
    if plan.attention is None:
        return 0
    if shape.latent is not None:
        latent = shape.latent
        if latent.expanded:
            each = latent.nope_dim + latent.rope_dim + latent.value_dim
            return shape.heads * each * shape.activation_bytes
        return (latent.kv_rank + latent.rope_dim + 2 * latent.index_dim) * shape.activation_bytes
    kv_heads, head_dim = heads_of(shape, plan.attention)
    # mlx-lm does not quantise a rotating cache.
    bits = kv_bits if plan.attention == "full" else None
    return 2 * kv_heads * _row_bytes(head_dim, shape, bits, kv_group)


def layer_state_bytes(shape: Shape, plan: LayerPlan) -> int:
    """Bytes of a recurrent layer's state for one sequence; 0 for other layers."""
    state = shape.recurrent
    if not plan.is_recurrent or state is None:
        return 0
    convolution = (state.conv_kernel - 1) * state.conv_channels * shape.activation_bytes
    return convolution + state.state_values * max(state.state_bytes, shape.activation_bytes)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """A model's cache for one sequence, all layers together: bytes a token slot of full attention and
    of sliding windows, their width, and the bytes of states, whatever the context."""

    full_bytes: float
    sliding_bytes: float
    window: int
    state_bytes: int


@lru_cache(maxsize=1024)
def cache_layout(shape: Shape, kv_bits: int | None = None) -> CacheLayout:
    """The layout of a shape's cache; placement asks for it for every host."""
    per_slot = {"full": 0.0, "sliding": 0.0}
    plans = layer_plans(shape)
    for plan in plans:
        if plan.attention is not None:
            per_slot[plan.attention] += layer_kv_bytes_per_token(shape, plan, kv_bits=kv_bits)
    return CacheLayout(
        full_bytes=per_slot["full"],
        sliding_bytes=per_slot["sliding"],
        window=shape.sliding.window if shape.sliding is not None else 0,
        state_bytes=sum(layer_state_bytes(shape, plan) for plan in plans),
    )


def kv_bytes_per_token(card: ModelFacts) -> int:
    """Bytes that a further token adds to a long context: all layers but the sliding ones."""
    return round(cache_layout(card.shape).full_bytes)


def slot_tokens(context_tokens: int) -> int:
    """The token slots that mlx-lm allocates for a sequence: the next multiple of 256."""
    if context_tokens < 0:
        raise ValueError("context_tokens must not be negative")
    return -(-context_tokens // SLOT_TOKENS) * SLOT_TOKENS


def layer_cache_bytes(
    shape: Shape, plan: LayerPlan, context_tokens: int, *, kv_bits: int | None = None
) -> float:
    """Bytes of one layer's cache for one sequence of `context_tokens`, state included."""
    slots = slot_tokens(context_tokens)
    if plan.attention == "sliding" and shape.sliding is not None:
        slots = min(slots, shape.sliding.window)
    grown = slots * layer_kv_bytes_per_token(shape, plan, kv_bits=kv_bits)
    return grown + (layer_state_bytes(shape, plan) if context_tokens else 0)


def kv_bytes(card: ModelFacts, context_tokens: int, width: int, *, kv_bits: int | None = None) -> int:
    """Bytes of a batch's cache: sequences are padded, so it is width times the longest.

    A quantised cache (`kv_bits` 4 or 8, groups of 64) is for full attention only, and mlx-lm
    cannot batch it. Raises `ValueError` if `width` is below 1 or `context_tokens` is negative.
    """
    if width < 1:
        raise ValueError("width must be at least 1")
    slots = slot_tokens(context_tokens)
    layout = cache_layout(card.shape, kv_bits)
    one = slots * layout.full_bytes + min(slots, layout.window) * layout.sliding_bytes
    return round(width * (one + (layout.state_bytes if context_tokens else 0)))


def is_fused(shape: Shape, *, kv_bits: int | None = None) -> bool:
    """Whether MLX's fused kernel reads prompts, so that no matrix of scores is ever written."""
    if shape.softcap or kv_bits is not None or shape.latent is not None:
        return False
    return shape.head_dim in FUSED_HEAD_DIMS


def activation_bytes(
    shape: Shape, width: int, *, context_tokens: int = 0, chunk_tokens: int = PREFILL_CHUNK_TOKENS
) -> int:
    """Working memory of one prefill chunk and of two steps' logits (estimate).

    chunk x (6 x hidden + 3 x intermediate) x type + width x vocab x 4 bytes x 3, the rows that
    sliding layers hold until the chunk is done, and without a fused kernel one layer's scores:
    chunk x context x heads x 10 bytes (5 with latent attention). A mixture of experts is as wide as the experts of a token.
    """
    layout = cache_layout(shape)
    experts = shape.experts
    wide = shape.intermediate
    if experts is not None:
        wide = max(experts.per_token * experts.intermediate + experts.shared_intermediate, 1)
        wide = max(wide, shape.intermediate) if experts.dense_layers else wide
    chunk = chunk_tokens * (6 * shape.hidden + 3 * wide) * shape.activation_bytes
    # Windows keep window - 1 old rows beside the chunk's until they are rolled.
    rolled = chunk_tokens * layout.sliding_bytes
    seen = context_tokens
    if not layout.full_bytes:
        seen = min(seen, layout.window + chunk_tokens) if layout.window else 0
    is_compressed = shape.latent is not None and not shape.latent.expanded
    each = LATENT_SCORE_BYTES if is_compressed else SCORE_BYTES
    scores = 0 if is_fused(shape) else min(chunk_tokens, seen) * seen * shape.heads * each
    return round(chunk + rolled + scores) + width * shape.vocab * 4 * 3


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes of one process by what they are for."""

    weights_bytes: int
    kv_bytes: int
    activation_bytes: int
    reserve_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.activation_bytes + self.reserve_bytes


def reserve_bytes(weights: int) -> int:
    """The process itself, and what is kept free beside `weights` bytes."""
    return min(weights * RESERVE_PPM // 1_000_000, RESERVE_BYTES_MAX) + PROCESS_BYTES


def needed_parts(
    card: ModelFacts,
    context_tokens: int,
    width: int,
    *,
    kv_bits: int | None = None,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> MemoryParts:
    """Bytes by part that `width` sequences of up to `context_tokens` each need on one Mac.

    `chunk_tokens` of a prompt are read at once.

    Raises `ValueError` if `width` is below 1 or `context_tokens` is negative.
    """
    cache = kv_bytes(card, context_tokens, width, kv_bits=kv_bits)
    # A quantised cache is read by an unfused kernel.
    shape = card.shape if kv_bits is None else card.shape.model_copy(update={"softcap": True})
    working = activation_bytes(shape, width, context_tokens=context_tokens, chunk_tokens=chunk_tokens)
    return MemoryParts(card.weights_bytes, cache, working, reserve_bytes(card.weights_bytes))


def needed_bytes(card: ModelFacts, context_tokens: int, width: int) -> int:
    """Bytes that `width` sequences of up to `context_tokens` (prompt and answer) need in all.

    Weights, cache, activations, the process itself and a reserve.
    Raises `ValueError` if `width` is below 1 or `context_tokens` is negative.
    """
    return needed_parts(card, context_tokens, width).total_bytes
