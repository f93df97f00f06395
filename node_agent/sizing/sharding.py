"""Which models can be divided among how many Macs, and why not the others.

What mlx-lm has code for stands in `sharding.toml`, written from its source. What divides follows
from the model's sizes, and must be checked here: mlx-lm itself runs a model whose heads do not
divide and answers wrongly. For n ranks: heads, KV heads (unless they are repeated), every
feed-forward width, the output layer where it is cut, and, if quantised, whole groups of every
matrix that is cut along its inputs. Latent attention: the heads only.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from node_agent.protocol.shapes import Shape
from node_agent.sizing.config import SAME_AS
from node_agent.sizing.weights import layer_matrices, layer_plans

Division = Literal["tensor", "pipeline"]

RANKS_MAX: Final = 16


class ShardingTable(BaseModel):
    """The families that one version of mlx-lm can divide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mlx_lm: str
    tensor: frozenset[str]
    repeats_kv_heads: frozenset[str]
    splits_vocab: frozenset[str]
    pipeline: frozenset[str]


@cache
def sharding_table() -> ShardingTable:
    """The table, read once: it is part of the package, so it is the same on both sides."""
    text = resources.files(__package__ or "node_agent.sizing").joinpath("sharding.toml").read_text()
    return ShardingTable.model_validate(tomllib.loads(text))


def families_of(shape: Shape) -> tuple[str, ...]:
    """The names under which the library may know the model: its own, then the one it is run as."""
    name = shape.model_type
    return (name, SAME_AS[name]) if name in SAME_AS else (name,)


def _is_in(shape: Shape, families: frozenset[str]) -> bool:
    return any(name in families for name in families_of(shape))


def why_not_tensor(shape: Shape, ranks: int) -> str | None:
    """Why the model cannot be run tensor parallel on `ranks` Macs, in words, or None if it can."""
    if not 1 <= ranks <= RANKS_MAX:
        return f"a pod has 1 to {RANKS_MAX} ranks, not {ranks}"
    if ranks == 1:
        return None
    table = sharding_table()
    if not _is_in(shape, table.tensor):
        return f"mlx-lm {table.mlx_lm} cannot run {shape.model_type} tensor parallel"
    uneven = [name for name, size in _sizes(shape, ranks) if size % ranks != 0]
    if uneven:
        return f"{uneven[0]} of {dict(_sizes(shape, ranks))[uneven[0]]} does not divide by {ranks}"
    return _cut_group(shape, ranks)


def _sizes(shape: Shape, ranks: int) -> list[tuple[str, int]]:
    table, found = sharding_table(), [("heads", shape.heads)]
    plans = layer_plans(shape)
    is_repeated = _is_in(shape, table.repeats_kv_heads) and ranks % shape.kv_heads == 0
    has_heads = shape.latent is None or shape.latent.expanded
    if has_heads and not (is_repeated and ranks > shape.kv_heads):
        found.append(("kv_heads", shape.kv_heads))
    if has_heads and shape.sliding is not None and shape.sliding.kv_heads is not None:
        found.append(("sliding.kv_heads", shape.sliding.kv_heads))
    if any(plan.feed == "mlp" for plan in plans):
        found.append(("intermediate", shape.intermediate))
    if shape.experts is not None:
        found.append(("experts.intermediate", shape.experts.intermediate))
        found.append(("experts.shared_intermediate", shape.experts.shared_intermediate))
    if shape.recurrent is not None:
        found.append(("recurrent.heads", shape.recurrent.heads))
        found.append(("recurrent.out_rows", shape.recurrent.out_rows))
    if _is_in(shape, table.splits_vocab) and not shape.tied:
        found.append(("vocab", shape.vocab))
    return found


def _cut_group(shape: Shape, ranks: int) -> str | None:
    """The first quantised matrix that would be cut inside a group, in words."""
    if shape.quantisation is None:
        return None
    for plan in sorted(set(layer_plans(shape)), key=repr):
        for matrix in layer_matrices(shape, plan):
            width = shape.quantisation.of(matrix.part)
            is_held = matrix.is_quantisable and width.bits < 16 and matrix.columns % width.group_size == 0
            if matrix.split != "columns" or not is_held:
                continue
            if matrix.columns % (ranks * width.group_size) != 0:
                return (
                    f"{matrix.part}: {matrix.columns} columns in groups of {width.group_size}"
                    f" do not divide by {ranks}"
                )
    return None


def why_not_pipeline(shape: Shape, ranks: int) -> str | None:
    """Why the model cannot be run as a pipeline of `ranks` Macs, in words, or None if it can."""
    if not 1 <= ranks <= RANKS_MAX:
        return f"a pod has 1 to {RANKS_MAX} ranks, not {ranks}"
    if ranks == 1:
        return None
    table = sharding_table()
    if not _is_in(shape, table.pipeline):
        return f"mlx-lm {table.mlx_lm} cannot run {shape.model_type} as a pipeline"
    if ranks > shape.layers:
        return f"{shape.layers} layers cannot be dealt out to {ranks} ranks"
    return None


def ranks_allowed(shape: Shape, division: Division, ranks_max: int = RANKS_MAX) -> tuple[int, ...]:
    """Every number of ranks, from 1 to `ranks_max`, among which the model can be divided."""
    why_not = why_not_tensor if division == "tensor" else why_not_pipeline
    return tuple(ranks for ranks in range(1, ranks_max + 1) if why_not(shape, ranks) is None)
