"""Forecasts of speed, and the table of chips they rest on."""

from __future__ import annotations

import pytest

from node_agent.protocol.messages import Hardware
from node_agent.sizing import speed
from node_agent.sizing.chips import all_chips, find_chip
from tests.unit.sizing.test_memory import CARD


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


def test_decoding_reads_every_weight_once_a_token() -> None:
    seconds = speed.decode_seconds_per_token(CARD, mac("Apple M4", 10))
    assert seconds == pytest.approx(CARD.weights_bytes / (0.6 * 120e9))
    longer = speed.decode_seconds_per_token(CARD, mac("Apple M4", 10), context_tokens=8192)
    assert longer > seconds


def test_a_cpu_is_forecast_near_its_measured_speed() -> None:
    # Measured on such a machine: 6.3-9.0 tokens and 85-113 prompt tokens a second.
    assert 6.0 < 1 / speed.decode_seconds_per_token(CARD, CPU) < 9.0
    assert 70 < 100 / speed.prefill_seconds(CARD, 100, CPU) < 120


def test_a_faster_chip_is_never_forecast_slower() -> None:
    small, large = mac("Apple M4", 10), mac("Apple M4 Max", 40)
    for tokens in (1, 100, 4000):
        assert speed.prefill_seconds(CARD, tokens, large) < speed.prefill_seconds(CARD, tokens, small)


def test_loading_is_bounded_below_by_the_disk() -> None:
    assert speed.load_seconds(CARD, disk_bytes_per_second=10**8) > 5.38
    with pytest.raises(ValueError, match="disk_bytes_per_second"):
        speed.load_seconds(CARD, disk_bytes_per_second=0)
