"""Forecasts of speed: their directions, and how far they are off published Macs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.catalogue.build import read_models, unpinned_card
from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing import pods, speed
from node_agent.sizing.chips import all_chips, find_chip
from node_agent.sizing.work import chip_kind, machine_of, work_of
from tests.unit.sizing.evaluate import evaluate
from tests.unit.sizing.published import data_folder
from tests.unit.sizing.test_memory import CARD

MODELS = {model.id: model for model in read_models()}


def card(model: str, width: str = "4bit") -> ModelFacts:
    return unpinned_card(MODELS[model], width)  # pyright: ignore[reportArgumentType]


def mac(chip: str, gpu_cores: int) -> Hardware:
    found = find_chip(chip, gpu_cores)
    assert found is not None
    return Hardware(
        chip=chip,
        memory_bytes=1 << 36,
        lent_bytes=1 << 35,
        bandwidth_bytes_per_second=found.bandwidth_bytes_per_second,
        gpu_cores=gpu_cores,
        accelerated=True,
    )


CPU = Hardware(memory_bytes=1 << 34, lent_bytes=1 << 33, bandwidth_bytes_per_second=19 * 10**9)
ULTRA = mac("Apple M3 Ultra", 80)
LLAMA = card("llama-3.1-8b")


def test_the_table_has_no_variant_twice() -> None:
    keys = [(chip.name, chip.gpu_cores) for chip in all_chips()]
    assert len(keys) == len(set(keys)) > 30


@pytest.mark.parametrize(
    ("name", "cores", "gigabytes"),
    [("Apple M4 Max", 40, 546), ("M4 Max", 32, 410), ("Apple M3 Ultra", 80, 819)],
)
def test_a_chip_is_found_by_name_and_cores(name: str, cores: int, gigabytes: int) -> None:
    chip = find_chip(name, cores)
    assert chip is not None
    assert chip.bandwidth_bytes_per_second == gigabytes * 10**9


def test_an_unknown_variant_counts_as_the_slowest_and_an_unknown_chip_as_none() -> None:
    chip = find_chip("Apple M4 Max", 0)
    assert chip is not None
    assert chip.bandwidth_bytes_per_second == 410 * 10**9
    assert find_chip("Apple M99", 10) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Apple M1", (0, "")),
        ("Apple M4 Max", (3, "Max")),
        ("M5 Ultra", (4, "Ultra")),
        ("Apple M99 Pro", (5, "Pro")),
        ("something else", (0, "")),
    ],
)
def test_a_chips_name_tells_its_generation(name: str, kind: tuple[int, str]) -> None:
    assert chip_kind(name) == kind


def test_decoding_takes_at_least_the_time_to_read_the_weights() -> None:
    for hardware in (mac("Apple M1", 8), mac("Apple M4 Max", 40), ULTRA):
        seconds = speed.decode_seconds_per_token(LLAMA, hardware)
        read = work_of(LLAMA).always_bytes / hardware.bandwidth_bytes_per_second
        assert read < seconds < 4 * read


def test_anchors_that_many_have_measured() -> None:
    # Meta-Llama-3.1-8B 4-bit in MLX on an M3 Ultra: 110-119 tokens a second; Qwen3 4B on an M4 Max: 134.
    assert 1 / speed.decode_seconds_per_token(LLAMA, mac("Apple M3 Ultra", 60)) == pytest.approx(115, rel=0.1)
    small = card("qwen3-4b")
    seconds = speed.decode_seconds_per_token(small, mac("Apple M4 Max", 40), context_tokens=2048)
    assert 1 / seconds == pytest.approx(134, rel=0.2)


def test_a_mixture_of_experts_reads_its_active_part_alone() -> None:
    experts, dense = card("qwen3-30b-a3b"), card("qwen3-32b")
    fast = speed.decode_seconds_per_token(experts, ULTRA)
    assert fast < speed.decode_seconds_per_token(dense, ULTRA) / 2.5


def test_context_and_company_cost_time() -> None:
    empty = speed.decode_seconds_per_token(LLAMA, ULTRA)
    assert speed.decode_seconds_per_token(LLAMA, ULTRA, context_tokens=32768) > 1.2 * empty
    eight = speed.decode_seconds_per_token(LLAMA, ULTRA, batch=8)
    assert empty < eight < 8 * empty
    with pytest.raises(ValueError, match="batch"):
        speed.decode_seconds_per_token(LLAMA, ULTRA, batch=0)


def test_a_window_bounds_what_context_costs() -> None:
    swa, full = card("gpt-oss-20b", "mxfp4-q8"), card("qwen3-30b-a3b")
    growth = [
        speed.decode_seconds_per_token(each, ULTRA, context_tokens=65536)
        / speed.decode_seconds_per_token(each, ULTRA)
        for each in (swa, full)
    ]
    assert growth[0] < growth[1]


def test_a_cpu_is_forecast_near_its_measured_speed() -> None:
    # Measured on such a machine: 6.3-9.0 tokens and 85-113 prompt tokens a second.
    assert 6.0 < 1 / speed.decode_seconds_per_token(CARD, CPU) < 9.0
    assert 70 < 100 / speed.prefill_seconds(CARD, 100, CPU) < 120


def test_a_faster_chip_is_never_forecast_slower() -> None:
    small, large = mac("Apple M4", 10), mac("Apple M4 Max", 40)
    for tokens in (1, 100, 4000):
        assert speed.prefill_seconds(CARD, tokens, large) < speed.prefill_seconds(CARD, tokens, small)


def test_a_cached_beginning_is_not_read_again() -> None:
    whole = speed.prefill_seconds(LLAMA, 8000, ULTRA)
    rest = speed.prefill_seconds(LLAMA, 2000, ULTRA, before_tokens=6000)
    assert rest < whole / 2
    assert speed.prefill_seconds(LLAMA, 0, ULTRA) == 0


def test_a_self_test_is_taken_at_its_word() -> None:
    work, machine = work_of(LLAMA), machine_of(ULTRA)
    measured = 1.9 * speed.step_seconds(work, machine)
    factor = speed.decode_factor(work, machine, measured)
    slower = replace(machine, decode_factor=factor)
    assert speed.step_seconds(work, slower) == pytest.approx(measured)
    # Where starting kernels is most of the time, a slow memory changes less.
    tiny = work_of(card("qwen3-0.6b"))
    assert speed.step_seconds(tiny, slower) < 1.8 * speed.step_seconds(tiny, machine)


def test_loading_is_bounded_below_by_the_disk() -> None:
    assert speed.load_seconds(CARD, disk_bytes_per_second=10**8) > 5.38
    with pytest.raises(ValueError, match="disk_bytes_per_second"):
        speed.load_seconds(CARD, disk_bytes_per_second=0)


def test_tensor_parallel_pays_where_bytes_outweigh_the_all_reduces() -> None:
    machine, link = machine_of(ULTRA), pods.Link()
    large, small = work_of(card("llama-3.1-405b")), work_of(LLAMA)
    assert pods.tensor_step_seconds(large, machine, 4, link) < speed.step_seconds(large, machine) / 1.5
    assert pods.tensor_step_seconds(small, machine, 4, link) > 0.9 * speed.step_seconds(small, machine)
    assert pods.tensor_step_seconds(small, machine, 1, link) == speed.step_seconds(small, machine)


def test_an_all_reduces_cost_is_found_back() -> None:
    machine, work = machine_of(ULTRA), work_of(card("llama-3.1-70b"))
    link = pods.Link(alpha_seconds=200e-6, bytes_per_second=1e15)
    step = pods.tensor_step_seconds(work, machine, 2, link)
    assert pods.alpha_of(work, machine, 2, step, link=link) == pytest.approx(200e-6, rel=1e-3)


def test_a_pipeline_gains_on_long_prompts_only() -> None:
    machine, work, link = machine_of(ULTRA), work_of(card("deepseek-v3")), pods.Link()
    pair, split = (machine, machine), (31, 30)
    assert pods.pipeline_step_seconds(work, pair, split, link) > speed.step_seconds(work, machine)
    for tokens, gain in ((1000, 1.1), (16384, 1.5)):
        ratio = speed.prompt_seconds(work, machine, tokens) / pods.pipeline_prompt_seconds(
            work, pair, split, tokens, link
        )
        assert ratio < gain if tokens == 1000 else ratio > gain


def test_published_speeds_are_met_within_the_stated_errors() -> None:
    folder = data_folder()
    if folder is None:
        pytest.skip("no published speeds (single_mac_tps.csv): name their folder by SPEED_DATA")
    found = evaluate(folder)
    assert (found["decode_median"], found["decode_p90"]) < (0.09, 0.26)
    assert found["decode_p90"] < 0.26
    assert (found["prefill_median"] < 0.18, found["prefill_p90"] < 0.45) == (True, True)
    assert (found["decode_slow_tested_median"] < 0.13, found["decode_slow_tested_p90"] < 0.32) == (True, True)
    assert (found["tensor_median"] < 0.12, found["tensor_p90"] < 0.25) == (True, True)
