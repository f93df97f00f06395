"""Which models divide among how many ranks: the library's own table, and the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from node_agent.protocol.shapes import Shape
from node_agent.sizing import make_sharding
from node_agent.sizing.config import shape_from_config
from node_agent.sizing.sharding import (
    ranks_allowed,
    sharding_table,
    why_not_pipeline,
    why_not_tensor,
)
from tests.unit.sizing.families import FAMILIES, PLAIN

FOUR_BIT = {"group_size": 64, "bits": 4}


def shape(**changes: Any) -> Shape:
    return shape_from_config(PLAIN | {"model_type": "llama"} | changes)


def test_the_table_is_that_of_the_installed_library() -> None:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed here")
    assert make_sharding.TARGET.read_text("utf-8") == make_sharding.table()


def test_the_table_knows_what_was_tried() -> None:
    # Each was run on two to four processes, or refused there.
    table = sharding_table()
    assert {"llama", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss", "solar_open"} <= table.tensor
    assert {"qwen2", "qwen3_moe", "deepseek_v3", "qwen3_next", "solar_open", "kimi_k3"} <= table.pipeline
    assert not {"llama", "qwen3", "gpt_oss", "kimi_vl"} & table.pipeline
    assert not {"gemma3_text", "phi3", "cohere2", "mamba2"} & (table.tensor | table.pipeline)


def test_an_alias_is_run_as_its_family() -> None:
    assert why_not_tensor(shape(model_type="mistral"), 2) is None
    assert ranks_allowed(shape(model_type="mistral"), "pipeline") == (1,)


@pytest.mark.parametrize(
    ("changes", "ranks", "word"),
    [
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 2, "heads"),
        # mlx-lm runs this one without a word, and answers wrongly.
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, 2, "heads"),
        ({"num_key_value_heads": 2}, 4, "kv_heads"),
        ({"intermediate_size": 513}, 2, "intermediate"),
        ({"intermediate_size": 192, "quantization": FOUR_BIT}, 2, "groups of 64"),
        ({"model_type": "gemma3_text", "sliding_window": 64}, 2, "gemma3_text"),
        ({}, 0, "ranks"),
        ({}, 17, "ranks"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_reason(
    changes: dict[str, Any], ranks: int, word: str
) -> None:
    why = why_not_tensor(shape(**changes), ranks)
    assert why is not None
    assert word in why


def test_what_was_run_is_allowed() -> None:
    assert ranks_allowed(
        shape(num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536), "tensor", 4
    ) == (1, 3)
    for family, ranks in (("qwen3", 4), ("qwen3_moe", 2), ("deepseek_v3", 4), ("gpt_oss", 2)):
        assert why_not_tensor(shape_from_config(FAMILIES[family]), ranks) is None
    for family, ranks in (("qwen3_moe", 2), ("deepseek_v3", 3), ("qwen3_next", 2)):
        assert why_not_pipeline(shape_from_config(FAMILIES[family]), ranks) is None


def test_few_kv_heads_are_repeated_where_the_library_does_so() -> None:
    text = FAMILIES["qwen3_5"]["text_config"] | {"num_key_value_heads": 2}
    hybrid = shape_from_config({"model_type": "qwen3_5", "text_config": text})
    assert why_not_tensor(hybrid, 4) is None


def test_a_pipeline_has_a_layer_for_every_rank() -> None:
    assert why_not_pipeline(shape_from_config(FAMILIES["qwen2"]), 4) is None
    why = why_not_pipeline(shape_from_config(FAMILIES["qwen2"]), 5)
    assert why is not None
    assert "4 layers" in why
