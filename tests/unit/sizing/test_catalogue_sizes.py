"""The catalogue's sizes at full scale: MLX's own modules, made and never computed, hold as much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any, Final

import pytest

from coordinator.catalogue.build import ROUTERS_AT_8, Model, Width, read_models, shape_of
from node_agent.sizing.weights import computed_bytes

# One child makes every model, which takes its time on a machine with other things to do.
pytestmark = pytest.mark.timeout(300)

# Keys that the library's classes insist on and that change no size.
INSISTED: Final[dict[str, Any]] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "use_qk_norm": False,
    "attention_bias": False,
    "rotary_dim": 64,
    "shared_intermediate_size": 0,
    "query_pre_attn_scalar": 32,
    "rope_local_base_freq": 10000.0,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "attention_chunk_size": 8192,
    "interleave_moe_layer_step": 1,
    "rope_traditional": False,
}
ROPE: Final = {"rope_theta": 10000.0, "type": "default", "partial_rotary_factor": 0.25}
WRAPPED: Final = {
    "mistral3": "llama",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
}
AT_8: Final = {"group_size": 64, "bits": 8}
MXFP4: Final = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
TABLES: Final[dict[Width, dict[str, Any]]] = {
    "4bit": {"group_size": 64, "bits": 4},
    "8bit": AT_8,
    "bf16": {},
    "mxfp4-q8": {**AT_8, "experts.": MXFP4, "switch_mlp.": MXFP4},
    "int4": {"switch_mlp.": {"group_size": 32, "bits": 4}},
}
MODELS: Final = {model.id: model for model in read_models()}


def width_of(model: Model) -> Width:
    return next(iter(model.repos))


def case(model: Model) -> dict[str, Any]:
    kind, width = model.config["model_type"], width_of(model)
    config = {**INSISTED, "no_rope_layers": [1] * model.config["num_hidden_layers"], **model.config}
    if kind != "gemma4_text":
        config["rope_parameters"] = ROPE
    if kind in WRAPPED:
        tied = model.config["tie_word_embeddings"]
        inner = {**config, "model_type": WRAPPED[kind]}
        config = {"model_type": kind, "text_config": inner, "tie_word_embeddings": tied}
    table = dict(TABLES[width])
    if kind in ROUTERS_AT_8:
        table |= dict.fromkeys(("mlp.gate", "router", "router.proj", "block_sparse_moe.gate"), AT_8)
    return {"config": config, "activation_bytes": 2, "prompt": 0, "quantization": table}


@cache
def measured() -> dict[str, dict[str, Any]]:
    """Bytes of every model; one child for all. Its arrays are never computed, so they take none."""
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed here")
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.sizing.mlx_child"],
        input=json.dumps([case(model) for model in MODELS.values()]),
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
        env=os.environ | {"MLX_DISABLE_COMPILE": "1"},
    )
    return dict(zip(MODELS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_card_is_as_large_as_the_librarys_model(name: str) -> None:
    model, found = MODELS[name], measured()[name]
    assert "error" not in found, found
    computed = computed_bytes(shape_of(model, width_of(model)))
    assert computed == pytest.approx(found["weights_bytes"], rel=0.005)
