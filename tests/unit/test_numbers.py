"""Numbers of headers and addresses: plain digits, and nothing that only Python takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.numbers import decimal_of, whole_of


@given(st.integers(0, 10**19 - 1))
def test_every_whole_number_is_read(number: int) -> None:
    assert whole_of(str(number)) == number
    assert decimal_of(str(number)) == float(number)


@pytest.mark.parametrize("text", ["0.25", "12.5", "0", "007.10"])
def test_decimals_are_read(text: str) -> None:
    assert decimal_of(text) == float(text)


@given(st.text(max_size=30))
def test_only_ascii_digits_make_a_number(text: str) -> None:
    found = decimal_of(text)
    assert (found is not None) == (text.replace(".", "", 1).isascii() and is_plain(text))
    assert (whole_of(text) is not None) == (found is not None and "." not in text)


def is_plain(text: str) -> bool:
    parts = text.split(".")
    return len(parts) <= 2 and all(
        0 < len(part) < 20 and all(character in "0123456789" for character in part) for part in parts
    )


@pytest.mark.parametrize(
    "text", ["1_0", " 1", "1\n", "+1", "-1", "1e3", "nan", "inf", "\uff11", "\u0661", ""]
)
def test_what_else_python_takes_is_none(text: str) -> None:
    assert whole_of(text) is None and decimal_of(text) is None
