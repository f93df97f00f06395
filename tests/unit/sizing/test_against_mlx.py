"""Weights and caches as computed from a configuration, against MLX's own tiny random models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from node_agent.sizing.config import shape_from_config
from node_agent.sizing.memory import layer_cache_bytes
from node_agent.sizing.weights import computed_bytes, layer_plans
from tests.unit.sizing.families import FAMILIES, PLAIN, Config

# One child makes every model, which takes its time on a machine with other things to do.
pytestmark = pytest.mark.timeout(300)

PROMPT_TOKENS, GENERATED_TOKENS = 260, 2
TOLERANCE = 0.01
FOUR_BIT = {"group_size": 32, "bits": 4}
WIDTHS: dict[str, tuple[str, Config]] = {
    "4-bit": ("qwen3", FOUR_BIT),
    "4-bit experts": ("qwen3_moe", FOUR_BIT),
    "4-bit latent": ("deepseek_v3", FOUR_BIT),
    "4-bit hybrid": ("falcon_h1", FOUR_BIT),
    "4-bit mamba": ("mamba", FOUR_BIT),
    "8-bit": ("llama", {"group_size": 64, "bits": 8}),
    "3-bit": ("llama", {"group_size": 64, "bits": 3}),
    "6-bit": ("llama", {"group_size": 64, "bits": 6}),
    "mxfp4": ("gpt_oss", {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
    "nvfp4": ("llama", {"group_size": 16, "bits": 4, "mode": "nvfp4"}),
    "mxfp4 experts, the rest 8-bit": (
        "gpt_oss",
        {"group_size": 64, "bits": 8, "experts.": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
    ),
    "6-bit embedding": ("llama", {**FOUR_BIT, "embed_tokens": {"group_size": 64, "bits": 6}}),
    "a group that does not divide": ("llama", {"group_size": 128, "bits": 4}),
}


def cases() -> dict[str, Config]:
    found: dict[str, Config] = {
        name: {"config": config, "activation_bytes": 4, "prompt": PROMPT_TOKENS}
        for name, config in FAMILIES.items()
    }
    for name, (family, table) in WIDTHS.items():
        config = FAMILIES[family]
        if "divide" in name:
            config = config | {"hidden_size": 192, "intermediate_size": 384, "head_dim": 32}
        found[name] = {"config": config, "activation_bytes": 2, "prompt": 0, "quantization": table}
    return found


@cache
def measured() -> dict[str, dict[str, Any]]:
    """What MLX says of every case; one child for all, since starting it takes most of the time."""
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed here")
    asked = cases()
    sent = [{"chunk": 128, "generate": GENERATED_TOKENS, **case} for case in asked.values()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.sizing.mlx_child"],
        input=json.dumps(sent),
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
        env=os.environ | {"MLX_DISABLE_COMPILE": "1"},
    )
    return dict(zip(asked, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", [*FAMILIES, *WIDTHS])
def test_bytes_are_the_librarys_own(name: str) -> None:
    case, found = cases()[name], measured()[name]
    assert "error" not in found, found
    config = case["config"] | {"quantization": case.get("quantization")}
    shape = shape_from_config(config, activation_bytes=case["activation_bytes"])
    assert computed_bytes(shape) == pytest.approx(found["weights_bytes"], rel=TOLERANCE)
    if case["prompt"]:
        tokens = PROMPT_TOKENS + GENERATED_TOKENS
        caches = sum(layer_cache_bytes(shape, plan, tokens) for plan in layer_plans(shape))
        assert caches == pytest.approx(found["cache_bytes"], rel=TOLERANCE)


def test_the_check_would_notice_a_wrong_shape() -> None:
    config = PLAIN | {"model_type": "llama", "intermediate_size": 540}
    assert computed_bytes(shape_from_config(config, activation_bytes=4)) != pytest.approx(
        measured()["llama"]["weights_bytes"], rel=TOLERANCE
    )
