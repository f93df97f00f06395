"""The constants of the speed model, as a fit to published measurements leaves them.

`speed.toml` holds the values, and is written by the fit; each name is told here. A share is a part
of a peak that is reached. Factors by engine are for `mlx`, for `llama.cpp` (2025 and later), for
`llama.cpp-2023` and for `ollama`.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

Engine = Literal["mlx", "llama.cpp", "llama.cpp-2023", "ollama"]

GENERATIONS: Final = 6
# Peak arithmetic of one GPU core in operations a second, M1 to M6: of its vector units (clock x 128
# lanes x 2), and of its matrix products, which M5 brought units of their own for. M6 is not
# measured; it is taken as M5.
VECTOR_PEAK: Final = (0.325e12, 0.355e12, 0.36e12, 0.45e12, 0.48e12, 0.48e12)
MATRIX_PEAK: Final = (0.325e12, 0.355e12, 0.36e12, 0.45e12, 1.45e12, 1.45e12)


class _Constants(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ByEngine(_Constants):
    """One value for mlx, one for the others."""

    mlx: float
    other: float

    def of(self, engine: Engine) -> float:
        """The value that holds for an engine."""
        return self.mlx if engine == "mlx" else self.other


class DecodeConstants(_Constants):
    """Seconds of a step: bytes over usable bandwidth, layers times their cost, attention.

    `bandwidth_share` of the peak, times `generation_share` (M1 to M5), `ultra_share`,
    `engine_share`, `float_share` (weights that are not quantised). `layer_seconds` is the cost of
    starting a plain decoder layer's kernels on an M4, times `older_layer` for each generation before
    it; a layer with experts costs `expert_layer` more layers, one with norms on both sides
    `sandwich_layer` times, a recurrent one `recurrent_layer` times, on an Ultra `ultra_layer` times.
    Attention to the context runs at `attention_share` of the vector units, a further sequence of a
    batch at `batch_share`.
    """

    bandwidth_share: float
    generation_share: tuple[float, float, float, float, float]
    ultra_share: float
    engine_share: dict[Engine, float]
    float_share: float
    layer_seconds: dict[Engine, float]
    older_layer: float
    expert_layer: ByEngine
    sandwich_layer: float
    recurrent_layer: ByEngine
    ultra_layer: ByEngine
    attention_share: ByEngine
    batch_share: ByEngine


class PrefillConstants(_Constants):
    """Seconds of a prompt: operations over the matrix peak, attention, weights read, layers started.

    `matrix_share` of the peak, times `generation_share`, `engine_share`, `ultra_share`,
    `float_share`, `recurrent_share`, `sandwich_share`, and on M5 with mlx `mlx_m5_share`. Experts
    reach `expert_share`, and half of that when a chunk has `half_tokens` tokens for each expert.
    Attention reaches `attention_share` of that. Weights are read once a chunk at the bandwidth over
    `weights_factor`. `layer_seconds` a layer is paid once.
    """

    matrix_share: float
    generation_share: tuple[float, float, float, float, float]
    engine_share: dict[Engine, float]
    mlx_m5_share: float
    ultra_share: float
    float_share: float
    expert_share: float
    half_tokens: ByEngine
    attention_share: float
    weights_factor: float
    layer_seconds: ByEngine
    recurrent_share: ByEngine
    sandwich_share: float


class SpeedConstants(_Constants):
    """All of them."""

    decode: DecodeConstants
    prefill: PrefillConstants


@cache
def speed_constants() -> SpeedConstants:
    """The values in force, read once: part of the package, so the same on both sides."""
    text = resources.files(__package__ or "node_agent.sizing").joinpath("speed.toml").read_text()
    return SpeedConstants.model_validate(tomllib.loads(text))
