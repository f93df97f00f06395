"""The pages state the rules that are in force, and the made-up network those of an installed one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.settings import Settings
from coordinator.world_terms import terms_of
from ledger.ratecard import CARD
from web_world.demo_terms import DEMO_TERMS
from web_world.feed import Feed
from web_world.pages import PAGES, render
from web_world.privacy import HOUR_US
from web_world.source import MacFacts, Pulse, Terms, WorldFacts
from web_world.texts import BY_CODE

pytestmark = pytest.mark.anyio

NOW_US = 500_000 * HOUR_US


async def words(slug: str, terms: Terms, code: str = "en") -> str:
    """The page's words over two Macs without a place, marks of direction taken out."""
    macs = tuple(MacFacts(f"mac{index}", f"owner{index}", NOW_US) for index in range(2))
    feed = Feed(lambda: WorldFacts(NOW_US, macs, terms), Pulse)
    page = next(page for page in PAGES if page.slug == slug)
    made = render(
        page,
        BY_CODE[code],
        await feed.view(),
        terms=await feed.terms(),
        standing=await feed.standing(),
        etag="",
        origin="https://network.example.org",
        version="",
    )
    return re.sub(r"<[^>]*>|[\u2066-\u2069]", "", made.decode()).replace("\xa0", " ")


def test_the_made_up_network_has_the_rules_of_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STREAM_KEEP_SECONDS", "RESULT_KEEP_SECONDS", "ENROLMENT_SECONDS"):
        monkeypatch.delenv(f"MLXNET_{name}", raising=False)
    assert terms_of(Settings(home=tmp_path), CARD) == DEMO_TERMS


async def test_how_long_things_are_kept_is_what_is_set() -> None:
    keeping = replace(DEMO_TERMS.keeping, stream_seconds=120, result_seconds=172_800, enrolment_seconds=90)
    page = await words("privacy", replace(DEMO_TERMS, keeping=keeping))
    assert "Until 2 minutes after the job" in page
    assert "48 hours" in page
    assert "90 seconds" in page
    assert "10 minutes" not in page


async def test_the_seats_are_those_of_the_card_in_force(tmp_path: Path) -> None:
    rules = replace(CARD.seats, dedicated_seconds_per_day=18 * 3600, checks_passed=25)
    rates = replace(CARD.availability, ultra_umlx_per_point_hour=200_000, measured_ppm=250_000)
    card = replace(CARD, version=2, seats=rules, availability=rates)
    page = await words("ultra", terms_of(Settings(home=tmp_path), card), "pl")
    assert "18 godzin na dobę" in page
    assert "Sprawdzone wyniki z rzędu: 25." in page
    assert "dostaje 25% poniższych stawek" in page
    # 819 GB/s and 512 GB are 16.19 points.
    assert "3,238" in page
    assert "20 godzin" not in page
