"""How fast a Mac runs a model: forecasts from bytes, bandwidth, arithmetic and layers.

Forecasts place jobs and set deadlines; they never set a price. The form of the model is told in
docs/placement.md with how far it is off; its constants are in `speed.toml`.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing.constants import DecodeConstants, PrefillConstants, SpeedConstants, speed_constants
from node_agent.sizing.memory import PREFILL_CHUNK_TOKENS, kv_bytes_per_token, weights_bytes
from node_agent.sizing.weights import weights_of
from node_agent.sizing.work import Machine, Work, machine_of, work_of

# On MLX's CPU backend one thread does the arithmetic: 7.2-8.8 tokens a second of 538 MB each,
# where one core copies 19 GB a second (measured with SmolLM2 135M in float32).
CPU_DECODE_EFFICIENCY: Final = 0.2
# Prompt tokens per decoded token on MLX's CPU backend: 85-113 to 7.2-8.8 a second, measured with
# SmolLM2 135M in float32 and OpenBLAS on one thread.
CPU_PREFILL_RATIO: Final = 12.0
# A cold file from a laptop's disk (conservative: Apple's own are several times faster).
DISK_BYTES_PER_SECOND: Final = 1_000_000_000
RUNNER_START_SECONDS: Final = 5.0
# Tokens of a prompt that are read at once: mlx-lm's own step, llama.cpp's micro-batch.
CHUNK_TOKENS: Final = {"mlx": 2048, "llama.cpp": 512, "llama.cpp-2023": 512, "ollama": 512}
# A self-test outside these is an error of measurement.
FACTOR_LEAST, FACTOR_MOST = 0.05, 3.0


def parameter_count(card: ModelFacts) -> int:
    """Weights that are multiplied for one token, the output layer included."""
    return weights_of(card).parameters


# -- decoding ------------------------------------------------------------------------------------


def usable_bandwidth(work: Work, machine: Machine, constants: DecodeConstants) -> float:
    """Bytes a second that a decoding step reads weights at, self-test left out."""
    share = constants.bandwidth_share * constants.engine_share[machine.engine]
    share *= constants.generation_share[min(machine.generation, 4)]
    if machine.is_ultra:
        share *= constants.ultra_share
    if work.is_float:
        share *= constants.float_share
    return share * machine.bandwidth_bytes_per_second


def launch_seconds(work: Work, machine: Machine, constants: DecodeConstants) -> float:
    """Seconds of a step that no bandwidth shortens: kernels started, layer by layer."""
    engine = machine.engine
    layers = work.layers * (constants.sandwich_layer if work.is_sandwich else 1.0)
    layers += work.expert_layers * constants.expert_layer.of(engine)
    layers += work.recurrent_layers * (constants.recurrent_layer.of(engine) - 1.0)
    # A table of five generations: M5 and later start kernels faster than M4.
    each = constants.layer_seconds[engine] * constants.older_layer ** (3 - min(machine.generation, 4))
    return layers * each * (constants.ultra_layer.of(engine) if machine.is_ultra else 1.0)


def context_seconds(work: Work, machine: Machine, tokens: float, constants: DecodeConstants) -> float:
    """Seconds of a step in which one sequence attends to `tokens` before it."""
    rate = constants.attention_share.of(machine.engine) * machine.vector_peak
    total = 0.0
    for layers in work.attention:
        seen = tokens if layers.window is None else min(tokens, layers.window)
        total += seen * max(layers.operations / rate, layers.bytes / machine.bandwidth_bytes_per_second)
    return total


def step_seconds(
    work: Work,
    machine: Machine,
    *,
    context_tokens: float = 0,
    batch: int = 1,
    constants: SpeedConstants | None = None,
) -> float:
    """Seconds of one step that gives each of `batch` sequences a token.

    Weights are read once for all; of a mixture's experts those that any of them chose. A further
    sequence costs its arithmetic and its own context.
    """
    if batch < 1:
        raise ValueError("batch must be at least 1")
    found = (constants or speed_constants()).decode
    read = work.always_bytes + work.expert_bytes_read(batch)
    seconds = read / usable_bandwidth(work, machine, found)
    seconds += batch * context_seconds(work, machine, context_tokens, found)
    operations = 2.0 * (work.parameters + work.expert_parameters) * (batch - 1)
    seconds += operations / (found.batch_share.of(machine.engine) * machine.vector_peak)
    return seconds / machine.decode_factor + launch_seconds(work, machine, found)


def decode_factor(
    work: Work,
    machine: Machine,
    measured_seconds: float,
    *,
    context_tokens: float = 0,
    batch: int = 1,
    constants: SpeedConstants | None = None,
) -> float:
    """What a self-test says of a Mac: how fast it reads and reckons, against the forecast.

    `measured_seconds` is one step of `batch` sequences. Slow Macs (no fan, a power mode, a shared memory
    bus) are slow at memory; starting kernels takes the same time on them, so that a factor over the
    whole step would make small models too slow and large ones too fast.
    """
    found = constants or speed_constants()
    plain = replace(machine, decode_factor=1.0)
    whole = step_seconds(work, plain, context_tokens=context_tokens, batch=batch, constants=found)
    starts = launch_seconds(work, plain, found.decode)
    left = max(measured_seconds - starts, FACTOR_LEAST * measured_seconds)
    return min(max((whole - starts) / left, FACTOR_LEAST), FACTOR_MOST)


def decode_seconds_per_token(
    card: ModelFacts,
    hardware: Hardware,
    *,
    context_tokens: int = 0,
    batch: int = 1,
    decode_factor: float = 1.0,
) -> float:
    """Seconds between two answer tokens of one sequence, of `batch` that are decoded together.

    `decode_factor` is a self-test's speed over the forecast's. Raises `ValueError` for a batch
    below 1.
    """
    if not hardware.accelerated:
        read = weights_bytes(card) + batch * context_tokens * kv_bytes_per_token(card)
        rate = CPU_DECODE_EFFICIENCY * hardware.bandwidth_bytes_per_second * decode_factor
        return read / rate
    machine = machine_of(hardware, decode_factor=decode_factor)
    return step_seconds(work_of(card), machine, context_tokens=context_tokens, batch=batch)


# -- reading prompts -----------------------------------------------------------------------------


def matrix_rate(work: Work, machine: Machine, constants: PrefillConstants) -> float:
    """Operations a second that long matrix products reach, self-test left out."""
    share = constants.matrix_share * constants.engine_share[machine.engine]
    share *= constants.generation_share[min(machine.generation, 4)]
    if machine.engine == "mlx" and machine.generation >= 4:
        share *= constants.mlx_m5_share
    if machine.is_ultra:
        share *= constants.ultra_share
    if work.is_float:
        share *= constants.float_share
    if work.is_sandwich:
        share *= constants.sandwich_share
    if work.recurrent_layers:
        share *= constants.recurrent_share.of(machine.engine)
    return share * machine.matrix_peak


def prompt_seconds(
    work: Work,
    machine: Machine,
    tokens: int,
    *,
    before_tokens: int = 0,
    constants: SpeedConstants | None = None,
) -> float:
    """Seconds to read `tokens` of a prompt after `before_tokens` that are in the cache already."""
    if tokens <= 0:
        return 0.0
    found = (constants or speed_constants()).prefill
    rate = matrix_rate(work, machine, found)
    chunk = min(tokens, machine.chunk_tokens or CHUNK_TOKENS[machine.engine])
    seconds = 2.0 * work.parameters * tokens / rate
    if work.experts:
        each = chunk * work.experts_per_token / work.experts
        half = found.half_tokens.of(machine.engine)
        share = found.expert_share * each / (each + half)
        seconds += 2.0 * work.expert_parameters * tokens / (rate * share)
    seconds += _attention_operations(work, tokens, before_tokens) / (rate * found.attention_share)
    read = work.always_bytes + work.expert_bytes_read(chunk)
    chunks = ceil(tokens / chunk)
    seconds += found.weights_factor * read * chunks / machine.bandwidth_bytes_per_second
    seconds += work.layers * found.layer_seconds.of(machine.engine)
    return seconds / machine.prefill_factor


def _attention_operations(work: Work, tokens: int, before: int) -> float:
    """Each token sees those before it: the sum over the prompt, windows cut off."""
    total = 0.0
    for layers in work.attention:
        if layers.window is None:
            seen = tokens * before + tokens * tokens / 2
        else:
            growing = max(min(layers.window - before, tokens), 0)
            seen = growing * (before + growing / 2) + (tokens - growing) * layers.window
        total += layers.operations * seen
    return total


def prefill_seconds(
    card: ModelFacts,
    tokens: int,
    hardware: Hardware,
    *,
    before_tokens: int = 0,
    prefill_factor: float = 1.0,
) -> float:
    """Seconds to read a prompt of `tokens`, after `before_tokens` that are cached already.

    Without a GPU a fixed multiple of the decoding speed (measured on a CPU).
    """
    if not hardware.accelerated:
        each = decode_seconds_per_token(card, hardware) / CPU_PREFILL_RATIO
        return tokens * each / prefill_factor
    machine = machine_of(hardware, prefill_factor=prefill_factor, chunk_tokens=PREFILL_CHUNK_TOKENS)
    return prompt_seconds(work_of(card), machine, tokens, before_tokens=before_tokens)


# -- loading -------------------------------------------------------------------------------------


def load_seconds(card: ModelFacts, *, disk_bytes_per_second: int = DISK_BYTES_PER_SECOND) -> float:
    """Seconds from a file on disk to a first token: the runner's start and one read of the file."""
    if disk_bytes_per_second <= 0:
        raise ValueError("disk_bytes_per_second must be positive")
    return RUNNER_START_SECONDS + weights_bytes(card) / disk_bytes_per_second
