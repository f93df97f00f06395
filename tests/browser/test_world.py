"""The map page as somebody sees, hears and steers it."""

from __future__ import annotations

import io
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.conftest import FEW, FLEET, NewVisit
from web_world.texts import LANGUAGES, texts_of

# What playwright's own threads leave behind is not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

CODES: Final = [language.code for language in LANGUAGES]
TARGET_PIXELS_MIN: Final = 24


def camera(page: Page) -> dict[str, Any]:
    return page.evaluate("({...document.querySelector('mlx-globe').camera})")


def rows(page: Page) -> list[tuple[str, int]]:
    """(country or "", lights) of each row of the table."""
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('tr[data-lights]')].map((row) => [row.dataset.code, row.dataset.lights])"
    )
    return [(code, int(lights)) for code, lights in found]


@pytest.mark.parametrize("code", CODES)
def test_nothing_is_asked_of_anybody_else_and_nothing_is_complained_of(
    world: str, visit: NewVisit, code: str
) -> None:
    seen = visit()
    page = seen.go(f"{world}/{code}/")
    seen.until("document.querySelector('#live-status').classList.contains('is-live')")
    page.wait_for_timeout(300)
    assert {address.partition("/world/")[0].partition(f"/{code}/")[0] for address in seen.asked} == {world}
    assert seen.said == []
    assert page.evaluate("document.documentElement.dir") == ("rtl" if code in {"ar", "ur"} else "ltr")


def test_the_table_tells_what_the_globe_tells(world: str, visit: NewVisit) -> None:
    page = visit().go(f"{world}/en/")
    before = rows(page)
    assert sum(lights for _, lights in before) == FLEET
    assert page.evaluate("document.querySelector('mlx-globe').dataset.lights") == str(FLEET)
    page.get_by_role("button", name="Country", exact=True).click()
    names = page.locator("tbody th").all_inner_texts()
    assert names[0] < names[-1]
    assert sorted(rows(page)) == sorted(before)
    assert page.locator("thead th").first.get_attribute("aria-sort") == "ascending"


def test_a_few_macs_are_as_many_lights(small_world: str, visit: NewVisit) -> None:
    page = visit().go(f"{small_world}/pl/")
    assert page.evaluate("document.querySelector('mlx-globe').dataset.lights") == str(FEW)
    assert sum(lights for _, lights in rows(page)) == FEW
    assert page.locator(".headline .what").inner_text() == "Maki w sieci"
    assert page.get_by_text(texts_of("pl").text("figures-withheld")).count() == 1


def test_the_page_stands_without_javascript(world: str, visit: NewVisit) -> None:
    seen = visit(java_script_enabled=False)
    seen.page.goto(f"{world}/ar/")
    table = seen.page.locator("table")
    assert table.is_visible()
    assert texts_of("ar").number(FLEET) in table.locator("tfoot .total").inner_text()
    assert seen.page.locator(".no-script").is_visible()
    assert table.locator("button").count() == 0


def test_the_globe_is_steered_by_keys(world: str, visit: NewVisit) -> None:
    seen = visit()
    page = seen.go(f"{world}/en/")
    canvas = page.locator("mlx-globe canvas").first
    canvas.focus()
    start = camera(page)
    for key, member, is_more in (
        ("ArrowRight", "longitude", True),
        ("ArrowLeft", "longitude", False),
        ("ArrowUp", "latitude", True),
        ("ArrowDown", "latitude", False),
        ("+", "zoom", True),
        ("-", "zoom", False),
    ):
        before = camera(page)[member]
        page.keyboard.press(key)
        after = camera(page)[member]
        assert (after > before) is is_more, key
        assert after != before, key
    assert camera(page)["zoom"] == pytest.approx(start["zoom"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Zoom in"
    page.keyboard.press("Enter")
    seen.until("document.querySelector('mlx-globe').camera.zoom > 1.5")


def test_the_flat_map_and_back(world: str, visit: NewVisit) -> None:
    seen = visit()
    page = seen.go(f"{world}/en/")
    canvas = page.locator("mlx-globe canvas").first
    page.get_by_role("button", name="Flat map").click()
    assert camera(page)["isFlat"] is True
    assert str(canvas.get_attribute("aria-label")).startswith("Flat map")
    page.get_by_role("button", name="Globe").click()
    assert camera(page)["isFlat"] is False
    assert seen.said == []


def test_dragging_turns_and_the_wheel_zooms_only_on_the_globe(world: str, visit: NewVisit) -> None:
    page = visit().go(f"{world}/en/")
    box = page.locator("mlx-globe").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = camera(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 120, y + 40, steps=4)
    page.mouse.up()
    turned = camera(page)
    assert turned["longitude"] > before["longitude"]
    assert turned["latitude"] > before["latitude"]
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(100)
    assert camera(page)["zoom"] > 1.2
    page.mouse.move(box["x"] + 4, box["y"] + box["height"] / 2)
    zoom = camera(page)["zoom"]
    page.evaluate(
        "document.querySelector('mlx-globe').camera = {longitude: 0, latitude: 0, zoom: 1, isFlat: false}"
    )
    page.wait_for_timeout(200)
    page.mouse.wheel(0, 240)
    page.wait_for_timeout(300)
    assert zoom > 1
    assert camera(page)["zoom"] == 1
    assert page.evaluate("scrollY") > 0


def test_a_country_in_the_table_turns_the_globe_to_it(world: str, visit: NewVisit) -> None:
    seen = visit()
    page = seen.go(f"{world}/en/")
    page.get_by_role("button", name="Australia").click()
    seen.until("document.querySelector('mlx-globe').camera.zoom >= 3")
    assert camera(page)["longitude"] == pytest.approx(134, abs=6)
    assert camera(page)["latitude"] == pytest.approx(-25.5, abs=4)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("code", CODES)
def test_axe_finds_nothing(world: str, visit: NewVisit, code: str, theme: str) -> None:
    page = visit(color_scheme=theme).go(f"{world}/{code}/")
    page.locator(".legend summary").click()
    axe: Any = Axe()
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [320, 390, 640, 768, 1280])
@pytest.mark.parametrize("code", CODES)
def test_nothing_sticks_out_at_any_width(world: str, visit: NewVisit, code: str, width: int) -> None:
    page = visit(viewport={"width": width, "height": 800}).go(f"{world}/{code}/")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table, room = page.evaluate(
        "['table', '#countries'].map((name) => document.querySelector(name).getBoundingClientRect().width)"
    )
    assert table <= room + 1
    small = page.evaluate(
        """(least) => [...document.querySelectorAll('a, button, summary')]
            .filter((element) => !element.closest('.skip, p') && element.checkVisibility())
            .map((element) => [element.textContent, element.getBoundingClientRect()])
            .filter(([, box]) => box.height > 0 && (box.height < least || box.width < least))
            .map(([text]) => text.trim())""",
        TARGET_PIXELS_MIN,
    )
    # Links inside a sentence are as high as its words, which is allowed.
    assert small == []
    overlapping = page.evaluate(
        """() => {
            const box = (name) => document.querySelector(name).getBoundingClientRect();
            const [one, other] = [box('.controls'), box('.legend summary')];
            return one.left < other.right && other.left < one.right && one.top < other.bottom
                && other.top < one.bottom;
        }"""
    )
    assert overlapping is False


def test_figures_stay_live(world: str, visit: NewVisit) -> None:
    seen = visit()
    page = seen.go(f"{world}/en/")
    first = page.locator("#figure-working bdi").inner_text()
    seen.until(f"document.querySelector('#figure-working bdi').textContent !== '{first}'")
    assert seen.said == []


def test_forced_colours_and_motion_leave_the_page_whole(world: str, visit: NewVisit) -> None:
    seen = visit(forced_colors="active", reduced_motion="no-preference", color_scheme="dark")
    page = seen.go(f"{world}/en/")
    page.get_by_role("button", name="Zoom in").click()
    seen.until("document.querySelector('mlx-globe').camera.zoom > 1.7")
    assert page.locator("table").is_visible()
    assert seen.said == []


def test_the_same_moment_gives_the_same_picture(small_world: str, visit: NewVisit) -> None:
    pictures: list[bytes] = []
    for _ in range(2):
        seen = visit()
        seen.page.clock.set_fixed_time("2026-03-20T12:00:00Z")
        page = seen.go(f"{small_world}/en/")
        page.evaluate("document.querySelector('mlx-globe').paint()")
        pictures.append(page.locator("mlx-globe").screenshot())
    assert io.BytesIO(pictures[0]).getvalue() == pictures[1]
