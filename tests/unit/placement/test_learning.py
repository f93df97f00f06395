"""What is learnt of a Mac's speed is what it is, and one odd hour does not change it."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.learning import (
    DECODED_TOKENS_MIN,
    SEEN_MAX,
    STEP,
    Stretch,
    learnt_factor,
    seen_decoding,
    seen_reading,
)
from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing import speed
from node_agent.sizing.chips import all_chips
from node_agent.sizing.work import machine_of, work_of

CARDS = ["llama-3.1-8b-4bit", "qwen3-30b-a3b-4bit", "gpt-oss-20b-mxfp4-q8", "smollm2-135m-f32"]
MACS = [
    Hardware(
        chip=f"Apple {chip.name}",
        memory_bytes=1 << 40,
        lent_bytes=1 << 39,
        bandwidth_bytes_per_second=chip.bandwidth_bytes_per_second,
        gpu_cores=chip.gpu_cores,
        accelerated=True,
    )
    for chip in all_chips()
]
CPU = MACS[0].model_copy(update={"accelerated": False})

cards = st.sampled_from(CARDS)
factors = st.floats(0.1, 2.5)


def known(name: str) -> ModelFacts:
    card = load_catalogue().known(name)
    assert card is not None
    return card


@settings(deadline=None)
@given(cards, st.sampled_from(MACS), factors, st.integers(1, 8), st.integers(0, 8000))
def test_a_steady_mac_shows_its_factor(
    name: str, mac: Hardware, factor: float, batch: int, context: int
) -> None:
    card = known(name)
    step = speed.step_seconds(
        work_of(card), machine_of(mac, decode_factor=factor), context_tokens=context, batch=batch
    )
    tokens = max(DECODED_TOKENS_MIN, int(1 / step))
    found = seen_decoding(card, mac, Stretch(tokens, tokens * step, context, batch))
    assert found == pytest.approx(factor, rel=1e-6)


@settings(deadline=None)
@given(cards, factors, st.integers(0, 4000))
def test_without_a_gpu_too(name: str, factor: float, context: int) -> None:
    card = known(name)
    step = speed.decode_seconds_per_token(card, CPU, context_tokens=context, decode_factor=factor)
    tokens = max(DECODED_TOKENS_MIN, int(1 / step))
    found = seen_decoding(card, CPU, Stretch(tokens, tokens * step, context, 1))
    assert found == pytest.approx(factor, rel=1e-6)


@settings(deadline=None)
@given(cards, st.sampled_from([*MACS, CPU]), st.floats(0.1, 1.4), st.integers(2000, 30_000))
def test_a_long_prompt_shows_its_factor(name: str, mac: Hardware, factor: float, tokens: int) -> None:
    card = known(name)
    plain = speed.prefill_seconds(card, tokens, mac)
    found = seen_reading(card, mac, tokens=tokens, seconds=plain / factor)
    if plain < 1:
        assert found is None
    else:
        assert found == pytest.approx(factor, rel=1e-6)


def test_what_says_too_little_is_no_observation() -> None:
    card, mac = known("llama-3.1-8b-4bit"), MACS[0]
    assert seen_decoding(card, mac, Stretch(DECODED_TOKENS_MIN - 1, 60.0, 100, 1)) is None
    assert seen_decoding(card, mac, Stretch(1000, 0.4, 100, 1)) is None
    assert seen_reading(card, mac, tokens=5, seconds=3.0) is None
    # A prompt that was read in no time was cached.
    assert seen_reading(card, mac, tokens=20_000, seconds=1.0) is None


def test_a_mac_is_believed_by_degrees() -> None:
    assert learnt_factor([]) == 1.0
    found = [learnt_factor([0.5] * count) for count in range(SEEN_MAX + 1)]
    assert found == sorted(found, reverse=True)
    assert 0.65 < found[1] < 0.75
    assert 0.5 < found[SEEN_MAX] < 0.56


def test_what_is_old_is_believed_less() -> None:
    found = [learnt_factor([0.5] * SEEN_MAX, age_seconds=hours * 3600) for hours in (0, 3, 6, 12, 24, 240)]
    assert found == sorted(found)
    assert (found[0] < 0.56, 0.68 < found[2] < 0.78, found[-1]) == (True, True, 1.0)
    # A clock that goes back makes nothing believed more.
    assert learnt_factor([0.5], age_seconds=-60) == learnt_factor([0.5])


@given(st.lists(st.floats(0.05, 3.0), min_size=1, max_size=SEEN_MAX))
def test_a_factor_lies_between_one_and_what_was_seen(seen: list[float]) -> None:
    found = learnt_factor(seen)
    slack = exp(STEP / 2) + 1e-9
    assert min(*seen, 1.0) / slack <= found <= max(*seen, 1.0) * slack


@given(st.floats(0.6, 1.0), st.floats(0.05, 3.0))
def test_one_odd_observation_among_nine_changes_nothing(usual: float, odd: float) -> None:
    assert learnt_factor([usual] * 8 + [odd]) == learnt_factor([usual] * 9)
