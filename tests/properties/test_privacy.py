"""What the public map may never tell, whatever fleet and history: searched for with Hypothesis."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web_world.cells import area_at, folded
from web_world.demo import demo_fleet
from web_world.privacy import (
    ALONE_KEPT_US,
    HOUR_US,
    OWNERS_MIN,
    OWNERS_TO_APPEAR,
    PODS,
    SEEN_US,
    STAR,
    ULTRA,
    Roster,
    Spot,
    advance,
    figures_at,
    light_of,
    tells_figures,
    world_figures,
)
from web_world.source import NOWHERE, MacFacts, Place

START_US = 500_000 * HOUR_US
# Neighbours in one larger cell, and one far away, so that folding has something to do.
WARSAW, PLOCK, GDANSK = area_at(52.23, 21.01), area_at(52.55, 19.71), area_at(54.35, 18.65)
PLACES = (
    NOWHERE,
    *(Place("country", country) for country in ("PL", "PK")),
    *(Place("area", "PL", cell) for cell in (WARSAW, PLOCK, GDANSK)),
    Place("area", "PK", area_at(31.55, 74.34)),
)


def mac(
    index: int, *, owner: int | None = None, place: Place = NOWHERE, age_us: int = 0, **facts: int
) -> MacFacts:
    made = MacFacts(
        mac=f"mac{index:06}",
        owner=f"owner{index if owner is None else owner}",
        seen_us=START_US - age_us,
        place=place,
        memory_bytes=1 << (index % 40),
    )
    return dataclasses.replace(made, **facts) if facts else made


@st.composite
def fleets(draw: st.DrawFn) -> tuple[MacFacts, ...]:
    """Up to 60 Macs of up to 25 owners, crowded enough for every rule to bite."""
    owners = draw(st.integers(1, 25))
    row = st.tuples(
        st.integers(1, owners),
        st.sampled_from(PLACES),
        st.sampled_from((0, SEEN_US - 1, SEEN_US, ALONE_KEPT_US - 1, ALONE_KEPT_US)),
        st.booleans(),
        st.sampled_from(("", "pod1", "pod2")),
    )
    return tuple(
        MacFacts(
            f"mac{index:03}",
            f"owner{owner}",
            START_US - age_us,
            place,
            memory_bytes=1 << index,
            is_ultra_seat=is_ultra,
            pod=pod and f"{pod}-{owner}",
        )
        for index, (owner, place, age_us, is_ultra, pod) in enumerate(draw(st.lists(row, max_size=60)))
    )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[tuple[MacFacts, ...], Roster]]:
    """A fleet over some hours: Macs come, go, move and withdraw between the looks."""
    fleet = {facts.mac: facts for facts in draw(fleets())}
    roster: Roster | None = None
    found: list[tuple[tuple[MacFacts, ...], Roster]] = []
    now_us = START_US
    for _ in range(draw(st.integers(1, 5))):
        macs = tuple(fleet.values())
        roster = advance(roster, macs, now_us)
        found.append((macs, roster))
        now_us += draw(st.sampled_from((60_000_000, HOUR_US, 25 * HOUR_US)))
        for facts in draw(fleets())[:12]:
            fleet[facts.mac] = dataclasses.replace(facts, seen_us=now_us)
        for key in draw(st.sets(st.sampled_from(sorted(fleet)), max_size=8)) if fleet else ():
            fleet.pop(key)
    return found


@given(histories())
def test_there_is_a_light_for_every_mac_seen_and_no_other(
    history: list[tuple[tuple[MacFacts, ...], Roster]],
) -> None:
    for _, roster in history:
        assert sum(len(macs) for macs in roster.lights().values()) == len(roster.spots)
        assert set(roster.spots) == set(roster.owner_of)
    macs, roster = history[0]
    seen = {facts.mac for facts in macs if START_US - facts.seen_us < SEEN_US}
    extra = set(roster.spots) - seen
    assert seen <= set(roster.spots)
    # Only the single light of a country may outlast the day on which its Mac was seen.
    assert all(roster.spots[key].kind == "alone" for key in extra)


@given(histories())
def test_a_place_with_a_number_has_five_owners_who_chose_it(
    history: list[tuple[tuple[MacFacts, ...], Roster]],
) -> None:
    hour = -1
    for macs, roster in history:
        is_new, hour = roster.hour != hour, roster.hour
        chosen = {facts.mac: facts.place for facts in macs}
        for spot, lights in roster.lights().items():
            if spot.kind in {"cell", "country"}:
                assert roster.owners(lights) >= OWNERS_MIN
            if spot.kind == "alone":
                assert len(lights) == 1
            if spot != STAR and is_new:
                assert all(allows(chosen[key], spot) for key in lights)


def allows(place: Place, spot: Spot) -> bool:
    """Whether somebody who chose this place may be drawn at the spot."""
    is_in_cell = spot.kind != "cell" or (
        place.kind == "area" and spot.cell in {place.cell, folded(place.cell)}
    )
    return place.kind != "none" and place.country == spot.country and is_in_cell


@given(fleets())
def test_a_new_place_needs_seven_owners_and_keeps_until_below_five(fleet: tuple[MacFacts, ...]) -> None:
    roster = advance(None, fleet, START_US)
    for spot in roster.shown:
        assert roster.owners(roster.lights()[spot]) >= OWNERS_TO_APPEAR
    again = advance(roster, fleet, START_US + HOUR_US)
    still = {facts.mac for facts in fleet if START_US + HOUR_US - facts.seen_us < SEEN_US}
    for spot in roster.shown:
        owners = roster.owners(key for key in roster.lights()[spot] if key in still)
        assert owners < OWNERS_MIN or spot in again.shown


@given(histories())
def test_places_change_at_full_hours_only(history: list[tuple[tuple[MacFacts, ...], Roster]]) -> None:
    for (_, before), (macs, after) in pairwise(history):
        if before.hour != after.hour:
            continue
        assert before.spots.items() <= after.spots.items()
        added = set(after.spots) - set(before.spots)
        facts = {found.mac: found for found in macs}
        assert all(after.spots[key] == STAR and facts[key].place.kind == "none" for key in added)


@given(fleets(), st.data())
def test_a_withdrawn_place_is_gone_at_the_next_hour(fleet: tuple[MacFacts, ...], data: st.DataObject) -> None:
    roster = advance(None, fleet, START_US)
    owner = data.draw(st.sampled_from(sorted({facts.owner for facts in fleet} | {"owner1"})))
    withdrawn = tuple(
        dataclasses.replace(facts, place=NOWHERE) if facts.owner == owner else facts for facts in fleet
    )
    later = advance(roster, withdrawn, START_US + HOUR_US)
    assert all(later.spots[key] == STAR for key in later.spots if later.owner_of[key] == owner)
    assert later.hour - roster.hour <= 24


@given(histories())
def test_figures_are_never_those_of_fewer_than_five_owners(
    history: list[tuple[tuple[MacFacts, ...], Roster]],
) -> None:
    for _, roster in history:
        for group, sheet in roster.sheets.items():
            if sheet.is_told and not roster.is_open:
                assert len(set(sheet.owner_of.values())) >= OWNERS_MIN, group


@given(histories())
def test_two_figures_of_one_group_differ_by_five_owners_or_not_at_all(
    history: list[tuple[tuple[MacFacts, ...], Roster]],
) -> None:
    told: dict[Spot, dict[str, str]] = {}
    for _, roster in history:
        for group, sheet in roster.sheets.items():
            if not sheet.is_told:
                continue
            now = dict(sheet.owner_of)
            if group in told and not roster.is_open:
                changed = {owner for _, owner in told[group].items() ^ now.items()}
                assert not changed or len(changed) >= OWNERS_MIN
            told[group] = now


@given(fleets())
def test_marks_of_rare_hardware_need_five_owners_who_have_it(fleet: tuple[MacFacts, ...]) -> None:
    roster = advance(None, fleet, START_US)
    facts = {found.mac: found for found in fleet}
    for spot, keys in roster.lights().items():
        figures = figures_at(roster, spot) if spot.kind in {"cell", "country"} else None
        if figures is not None and figures.ultra_seats:
            assert len({facts[key].owner for key in keys if facts[key].is_ultra_seat}) >= OWNERS_MIN
        if figures is not None and figures.pods:
            assert len({facts[key].owner for key in keys if facts[key].pod}) >= OWNERS_MIN
    world = world_figures(roster)
    if world is not None and not roster.is_open:
        assert not world.ultra_seats or len(set(roster.sheets[ULTRA].owner_of.values())) >= OWNERS_MIN
        assert not world.pods or len(set(roster.sheets[PODS].owner_of.values())) >= OWNERS_MIN


@pytest.mark.parametrize("count", [1, 3, 12, 2_000, 100_000])
def test_the_picture_holds_as_many_lights_as_macs(count: int) -> None:
    roster = advance(None, demo_fleet(count, seed=7, now_us=START_US), START_US)
    kinds = Counter(spot.kind for spot in roster.spots.values())
    assert sum(kinds.values()) == count
    if count >= 2_000:
        assert set(kinds) == {"cell", "country", "alone", "star"}


def test_somebody_alone_in_a_country_is_one_light_for_seven_days() -> None:
    first, second = (mac(index, owner=1, place=Place("country", "PL")) for index in (1, 2))
    roster = advance(None, (first, second), START_US)
    # Two Macs, but their number is not told: one light there, the other one among the stars.
    assert roster.lights() == {Spot("alone", "PL"): [first.mac], STAR: [second.mac]}
    assert world_figures(roster) is None
    assert not tells_figures(roster)
    late = advance(roster, (first, second), START_US + ALONE_KEPT_US - HOUR_US)
    assert late.lights() == {Spot("alone", "PL"): [first.mac]}
    assert advance(late, (first, second), START_US + ALONE_KEPT_US).lights() == {}


def test_whoever_withdraws_is_not_kept_for_seven_days() -> None:
    roster = advance(None, (mac(1, place=Place("country", "PL")),), START_US)
    later = advance(roster, (mac(1, age_us=SEEN_US),), START_US + HOUR_US)
    assert later.lights() == {}


def test_small_areas_fold_into_the_larger_cell_and_then_into_the_country() -> None:
    assert folded(WARSAW) == folded(PLOCK) != folded(GDANSK)
    fleet = (
        *(mac(index, place=Place("area", "PL", WARSAW)) for index in range(4)),
        *(mac(index, place=Place("area", "PL", PLOCK)) for index in range(4, 8)),
        *(mac(index, place=Place("area", "PL", GDANSK)) for index in range(8, 12)),
        *(mac(index, place=Place("country", "PL")) for index in range(12, 16)),
    )
    sizes = {spot: len(keys) for spot, keys in advance(None, fleet, START_US).lights().items()}
    assert sizes == {Spot("cell", "PL", folded(WARSAW)): 8, Spot("country", "PL"): 8}


def test_a_network_without_places_tells_its_figures_from_the_first_mac() -> None:
    roster = advance(None, (mac(3),), START_US)
    figures = world_figures(roster)
    assert tells_figures(roster)
    assert figures is not None
    assert figures.memory_bytes == 8
    # Who comes next is a star at once, and in the figures.
    roster = advance(roster, (mac(3), mac(4)), START_US + 60_000_000)
    figures = world_figures(roster)
    assert figures is not None
    assert (len(roster.spots), figures.memory_bytes) == (2, 24)


def test_the_first_place_does_not_tell_its_macs_memory() -> None:
    stars = tuple(mac(index) for index in range(1, 10))
    roster = advance(None, stars, START_US)
    before = world_figures(roster)
    roster = advance(roster, (*stars, mac(20, place=Place("country", "PL"))), START_US + HOUR_US)
    after = world_figures(roster)
    assert before is not None
    assert after is not None
    # Ten Macs now, by the average of the nine; a bigger one would not show.
    assert after.macs == 10
    assert after.memory_bytes == before.memory_bytes * 10 // 9


def test_the_owner_alone_learns_which_light_is_theirs() -> None:
    fleet = (*(mac(index, place=Place("country", "PL")) for index in range(8)), mac(9))
    roster = advance(None, fleet, START_US)
    assert light_of(roster, "mac000003") == Spot("country", "PL")
    assert light_of(roster, "mac000009") == STAR
    assert light_of(roster, "mac000010") is None


def test_a_large_fleet_lies_mostly_in_areas() -> None:
    roster = advance(None, demo_fleet(20_000, seed=1, now_us=START_US), START_US)
    chosen: dict[str, int] = defaultdict(int)
    for spot in roster.spots.values():
        chosen[spot.kind] += 1
    assert chosen["cell"] > 10_000
    assert 300 < len(roster.shown) < 2_500
