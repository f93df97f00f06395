"""Wishes: read from headers strictly, and kept with the request as they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ApiError
from coordinator.jobs.wishes import NO_WISHES, Wishes, read_max_charge_umlx, read_wishes

NODE = "node_" + "0a" * 32


def test_no_header_wishes_for_nothing() -> None:
    assert read_wishes({}) == NO_WISHES == Wishes()
    assert read_max_charge_umlx({}) is None


def test_each_header_is_one_wish() -> None:
    found = read_wishes(
        {
            "x-mlxnet-deadline": "90.5",
            "x-mlxnet-min-tokens-per-second": "20",
            "x-mlxnet-regions": "DE, PL",
            "x-mlxnet-nodes": NODE,
            "x-mlxnet-own": "Prefer",
        }
    )
    assert found == Wishes(90.5, 20.0, frozenset({"DE", "PL"}), frozenset({NODE}), "prefer")
    assert read_max_charge_umlx({"x-mlxnet-max-charge-umlx": "1200"}) == 1200


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x-mlxnet-deadline", "soon"),
        ("x-mlxnet-deadline", "0"),
        ("x-mlxnet-deadline", "nan"),
        ("x-mlxnet-deadline", "inf"),
        ("x-mlxnet-min-tokens-per-second", "-1"),
        ("x-mlxnet-min-tokens-per-second", "1e9"),
        ("x-mlxnet-regions", ""),
        ("x-mlxnet-regions", "Germany"),
        ("x-mlxnet-regions", "DE,,PL"),
        ("x-mlxnet-nodes", "mac"),
        ("x-mlxnet-nodes", ",".join(f"node_{number:064x}" for number in range(65))),
        ("x-mlxnet-own", "mine"),
        ("x-mlxnet-max-charge-umlx", "-5"),
        ("x-mlxnet-max-charge-umlx", "1.5"),
        ("x-mlxnet-max-charge-umlx", "9" * 30),
    ],
)
def test_what_is_not_right_is_named(name: str, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        _ = read_wishes({name: text}), read_max_charge_umlx({name: text})
    assert (caught.value.status, caught.value.param) == (400, name)


@given(
    st.builds(
        Wishes,
        deadline_seconds=st.floats(1, 1e5) | st.just(math.inf),
        tokens_per_second_min=st.floats(0, 1e4),
        regions=st.frozensets(st.sampled_from(["DE", "PL", "PK"])),
        node_ids=st.frozensets(st.just(NODE)),
        own=st.sampled_from(["any", "prefer", "only"]),
    )
)
def test_wishes_come_back_from_their_json(wishes: Wishes) -> None:
    assert Wishes.from_json(wishes.to_json()) == wishes
