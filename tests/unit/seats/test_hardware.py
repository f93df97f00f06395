"""What a Mac can do at most: no claim counts beyond its chip, and every Ultra can have its seat."""

from __future__ import annotations

import pytest

from coordinator.seats.hardware import measured_bandwidth, specified_bandwidth, trust_of
from ledger.ratecard import CARD, GIBIBYTE
from ledger.seats import SeatFacts, granted_seat
from node_agent.sizing.chips import Chip, all_chips

ULTRAS = [chip for chip in all_chips() if chip.name.endswith("Ultra")]
OTHERS = [chip for chip in all_chips() if not chip.name.endswith("Ultra")]


def facts(chip: Chip, share_percent: int) -> SeatFacts:
    """A Mac of that chip whose self-tests reach a share of the maker's figure."""
    measured = chip.bandwidth_bytes_per_second * share_percent // 100
    return SeatFacts(
        promised_seconds_per_day=20 * 3600,
        promised_days=7,
        owner_may_interrupt=False,
        warm_bandwidths_bytes_per_second=(measured,) * 3,
        installed_bytes=96 * GIBIBYTE,
        lent_bytes=64 * GIBIBYTE,
        checks_passed=10,
    )


def test_the_table_has_ultra_chips() -> None:
    assert len({chip.name for chip in ULTRAS}) >= 3


@pytest.mark.parametrize("chip", ULTRAS, ids=lambda chip: f"{chip.name}-{chip.gpu_cores}")
def test_every_ultra_can_have_its_seat(chip: Chip) -> None:
    assert granted_seat(facts(chip, 85), "ultra", CARD) == "ultra"


@pytest.mark.parametrize("chip", OTHERS, ids=lambda chip: f"{chip.name}-{chip.gpu_cores}")
def test_no_other_chip_can(chip: Chip) -> None:
    assert granted_seat(facts(chip, 100), "ultra", CARD) == "dedicated"


def test_the_chip_bounds_what_is_claimed_and_an_unknown_one_is_the_slowest() -> None:
    slowest = min(chip.bandwidth_bytes_per_second for chip in all_chips())
    assert specified_bandwidth({"chip": "Apple M3 Ultra", "gpu_cores": 80}) == 819 * 10**9
    claimed = {"chip": "M99 Ultra", "gpu_cores": 999, "bandwidth_bytes_per_second": 4 * 10**12}
    assert specified_bandwidth(claimed) == slowest
    assert specified_bandwidth({}) == slowest


def test_the_least_of_the_last_three_tests_counts() -> None:
    assert measured_bandwidth([]) == 0
    assert measured_bandwidth([7]) == 7
    assert measured_bandwidth([1, 9, 8, 7]) == 7
    assert measured_bandwidth([9, 9, 9, 1]) == 1


@pytest.mark.parametrize(
    ("tests", "checks", "trust"), [(0, 10, "claimed"), (1, 9, "measured"), (3, 10, "audited")]
)
def test_claimed_measured_audited(tests: int, checks: int, trust: str) -> None:
    assert trust_of(tests, checks, CARD) == trust
