"""The public pages as a coordinator serves them, with its own rules in them."""

from __future__ import annotations

import re

import pytest

from tests.fixtures.coordinator import Coordinator
from web_world.pages import PAGES
from web_world.texts import LANGUAGES, texts_of

pytestmark = pytest.mark.anyio


async def test_every_page_is_there_for_anybody_in_every_language(coordinator: Coordinator) -> None:
    async with coordinator.client(None) as anybody:
        for page in PAGES:
            for language in LANGUAGES:
                answer = await anybody.get(page.address(language))
                assert answer.status_code == 200, page.address(language)
                assert f'<html lang="{language.code}" dir="{language.direction}">' in answer.text
                assert texts_of(language.code).text(page.nav_key) in answer.text
            assert (await anybody.get(f"/{page.slug}")).status_code == 200


async def test_the_pages_state_what_is_set_here(coordinator: Coordinator) -> None:
    settings = coordinator.runtime.settings
    kept = texts_of("en").duration(int(settings.result_keep_seconds))
    async with coordinator.client(None) as anybody:
        assert f">{kept}<" in _plain((await anybody.get("/en/privacy")).text)
        assert ">650 GB/s in each of them" in _plain((await anybody.get("/en/ultra")).text)
        assert settings.origin in (await anybody.get("/en/about")).text


def _plain(page: str) -> str:
    return re.sub("[\u2066-\u2069]", "", page).replace("\xa0", " ")
