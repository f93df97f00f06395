"""What a model asks of a machine, and what a machine is, as the speed model sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.protocol.shapes import Shape
from node_agent.sizing.chips import find_chip
from node_agent.sizing.constants import GENERATIONS, MATRIX_PEAK, VECTOR_PEAK, Engine
from node_agent.sizing.memory import layer_kv_bytes_per_token
from node_agent.sizing.weights import Weights, heads_of, layer_plans, weights_for

CHIP: Final = re.compile(r"\bM(\d{1,2})\b(?: (Pro|Max|Ultra))?")
# A chip that no table knows, by its kind: GPU cores of the smallest one made so far.
CORES_LEAST: Final = {"": 7, "Pro": 14, "Max": 24, "Ultra": 48}
# Bytes a parameter above which weights are taken as not quantised, whatever the card says of it.
FLOAT_BYTES_LEAST: Final = 1.5
# Families that normalise before and after attention and feed-forward part.
SANDWICH: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "olmo2", "olmo3"})


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Attention of layers that see at most `window` tokens (None: all of them).

    `operations` and `bytes` are for one query and one token of its context, over all those layers.
    """

    operations: float
    bytes: float
    window: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """A model as arithmetic: bytes that each step reads, experts' bytes, operations a token.

    `whole_bytes` of those that every step reads are never cut by tensor parallelism.
    `parameters` are multiplied once a token, `expert_parameters` beside them. `experts` is 0 for a model without any.
    """

    layers: int
    hidden: int
    always_bytes: float
    whole_bytes: float
    expert_bytes: float
    experts: int
    experts_per_token: int
    expert_layers: int
    recurrent_layers: int
    parameters: float
    expert_parameters: float
    attention: tuple[AttentionWork, ...]
    is_sandwich: bool
    is_float: bool

    def expert_bytes_read(self, tokens: float) -> float:
        """Bytes of the distinct experts that `tokens` independent choices reach, on average."""
        if not self.experts:
            return 0.0
        missed = (1 - self.experts_per_token / self.experts) ** tokens
        return self.expert_bytes * (1 - missed)


@lru_cache(maxsize=1024)
def _work(shape: Shape, weights: Weights) -> Work:
    plans = layer_plans(shape)
    experts = shape.experts
    held = sum(weights.layer_bytes) + weights.outer_bytes
    expert_layers = sum(plan.feed == "experts" for plan in plans)
    of_experts = 0.0
    if experts is not None:
        matrices = shape.mlp_matrices or 3
        of_experts = 1.0 * matrices * experts.per_token * experts.intermediate * shape.hidden * expert_layers
    return Work(
        layers=shape.layers,
        hidden=shape.hidden,
        always_bytes=weights.always_bytes,
        whole_bytes=max(weights.always_bytes + weights.expert_bytes - sum(weights.layer_split_bytes), 0.0),
        expert_bytes=weights.expert_bytes,
        experts=experts.count if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        expert_layers=expert_layers,
        recurrent_layers=sum(plan.is_recurrent for plan in plans),
        parameters=weights.parameters - of_experts,
        expert_parameters=of_experts,
        attention=_attention(shape),
        is_sandwich=shape.model_type in SANDWICH,
        is_float=held >= FLOAT_BYTES_LEAST * weights.parameters_total,
    )


def work_of(card: ModelFacts) -> Work:
    """The card as arithmetic."""
    return work_for(card.shape, card.weights_bytes)


def work_for(shape: Shape, weights_bytes: int) -> Work:
    """A model of that shape and size as arithmetic."""
    return _work(shape, weights_for(shape, weights_bytes))


def _attention(shape: Shape) -> tuple[AttentionWork, ...]:
    plans = layer_plans(shape)
    found: list[AttentionWork] = []
    for kind in ("full", "sliding"):
        layers = [plan for plan in plans if plan.attention == kind]
        if not layers:
            continue
        if shape.latent is not None and not shape.latent.expanded:
            # The compressed row serves as key and, without its rotary part, as value.
            row = 2 * shape.latent.kv_rank + shape.latent.rope_dim
        elif shape.latent is not None:
            row = shape.latent.nope_dim + shape.latent.rope_dim + shape.latent.value_dim
        else:
            row = 2 * heads_of(shape, kind)[1]
        held = layer_kv_bytes_per_token(shape, layers[0])
        window = shape.sliding.window if kind == "sliding" and shape.sliding else None
        operations = 2.0 * shape.heads * row * len(layers)
        found.append(AttentionWork(operations, held * len(layers), window))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Machine:
    """One Mac as arithmetic. `generation` counts from 0 (M1). Factors are measured speed over the
    forecast's, from a self-test; 1 without one. `chunk_tokens` of a prompt are read at once; 0 means
    as many as the engine takes by itself."""

    bandwidth_bytes_per_second: float
    generation: int
    gpu_cores: int
    is_ultra: bool
    is_accelerated: bool = True
    engine: Engine = "mlx"
    decode_factor: float = 1.0
    prefill_factor: float = 1.0
    chunk_tokens: int = 0

    @property
    def vector_peak(self) -> float:
        """Operations a second of all GPU cores' vector units."""
        return VECTOR_PEAK[self.generation] * self.gpu_cores

    @property
    def matrix_peak(self) -> float:
        """Operations a second of all GPU cores in matrix products."""
        return MATRIX_PEAK[self.generation] * self.gpu_cores


def chip_kind(chip: str) -> tuple[int, str]:
    """(generation from 0, "", "Pro", "Max" or "Ultra"); a name that tells nothing is a plain M1."""
    found = CHIP.search(chip)
    if found is None:
        return 0, ""
    return min(max(int(found.group(1)), 1), GENERATIONS) - 1, found.group(2) or ""


@lru_cache(maxsize=4096)
def _known(chip: str, gpu_cores: int) -> tuple[int, bool, int]:
    generation, kind = chip_kind(chip)
    known = find_chip(chip, gpu_cores)
    cores = gpu_cores or (known.gpu_cores if known is not None else CORES_LEAST[kind])
    return generation, kind == "Ultra", cores


def machine_of(
    hardware: Hardware,
    *,
    engine: Engine = "mlx",
    decode_factor: float = 1.0,
    prefill_factor: float = 1.0,
    chunk_tokens: int = 0,
) -> Machine:
    """A node's hardware as arithmetic. A chip that is not in the table is taken by its name."""
    generation, is_ultra, cores = _known(hardware.chip, hardware.gpu_cores)
    return Machine(
        bandwidth_bytes_per_second=float(hardware.bandwidth_bytes_per_second),
        generation=generation,
        gpu_cores=cores,
        is_ultra=is_ultra,
        is_accelerated=hardware.accelerated,
        engine=engine,
        decode_factor=decode_factor,
        prefill_factor=prefill_factor,
        chunk_tokens=chunk_tokens,
    )
