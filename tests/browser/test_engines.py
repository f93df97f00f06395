"""The same pages in every browser engine that is here: Chromium, and Safari's and Firefox's kin.

`playwright install webkit firefox` brings the other two; without them their tests are skipped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserType, Page, sync_playwright

from tests.browser.conftest import FLEET, WAIT_MS, chromium
from web_world.texts import LANGUAGES, Language, texts_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

OTHER_DIGITS: Final = re.compile("[\u0660-\u0669\u06f0-\u06f9]")


@pytest.fixture(scope="module", params=["chromium", "webkit", "firefox"])
def engine(request: pytest.FixtureRequest) -> Generator[Browser]:
    """One browser of this engine; skipped where there is none."""
    with sync_playwright() as playwright:
        kind: BrowserType = getattr(playwright, request.param)
        options: dict[str, Any] = {}
        if request.param == "chromium" and (path := chromium()) is not None:
            options = {"executable_path": path, "args": ["--disable-gpu", "--no-sandbox"]}
        elif not Path(kind.executable_path).exists():
            pytest.skip(f"no {request.param} here: .venv/bin/playwright install --with-deps {request.param}")
        made = kind.launch(**options)
        yield made
        made.close()


def opened(engine: Browser, address: str, width: int, said: list[str]) -> Page:
    page = engine.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce").new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    return page


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.code)
def test_the_map_works_in_each_engine(world: str, engine: Browser, language: Language) -> None:
    said: list[str] = []
    page = opened(engine, f"{world}/{language.code}/", 1280, said)
    deadline = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate("document.querySelector('mlx-globe')?.dataset.lights > 0"):
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    assert page.evaluate("document.querySelector('mlx-globe').dataset.lights") == str(FLEET)
    assert page.evaluate("document.documentElement.dir") == language.direction
    # Engines disagree on the digits of plain "ar"; the pages pin them.
    shown = page.locator("body").inner_text()
    assert OTHER_DIGITS.search(shown) is None
    assert texts_of(language.code).number(FLEET) in shown
    page.get_by_role("button", name=texts_of(language.code).text("show-flat")).click()
    assert page.evaluate("document.querySelector('mlx-globe').camera.isFlat") is True
    assert said == []
    page.context.close()


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.code)
def test_text_fits_a_phone_in_each_engine(world: str, engine: Browser, language: Language) -> None:
    said: list[str] = []
    for slug in ("", "about", "ultra", "status"):
        page = opened(engine, f"{world}/{language.code}/{slug}", 390, said)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, slug
        assert page.locator("h1").is_visible()
        page.context.close()
    assert said == []
