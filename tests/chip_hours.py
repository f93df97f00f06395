"""What one hour earns on each chip, by the rate card in force: busy with jobs, or standing ready.

The busy hour decodes one answer after another at 0.6 of the chip's bandwidth, the share that
`node_agent.sizing.speed` assumes; prompts are left out. Amounts are the owner's, the fee taken off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ledger.availability import SlotFacts, claim_umlx
from ledger.plaintext import mlx
from ledger.pricing import PER_MILLION
from ledger.ratecard import CARD, GIBIBYTE, GIGABYTE, SEATS, Seat, prices_for
from node_agent.sizing.chips import find_chip

MODELS_GB: Final = ((2, 4), (5, 8), (3, 40))
"""(GB read per token, GB resident): small, middle, and large with few active experts."""

MACS: Final = (
    ("M4", 10, 16),
    ("M4 Pro", 20, 48),
    ("M4 Max", 40, 128),
    ("M3 Ultra", 80, 256),
    ("M3 Ultra", 80, 512),
)
"""(chip, GPU cores, GB lent)."""


def busy_hour_umlx(bandwidth_bytes_per_second: int, read_gb: int, resident_gb: int) -> int:
    """What an hour of decoding earns its owner."""
    tokens = 3600 * 6 * bandwidth_bytes_per_second // (10 * read_gb * GIGABYTE)
    per_million = prices_for(read_gb * GIGABYTE, resident_gb * GIGABYTE).output_umlx_per_million
    return tokens * per_million * (PER_MILLION - CARD.fees.fee_ppm) // PER_MILLION**2


def standing_hour_umlx(seat: Seat, bandwidth_bytes_per_second: int, lent_bytes: int) -> int:
    """What six slots of standing ready earn from a full pool, measured and audited."""
    slot = SlotFacts(
        device="device",
        owner="owner",
        seat=seat,
        slot_start_us=0,
        measured_bandwidth_bytes_per_second=bandwidth_bytes_per_second,
        specified_bandwidth_bytes_per_second=bandwidth_bytes_per_second,
        lent_bytes=lent_bytes,
        trust="audited",
        present_seconds=600,
    )
    return 6 * claim_umlx(slot, CARD)


def hours(chip_name: str, gpu_cores: int, lent_gb: int) -> tuple[list[int], list[int]]:
    """(busy hour of each model, standing hour of each seat) in uMLX."""
    chip = find_chip(chip_name, gpu_cores)
    assert chip is not None
    bandwidth = chip.bandwidth_bytes_per_second
    busy = [busy_hour_umlx(bandwidth, read_gb, resident_gb) for read_gb, resident_gb in MODELS_GB]
    return busy, [standing_hour_umlx(seat, bandwidth, lent_gb * GIBIBYTE) for seat in SEATS]


def chip_lines() -> Iterator[str]:
    """The table, a line per Mac, in MLX an hour."""
    yield "MLX an hour         busy: small  middle   large | standing: idle dedicated    ultra"
    for name, cores, lent_gb in MACS:
        busy, standing = hours(name, cores, lent_gb)
        busy_text = "".join(f"{mlx(umlx)[:-4]:>8}" for umlx in busy)
        standing_text = "".join(f"{mlx(umlx)[:-3]:>9}" for umlx in standing)
        yield f"{name:10}{lent_gb:4} GB    {busy_text}    |      {standing_text}"
    yield "small: 2 GB read per token, 4 GB resident; middle: 5 and 8; large, few experts active: 3 and 40"
