"""The pages beside the map: as tall columns of text, on every screen, in every language."""

from __future__ import annotations

from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import NewVisit
from tests.browser.test_world import CODES, TARGET_PIXELS_MIN
from web_world.pages import PAGES, WORLD_PAGE
from web_world.texts import texts_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

TAP_PIXELS_MIN: Final = 44
SLUGS: Final = [page.slug for page in PAGES if page != WORLD_PAGE]
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
}


@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("code", CODES)
def test_a_page_is_whole_alone_and_says_where_one_is(
    world: str, visit: NewVisit, code: str, slug: str
) -> None:
    seen = visit()
    page = seen.page
    page.goto(f"{world}/{code}/{slug}")
    assert page.locator("h1").count() == 1
    assert page.locator(".pages [aria-current='page']").inner_text() == texts_of(code).text(f"nav-{slug}")
    assert page.title() != texts_of(code).text("world-title")
    assert all(address.startswith(f"{world}/") for address in seen.asked)
    assert seen.said == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("code", CODES)
def test_axe_finds_nothing(world: str, visit: NewVisit, code: str, theme: str) -> None:
    page = visit(color_scheme=theme).page
    axe: Any = Axe()
    for slug in SLUGS:
        page.goto(f"{world}/{code}/{slug}")
        found = axe.run(page)
        assert found.violations_count == 0, f"{slug}: {found.generate_report()}"


@pytest.mark.parametrize("width", [320, 390, 640, 768, 1280])
@pytest.mark.parametrize("code", CODES)
def test_nothing_sticks_out_at_any_width(world: str, visit: NewVisit, code: str, width: int) -> None:
    page = visit(viewport={"width": width, "height": 800}).page
    for slug in SLUGS:
        page.goto(f"{world}/{code}/{slug}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, slug
        small = page.evaluate(
            """(least) => [...document.querySelectorAll('a, button, summary')]
                .filter((element) => !element.closest('.skip, p, li:not(nav li), td') && element.checkVisibility())
                .map((element) => [element.textContent, element.getBoundingClientRect()])
                .filter(([, box]) => box.height < least || box.width < least)
                .map(([text]) => text.trim())""",
            TARGET_PIXELS_MIN,
        )
        assert small == [], slug
        cut = page.evaluate(
            """() => [...document.querySelectorAll('main :is(h1, h2, p, li, td, th, dd)')]
                .filter((element) => element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0
                    && !element.querySelector('pre'))
                .map((element) => element.textContent.trim().slice(0, 60))"""
        )
        assert cut == [], slug


@pytest.mark.parametrize("has_script", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_on_a_phone_the_pages_are_behind_a_button(
    world: str, visit: NewVisit, code: str, has_script: bool
) -> None:
    texts = texts_of(code)
    page = visit(**PHONE, java_script_enabled=has_script).page
    page.goto(f"{world}/{code}/status")
    link = page.locator(".pages").get_by_text(texts.text("nav-privacy"), exact=True)
    assert not link.is_visible()
    page.get_by_role("button", name=texts.text("menu-button")).click()
    link.wait_for(state="visible")
    for each in page.locator(".pages a, .languages a, .top .button").all():
        box = each.bounding_box()
        assert box is not None
        assert box["height"] >= TAP_PIXELS_MIN
        assert 0 <= box["x"] <= PHONE["viewport"]["width"] - box["width"]
    link.click()
    page.wait_for_url(f"{world}/{code}/privacy")


@pytest.mark.parametrize("slug", ["about", "clusters", "ultra"])
def test_commands_break_between_words_only_and_are_copied_as_they_stand(
    world: str, visit: NewVisit, slug: str
) -> None:
    page = visit(**PHONE).page
    page.goto(f"{world}/ar/{slug}")
    commands: list[str] = page.locator("pre code").evaluate_all(
        "(all) => all.map((each) => each.textContent)"
    )
    assert commands
    assert not any("<" in command for command in commands)
    broken = page.locator("pre span").evaluate_all(
        "(words) => words.filter((word) => word.getClientRects().length > 1).map((word) => word.textContent)"
    )
    assert broken == []


@pytest.mark.parametrize("width", [718, 1040])
def test_paper_holds_the_result_and_nothing_to_press(world: str, visit: NewVisit, width: int) -> None:
    page = visit(viewport={"width": width, "height": 900}).page
    page.goto(f"{world}/pl/calculator")
    page.get_by_role("link", name=texts_of("pl").text("calc-example")).click()
    page.wait_for_url("**/pl/calculator?*")
    page.emulate_media(media="print")
    assert page.locator(".way").count() == 4
    assert page.locator(".verdict-card").is_visible()
    pressed = ".top nav, .top .button, .actions, .skip"
    assert not any(each.is_visible() for each in page.locator(pressed).all())
    assert page.locator(".top").evaluate("(top) => getComputedStyle(top).position") == "relative"


@pytest.mark.parametrize("slug", SLUGS)
def test_a_page_stands_without_javascript_and_in_forced_colours(
    world: str, visit: NewVisit, slug: str
) -> None:
    texts: list[str] = []
    for options in ({"java_script_enabled": False}, {"forced_colors": "active"}):
        page = visit(**options).page
        page.goto(f"{world}/ar/{slug}")
        texts.append(page.locator("main").inner_text())
    assert texts[0] == texts[1]


def test_a_phone_sends_the_link_to_the_mac_and_a_mac_is_not_asked(world: str, visit: NewVisit) -> None:
    phone = visit(**PHONE)
    phone.page.add_init_script("navigator.share = async (what) => { window.shared = what; }")
    phone.page.goto(f"{world}/pl/about")
    link = phone.page.get_by_role("link", name=texts_of("pl").text("about-share-button"))
    assert str(link.get_attribute("href")).startswith("mailto:?subject=")
    assert f"{world}/pl/about#lend".replace(":", "%3A").replace("#", "%23") in str(link.get_attribute("href"))
    link.click()
    phone.until("window.shared !== undefined")
    assert phone.page.evaluate("window.shared.url") == f"{world}/pl/about#lend"
    assert phone.said == []
    mac = visit()
    mac.page.goto(f"{world}/pl/about")
    assert not mac.page.locator("mlx-share").is_visible()


@pytest.mark.parametrize("code", CODES)
def test_the_button_in_the_head_leads_a_phone_to_the_link_for_the_mac(
    world: str, visit: NewVisit, code: str
) -> None:
    page = visit(**PHONE).go(f"{world}/{code}/")
    page.get_by_role("link", name=texts_of(code).text("lend-button")).first.click()
    page.wait_for_url(f"{world}/{code}/about#lend")
    page.wait_for_timeout(300)
    box = page.locator("mlx-share a").bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= PHONE["viewport"]["height"] - box["height"]
