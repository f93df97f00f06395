"""Memory in words: what a Mac has is never told as more, what a job needs never as less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.sizing.words import GIB, MIB, memory_text


@pytest.mark.parametrize(
    ("size_bytes", "there", "needed"),
    [
        (24 * GIB, "24 GB", "24 GB"),
        (25_276_510_208, "23.5 GB", "23.6 GB"),
        (GIB // 4, "0.2 GB", "0.3 GB"),
        (50 * MIB, "50 MB", "50 MB"),
        (50 * MIB + 1, "50 MB", "51 MB"),
        (1024 * GIB, "1024 GB", "1024 GB"),
        (0, "0 MB", "0 MB"),
    ],
)
def test_sizes_are_told_as_macos_tells_memory(size_bytes: int, there: str, needed: str) -> None:
    assert memory_text(size_bytes) == there
    assert memory_text(size_bytes, is_need=True) == needed


def _bytes_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * (GIB if unit == "GB" else MIB)


@given(st.integers(0, 1 << 45), st.integers(0, 1 << 45))
def test_a_need_that_is_larger_never_reads_like_what_is_there(one: int, other: int) -> None:
    lent, needed = sorted((one, other))
    assert _bytes_of(memory_text(lent)) <= lent + 1
    assert _bytes_of(memory_text(needed, is_need=True)) >= needed - 1
