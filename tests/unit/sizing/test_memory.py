"""What a model needs in memory: the formulas against hand-worked numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from coordinator.catalogue.build import Width, read_models, unpinned_card
from node_agent.protocol.cards import ModelCard, UnpinnedCard
from node_agent.protocol.shapes import Shape
from node_agent.sizing import memory, ranks
from node_agent.sizing.hosts import GIB, usable_memory

CARD = ModelCard.model_validate(
    tomllib.loads(
        (Path(__file__).parents[3] / "coordinator/catalogue/cards/smollm2-135m-f32.toml").read_text()
    )
)


def test_kv_of_one_token_is_layers_times_keys_and_values() -> None:
    # 30 layers x (keys, values) x 3 heads x 64 x 4 bytes
    assert memory.kv_bytes_per_token(CARD) == 46_080


@pytest.mark.parametrize(("tokens", "slots"), [(0, 0), (1, 256), (256, 256), (257, 512), (8192, 8192)])
def test_slots_are_allocated_in_steps_of_256(tokens: int, slots: int) -> None:
    assert memory.slot_tokens(tokens) == slots


def test_a_batch_costs_width_times_its_longest_sequence() -> None:
    # The measured case: sequences of 7, 7 and 600 tokens held 3 x 768 slots.
    assert memory.kv_bytes(CARD, 600, 3) == 3 * 768 * 46_080


def test_needed_bytes_grow_with_context_and_width() -> None:
    base = memory.needed_bytes(CARD, 256, 1)
    assert base > CARD.weights_bytes
    assert memory.needed_bytes(CARD, 257, 1) - base == 256 * 46_080
    logits = 49_152 * 4 * 3
    assert memory.needed_bytes(CARD, 256, 2) - base == 256 * 46_080 + logits


@pytest.mark.parametrize(("tokens", "width"), [(-1, 1), (1, 0)])
def test_senseless_sizes_are_refused(tokens: int, width: int) -> None:
    with pytest.raises(ValueError, match="must"):
        memory.needed_bytes(CARD, tokens, width)


def test_the_cards_prices_follow_its_formula() -> None:
    active_gb = CARD.weights_bytes / 1e9
    resident_gb = active_gb + memory.kv_bytes(CARD, CARD.context_tokens, 1) / 1e9
    output = round(1e6 * (10 * active_gb + 0.02 * resident_gb))
    assert CARD.price.output_umlx_per_million == output
    assert CARD.price.input_umlx_per_million == round(0.1 * output)
    assert CARD.price.cached_input_umlx_per_million == round(0.25 * round(0.1 * output))


MODELS = {model.id: model for model in read_models()}


def known(model: str, width: Width = "4bit") -> UnpinnedCard:
    return unpinned_card(MODELS[model], width)


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        # As published for bfloat16: layers that see everything, keys and values or one latent row.
        ("llama-3.3-70b", 327_680),
        ("qwen3-235b-a22b-2507", 192_512),
        ("deepseek-v3.1", 70_272),
        ("kimi-k2", 70_272),
        ("qwen3.6-27b", 65_536),
        ("qwen3.6-35b-a3b", 20_480),
        ("glm-4.7-flash", 54_144),
        ("minimax-m2.5", 253_952),
    ],
)
def test_a_token_takes_what_is_published(model: str, bytes_per_token: int) -> None:
    assert memory.kv_bytes_per_token(known(model)) == bytes_per_token


def test_windows_stop_growing_and_states_never_do() -> None:
    model = known("gemma-3-27b")
    layout = memory.cache_layout(model.shape)
    long, longer = memory.kv_bytes(model, 8192, 1), memory.kv_bytes(model, 16_384, 1)
    assert longer - long == 8192 * layout.full_bytes
    assert layout.window == 1024
    hybrid = known("qwen3-next-80b-a3b")
    assert memory.kv_bytes(hybrid, 256, 1) > 36 * 32 * 128 * 128 * 4  # 36 layers' states in float32
    assert memory.kv_bytes(hybrid, 0, 1) == 0


def test_the_quantised_cache_is_the_measured_one() -> None:
    # 4 layers, 4 KV heads of 64, 512 slots, bfloat16 scales and biases a group of 64.
    shape = Shape(
        model_type="llama",
        layers=4,
        hidden=256,
        intermediate=512,
        heads=8,
        kv_heads=4,
        head_dim=64,
        vocab=512,
    )
    model = known("llama-3.1-8b").model_copy(update={"shape": shape})
    for bits in (8, 4):
        per_head = 64 * bits // 8 + 2 * 2
        assert memory.kv_bytes(model, 300, 1, kv_bits=bits) == 4 * 512 * 2 * 4 * per_head


def test_unfused_attention_needs_room_for_its_scores() -> None:
    fused = known("llama-3.1-8b").shape
    capped = fused.model_copy(update={"softcap": True})
    at = {"width": 1, "context_tokens": 32_768}
    extra = memory.activation_bytes(capped, **at) - memory.activation_bytes(fused, **at)
    assert extra == 512 * 32_768 * 32 * memory.SCORE_BYTES
    assert memory.is_fused(fused)
    assert not memory.is_fused(fused, kv_bits=8)
    # The published exception: a model with 16 heads and capped scores, 2,048 tokens against 131k, +41 GB.
    gemma2 = fused.model_copy(update={"softcap": True, "heads": 16, "head_dim": 256})
    peak = memory.activation_bytes(gemma2, 1, context_tokens=131_072, chunk_tokens=2048)
    assert pytest.approx(peak, rel=0.1) == 41e9


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        ("qwen3.5-4b", 5.977),
        ("qwen3.5-9b", 8.718),
        ("gemma-4-26b-a4b", 17.0),
        ("qwen3.6-35b-a3b", 22.0),
        ("qwen3.6-27b", 21.0),
    ],
)
def test_published_peaks_lie_below_what_is_asked_for(model: str, gigabytes: float) -> None:
    # Rapid-MLX on an M2 Pro, a prompt of 8,112 tokens in chunks of 2,048 and 96 of answer.
    parts = memory.needed_parts(known(model), 8208, 1, chunk_tokens=2048)
    without_reserve = parts.total_bytes - parts.reserve_bytes
    assert without_reserve == pytest.approx(gigabytes * 1e9, rel=0.08)
    assert gigabytes * 1e9 < parts.total_bytes + 0.9e9  # a vision tower may have been loaded as well


def test_a_rank_of_four_needs_what_is_published() -> None:
    # Peak of one node of four, tensor parallel, 405 billion parameters at 4 bits: 61.9 GB.
    parts = ranks.tensor_parts(known("llama-3.1-405b"), 1024, 1, 4)
    assert parts.total_bytes - parts.reserve_bytes < 61.9e9 < 1.03 * parts.total_bytes


def test_a_pod_is_as_small_as_its_smallest_mac() -> None:
    # 128 and 96 GB as one pod, a model of 180 GB: half of it is more than the smaller Mac may use.
    large = known("qwen3-235b-a22b-2507").model_copy(update={"weights_bytes": 180 * 10**9})
    needed = ranks.tensor_parts(large, 1024, 1, 2).total_bytes
    assert needed > usable_memory(96 * GIB).bytes
    assert needed < usable_memory(128 * GIB).bytes


def test_layers_are_dealt_out_without_gap_or_overlap() -> None:
    for layers, count in ((61, 2), (61, 3), (61, 4), (62, 4), (30, 4)):
        split = ranks.even_split(layers, count)
        assert sum(split) == layers
        assert max(split) - min(split) <= 1
    with pytest.raises(ValueError, match="split"):
        _ = ranks.pipeline_parts(known("deepseek-v3"), 10, 1, (30, 30))
