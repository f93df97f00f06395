"""Claims about clusters: every figure is told in every language, and every source is a real address."""

from __future__ import annotations

import pytest
from fluent.syntax import FluentParser, ast

from tests.unit.world.test_texts import MESSAGES
from web_world.claims import CLAIMS
from web_world.texts import LANGUAGES, sources_of, texts_of

NAMES = {"chip", "model"}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_every_figure_is_told(claim: object) -> None:
    for each in CLAIMS:
        if each is not claim:
            continue
        told = {
            name
            for part in ("", "-shown", "-verdict")
            for name in MESSAGES["en"][f"claim-{each.key}{part}"].variables
        }
        assert told - NAMES == set(each.figures)


def test_no_claim_is_told_that_has_no_source() -> None:
    entries = FluentParser().parse(sources_of(LANGUAGES[0])["clusters"]).body
    keys = {
        entry.id.name.split("-")[1]
        for entry in entries
        if isinstance(entry, ast.Message) and entry.id.name.startswith("claim-")
    }
    assert keys == {claim.key for claim in CLAIMS}
    for claim in CLAIMS:
        for source in (claim.said_by, *claim.shown_by):
            assert source.address.startswith("https://")
            assert source.name


def test_quantities_keep_their_order_in_every_language() -> None:
    assert {language.code: texts_of(language.code).quantity(1.34, "x") for language in LANGUAGES} == {
        "en": "\u200e1.34\u00d7\u200e",
        "ar": "\u200e1.34\u00d7\u200e",
        "pl": "\u200e1,34\u00d7\u200e",
        "ur": "\u200e1.34\u00d7\u200e",
    }
    assert texts_of("en").quantity(1080, "W") == "1,080\u00a0W"
