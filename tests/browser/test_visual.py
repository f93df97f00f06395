"""A few views that stand still, compared with pictures of how they should look.

Pictures are kept a quarter as wide and high: how letters' edges are smoothed then does not count,
but what moved, vanished or changed its colour does. `make renew-pictures` takes them anew; look at
what changed before committing them. They hold for one system font; with another one texts break
elsewhere, and the tests are skipped.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.browser.conftest import NOW_US, serve
from tests.browser.shots import DESKTOP, PHONE, USUAL, settle

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

PICTURES: Final = Path(__file__).parent / "pictures"
FONT_FILE: Final = PICTURES / "system-font.txt"
RENEW: Final = "RENEW_PICTURES"
SHRINK: Final = 4
STEP_MAX: Final = 26  # of 255, in any colour
SHARE_MAX: Final = 0.004  # of a picture's points may differ by more
FLEET: Final = 2_000
FEW: Final = 3
GLOBE: Final = {"longitude": 12, "latitude": 28, "zoom": 1, "isFlat": False}
# Its answer differs with the font that `system-ui` is here; the pages' own fonts come with them.
FONT_WIDTHS: Final = """() => {
    const canvas = document.createElement('canvas').getContext('2d');
    return ['400', '700'].map((weight) => {
        canvas.font = `${weight} 100px system-ui`;
        return Math.round(canvas.measureText('Every Mac is a light: 20,000').width);
    }).join(' ');
}"""


@dataclass(frozen=True, slots=True)
class View:
    """What is shown: a path in a window, or one element of it, in one theme."""

    name: str
    path: str
    options: dict[str, Any]
    macs: int = FLEET
    camera: dict[str, Any] | None = None


DARK: Final = DESKTOP | {"color_scheme": "dark"}
LIGHT: Final = DESKTOP | {"color_scheme": "light"}
VIEWS: Final = (
    View("globe", "/en/", DARK, camera=GLOBE),
    View("globe-of-three", "/en/", DARK, macs=FEW),
    View("flat", "/ar/", DARK, camera=GLOBE | {"latitude": 0, "isFlat": True}),
    View("near", "/pl/", LIGHT, camera=GLOBE | {"latitude": 50, "zoom": 9}),
    View("phone", "/ur/", PHONE, camera=GLOBE),
    View("page-en", "/en/about", LIGHT),
    View("page-ar", "/ar/about", DARK),
    View("page-pl", "/pl/about", DARK),
    View("page-ur", "/ur/about", LIGHT),
    View("page-phone", "/ur/ultra", PHONE),
)


@pytest.fixture(scope="module")
def still_worlds() -> Generator[dict[int, str]]:
    """Where the pages are, by the number of Macs, in a moment that does not pass."""
    many, few = (serve(macs, is_still=True, shown_origin="https://mlx.example.org") for macs in (FLEET, FEW))
    yield {FLEET: next(many), FEW: next(few)}
    for served in (many, few):
        assert next(served, None) is None


@pytest.fixture
def shown(
    browser: Browser, still_worlds: dict[int, str], request: pytest.FixtureRequest
) -> Generator[tuple[View, Page]]:
    view: View = request.param
    context = browser.new_context(**{**USUAL, **view.options})
    page = context.new_page()
    page.clock.set_fixed_time(NOW_US / 1000)
    page.goto(still_worlds[view.macs] + view.path)
    settle(page)
    if view.camera is not None:
        look(page, view.camera)
    yield view, page
    context.close()


def look(page: Page, camera: dict[str, Any]) -> None:
    page.evaluate("(to) => { document.querySelector('mlx-globe').camera = to }", camera)
    page.wait_for_timeout(900)  # a near view fetches finer land
    page.evaluate("document.querySelector('mlx-globe').paint()")


def picture_of(page: Page) -> Image.Image:
    """The map's stage, or a page's window, small."""
    stage = page.locator(".stage")
    png = stage.screenshot() if stage.count() else page.screenshot()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    return image.resize((image.width // SHRINK, image.height // SHRINK), Image.Resampling.BOX)


def share_that_differs(one: Image.Image, other: Image.Image) -> float:
    """The share of points that differ by more than a step; 1 where the sizes do."""
    if one.size != other.size:
        return 1.0
    first, second = (np.asarray(image).astype(np.int16) for image in (one, other))
    return float((np.abs(first - second).max(axis=2) > STEP_MAX).mean())


def skip_if_fonts_differ(page: Page) -> None:
    here, there = page.evaluate(FONT_WIDTHS), FONT_FILE.read_text().strip()
    if here != there:
        pytest.skip(f"another system font here ({here}) than in the pictures ({there}): make renew-pictures")


@pytest.mark.parametrize("shown", VIEWS, ids=lambda view: view.name, indirect=True)
def test_it_looks_as_it_should(shown: tuple[View, Page], tmp_path: Path) -> None:
    view, page = shown
    kept, made = PICTURES / f"{view.name}.png", picture_of(page)
    if os.environ.get(RENEW):
        PICTURES.mkdir(exist_ok=True)
        made.save(kept, optimize=True)
        _ = FONT_FILE.write_text(page.evaluate(FONT_WIDTHS) + "\n")
    skip_if_fonts_differ(page)
    share = share_that_differs(made, Image.open(kept).convert("RGB"))
    if share > SHARE_MAX:
        made.save(tmp_path / "made.png")
        pytest.fail(f"{share:.2%} of {view.name} differs from {kept}; now: {tmp_path / 'made.png'}")


CHANGES: Final = {
    "globe": "document.querySelector('mlx-globe').camera = {longitude: 16, latitude: 28, zoom: 1, isFlat: false}",
    "flat": "document.querySelector('.headline').style.display = 'none'",
    "page-en": "document.querySelector('h1').style.marginBlockEnd = '2.5rem'",
    "page-ur": "document.documentElement.dir = 'ltr'",
    "page-phone": "document.body.style.fontSize = '18px'",
}


@pytest.mark.parametrize("shown", [view for view in VIEWS if view.name in CHANGES], ids=lambda view: view.name, indirect=True)  # fmt: skip
def test_what_changes_is_seen(shown: tuple[View, Page]) -> None:
    view, page = shown
    skip_if_fonts_differ(page)
    page.evaluate(CHANGES[view.name])
    page.wait_for_timeout(300)
    kept = Image.open(PICTURES / f"{view.name}.png").convert("RGB")
    assert share_that_differs(picture_of(page), kept) > SHARE_MAX


@pytest.mark.skipif(bool(os.environ.get(RENEW)), reason="pictures are taken anew")
def test_no_picture_lies_about_that_nobody_compares() -> None:
    assert {path.stem for path in PICTURES.glob("*.png")} == {view.name for view in VIEWS}
