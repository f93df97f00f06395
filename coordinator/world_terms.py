"""The rules that MLX World's pages state, as they are in force here: how long things are kept, and
what seats ask for and pay.
"""

from __future__ import annotations

from typing import Final

from coordinator.settings import Settings
from ledger.availability import SLOT_SECONDS, SlotFacts, claim_umlx
from ledger.ratecard import GIBIBYTE, SLOT_US, RateCard, Seat
from node_agent.sizing.chips import Chip, find_chip
from web_world.source import Keeping, SeatExample, SeatTerms, Terms

EXAMPLES: Final = (
    ("M4", 10, 16),
    ("M4 Pro", 20, 48),
    ("M4 Max", 40, 128),
    ("M3 Ultra", 80, 256),
    ("M3 Ultra", 80, 512),
)
"""(chip, GPU cores, GB lent) of the Macs whose pay the page shows."""


def terms_of(settings: Settings, card: RateCard) -> Terms:
    """What is in force under these settings and this card."""
    keeping = Keeping(
        stream_seconds=int(settings.stream_keep_seconds),
        result_seconds=int(settings.result_keep_seconds),
        enrolment_seconds=int(settings.enrolment_seconds),
    )
    return Terms(keeping, _seat_terms(card))


def _seat_terms(card: RateCard) -> SeatTerms:
    seats, rates = card.seats, card.availability
    return SeatTerms(
        dedicated_seconds_per_day=seats.dedicated_seconds_per_day,
        dedicated_days=seats.dedicated_days,
        upkeep_seconds_per_week=seats.upkeep_seconds_per_week,
        ultra_bandwidth_bytes_per_second=seats.ultra_bandwidth_bytes_per_second,
        ultra_self_tests=seats.ultra_self_tests,
        ultra_lent_ppm=seats.ultra_lent_ppm,
        ultra_lent_bytes=seats.ultra_lent_bytes,
        checks_passed=seats.checks_passed,
        idle_umlx_per_point_hour=rates.idle_umlx_per_point_hour,
        dedicated_umlx_per_point_hour=rates.dedicated_umlx_per_point_hour,
        ultra_umlx_per_point_hour=rates.ultra_umlx_per_point_hour,
        bandwidth_bytes_per_second_per_point=rates.bandwidth_bytes_per_second_per_point,
        memory_bytes_per_point=rates.memory_bytes_per_point,
        measured_ppm=rates.measured_ppm,
        service_levels=rates.service_levels,
        examples=tuple(_example(name, cores, gib * GIBIBYTE, card) for name, cores, gib in EXAMPLES),
    )


def _example(name: str, gpu_cores: int, lent_bytes: int, card: RateCard) -> SeatExample:
    chip = find_chip(name, gpu_cores)
    assert chip is not None, name
    reaches_ultra = chip.bandwidth_bytes_per_second >= card.seats.ultra_bandwidth_bytes_per_second
    return SeatExample(
        mac=name,
        lent_bytes=lent_bytes,
        idle_umlx=_hour_umlx("idle", chip, lent_bytes, card),
        dedicated_umlx=_hour_umlx("dedicated", chip, lent_bytes, card),
        ultra_umlx=_hour_umlx("ultra", chip, lent_bytes, card) if reaches_ultra else None,
    )


def _hour_umlx(seat: Seat, chip: Chip, lent_bytes: int, card: RateCard) -> int:
    """An hour's slots of standing ready, at the maker's bandwidth, measured and audited."""
    slot = SlotFacts(
        device="",
        owner="",
        seat=seat,
        slot_start_us=0,
        measured_bandwidth_bytes_per_second=chip.bandwidth_bytes_per_second,
        specified_bandwidth_bytes_per_second=chip.bandwidth_bytes_per_second,
        lent_bytes=lent_bytes,
        trust="audited",
        present_seconds=SLOT_SECONDS,
    )
    return 3600 * 1_000_000 // SLOT_US * claim_umlx(slot, card)
