"""What a Mac can do at most, and what was measured of it. Pure.

A node's own figures only ever lower what it is taken for: the chip's bandwidth is the maker's, and
a chip that the table does not know counts as the slowest one of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ledger.ratecard import DAY_US, RateCard, Trust
from node_agent.sizing.chips import all_chips, find_chip

SELF_TESTS_COUNTED: Final = 3
SELF_TEST_US: Final = 30 * DAY_US
"""An older test says nothing any more; a Mac that was away for so long is tested when it is back."""


def specified_bandwidth(hardware: Mapping[str, Any]) -> int:
    """The maker's memory bandwidth of the chip that a node says it has, bytes a second."""
    chip = find_chip(str(hardware.get("chip", "")), int(hardware.get("gpu_cores", 0)))
    if chip is not None:
        return chip.bandwidth_bytes_per_second
    return min(chip.bandwidth_bytes_per_second for chip in all_chips())


def measured_bandwidth(warm_bandwidths_bytes_per_second: Sequence[int]) -> int:
    """The least of the last three warm self-tests (newest last), bytes a second; 0 without any."""
    return min(warm_bandwidths_bytes_per_second[-SELF_TESTS_COUNTED:], default=0)


def trust_of(warm_tests: int, checks_passed: int, card: RateCard) -> Trust:
    """`claimed` until a self-test was run, `audited` after enough checked results in a row."""
    if warm_tests == 0:
        return "claimed"
    return "audited" if checks_passed >= card.seats.checks_passed else "measured"
