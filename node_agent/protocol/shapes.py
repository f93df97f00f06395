"""A model's shape: the sizes that memory, speed and sharding follow from.

The tables beyond the plain decoder's eight numbers are optional and left out of a card, its digest
and its frames when they are not given, so that a card without them is byte for byte what it was.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Bits = Literal[2, 3, 4, 5, 6, 8, 16, 32]
Mode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]
Part = Literal["embedding", "head", "attention", "mlp", "experts", "shared", "router", "recurrent"]


class CardPart(BaseModel):
    """Base of every table in a card: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PartWidth(CardPart):
    """Bits a weight in one part of the model; 16 or 32 means that the part is not quantised."""

    bits: Bits
    group_size: Literal[16, 32, 64, 128] = 64
    mode: Mode = "affine"


class PartWidths(CardPart):
    """Parts of a model that are held at a width of their own."""

    embedding: PartWidth | None = None
    head: PartWidth | None = None
    attention: PartWidth | None = None
    mlp: PartWidth | None = None
    experts: PartWidth | None = None
    shared: PartWidth | None = None
    router: PartWidth | None = None
    recurrent: PartWidth | None = None

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _given(handler(self))


class Quantisation(PartWidth):
    """How matrices are held, and the `parts` that are held otherwise (mixed precision)."""

    parts: PartWidths = PartWidths()

    def of(self, part: Part) -> PartWidth:
        """The width that holds for a part."""
        found: PartWidth | None = getattr(self.parts, part)
        return found or self


class Experts(CardPart):
    """A mixture of experts in every layer after the first `dense_layers`.

    `shared_intermediate` is the width of the feed-forward part that every token passes beside its
    experts; 0 without one. `dense_intermediate` is the width of the dense layers, if it is not
    the shape's own.
    """

    count: Positive
    per_token: Positive
    intermediate: Positive
    shared_intermediate: Count = 0
    dense_layers: Count = 0

    @model_validator(mode="after")
    def _check_choice(self) -> Experts:
        if self.per_token > self.count:
            raise ValueError("per_token must not exceed count")
        return self


class Latent(CardPart):
    """Multi-head latent attention: one compressed row a token is cached, not keys and values.

    `query_rank` 0: queries are projected directly. `index_dim` 0: no index of a sparse attention.
    `expanded`: the implementation caches all heads' keys and values after all.
    """

    kv_rank: Positive
    rope_dim: Positive
    nope_dim: Positive
    value_dim: Positive
    query_rank: Count = 0
    index_heads: Count = 0
    index_dim: Count = 0
    expanded: bool = False


class Sliding(CardPart):
    """Layers that see the last `window` tokens only, with their own heads where those differ."""

    window: Positive
    layers: Positive
    kv_heads: Positive | None = None
    head_dim: Positive | None = None

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _given(handler(self))


class Recurrent(CardPart):
    """Layers with a state of constant size: gated delta rule, Mamba and their like.

    `in_columns` is the width of all projections from `hidden` together, `out_rows` that of the
    projection back. `state_values` numbers a sequence and layer are kept in `state_bytes` each,
    and `conv_kernel - 1` rows of `conv_channels` beside them. `inner_columns` is the width of a
    projection from `out_rows` inside the layer; `other_values` counts the remaining parameters.
    `heads` must divide among tensor-parallel ranks; 0 if it is not known.
    """

    layers: Positive
    in_columns: Positive
    out_rows: Positive
    conv_channels: Positive
    conv_kernel: Positive
    state_values: Positive
    state_bytes: Literal[2, 4] = 4
    heads: Count = 0
    inner_columns: Count = 0
    other_values: Count = 0


class Shape(CardPart):
    """The sizes that memory and speed follow from. Fields after `activation_bytes` are optional.

    `attention_layers` and `mlp_layers` are for models in which not every layer has both; by
    default every layer that is not recurrent has attention, and every layer a feed-forward part.
    `tied`: the output layer is the embedding. `mlp_matrices` is 2 without a gate. `bias` says which
    projections have one. `softcap`: attention scores are capped, which no fused kernel does.
    """

    model_type: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]
    layers: Positive
    hidden: Positive
    intermediate: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    vocab: Positive
    activation_bytes: Literal[2, 4] = 2
    tied: bool | None = None
    quantisation: Quantisation | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    sliding: Sliding | None = None
    recurrent: Recurrent | None = None
    attention_layers: Count | None = None
    mlp_layers: Count | None = None
    mlp_matrices: Literal[2, 3] | None = None
    gated_attention: bool | None = None
    bias: Literal["qkv", "attention", "all"] | None = None
    softcap: bool | None = None

    # Sizes are cached by shape, and asked for every host: a hash of all fields would cost more
    # than what it saves, and these few differ between any two models.
    def __hash__(self) -> int:
        return hash((self.model_type, self.layers, self.hidden, self.intermediate, self.heads, self.vocab))

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _given(handler(self))

    @model_validator(mode="after")
    def _check_layers(self) -> Shape:
        parts: tuple[tuple[str, int], ...] = (
            ("sliding.layers", self.sliding.layers if self.sliding else 0),
            ("recurrent.layers", self.recurrent.layers if self.recurrent else 0),
            ("experts.dense_layers", self.experts.dense_layers if self.experts else 0),
            ("attention_layers", self.attention_layers or 0),
            ("mlp_layers", self.mlp_layers or 0),
        )
        for name, count in parts:
            if count > self.layers:
                raise ValueError(f"{name} must not exceed layers")
        if self.heads % self.kv_heads != 0:
            raise ValueError("heads must be a multiple of kv_heads")
        return self


ALWAYS_GIVEN: Final = frozenset(
    {
        "model_type",
        "layers",
        "hidden",
        "intermediate",
        "heads",
        "kv_heads",
        "head_dim",
        "vocab",
        "activation_bytes",
    }
)


def _given(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value is not None or name in ALWAYS_GIVEN}
