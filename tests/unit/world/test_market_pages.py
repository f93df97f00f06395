"""The two pages over HTTP: what was typed is answered to one reader alone, and what is sent may be sent."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator
from urllib.parse import urlencode

import httpx2
import pytest

from coordinator.world_demo import SERVED, demo_market
from web_world.calculator_form import EXAMPLE
from web_world.demo_server import demo_app
from web_world.privacy import HOUR_US
from web_world.texts import LANGUAGES, texts_of

pytestmark = pytest.mark.anyio

ORIGIN = "https://network.example.org"
NOW_US = 500_000 * HOUR_US
FILLED = {"mac": "M4 Pro:20", "model": SERVED[3], **EXAMPLE}


async def client_over(macs: int | None) -> AsyncGenerator[httpx2.AsyncClient]:
    market = demo_market(macs, 1) if macs is not None else None
    app = demo_app(100, seed=2, now_us=NOW_US, origin=ORIGIN, market=market)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=ORIGIN) as made:
        yield made


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    async for made in client_over(5_000):
        yield made


def plain(page: str) -> str:
    words = re.sub(r"<[^>]+>", " ", html.unescape(page))
    return " ".join(re.sub("[\u200e\u200f\u2066-\u2069]", "", words).split())


async def test_an_answer_is_its_readers_and_the_empty_form_is_everybodys(client: httpx2.AsyncClient) -> None:
    empty = await client.get("/en/calculator")
    filled = await client.get(f"/en/calculator?{urlencode(FILLED)}")
    again = await client.get("/en/calculator")
    assert "public" in empty.headers["cache-control"]
    assert filled.headers["cache-control"].startswith("private")
    assert empty.text == again.text != filled.text
    assert filled.headers["etag"] != empty.headers["etag"]
    other = await client.get(f"/en/calculator?{urlencode(FILLED | {'price': '2500'})}")
    assert other.headers["etag"] != filled.headers["etag"]
    kept = await client.get(
        f"/en/calculator?{urlencode(FILLED)}", headers={"if-none-match": filled.headers["etag"]}
    )
    assert kept.status_code == 304


async def test_a_query_changes_no_other_page(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/en/models?price=1")).text == (await client.get("/en/models")).text


async def test_only_the_page_with_a_form_may_send_one_and_only_to_itself(client: httpx2.AsyncClient) -> None:
    policies = {
        slug: (await client.get(f"/en/{slug}")).headers["content-security-policy"]
        for slug in ("models", "calculator", "")
    }
    assert policies["models"] == policies[""]
    assert "form-action 'none'" in policies["models"]
    assert policies["calculator"] == policies[""].replace("form-action 'none'", "form-action 'self'")


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.code)
async def test_costs_are_written_in_the_readers_language(
    client: httpx2.AsyncClient, language: object
) -> None:
    for each in LANGUAGES:
        if each is not language:
            continue
        texts = texts_of(each.code)
        page = plain((await client.get(f"/{each.code}/calculator?{urlencode(FILLED)}")).text)
        for figure in (
            texts.money(2_400, "EUR"),
            texts.money(0.6, "EUR"),
            texts.money(36, "EUR"),
            texts.unit(36, "duration-month"),
            texts.percent(257_000),
        ):
            assert plain(figure) in page, figure
        assert plain(texts.text("calc-lend-credits")) in page


async def test_what_is_typed_is_shown_as_text_and_never_as_markup(client: httpx2.AsyncClient) -> None:
    typed = '"><script>alert(1)</script>'
    for name in FILLED:
        answer = await client.get(f"/en/calculator?{urlencode(FILLED | {name: typed})}")
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text


async def test_the_models_page_has_every_model_of_the_catalogue_and_its_prices(
    client: httpx2.AsyncClient,
) -> None:
    facts = demo_market(5_000, 1)
    page = plain((await client.get("/en/models")).text).replace("\u2011", "-")
    for offer in facts.models:
        assert offer.name in page
        assert texts_of("en").amount(offer.output_umlx_per_million / 1e6) in page
    for model in SERVED:
        assert model in page


async def test_no_account_and_no_owner_is_on_the_page(client: httpx2.AsyncClient) -> None:
    facts = demo_market(5_000, 1)
    page = (await client.get("/en/models")).text
    assert not any(re.search(rf"\b{each.account}\b", page) for each in facts.settled[:50])
    assert not any(re.search(rf"\b{each.owner}\b", page) for each in facts.lent[:50])


async def test_without_a_catalogue_both_pages_say_so() -> None:
    async for client in client_over(None):
        for slug in ("models", "calculator"):
            for query in ("", f"?{urlencode(FILLED)}"):
                answer = await client.get(f"/pl/{slug}{query}")
                assert answer.status_code == 200
                assert texts_of("pl").text("models-none") in answer.text


def test_amounts_keep_three_digits_that_count_and_plurals_fit_whole_numbers() -> None:
    english, polish = texts_of("en"), texts_of("pl")
    assert [english.money(value, "EUR") for value in (0, 0.001234, 0.5, 5.678, 2400)] == [
        "€0.00",
        "€0.00123",
        "€0.50",
        "€5.68",
        "€2,400.00",
    ]
    assert [english.amount(value) for value in (0, 0.04561, 5.678, 93.33, 1234.5)] == [
        "0",
        "0.0456",
        "5.68",
        "93.3",
        "1,234",
    ]
    assert polish.unit(36.0, "duration-month").replace("\xa0", " ") == "36 miesięcy"
    assert polish.unit(77.04, "duration-hour").replace("\xa0", " ") == "77 godzin"
    assert polish.unit(38.5, "duration-hour").replace("\xa0", " ") == "38,5 godziny"
    assert english.unit(4.84, "energy-kilowatt-hour") == "4.8 kWh"
