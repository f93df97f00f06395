"""Pages as anybody gets them over HTTP: languages, headers, caching, and the table without a script."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import AsyncGenerator

import httpx2
import pytest

from web_world.demo_server import demo_app
from web_world.privacy import HOUR_US
from web_world.texts import LANGUAGES, texts_of

pytestmark = pytest.mark.anyio

ORIGIN = "https://network.example.org"
NOW_US = 500_000 * HOUR_US


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    app = demo_app(2_000, seed=2, now_us=NOW_US, origin=ORIGIN)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=ORIGIN) as made:
        yield made


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.code)
async def test_a_page_says_its_language_direction_and_its_sisters(
    client: httpx2.AsyncClient, language: object
) -> None:
    for each in LANGUAGES:
        if each is not language:
            continue
        page = (await client.get(f"/{each.code}/")).text
        assert f'<html lang="{each.code}" dir="{each.direction}">' in page
        for other in LANGUAGES:
            assert f'hreflang="{other.code}" href="{ORIGIN}/{other.code}/"' in page
            assert f'lang="{other.code}" dir="{other.direction}"' in page
        assert f'rel="canonical" href="{ORIGIN}/{each.code}/"' in page
        assert texts_of(each.code).number(2_000) in page


async def test_the_first_address_answers_in_the_browsers_language(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/", headers={"accept-language": "ur-PK,ur;q=0.9"})
    assert 'lang="ur"' in answer.text
    assert "accept-language" in answer.headers["vary"]
    assert 'lang="en"' in (await client.get("/")).text


@pytest.mark.parametrize("code", ["en", "ar", "pl", "ur"])
async def test_a_language_typed_without_its_slash_leads_to_its_first_page(
    client: httpx2.AsyncClient, code: str
) -> None:
    answer = await client.get(f"/{code}?from=friend")
    assert (answer.status_code, answer.headers["location"]) == (308, f"/{code}/?from=friend")
    assert (await client.get(answer.headers["location"])).status_code == 200


async def test_a_chosen_language_is_kept(client: httpx2.AsyncClient) -> None:
    chosen = await client.get("/ar/", headers={"accept-language": "pl"})
    assert chosen.headers["set-cookie"].startswith("language=ar;")
    assert 'lang="ar"' in (await client.get("/", headers={"accept-language": "pl"})).text
    assert "set-cookie" not in (await client.get("/ar/", headers={"accept-language": "pl"})).headers


async def test_nothing_from_outside_may_be_fetched_or_run(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/en/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"\sstyle=|\son\w+=", answer.text)
    for address in re.findall(r'(?:src|href)="([^"]+)"', answer.text):
        assert address.startswith(("/", "#", ORIGIN)), address
    for script in re.findall(r"<script[^>]*>", answer.text):
        assert "src=" in script or 'type="application/json"' in script


async def test_the_table_without_a_script_is_the_snapshots(client: httpx2.AsyncClient) -> None:
    page = (await client.get("/en/")).text
    snapshot = (await client.get("/world/v1/snapshot.json")).json()
    rows = re.findall(r'<tr data-code="(\w*)" data-lights="(\d+)">', page)
    expected = list(zip(snapshot["countries"]["code"], snapshot["countries"]["lights"], strict=True))
    expected.append(("", snapshot["totals"]["stars"]))
    assert [(code, int(lights)) for code, lights in rows] == expected
    assert sum(int(lights) for _, lights in rows) == snapshot["totals"]["macs_seen"] == 2_000


async def test_what_has_not_changed_is_not_sent_again(client: httpx2.AsyncClient) -> None:
    for path in ("/world/v1/snapshot.json", "/en/", "/world/static/world.js"):
        first = await client.get(path)
        again = await client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "max-age" in first.headers["cache-control"]
    assert (await client.get("/world/static/nothing.js")).status_code == 404
    assert (await client.get("/world/static/../pages.py")).status_code == 404


async def test_the_packed_answer_is_the_plain_one(client: httpx2.AsyncClient) -> None:
    plain = await client.get("/world/v1/snapshot.json", headers={"accept-encoding": "identity"})
    async with client.stream("GET", "/world/v1/snapshot.json", headers={"accept-encoding": "gzip"}) as packed:
        raw = b"".join([part async for part in packed.aiter_raw()])
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == plain.content


async def test_the_browsers_messages_are_those_of_the_page(client: httpx2.AsyncClient) -> None:
    page = (await client.get("/pl/")).text
    found = re.search(r'<script type="application/json" id="world-config">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    config = json.loads(html.unescape(found[1]))
    assert config["language"] == "pl-u-nu-latn"
    assert "zoom-in = Przybliż" in config["messages"]
    assert config["etag"] in (await client.get("/world/v1/snapshot.json")).headers["etag"]
