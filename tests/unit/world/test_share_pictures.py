"""Pictures of shared links: size, words in every language, lights, and how they are kept."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final

import httpx2
import numpy as np
import pytest
from PIL import Image, ImageDraw

from web_world import share_pictures, share_words
from web_world.demo import DemoWork, demo_fleet
from web_world.demo_server import demo_app
from web_world.demo_terms import DEMO_TERMS
from web_world.feed import Feed
from web_world.pages import PAGES, WORLD_PAGE, Page
from web_world.privacy import HOUR_US, advance
from web_world.share_globe import STEPS_PER_DEGREE, Frame, Look, backdrop, land_mask, look_at, subsolar
from web_world.share_pictures import BYTES_MAX, GLOBE_RADIUS, GLOBE_X, HEIGHT, LOOKS, MARGIN, WIDTH, Pictures
from web_world.share_words import Run, Style, can_shape, fitted, line_pixels, runs_of, wrapped
from web_world.snapshot import Minutes, WorldView, view_of
from web_world.source import Pulse, WorldFacts
from web_world.texts import BY_CODE, LANGUAGES, Language, texts_of

ORIGIN: Final = "https://network.example.org"
NOW_US: Final = 500_000 * HOUR_US
INK_STEP: Final = 90  # JPEG's own noise stays below it
shapes = pytest.mark.skipif(
    not can_shape(),
    reason="Arabic cannot be shaped: apt-get install libfribidi0 (macOS: brew install fribidi)",
)


def world_of(macs: int) -> WorldView:
    fleet = demo_fleet(macs, seed=2, now_us=NOW_US)
    roster = advance(None, fleet, NOW_US)
    return view_of(roster, DemoWork(fleet, seed=1).step(5), Minutes(), None, now_us=NOW_US)


def pixels_of(picture: share_pictures.Picture) -> np.ndarray[Any, np.dtype[np.int16]]:
    return np.asarray(Image.open(io.BytesIO(picture.data))).astype(np.int16)


def words_of(page: Page, language: Language, view: WorldView) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of all that a picture has and its backdrop has not."""
    is_rtl = language.direction == "rtl"
    frame = Frame(WIDTH, HEIGHT, WIDTH - GLOBE_X if is_rtl else GLOBE_X, HEIGHT / 2, GLOBE_RADIUS)
    bare = np.asarray(backdrop(view, look_at(view, LOOKS[language.code]), frame)).astype(np.int16)
    made = pixels_of(share_pictures.draw(page, language, view, "network.example.org"))
    rows, columns = np.nonzero(np.abs(made - bare).max(axis=2) > INK_STEP)
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


@shapes
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.code)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug or "world")
def test_a_picture_is_short_and_its_words_keep_off_globe_and_edges(page: Page, language: Language) -> None:
    view = world_of(2_000)
    picture = share_pictures.draw(page, language, view, "network.example.org")
    image = Image.open(io.BytesIO(picture.data))
    assert (image.format, image.size) == ("JPEG", (1200, 630))
    assert len(picture.data) <= BYTES_MAX
    left, top, right, bottom = words_of(page, language, view)
    edge = GLOBE_X - GLOBE_RADIUS
    if language.direction == "rtl":
        assert WIDTH - edge < left < right <= WIDTH - MARGIN / 2  # slanting letters lean over their edge
        assert right >= WIDTH - MARGIN - 8
    else:
        assert MARGIN / 2 <= left < right < edge
        assert left <= MARGIN + 8
    assert top >= MARGIN - 24
    assert bottom <= HEIGHT - MARGIN + 16


def shape(run: Run, letter: str) -> bytes:
    image = Image.new("L", (120, 120))
    ImageDraw.Draw(image).text((40, 20), letter, fill=255, font=run.font)
    return image.tobytes()


@shapes
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.code)
def test_every_letter_that_is_drawn_is_in_its_font(language: Language) -> None:
    texts = texts_of(language.code)
    keys = ["every-mac", "site-name", *(f"{page.slug}-heading" for page in PAGES if page != WORLD_PAGE)]
    shown = [texts.text(key) for key in keys]
    shown += [
        f"{texts.number(count)} {texts.text('headline', count=count)}"
        for count in (0, 1, 2, 3, 11, 1_234_567)
    ]
    for is_bold in (False, True):
        for run in runs_of(" ".join(shown), Style(language, 40, is_bold)):
            missing = shape(run, "\U0010ffff")
            for letter in set(run.text) - {" ", "\xa0", "\u202f"}:
                assert shape(run, letter) != missing, f"{letter!r} of {run.text!r}"


@shapes
def test_arabic_letters_join_and_urdu_stands_in_nastaliq() -> None:
    arabic, urdu = Style(BY_CODE["ar"], 60, True), Style(BY_CODE["ur"], 60, True)
    apart = sum(line_pixels(letter, arabic) for letter in "الشبكة")
    assert line_pixels("الشبكة", arabic) < 0.8 * apart
    runs = runs_of("میک کے AI کلسٹر: MLX World 2", urdu)
    assert [run.text for run in runs] == ["میک کے", " ", "AI", " ", "کلسٹر", ":", " ", "MLX World 2"]
    assert [run.font.getname()[0] for run in runs if run.direction == "rtl" and run.language == "ur"] == [
        "Noto Nastaliq Urdu"
    ] * 2
    assert {run.font.getname()[0] for run in runs if run.language == "en"} == {"Vazirmatn"}


@pytest.mark.parametrize("width", [120, 260, 500])
def test_lines_hold_all_words_and_fit(width: int) -> None:
    text = "Mac AI clusters: what they do, and what is only said"
    style = Style(BY_CODE["en"], 40, True)
    lines = wrapped(text, style, width)
    assert " ".join(lines) == text
    assert all(line_pixels(line, style) <= width or " " not in line for line in lines)
    fit, smaller = fitted(text, style, width, 150)
    assert " ".join(fit) == text
    assert len(fit) * smaller.line_pixels <= 150
    assert all(line_pixels(line, smaller) <= width for line in fit)


@pytest.mark.parametrize(
    ("longitude", "latitude", "is_land"),
    [
        (21, 52, True),
        (10, 22, True),
        (88, 32, True),
        (-60, -10, True),
        (-175, 66.7, True),
        (176, 67.5, True),
        (0, -85, True),
        (170, -85, True),
        (-30, 30, False),
        (-160, 0, False),
        (50.5, 42, False),
        (0, 86, False),
        (60, 84, False),
        (-120, 86, False),
        (5, 72.5, False),
    ],
)
def test_land_and_sea_are_where_they_are(longitude: float, latitude: float, is_land: bool) -> None:
    mask = land_mask()
    row, column = int((90 - latitude) * STEPS_PER_DEGREE), int((longitude + 180) * STEPS_PER_DEGREE)
    assert bool(mask[row, column]) is is_land


@pytest.mark.parametrize(
    ("moment", "longitude", "latitude"),
    [
        ("2026-03-20T12:00", 1.9, 0.0),  # equinox; the sun is late by 7.5 minutes
        ("2026-06-21T00:00", -179.6, 23.4),
        ("2026-11-03T06:00", 85.9, -15.0),
    ],
)
def test_the_sun_stands_where_almanacs_say(moment: str, longitude: float, latitude: float) -> None:
    at_us = int(np.datetime64(moment, "us").astype(np.int64))
    found = subsolar(at_us)
    assert abs((found[0] - longitude + 180) % 360 - 180) < 0.5
    assert found[1] == pytest.approx(latitude, abs=0.3)


def test_each_place_shines_where_it_is_and_a_few_are_looked_at() -> None:
    view = world_of(2_000)
    place = replace(view.places[0], latitude=0.0, longitude=10.0)
    frame = Frame(400, 400, 200, 200, 150)
    dark = np.asarray(backdrop(replace(view, places=()), Look(10, 0), frame)).astype(int)
    lit = np.asarray(backdrop(replace(view, places=(place,)), Look(10, 0), frame)).astype(int)
    behind = np.asarray(backdrop(replace(view, places=(place,)), Look(-170, 0), frame)).astype(int)
    assert (lit - dark)[200, 200].sum() > 200
    assert np.abs(lit - dark)[:150].max() == 0
    assert np.array_equal(
        behind, np.asarray(backdrop(replace(view, places=()), Look(-170, 0), frame)).astype(int)
    )
    found = look_at(replace(view, places=(place,)), Look(99, 9))
    assert (found.longitude, found.latitude) == (pytest.approx(10, abs=1e-3), pytest.approx(0, abs=1e-3))
    assert look_at(replace(view, places=()), Look(99, 9)) == Look(99, 9)
    assert look_at(view, Look(99, 9)) == Look(99, 9)


def test_where_arabic_cannot_be_shaped_no_broken_words_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (share_pictures, share_words):
        monkeypatch.setattr(module, "can_shape", lambda: False)
    view = world_of(2_000)
    drawn = {
        code: [share_pictures.draw(page, BY_CODE[code], view, "host").data for page in PAGES[:3]]
        for code in ("ar", "ur", "pl")
    }
    assert len(set(drawn["ar"])) == len(set(drawn["ur"])) == 1
    assert len(set(drawn["pl"])) == 3


class Clock:
    """Facts of a fleet at a time that a test moves."""

    def __init__(self) -> None:
        self.now_us = NOW_US

    def feed(self) -> Feed:
        fleet = demo_fleet(50, seed=2, now_us=NOW_US)

        def facts() -> WorldFacts:
            macs = tuple(replace(mac, seen_us=self.now_us) for mac in fleet)
            return WorldFacts(now_us=self.now_us, macs=macs, terms=DEMO_TERMS)

        return Feed(facts, Pulse)


@pytest.mark.anyio
async def test_a_picture_is_drawn_once_an_hour_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    threads: list[int] = []
    real = share_pictures.draw

    def counted(*arguments: Any) -> share_pictures.Picture:
        threads.append(threading.get_ident())
        return real(*arguments)

    monkeypatch.setattr(share_pictures, "draw", counted)
    feed = clock.feed()
    pictures = Pictures(feed, host="host")
    many = await asyncio.gather(*(pictures.get(WORLD_PAGE, LANGUAGES[0]) for _ in range(20)))
    assert len({id(picture) for picture in many}) == len(threads) == 1
    assert threads[0] != threading.get_ident()
    clock.now_us += HOUR_US - 1
    await feed.renew()
    assert await pictures.get(WORLD_PAGE, LANGUAGES[0]) is many[0]
    clock.now_us += 1
    await feed.renew()
    assert await pictures.get(WORLD_PAGE, LANGUAGES[0]) is not many[0]
    assert len(threads) == 2


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    app = demo_app(2_000, seed=2, now_us=NOW_US, origin=ORIGIN)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=ORIGIN) as made:
        yield made


@pytest.mark.anyio
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug or "world")
async def test_each_page_names_its_picture_and_the_picture_is_there(
    client: httpx2.AsyncClient, page: Page
) -> None:
    for language in LANGUAGES:
        text = (await client.get(page.address(language))).text
        address = f"{ORIGIN}{page.picture(language)}"
        assert f'<meta property="og:image" content="{address}">' in text
        assert '<meta name="twitter:card" content="summary_large_image">' in text
        assert f'<meta property="og:url" content="{ORIGIN}{page.address(language)}">' in text
    answer = await client.get(page.picture(LANGUAGES[0]))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/jpeg"
    assert "max-age=3600" in answer.headers["cache-control"]
    again = await client.get(page.picture(LANGUAGES[0]), headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await client.head(page.picture(LANGUAGES[0]))
    assert head.headers["content-length"] == str(len(answer.content))


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["xx/world.jpg", "en/none.jpg", "en/world.png"])
async def test_no_other_picture_is_there(client: httpx2.AsyncClient, name: str) -> None:
    assert (await client.get(f"/world/share/{name}")).status_code == 404
