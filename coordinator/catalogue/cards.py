"""The catalogue: cards read from TOML files, aliases, and what to suggest for an unknown name."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from node_agent.protocol.cards import HubRepo, ModelCard

BUILT_IN = Path(__file__).parent / "cards"
ALIASES_FILE = "aliases.toml"


class CatalogueError(ValueError):
    """A card or alias file that cannot be used; the text names file, field and fault."""


@dataclass(frozen=True)
class Catalogue:
    """All cards by id, the names that point to them, and the file that each was read from."""

    cards: Mapping[str, ModelCard]
    aliases: Mapping[str, str]
    files: Mapping[str, Path]

    def resolve(self, name: str) -> ModelCard | None:
        """The card that a submitter's `name` (id or alias) means, or None."""
        return self.cards.get(self.aliases.get(name, name))

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


def read_card(path: Path) -> ModelCard:
    """Read one card. Raises `CatalogueError` naming the file and the field."""
    try:
        return ModelCard.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogueError(f"{path.name}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CatalogueError(f"{path.name}: {field}: {first['msg']}") from None


def _read_aliases(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogueError(f"{path.name}: {error}") from None
    for alias, target in table.items():
        if not isinstance(target, str):
            raise CatalogueError(f"{path.name}: {alias}: must be the id of a card")
    return table


def load_catalogue(folders: Iterable[Path] = ()) -> Catalogue:
    """Read the built-in cards and those in `folders`; a later folder's aliases win.

    Raises `CatalogueError` for a bad file, two cards of one id, or an alias that leads nowhere.
    """
    cards: dict[str, ModelCard] = {}
    aliases: dict[str, str] = {}
    files: dict[str, Path] = {}
    for folder in (BUILT_IN, *folders):
        for path in sorted(folder.glob("*.toml")):
            if path.name == ALIASES_FILE:
                continue
            card = read_card(path)
            if card.id in cards:
                raise CatalogueError(f"{path.name}: id: {card.id} is already the id of a card")
            cards[card.id] = card
            files[card.id] = path
        aliases |= _read_aliases(folder / ALIASES_FILE)
    for card in cards.values():
        if isinstance(card.source, HubRepo):
            aliases.setdefault(card.source.repo, card.id)
    for alias, target in aliases.items():
        if target not in cards:
            raise CatalogueError(f"{ALIASES_FILE}: {alias}: no card has the id {target}")
        if alias in cards:
            raise CatalogueError(f"{ALIASES_FILE}: {alias}: is the id of a card")
    return Catalogue(cards, aliases, files)
