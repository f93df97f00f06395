"""Pictures of every page in every language, light and dark, on a desktop and on a phone.

`python -m tests.browser.shots` (`make screenshots`) writes them to `docs/screenshots`, over a made-up
fleet at a fixed moment; words in the arguments choose those whose name holds one of them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import NOW_US, chromium, serve
from web_world.pages import PAGES, WORLD_PAGE
from web_world.texts import BY_CODE, LANGUAGES

FOLDER: Final = Path(__file__).parents[2] / "docs" / "screenshots"
ORIGIN: Final = "https://mlx.example.org"
MANY: Final = 20_000
THEMES: Final = ("light", "dark")
DEVICES: Final[dict[str, dict[str, Any]]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}
DESKTOP: Final = DEVICES["desktop"]
PHONE: Final = DEVICES["phone"]
USUAL: Final[dict[str, Any]] = {
    "reduced_motion": "reduce",
    "timezone_id": "Europe/Warsaw",
    "locale": "en-GB",
}
WEBP_QUALITY: Final = 45
WHOLE_QUALITY: Final = 18  # long pages of large letters stay readable
HEIGHT_MAX: Final = 4_000  # what lies below is more of the same
FLAT: Final = ".controls button:last-child"
TOTAL_BYTES_MAX: Final = 12_000_000


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: of `path`, over `macs` Macs, in a browser with these options."""

    name: str
    path: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    macs: int = MANY
    is_whole: bool = True
    camera: dict[str, Any] | None = None
    click: str | None = None


def shots() -> Iterator[Shot]:
    """All pictures: pages, then states of the map, then the pictures that links carry."""
    for page in PAGES:
        for language in LANGUAGES:
            for theme in THEMES:
                for device, options in DEVICES.items():
                    # The desktop's map stands still beside its panel, so its window tells all.
                    is_whole = page != WORLD_PAGE or device == "phone"
                    name = f"{page.slug or 'world'}/{language.code}-{theme}-{device}"
                    path = page.address(language)
                    yield Shot(name, path, {**options, "color_scheme": theme}, is_whole=is_whole)
    for code, device, theme in (
        ("en", "desktop", "light"),
        ("ur", "desktop", "dark"),
        ("ar", "phone", "light"),
        ("pl", "phone", "dark"),
    ):
        options = DEVICES[device] | {"color_scheme": theme}
        yield Shot(f"calculator/example-{code}", f"/{code}/calculator", options, click="a[href$='#result']")
    dark = DESKTOP | {"color_scheme": "dark"}
    for macs in (3, 12, 100_000):
        yield Shot(f"map/{macs}-globe", "/en/", dark, macs=macs, is_whole=False)
        yield Shot(f"map/{macs}-flat", "/en/", dark, macs=macs, is_whole=False, click=FLAT)
        yield Shot(f"map/{macs}-phone", "/ur/", PHONE, macs=macs, is_whole=False)
    yield Shot(f"map/{MANY}-flat", "/ar/", dark, is_whole=False, click=FLAT)
    for zoom in (3, 9, 24):
        near = {"longitude": 10, "latitude": 50, "zoom": zoom, "isFlat": False}
        yield Shot(f"map/{MANY}-near-{zoom}", "/pl/", dark, is_whole=False, camera=near)
    yield Shot("map/legend", "/ar/", dark, is_whole=False, click=".legend summary")
    yield Shot("map/legend-phone", "/ur/", PHONE, is_whole=False, click=".legend summary")
    yield Shot("map/forced-colours", "/en/", dark | {"forced_colors": "active"}, is_whole=False)
    yield Shot("map/without-javascript", "/ar/", DESKTOP | {"java_script_enabled": False})
    # A window of 1280 by 800 at 200 % gives the page half of each.
    zoomed = {"viewport": {"width": 640, "height": 400}}
    forced = DESKTOP | {"forced_colors": "active"}
    for page in PAGES:
        is_text, slug = page != WORLD_PAGE, page.slug or "world"
        yield Shot(f"zoom-200/{slug}", page.address(BY_CODE["pl"]), zoomed)
        yield Shot(f"forced-colours/{slug}", page.address(BY_CODE["ar"]), forced, is_whole=is_text)


def main() -> None:
    """Take all pictures, or those named, and say how large they are together."""
    path = chromium()
    if path is None:
        raise SystemExit("no Chromium: apt-get install chromium, or set CHROMIUM to its path")
    words = sys.argv[1:]
    wanted = [shot for shot in shots() if not words or any(word in shot.name for word in words)]
    with sync_playwright() as playwright, ExitStack() as servers:
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-gpu", "--no-sandbox"])
        origins: dict[int, str] = {}
        for shot in wanted:
            if shot.macs not in origins:
                serving = contextmanager(serve)(shot.macs, is_still=True, shown_origin=ORIGIN)
                origins[shot.macs] = servers.enter_context(serving)
            _write(shot, take(browser, origins[shot.macs], shot))
        if not words:
            _take_links(browser, origins[MANY])
        browser.close()
    total = sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file())
    sys.stdout.write(f"{len(wanted)} pictures; {total:,} bytes in {FOLDER}\n")
    if total > TOTAL_BYTES_MAX:
        raise SystemExit(f"more than {TOTAL_BYTES_MAX:,} bytes")


def take(browser: Browser, origin: str, shot: Shot) -> bytes:
    """A PNG of the page as it stands once its globe and its fonts are there."""
    options: dict[str, Any] = {**USUAL, **shot.options}
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        page.clock.set_fixed_time(NOW_US / 1000)
        answer = page.goto(f"{origin}{shot.path}", wait_until="load")
        if answer is None or not answer.ok:
            raise SystemExit(f"{shot.path}: {answer.status if answer else 'no answer'}")
        if options.get("java_script_enabled", True):
            settle(page)
        if shot.camera is not None:
            page.evaluate("(to) => { document.querySelector('mlx-globe').camera = to }", shot.camera)
            page.wait_for_timeout(900)
        if shot.click is not None:
            page.locator(shot.click).click()
            page.wait_for_load_state()
            page.wait_for_timeout(200)
        if shot.is_whole:
            # A window as high as the page: a screenshot beyond the window would not be a phone's.
            height = int(page.evaluate("document.documentElement.scrollHeight"))
            page.set_viewport_size({"width": options["viewport"]["width"], "height": height})
            page.wait_for_timeout(300)
        return page.screenshot()
    finally:
        context.close()


def settle(page: Page) -> None:
    """Wait until fonts are there and, on the map, the globe shows its lights on land."""
    _ = page.evaluate("document.fonts.ready.then(() => true)")
    if page.locator("mlx-globe").count():
        for _ in range(200):
            if page.evaluate("document.querySelector('mlx-globe').dataset.lights > 0"):
                break
            page.wait_for_timeout(50)
        page.wait_for_load_state("load")
        page.wait_for_timeout(400)
        page.evaluate("document.querySelector('mlx-globe').paint()")


def _write(shot: Shot, png: bytes) -> None:
    target = FOLDER / f"{shot.name}.webp"
    target.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, HEIGHT_MAX)))
    quality = WHOLE_QUALITY if shot.is_whole else WEBP_QUALITY
    image.save(target, "WEBP", quality=quality, method=6)


def _take_links(browser: Browser, origin: str) -> None:
    context = browser.new_context()
    folder = FOLDER / "links"
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        for language in LANGUAGES:
            answer = context.request.get(f"{origin}{page.picture(language)}")
            name = f"{page.slug or 'world'}-{language.code}.webp"
            Image.open(io.BytesIO(answer.body())).save(folder / name, "WEBP", quality=WEBP_QUALITY, method=6)
    context.close()


if __name__ == "__main__":
    main()
