"""The rules that the made-up network states: those of a coordinator as it is installed.

A test holds that they are the coordinator's own, which this package does not know.
"""

from __future__ import annotations

from typing import Final

from web_world.source import Keeping, SeatExample, SeatTerms, Terms

GIB: Final = 1 << 30
GB: Final = 10**9
DEMO_TERMS: Final = Terms(
    keeping=Keeping(stream_seconds=600, result_seconds=86_400, enrolment_seconds=900),
    seats=SeatTerms(
        dedicated_seconds_per_day=20 * 3600,
        dedicated_days=7,
        upkeep_seconds_per_week=2 * 3600,
        ultra_bandwidth_bytes_per_second=650 * GB,
        ultra_self_tests=3,
        ultra_lent_ppm=600_000,
        ultra_lent_bytes=40 * GIB,
        checks_passed=10,
        idle_umlx_per_point_hour=20_000,
        dedicated_umlx_per_point_hour=50_000,
        ultra_umlx_per_point_hour=100_000,
        bandwidth_bytes_per_second_per_point=100 * GB,
        memory_bytes_per_point=64 * GIB,
        measured_ppm=300_000,
        service_levels=((990_000, 1_000_000), (950_000, 500_000)),
        examples=(
            SeatExample("M4", 16 * GIB, 28_998, 72_498, None),
            SeatExample("M4 Pro", 48 * GIB, 69_600, 174_000, None),
            SeatExample("M4 Max", 128 * GIB, 149_196, 372_996, None),
            SeatExample("M3 Ultra", 256 * GIB, 243_798, 609_498, 1_218_996),
            SeatExample("M3 Ultra", 512 * GIB, 323_796, 809_496, 1_618_998),
        ),
    ),
)
