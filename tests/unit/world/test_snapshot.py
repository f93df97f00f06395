"""The snapshot's bytes, its size at 100,000 Macs, and that nothing in it can be linked."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from web_world.demo import DemoWork, demo_fleet
from web_world.pages import STATIC
from web_world.privacy import HOUR_US, OWNERS_FOR_BUSY, advance
from web_world.snapshot import Minutes, WorldView, encode, view_of
from web_world.source import Checkpoint, MacFacts, Place, Pulse

NOW_US = 500_000 * HOUR_US
SNAPSHOT_BYTES_MAX = 35_000
PAGE_BYTES_MAX = 70_000
MINUTES = Minutes((12,) * 30, (3456,) * 30)
CHECKPOINT = Checkpoint(1_284_331, "ab" * 32, NOW_US)


def view(count: int, *, spread_degrees: float = 0.6) -> WorldView:
    fleet = demo_fleet(count, seed=3, now_us=NOW_US, spread_degrees=spread_degrees)
    roster = advance(None, fleet, NOW_US)
    return view_of(roster, DemoWork(fleet, seed=1).step(5), MINUTES, CHECKPOINT, now_us=NOW_US)


@pytest.mark.parametrize("count", [1, 3, 12, 2_000, 100_000])
def test_places_countries_and_stars_all_come_to_the_macs_seen(count: int) -> None:
    sent = json.loads(encode(view(count)).plain)
    assert sent["totals"]["macs_seen"] == count
    stars = sent["totals"]["stars"]
    assert sum(sent["places"]["lights"]) + stars == count
    assert sum(sent["countries"]["lights"]) + stars == count
    lengths = {len(column) for column in sent["places"].values()}
    assert len(lengths) == 1
    country = 0
    by_country = [0] * len(sent["countries"]["code"])
    for difference, lights in zip(sent["places"]["country"], sent["places"]["lights"], strict=True):
        country += difference
        by_country[country] += lights
    assert by_country == sent["countries"]["lights"]


def test_a_hundred_thousand_macs_fit_into_35_kilobytes() -> None:
    crowded = view(100_000, spread_degrees=4.0)
    assert len(crowded.places) > 2_000
    assert len(encode(crowded).gzipped) <= SNAPSHOT_BYTES_MAX


def test_script_style_land_and_snapshot_fit_into_70_kilobytes() -> None:
    files = ("world.js", "world.css", "land.json")
    sizes = [len(gzip.compress((STATIC / name).read_bytes(), 9)) for name in files]
    assert sum(sizes) + len(encode(view(100_000)).gzipped) <= PAGE_BYTES_MAX


def test_nothing_in_it_names_a_mac_or_its_owner() -> None:
    text = encode(view(2_000)).plain.decode()
    assert not re.search(r"mac\d|owner\d|pod\d|node_|acct_", text)
    # Country codes, keys and the checkpoint are all the words there are; no cell's name.
    words = set(re.findall(r'"([^"]+)"', text)) - {CHECKPOINT.root}
    assert not [word for word in words if re.search(r"\d", word)]


def test_the_same_view_has_the_same_bytes_and_tag() -> None:
    assert encode(view(12)) == encode(view(12))
    assert gzip.decompress(encode(view(12)).gzipped) == encode(view(12)).plain


def test_work_is_told_in_tenths_and_only_of_ten_owners() -> None:
    def fleet(owners: int) -> tuple[MacFacts, ...]:
        return tuple(
            MacFacts(f"mac{index}", f"owner{index}", NOW_US, Place("country", "PL"))
            for index in range(owners)
        )

    def busy_of(owners: int, busy: int) -> int | None:
        pulse = Pulse(busy=frozenset(f"mac{index}" for index in range(busy)))
        seen = view_of(advance(None, fleet(owners), NOW_US), pulse, MINUTES, None, now_us=NOW_US)
        assert [row.busy_tenths for row in seen.countries] == [place.busy_tenths for place in seen.places]
        return seen.places[0].busy_tenths

    assert busy_of(OWNERS_FOR_BUSY - 1, 3) is None
    assert busy_of(OWNERS_FOR_BUSY, 3) == 3
    assert busy_of(40, 3) == 1


def test_places_never_lie_on_one_another() -> None:
    seen = view(20_000)
    spots = [(round(place.latitude, 2), round(place.longitude, 2)) for place in seen.places]
    assert len(set(spots)) == len(spots)
