"""The calculator and the page of models in a browser: with a script, without one, and filled in badly."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import NewVisit, Visit
from tests.browser.test_world import CODES
from web_world.calculator_form import EXAMPLE
from web_world.texts import texts_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

FILLED: Final = {"mac": "M4 Pro:20", "model": "qwen3-30b-a3b-4bit", **EXAMPLE}
TOO_LARGE: Final = FILLED | {"mac": "M4:10", "memory": "16", "model": "llama-3.3-70b-4bit", "macs": "4"}
FAULTY: Final = FILLED | {"price": "", "years": "900", "kwh": "cheap", "currency": "XXXX"}
QUERIES: Final = {"filled": FILLED, "too large": TOO_LARGE, "faulty": FAULTY}


def open_filled(seen: Visit, world: str, code: str, query: dict[str, str]) -> None:
    seen.page.goto(f"{world}/{code}/calculator?{urlencode(query)}#result")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("code", CODES)
def test_axe_finds_nothing_in_answers_and_faults(world: str, visit: NewVisit, code: str, theme: str) -> None:
    seen = visit(color_scheme=theme)
    axe: Any = Axe()
    for name, query in QUERIES.items():
        open_filled(seen, world, code, query)
        found = axe.run(seen.page)
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"
    seen.page.goto(f"{world}/{code}/models")
    for summary in seen.page.locator("summary").all():
        summary.click()
    found = axe.run(seen.page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("code", CODES)
def test_answers_and_faults_keep_to_the_screen(world: str, visit: NewVisit, code: str, width: int) -> None:
    seen = visit(viewport={"width": width, "height": 800})
    for name, query in QUERIES.items():
        open_filled(seen, world, code, query)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, name
        cut = seen.page.evaluate(
            """() => [...document.querySelectorAll('#result :is(p, li, dt, dd, h3), .field :is(label, span)')]
                .filter((element) => element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0)
                .map((element) => element.textContent.trim().slice(0, 60))"""
        )
        assert cut == [], name
    seen.page.goto(f"{world}/{code}/models")
    seen.page.locator("summary").last.click()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_a_script_the_form_is_sent_and_answered(world: str, visit: NewVisit) -> None:
    seen = visit(java_script_enabled=False)
    page = seen.page
    page.goto(f"{world}/pl/calculator")
    assert page.locator(".way").count() == 0
    for name, value in FILLED.items():
        field = page.locator(f"#{name}")
        if name in {"mac", "memory", "macs", "model"}:
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name=texts_of("pl").text("calc-button")).click()
    page.wait_for_url("**/pl/calculator?*")
    assert page.locator(".way").count() == 4
    assert page.locator("#price").input_value() == FILLED["price"]
    assert all(address.startswith(f"{world}/") for address in seen.asked)


def test_the_script_shows_what_the_server_says_and_keeps_the_fields(world: str, visit: NewVisit) -> None:
    seen = visit()
    page = seen.page
    open_filled(seen, world, "en", FILLED)
    before = page.locator("#result").inner_text()
    page.locator("#cloud").fill("12")
    seen.until("document.querySelector('.verdict-card')?.classList.contains('buy')")
    live = page.locator("#result").inner_text()
    assert live != before
    assert page.evaluate("document.activeElement.id") == "cloud"
    page.reload()
    assert page.locator("#result").inner_text() == live
    assert page.locator("#cloud").input_value() == "12"
    assert seen.said == []
    assert all(address.startswith(f"{world}/") for address in seen.asked)


def test_the_script_marks_faults_and_takes_the_marks_away(world: str, visit: NewVisit) -> None:
    seen = visit()
    page = seen.page
    open_filled(seen, world, "en", FILLED)
    page.locator("#years").fill("900")
    seen.until("document.querySelector('#years').getAttribute('aria-invalid') === 'true'")
    assert page.locator("#years").get_attribute("aria-describedby") == "years-fault"
    assert "0.5" in page.locator("#years-fault").inner_text()
    page.locator("#years").fill("5")
    seen.until("document.querySelectorAll('.way').length === 4")
    assert page.locator("#years").get_attribute("aria-invalid") is None
    assert page.locator("#years-fault").count() == 0
    assert seen.said == []


def test_while_something_is_missing_nothing_is_asked_for(world: str, visit: NewVisit) -> None:
    seen = visit()
    page = seen.page
    open_filled(seen, world, "en", FILLED)
    page.locator("#price").fill("")
    page.wait_for_timeout(800)
    assert sum("/calculator?" in address for address in seen.asked) == 1


def test_the_example_fills_everything_in(world: str, visit: NewVisit) -> None:
    seen = visit()
    seen.page.goto(f"{world}/ur/calculator")
    seen.page.get_by_role("link", name=texts_of("ur").text("calc-example")).click()
    seen.page.wait_for_url("**/ur/calculator?*")
    assert seen.page.locator(".way").count() == 4
    assert seen.page.locator("#price").input_value() == EXAMPLE["price"]


def test_a_small_network_tells_no_demand_and_says_so(world: str, small_world: str, visit: NewVisit) -> None:
    texts = texts_of("en")
    seen = visit()
    seen.page.goto(f"{small_world}/en/models")
    # No Macs that could take it, no tokens of a day or a month: only the smallest Mac is a fact.
    for row in seen.page.locator(".demand tbody tr").all():
        told = row.locator("td").all_inner_texts()
        assert told[1:] == [texts.text("not-told")] * 3
    assert seen.page.get_by_text(texts.text("models-earned-none")).is_visible()
    open_filled(seen, small_world, "en", FILLED)
    memory = texts.text("calc-lend-none", memory=texts.memory(48 << 30))
    assert memory in seen.page.locator("#result").inner_text()
    seen.page.goto(f"{world}/en/models")
    first = seen.page.locator(".demand tbody tr").first.locator("td").all_inner_texts()
    assert texts.text("not-told") not in first
