"""The catalogue: built-in cards, aliases, suggestions, and errors that name file and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from coordinator.catalogue.cards import BUILT_IN, CatalogueError, load_catalogue
from coordinator.catalogue.pricing import price_of
from node_agent.protocol.messages import Hold

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
        (CARD.replace("[price]", "[price]\nminimum_umlx = 1"), "the key 'minimum_umlx' is there twice"),
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


def test_a_card_without_the_later_tables_keeps_its_digest_and_its_frame() -> None:
    card = load_catalogue().cards["smollm2-135m-f32"]
    # The digest that receipts and jobs named before a shape could say more.
    assert card.revision == "b64a8655159356db60e141734e95edeac968c4c614083112dce1da1509e0773b"
    assert set(card.model_dump(mode="json")["shape"]) == {
        "model_type",
        "layers",
        "hidden",
        "intermediate",
        "heads",
        "kv_heads",
        "head_dim",
        "vocab",
        "activation_bytes",
    }
    tied = card.model_copy(update={"shape": card.shape.model_copy(update={"tied": True})})
    assert tied.revision != card.revision
    assert type(card).model_validate_json(tied.model_dump_json()) == tied


def test_at_least_forty_models_are_known_and_none_of_them_can_be_offered() -> None:
    catalogue = load_catalogue()
    assert len(catalogue.unpinned) >= 40
    for name in ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mistral-7b", "qwen-27b"):
        assert catalogue.known(name) is not None
    for name in ("deepseek-v3", "kimi-k2", "kimi-k2-thinking", "mlx-community/Kimi-K2-Thinking"):
        card = catalogue.known(name)
        assert card is not None
        assert catalogue.resolve(name) is None
        with pytest.raises(ValidationError):
            _ = Hold.model_validate({"card": card.model_dump(mode="json")})


def test_every_known_model_says_where_its_sizes_are_from() -> None:
    for card in load_catalogue().unpinned.values():
        assert card.source.evidence
        assert card.source.repo.count("/") == 1
        price = card.price
        assert price == price_of(card.shape, card.weights_bytes, card.context_tokens)


def test_a_pinned_card_takes_an_unpinned_ones_place(tmp_path: Path) -> None:
    (tmp_path / "pinned.toml").write_text(CARD.replace('id = "smollm2-135m-f32"', 'id = "qwen3-8b-4bit"'))
    catalogue = load_catalogue([tmp_path])
    assert "qwen3-8b-4bit" not in catalogue.unpinned
    card = catalogue.resolve("qwen3-8b")
    assert card is not None
    assert card.id == "qwen3-8b-4bit"
