"""A model's matrices, counted from its shape: bytes as held, bytes read by a token, parameters.

Bytes of a quantised matrix of R rows and C columns, b bits in groups of g along a row:
affine R*C*b/8 + 2*R*C/g scales and biases of the activation type; mxfp4 and mxfp8 R*C*b/8 + R*C/32;
nvfp4 R*C*b/8 + R*C/16. mlx-lm leaves a matrix alone whose columns are no multiple of g. Norms and
convolutions are never quantised. Checked against the library's own modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.shapes import Latent, Part, PartWidth, Shape

Split = Literal["none", "rows", "columns", "copies"]
Attention = Literal["full", "sliding"]
Feed = Literal["mlp", "experts"]

SCALE_BYTES: Final[dict[str, float]] = {"mxfp4": 1 / 32, "mxfp8": 1 / 32, "nvfp4": 1 / 16}


@dataclass(frozen=True, slots=True)
class Matrix:
    """`copies` matrices of one size, of which one token reads `read`. `split` says how tensor
    parallelism cuts it: by rows (outputs), columns (inputs), copies (heads), or not at all."""

    part: Part
    rows: int
    columns: int
    copies: int = 1
    read: int = 1
    split: Split = "none"
    has_bias: bool = False
    is_quantisable: bool = True


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What one layer is made of."""

    attention: Attention | None
    is_recurrent: bool
    feed: Feed | None


def spread(count: int, places: range | list[int]) -> set[int]:
    """`count` of the places, evenly apart and ending on the last, as hybrids interleave layers."""
    total = len(places)
    return {places[i] for i in range(total) if (i + 1) * count // total > i * count // total}


@lru_cache(maxsize=1024)
def layer_plans(shape: Shape) -> tuple[LayerPlan, ...]:
    """What each layer is made of, first to last. Counts are the shape's; the order within a
    repeating pattern is taken as even, which per-rank figures depend on and totals do not."""
    numbers = list(range(shape.layers))
    recurrent = shape.recurrent.layers if shape.recurrent else 0
    attention = shape.layers - recurrent if shape.attention_layers is None else shape.attention_layers
    feeds = shape.layers if shape.mlp_layers is None else shape.mlp_layers
    with_attention = spread(attention, numbers)
    rest = [number for number in numbers if number not in with_attention]
    with_state = spread(recurrent, rest if 0 < recurrent <= len(rest) else numbers)
    rest = [number for number in rest if number not in with_state]
    with_feed = spread(feeds, rest if 0 < feeds <= len(rest) else numbers)
    ordered = sorted(with_attention)
    sliding = shape.sliding.layers if shape.sliding else 0
    full = spread(len(ordered) - sliding, ordered) if ordered else set[int]()
    dense = shape.experts.dense_layers if shape.experts else shape.layers
    return tuple(
        LayerPlan(
            None if n not in with_attention else "full" if n in full else "sliding",
            n in with_state,
            None if n not in with_feed else "mlp" if n < dense else "experts",
        )
        for n in numbers
    )


def heads_of(shape: Shape, attention: Attention) -> tuple[int, int]:
    """(KV heads, numbers a head) of a layer with that kind of attention."""
    sliding = shape.sliding
    if attention == "sliding" and sliding is not None:
        return sliding.kv_heads or shape.kv_heads, sliding.head_dim or shape.head_dim
    return shape.kv_heads, shape.head_dim


def _attention(shape: Shape, kind: Attention) -> list[Matrix]:
    if shape.latent is not None:
        return _latent(shape, shape.latent)
    kv_heads, head_dim = heads_of(shape, kind)
    queries = shape.heads * head_dim
    asked = queries * (2 if shape.gated_attention else 1)
    has_bias = shape.bias is not None
    keys = Matrix("attention", kv_heads * head_dim, shape.hidden, split="rows", has_bias=has_bias)
    return [
        Matrix("attention", asked, shape.hidden, split="rows", has_bias=has_bias),
        keys,
        keys,
        Matrix(
            "attention",
            shape.hidden,
            queries,
            split="columns",
            has_bias=shape.bias in {"attention", "all"},
        ),
    ]


def _latent(shape: Shape, latent: Latent) -> list[Matrix]:
    heads = shape.heads
    queries = heads * (latent.nope_dim + latent.rope_dim)
    found = [
        Matrix("attention", latent.kv_rank + latent.rope_dim, shape.hidden),
        Matrix("attention", latent.kv_rank, latent.nope_dim, copies=heads, read=heads, split="copies"),
        Matrix("attention", latent.value_dim, latent.kv_rank, copies=heads, read=heads, split="copies"),
        Matrix("attention", shape.hidden, heads * latent.value_dim, split="columns"),
    ]
    if latent.query_rank:
        found.append(Matrix("attention", latent.query_rank, shape.hidden))
        found.append(Matrix("attention", queries, latent.query_rank, split="rows"))
    else:
        found.append(Matrix("attention", queries, shape.hidden, split="rows"))
    if latent.index_dim:
        asked = latent.query_rank or shape.hidden
        found.append(Matrix("attention", latent.index_heads * latent.index_dim, asked))
        found.append(Matrix("attention", latent.index_dim, shape.hidden))
        found.append(Matrix("attention", latent.index_heads, shape.hidden))
    return found


def _feed_forward(part: Part, shape: Shape, width: int, copies: int = 1, read: int = 1) -> list[Matrix]:
    has_bias = shape.bias == "all"
    up = Matrix(part, width, shape.hidden, copies, read, "rows", has_bias)
    down = Matrix(part, shape.hidden, width, copies, read, "columns", has_bias)
    return [*[up] * ((shape.mlp_matrices or 3) - 1), down]


def _feed(shape: Shape, kind: Feed) -> list[Matrix]:
    experts = shape.experts
    if kind == "mlp" or experts is None:
        return _feed_forward("mlp", shape, shape.intermediate)
    found = _feed_forward("experts", shape, experts.intermediate, experts.count, experts.per_token)
    found.append(Matrix("router", experts.count, shape.hidden, has_bias=shape.bias == "all"))
    if experts.shared_intermediate:
        found += _feed_forward("shared", shape, experts.shared_intermediate)
    return found


def layer_matrices(shape: Shape, plan: LayerPlan) -> list[Matrix]:
    """All matrices of a layer; norms and convolutions as matrices that are not quantised."""
    found = [Matrix("attention", 2, shape.hidden, is_quantisable=False)]
    if plan.attention is not None:
        found += _attention(shape, plan.attention)
    if plan.is_recurrent and shape.recurrent is not None:
        state = shape.recurrent
        found.append(Matrix("recurrent", state.in_columns, shape.hidden, split="rows"))
        found.append(Matrix("recurrent", shape.hidden, state.out_rows, split="columns"))
        if state.inner_columns:
            found.append(Matrix("recurrent", state.inner_columns, state.out_rows, split="columns"))
        plain = state.conv_channels * state.conv_kernel + state.other_values
        found.append(Matrix("recurrent", 1, plain, split="columns", is_quantisable=False))
    if plan.feed is not None:
        found += _feed(shape, plan.feed)
    return found


def outer_matrices(shape: Shape, *, tied: bool) -> list[Matrix]:
    """The embedding, the last norm, and the output layer unless it is the embedding."""
    # A token reads one row of an embedding, and all of it where it is the output layer as well.
    found = [
        Matrix("embedding", shape.vocab, shape.hidden, read=1 if tied else 0),
        Matrix("attention", 1, shape.hidden, is_quantisable=False),
    ]
    return found if tied else [*found, Matrix("head", shape.vocab, shape.hidden)]


def matrix_bytes(matrix: Matrix, shape: Shape) -> float:
    """Bytes of one copy as it is held in memory."""
    values = matrix.rows * matrix.columns
    bias = matrix.rows * shape.activation_bytes if matrix.has_bias else 0
    width: PartWidth | None = shape.quantisation.of(matrix.part) if shape.quantisation else None
    if width is None or not matrix.is_quantisable:
        return values * shape.activation_bytes + bias
    if width.bits >= 16:
        return values * width.bits / 8 + bias
    if matrix.columns % width.group_size != 0:
        return values * shape.activation_bytes + bias
    scales = SCALE_BYTES.get(width.mode, 2 * shape.activation_bytes / width.group_size)
    return values * (width.bits / 8 + scales) + bias


# Compared by identity: it is cached, and is a key of what is derived from it.
@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A model's weights by what becomes of them. Bytes sum to the card's `weights_bytes`.

    `layer_bytes` and `layer_split_bytes` are per layer: all of it, and what tensor parallelism
    divides. `outer_bytes` are embedding, last norm and output layer. `always_bytes` are read by
    every step; `expert_bytes` are all routed experts'. `parameters` are multiplied for one token.
    """

    layer_bytes: tuple[float, ...]
    layer_split_bytes: tuple[float, ...]
    outer_bytes: float
    always_bytes: float
    expert_bytes: float
    parameters: int
    parameters_total: int


def computed_bytes(shape: Shape, *, tied: bool | None = None) -> int:
    """Bytes of all weights that follow from the shape and its quantisation alone."""
    found = _count(shape, tied=bool(shape.tied if tied is None else tied))
    return round(sum(found.layer_bytes) + found.outer_bytes)


def is_tied(card: ModelFacts) -> bool:
    """Whether the output layer is the embedding: as the card says, else as its size suggests."""
    return _is_tied(card.shape, card.weights_bytes)


def _is_tied(shape: Shape, weights_bytes: int) -> bool:
    if shape.tied is not None:
        return shape.tied
    off = {tied: abs(computed_bytes(shape, tied=tied) - weights_bytes) for tied in (True, False)}
    return off[True] <= off[False]


def weights_of(card: ModelFacts) -> Weights:
    """The card's weights by parts, in the proportions of its shape, scaled to its exact size."""
    return weights_for(card.shape, card.weights_bytes)


@lru_cache(maxsize=1024)
def weights_for(shape: Shape, weights_bytes: int) -> Weights:
    """The same for a shape and a size, before there is a card."""
    found = _count(shape, tied=_is_tied(shape, weights_bytes))
    ratio = weights_bytes / (sum(found.layer_bytes) + found.outer_bytes)
    return Weights(
        tuple(ratio * value for value in found.layer_bytes),
        tuple(ratio * value for value in found.layer_split_bytes),
        ratio * found.outer_bytes,
        ratio * found.always_bytes,
        ratio * found.expert_bytes,
        found.parameters,
        found.parameters_total,
    )


@dataclass(slots=True)
class _Sums:
    held: float = 0.0
    split: float = 0.0
    always: float = 0.0
    expert: float = 0.0
    parameters: int = 0
    total: int = 0

    def add(self, matrix: Matrix, shape: Shape) -> None:
        one = matrix_bytes(matrix, shape)
        values = matrix.rows * matrix.columns
        self.held += one * matrix.copies
        if matrix.split != "none":
            self.split += one * matrix.copies
        if matrix.part == "experts":
            self.expert += one * matrix.copies
        else:
            self.always += one * matrix.read
        self.parameters += values * matrix.read
        self.total += values * matrix.copies


@lru_cache(maxsize=2048)
def _count(shape: Shape, *, tied: bool) -> Weights:
    by_plan: dict[LayerPlan, _Sums] = {}
    plans = layer_plans(shape)
    for plan in set(plans):
        sums = by_plan[plan] = _Sums()
        for matrix in layer_matrices(shape, plan):
            sums.add(matrix, shape)
    outer = _Sums()
    for matrix in outer_matrices(shape, tied=tied):
        outer.add(matrix, shape)
    layers = [by_plan[plan] for plan in plans]
    return Weights(
        tuple(layer.held for layer in layers),
        tuple(layer.split for layer in layers),
        outer.held,
        outer.always + sum(layer.always for layer in layers),
        sum(layer.expert for layer in layers),
        outer.parameters + sum(layer.parameters for layer in layers),
        outer.total + sum(layer.total for layer in layers),
    )
