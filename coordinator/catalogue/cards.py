"""The catalogue: cards read from TOML files, aliases, and what to suggest for an unknown name.

A card whose files are not pinned by hash is known, sized and priced, and never served: it is kept
apart, so that whoever asks for something to run cannot be given one.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from node_agent.protocol.card_rules import RefusedModelError, check_names
from node_agent.protocol.cards import (
    HubRepo,
    LocalFolder,
    ModelCard,
    ModelFacts,
    UnpinnedCard,
    UnpinnedHub,
)
from node_agent.sizing.weights import computed_bytes

BUILT_IN = Path(__file__).parent / "cards"
ALIASES_FILE = "aliases.toml"
# How far a card's size may be from what its shape and quantisation give. Published repositories
# are within 0.4 %, and up to 19 % over where a vision tower lies beside the language model.
SIZE_SHARE_LEAST, SIZE_SHARE_MOST = 0.97, 1.25
# A safetensors file is its weights and a header, which names every one of them.
HEADER_SHARE_MOST = 0.01
HEADER_BYTES_MOST = 1 << 20


class CatalogueError(ValueError):
    """A card or alias file that cannot be used; the text names file, field and fault."""


@dataclass(frozen=True)
class Catalogue:
    """All cards by id, the names that point to them, and the file that each was read from.

    `cards` can be served; `unpinned` are known only. `aliases` point to the former alone,
    `unpinned_aliases` to the latter.
    """

    cards: Mapping[str, ModelCard]
    aliases: Mapping[str, str]
    files: Mapping[str, Path]
    unpinned: Mapping[str, UnpinnedCard] = field(default_factory=dict[str, UnpinnedCard])
    unpinned_aliases: Mapping[str, str] = field(default_factory=dict[str, str])

    def resolve(self, name: str) -> ModelCard | None:
        """The card that a submitter's `name` (id or alias) means, or None."""
        return self.cards.get(self.aliases.get(name, name))

    def known(self, name: str) -> ModelFacts | None:
        """The card of `name`, pinned or not, to size it or to tell its price, or None."""
        found = self.resolve(name)
        return found if found is not None else self.unpinned.get(self.unpinned_aliases.get(name, name))

    def by_revision(self, card_id: str, revision: str) -> ModelCard | None:
        """The card if it is still at `revision`, or None."""
        card = self.cards.get(card_id)
        return card if card is not None and card.revision == revision else None

    def nearest(self, name: str, *, kind: str | None = None, limit: int = 3) -> list[str]:
        """Ids of the cards whose name or alias looks most like `name`, then the smallest ones."""
        cards = [card for card in self.cards.values() if kind is None or card.kind == kind]
        names = {card.id: card.id for card in cards}
        names |= {alias: target for alias, target in self.aliases.items() if target in names}
        looked_alike = difflib.get_close_matches(name.lower(), names, n=limit, cutoff=0.4)
        by_size = sorted(cards, key=lambda card: card.weights_bytes)
        ordered = [names[alike] for alike in looked_alike] + [card.id for card in by_size]
        return list(dict.fromkeys(ordered))[:limit]


def read_card(path: Path) -> ModelCard | UnpinnedCard:
    """Read one card. Raises `CatalogueError` naming the file and the field."""
    table = _table_of(path)
    source = table.get("source")
    is_unpinned = isinstance(source, dict) and cast("dict[str, object]", source).get("type") == "unpinned"
    try:
        card = (UnpinnedCard if is_unpinned else ModelCard).model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field_name = ".".join(str(part) for part in first["loc"])
        raise CatalogueError(f"{path.name}: {field_name}: {first['msg']}") from None
    if isinstance(card.source, (HubRepo, LocalFolder)):
        try:
            check_names(file.name for file in card.source.files)
        except RefusedModelError as error:
            raise CatalogueError(f"{path.name}: source.files: {error}") from None
    fault = size_fault(card)
    if fault is not None:
        raise CatalogueError(f"{path.name}: weights_bytes: {fault}")
    return card


def _table_of(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_text("utf-8")
        return tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogueError(f"{path.name}: {error}{_twice(text, str(error))}") from None


def _twice(text: str, fault: str) -> str:
    """The key that a TOML file has twice; the parser tells its line alone."""
    at = re.search(r"^Cannot overwrite a value \(at line ([0-9]+)", fault)
    if at is None:
        return ""
    key = text.splitlines()[int(at[1]) - 1].partition("=")[0].strip()
    return f": the key '{key}' is there twice; keep one of them"


def size_fault(card: ModelCard | UnpinnedCard) -> str | None:
    """Why the card's size cannot be true, or None.

    It must be that of its safetensors files, and, where the card says how its weights are held,
    about what its shape gives.
    """
    stated = card.weights_bytes
    if isinstance(card.source, (HubRepo, LocalFolder)):
        held = sum(file.bytes for file in card.source.files if file.name.endswith(".safetensors"))
        slack = max(held * HEADER_SHARE_MOST, HEADER_BYTES_MOST)
        if held and not held - slack <= stated <= held:
            return f"{stated} is stated, but the safetensors files hold {held} bytes"
    if card.shape.quantisation is None or card.shape.tied is None:
        return None
    computed = computed_bytes(card.shape)
    if not SIZE_SHARE_LEAST <= stated / computed <= SIZE_SHARE_MOST:
        return f"{stated} is stated, but the shape and its quantisation give {computed} bytes"
    return None


def _read_aliases(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    table = _table_of(path)
    for alias, target in table.items():
        if not isinstance(target, str):
            raise CatalogueError(f"{path.name}: {alias}: must be the id of a card")
    return table


def load_catalogue(folders: Iterable[Path] = ()) -> Catalogue:
    """Read the built-in cards and those in `folders`; a later folder's aliases win, and a card that
    is pinned takes the place of an unpinned one with its id.

    Raises `CatalogueError` for a bad file, two cards of one id, or an alias that leads nowhere.
    """
    cards: dict[str, ModelCard] = {}
    unpinned: dict[str, UnpinnedCard] = {}
    aliases: dict[str, str] = {}
    files: dict[str, Path] = {}
    for folder in (BUILT_IN, *folders):
        for path in sorted(folder.glob("*.toml")):
            if path.name == ALIASES_FILE:
                continue
            card = read_card(path)
            if card.id in cards or (isinstance(card, UnpinnedCard) and card.id in unpinned):
                raise CatalogueError(f"{path.name}: id: {card.id} is already the id of a card")
            if isinstance(card, ModelCard):
                cards[card.id] = card
                _ = unpinned.pop(card.id, None)
            else:
                unpinned[card.id] = card
            files[card.id] = path
        aliases |= _read_aliases(folder / ALIASES_FILE)
    for card in (*cards.values(), *unpinned.values()):
        if isinstance(card.source, (HubRepo, UnpinnedHub)):
            _ = aliases.setdefault(card.source.repo, card.id)
    for alias, target in aliases.items():
        if target not in cards and target not in unpinned:
            raise CatalogueError(f"{ALIASES_FILE}: {alias}: no card has the id {target}")
        if alias in cards or alias in unpinned:
            raise CatalogueError(f"{ALIASES_FILE}: {alias}: is the id of a card")
    return Catalogue(
        cards,
        {alias: target for alias, target in aliases.items() if target in cards},
        files,
        unpinned,
        {alias: target for alias, target in aliases.items() if target in unpinned},
    )
