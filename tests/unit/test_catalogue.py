"""The catalogue: built-in cards, aliases, suggestions, and errors that name file and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.catalogue.cards import BUILT_IN, CatalogueError, load_catalogue

CARD = (BUILT_IN / "smollm2-135m-f32.toml").read_text("utf-8")


def test_names_resolve_to_the_id() -> None:
    catalogue = load_catalogue()
    for name in ("smollm2-135m-f32", "small", "fast", "mlx-community/SmolLM2-135M-Instruct"):
        card = catalogue.resolve(name)
        assert card is not None
        assert card.id == "smollm2-135m-f32"
    assert catalogue.resolve("gpt-4") is None


def test_a_revision_is_the_digest_of_the_content(tmp_path: Path) -> None:
    card = load_catalogue().cards["smollm2-135m-f32"]
    same = type(card).model_validate_json(card.model_dump_json())
    assert same.revision == card.revision
    dearer = card.model_copy(update={"name": card.name + "!"})
    assert dearer.revision != card.revision
    catalogue = load_catalogue()
    assert catalogue.by_revision(card.id, card.revision) == card
    assert catalogue.by_revision(card.id, "0" * 64) is None


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    catalogue = load_catalogue()
    assert "smollm2-135m-f32" in catalogue.nearest("SmolLM2-135M")
    assert catalogue.nearest("something else entirely")  # the smallest are offered then
    assert catalogue.nearest("smollm2", kind="completion") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id = [", "bad.toml: "),
        (CARD.replace('kind = "chat"', 'kind = "vision"'), "bad.toml: kind:"),
        (CARD.replace("context_tokens = 8192", 'context_tokens = "8192"'), "bad.toml: context_tokens:"),
        (CARD.replace("[price]", "colour = 1\n[price]"), "bad.toml: "),
        (CARD.replace("minimum_umlx = 100", "minimum_umlx = 0"), "bad.toml: price.minimum_umlx:"),
        (CARD, "already the id of a card"),
    ],
)
def test_a_bad_card_is_refused_with_file_and_field(tmp_path: Path, text: str, message: str) -> None:
    assert text != CARD or "already" in message, "the replacement did not apply"
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(CatalogueError, match=message):
        _ = load_catalogue([tmp_path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('x = "no-such-card"', "x: no card has the id no-such-card"),
        ("x = 1", "x: must be the id of a card"),
        ('"smollm2-135m-f32" = "smollm2-135m-f32"', "is the id of a card"),
    ],
)
def test_a_bad_alias_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "aliases.toml").write_text(text)
    with pytest.raises(CatalogueError, match=message):
        _ = load_catalogue([tmp_path])
