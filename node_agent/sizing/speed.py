"""How fast a Mac runs a model: forecasts from bytes, bandwidth and arithmetic.

Forecasts place jobs and set deadlines; they never set a price.
"""

from __future__ import annotations

from typing import Final

from node_agent.protocol.cards import ModelCard
from node_agent.protocol.messages import Hardware
from node_agent.sizing.chips import find_chip
from node_agent.sizing.memory import kv_bytes_per_token, weights_bytes

# Share of the memory bandwidth that decoding reaches (assumed; a node's self-test corrects it).
DECODE_EFFICIENCY: Final = 0.6
# On MLX's CPU backend one thread does the arithmetic: 7.2-8.8 tokens a second of 538 MB each,
# where one core copies 19 GB a second (measured with SmolLM2 135M in float32).
CPU_DECODE_EFFICIENCY: Final = 0.2
# Share of a GPU's claimed fp16 arithmetic that a prefill's matrix products reach (assumed).
PREFILL_EFFICIENCY: Final = 0.4
# Prompt tokens per decoded token on MLX's CPU backend: 85-113 to 7.2-8.8 a second, measured with
# SmolLM2 135M in float32 and OpenBLAS on one thread.
CPU_PREFILL_RATIO: Final = 12.0
# A cold file from a laptop's disk (conservative: Apple's own are several times faster).
DISK_BYTES_PER_SECOND: Final = 1_000_000_000
RUNNER_START_SECONDS: Final = 5.0


def parameter_count(card: ModelCard) -> int:
    """Weights of a dense decoder that are multiplied per token, the output layer included."""
    shape = card.shape
    attention = 2 * shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    feed_forward = 3 * shape.hidden * shape.intermediate
    return shape.layers * (attention + feed_forward) + shape.vocab * shape.hidden


def decode_seconds_per_token(card: ModelCard, hardware: Hardware, *, context_tokens: int = 0) -> float:
    """Seconds per answer token of one sequence: bytes read over the usable bandwidth.

    Every weight is read once per token, and the cache of the `context_tokens` before it.
    """
    read = weights_bytes(card) + context_tokens * kv_bytes_per_token(card)
    efficiency = DECODE_EFFICIENCY if hardware.accelerated else CPU_DECODE_EFFICIENCY
    return read / (efficiency * hardware.bandwidth_bytes_per_second)


def prefill_seconds(card: ModelCard, tokens: int, hardware: Hardware) -> float:
    """Seconds to read a prompt of `tokens`: two operations per weight and token on a known GPU.

    Without one, a fixed multiple of the decoding speed (measured on a CPU).
    """
    chip = find_chip(hardware.chip, hardware.gpu_cores) if hardware.accelerated else None
    if chip is None or chip.fp16_tflops is None:
        return tokens * decode_seconds_per_token(card, hardware) / CPU_PREFILL_RATIO
    operations = 2.0 * parameter_count(card) * tokens
    return operations / (PREFILL_EFFICIENCY * chip.fp16_tflops * 1e12)


def load_seconds(card: ModelCard, *, disk_bytes_per_second: int = DISK_BYTES_PER_SECOND) -> float:
    """Seconds from a file on disk to a first token: the runner's start and one read of the file."""
    if disk_bytes_per_second <= 0:
        raise ValueError("disk_bytes_per_second must be positive")
    return RUNNER_START_SECONDS + weights_bytes(card) / disk_bytes_per_second
