"""What of the demand may be seen: never one person's part, neither at once nor by difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from web_world.market import (
    GIB,
    LENT_BANDS,
    Lent,
    MarketFacts,
    ModelOffer,
    Settled,
    Sum,
    advance,
    banded,
    class_bytes,
    renewed,
    rounded,
)
from web_world.privacy import OWNERS_MIN

PARTS = st.dictionaries(st.sampled_from("abcdefghijkl"), st.integers(0, 10**9))


def offer(name: str, needed_gib: float, *, is_served: bool = True) -> ModelOffer:
    return ModelOffer(
        id=name,
        name=name.title(),
        is_served=is_served,
        weights_bytes=round(needed_gib * GIB),
        needed_bytes=round(needed_gib * GIB),
        least_memory_bytes=class_bytes(round(needed_gib * 1.5 * GIB)),
        input_umlx_per_million=1_000_000,
        output_umlx_per_million=10_000_000,
        writes=(),
    )


def settled(model: str, accounts: int, day: int = 1_000, earlier: int = 0) -> tuple[Settled, ...]:
    return tuple(Settled(model, f"{model}{index}", day, earlier) for index in range(accounts))


def lent(owners: int, lent_gib: float, *, earned: int = 0, memory_gib: int = 64) -> tuple[Lent, ...]:
    return tuple(
        Lent(f"{lent_gib} {index}", memory_gib * GIB, round(lent_gib * GIB), earned, is_connected=True)
        for index in range(owners)
    )


@given(PARTS)
def test_nothing_is_told_of_fewer_than_five(parts: dict[str, int]) -> None:
    found = renewed(None, parts)
    people = sum(part > 0 for part in parts.values())
    assert (found.total is None) == (people < OWNERS_MIN)
    if found.total is not None:
        assert found.total == sum(parts.values())


@given(st.lists(PARTS, min_size=2, max_size=8))
def test_two_sums_told_after_each_other_differ_by_five_people_or_not_at_all(
    hours: list[dict[str, int]],
) -> None:
    held: Sum | None = None
    told: dict[str, int] | None = None
    for parts in hours:
        held = renewed(held, parts)
        if held.total is None:
            continue
        now = dict(held.parts)
        assert len(now) >= OWNERS_MIN
        if told is not None:
            changed = {person for person, _ in told.items() ^ now.items()}
            assert not changed or len(changed) >= OWNERS_MIN
        told = now


@given(PARTS, PARTS)
def test_a_sum_goes_at_once_when_people_leave(before: dict[str, int], after: dict[str, int]) -> None:
    found = renewed(renewed(None, before), after)
    if sum(part > 0 for part in after.values()) < OWNERS_MIN:
        assert found.total is None


@given(st.integers(0, 10**15))
def test_two_digits_are_told_and_never_too_much(amount: int) -> None:
    found = rounded(amount)
    assert 0 <= amount - found < max(1, amount / 10)
    assert len(str(found).rstrip("0")) <= 2


MACS = st.lists(
    st.builds(
        Lent,
        owner=st.sampled_from("abcdefghijklmnop"),
        memory_bytes=st.just(64 * GIB),
        lent_bytes=st.integers(0, 512 * GIB),
        earned_umlx=st.just(0),
        is_connected=st.booleans(),
    ),
    max_size=60,
)


@given(MACS)
def test_bands_are_empty_or_of_five_owners_and_promise_no_mac_too_much(macs: list[Lent]) -> None:
    found = banded(macs)
    assert all(not parts or len(parts) >= OWNERS_MIN for band, parts in found.items() if band)
    assert sum(sum(parts.values()) for parts in found.values()) == sum(mac.is_connected for mac in macs)
    for band in LENT_BANDS:
        told = sum(sum(parts.values()) for each, parts in found.items() if each >= band)
        assert told <= sum(mac.is_connected and mac.lent_bytes >= band for mac in macs)


def test_macs_that_can_take_a_model_are_a_least_number() -> None:
    facts = MarketFacts(
        models=(offer("small", 1), offer("large", 40)), lent=lent(9, 20) + lent(6, 50) + lent(1, 200)
    )
    small, large = advance(None, facts).models
    # The one with 200 GB counts among those with 48 or more: alone it would be told.
    assert (small.macs_now, large.macs_now) == (16, 7)
    few = advance(None, MarketFacts(models=(offer("small", 1),), lent=lent(4, 20)))
    assert few.models[0].macs_now is None


def test_demand_is_told_by_model_and_the_month_has_the_day_in_it() -> None:
    models = (offer("a", 1), offer("b", 2), offer("c", 3))
    facts = MarketFacts(
        models=models,
        settled=settled("a", 5, 1_234, 10_000) + settled("b", 4, 10**6, 10**6) + settled("c", 6, 0, 77),
    )
    first, second, third = advance(None, facts).models
    assert (first.day_tokens, first.month_tokens) == (6_100, 56_000)
    assert (second.day_tokens, second.month_tokens) == (None, None)
    assert (third.day_tokens, third.month_tokens) == (None, 460)


def test_one_more_customer_does_not_show_in_the_next_hour_and_five_do() -> None:
    models = (offer("a", 1),)
    first = advance(None, MarketFacts(models=models, settled=settled("a", 6)))
    second = advance(first, MarketFacts(models=models, settled=settled("a", 7)))
    third = advance(second, MarketFacts(models=models, settled=settled("a", 12)))
    assert [market.models[0].day_tokens for market in (first, second, third)] == [6_000, 6_000, 12_000]


def test_earnings_are_a_class_average_over_all_its_macs_those_without_work_too() -> None:
    facts = MarketFacts(models=(offer("a", 1),), lent=lent(5, 20, earned=1_000_000) + lent(5, 30))
    market = advance(None, facts)
    found = market.class_of(70 * GIB)
    assert found is not None
    assert (found.memory_bytes, found.earned_umlx) == (64 * GIB, 500_000)
    few = advance(None, MarketFacts(lent=lent(4, 20, earned=1_000_000)))
    assert {each.earned_umlx for each in few.classes} == {None}
    assert market.class_of(4 * GIB) is None


def test_models_that_are_served_come_first_and_classes_count_what_fits() -> None:
    market = advance(None, MarketFacts(models=(offer("a", 1, is_served=False), offer("b", 30))))
    assert [view.offer.id for view in market.models] == ["b", "a"]
    by_memory = {each.memory_bytes // GIB: (each.models, each.largest) for each in market.classes}
    assert by_memory[8] == (1, "A")
    assert by_memory[512] == (2, "B")
    assert market.model("b") is market.models[0]
    assert market.model("c") is None
