"""What a model needs in memory: the formulas against hand-worked numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from node_agent.protocol.cards import ModelCard
from node_agent.sizing import memory

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
