"""Forecasts by class of Mac are those of sizing, one Mac at a time."""

from __future__ import annotations

import pytest

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.speeds import SpeedClasses, rounded_down
from node_agent.protocol.messages import Hardware
from node_agent.sizing import memory, speed
from node_agent.sizing.chips import all_chips
from node_agent.sizing.work import Machine, work_of

CATALOGUE = load_catalogue()
# One of each kind: dense, experts, latent attention, windows, recurrent layers, floats.
CARDS = [
    "llama-3.1-8b-4bit",
    "qwen3-30b-a3b-4bit",
    "deepseek-v3-4bit",
    "gemma-3-12b-4bit",
    "qwen3.6-27b-4bit",
    "gpt-oss-20b-mxfp4-q8",
    "smollm2-135m-f32",
]


def some_hardware() -> list[Hardware]:
    found = [
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
    return [*found, found[0].model_copy(update={"accelerated": False})]


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize(("context", "batch"), [(0, 1), (700, 1), (40_000, 5)])
def test_steps_and_prompts_of_all_chips_are_those_of_sizing(name: str, context: int, batch: int) -> None:
    card = CATALOGUE.known(name)
    assert card is not None
    classes = SpeedClasses()
    numbers = [classes.number(one, 0.8, 0.7) for one in some_hardware()]
    steps = classes.step_seconds(card, name, context_tokens=context, batch=batch)
    prompts = classes.prompt_seconds(card, name, 3000, before_tokens=context)
    for number, hardware in zip(numbers, some_hardware(), strict=True):
        step, prompt = scalar(card, classes.machine(number), hardware, context, batch)
        assert steps[number] == pytest.approx(step, rel=1e-9)
        assert prompts[number] == pytest.approx(prompt, rel=1e-9)


def scalar(
    card: object, machine: Machine, hardware: Hardware, context: int, batch: int
) -> tuple[float, float]:
    model = CATALOGUE.known(getattr(card, "id"))  # noqa: B009
    assert model is not None
    if machine.is_accelerated:
        work = work_of(model)
        return (
            speed.step_seconds(work, machine, context_tokens=context, batch=batch),
            speed.prompt_seconds(work, machine, 3000, before_tokens=context),
        )
    rounded = hardware.model_copy(update={"bandwidth_bytes_per_second": machine.bandwidth_bytes_per_second})
    step = speed.decode_seconds_per_token(
        model, rounded, context_tokens=context, batch=batch, decode_factor=machine.decode_factor
    )
    # Without a GPU the prompt's factor is the decoder's, and its own.
    prompt = speed.prefill_seconds(model, 3000, rounded, prefill_factor=machine.prefill_factor)
    return step, prompt / machine.decode_factor


def test_a_larger_value_never_rounds_to_a_smaller_one_and_loses_little() -> None:
    values = [1.013**k for k in range(2000)]
    rounded = [rounded_down(value) for value in values]
    assert rounded == sorted(rounded)
    assert all(value / 1.012 < low <= value for value, low in zip(values, rounded, strict=True))


def test_classes_met_later_are_forecast_too() -> None:
    classes = SpeedClasses()
    card = CATALOGUE.cards["smollm2-135m-f32"]
    hardware = some_hardware()
    first = classes.number(hardware[0])
    before = classes.step_seconds(card, "r", context_tokens=100)[first]
    second = classes.number(hardware[20])
    found = classes.step_seconds(card, "r", context_tokens=100)
    assert len(found) == len(classes) == 2
    assert found[first] == before
    assert found[second] != before
    assert memory.weights_bytes(card) > 0
