"""`mlx-network catalogue`: the models that are known, and adding one from its own files."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from coordinator.statements_cli import mlx
from coordinator.terminal import Terminal, show_rows

if TYPE_CHECKING:
    from coordinator.catalogue.adding import Wishes
    from coordinator.catalogue.cards import Catalogue
    from node_agent.protocol.cards import ModelCard

EXIT_FAILED: Final = 1
GB: Final = 10**9

catalogue_app = typer.Typer(help="The models that the network knows.", no_args_is_help=True)
out = Terminal()
err = Terminal(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Folders = Annotated[
    list[Path] | None, typer.Option("--dir", help="A further folder of cards; may be given again.")
]


@catalogue_app.command("list")
def list_models(folders: Folders = None, as_json: AsJson = False) -> None:
    """List every model that is known: size, context, price, and whether it can be served."""
    from coordinator.catalogue.cards import CatalogueError, load_catalogue

    try:
        found = load_catalogue(folders or [])
    except CatalogueError as error:
        raise _failed(str(error)) from None
    rows = _rows(found)
    if as_json:
        sys.stdout.write(json.dumps({"object": "list", "data": rows}, indent=1) + "\n")
        return
    shown: list[tuple[str, ...]] = []
    for row in rows:
        served = "yes" if row["is_pinned"] else "not yet"
        price = mlx(str(row["output_umlx_per_million"]))
        size = f"{int(str(row['weights_bytes'])) / GB:.1f}"
        shown.append((str(row["id"]), size, str(row["context_tokens"]), price, served))
    columns = ("model", "GB", "context", "MLX per million out", "served")
    show_rows(out, columns, shown, folds=("model",), right=columns[1:4])
    out.print("not yet: known, but its files are not pinned, so no Mac serves it", highlight=False)


def _rows(found: Catalogue) -> list[dict[str, object]]:
    cards = sorted((*found.cards.values(), *found.unpinned.values()), key=lambda c: (c.weights_bytes, c.id))
    aliases: dict[str, list[str]] = {}
    for alias, target in sorted({**found.aliases, **found.unpinned_aliases}.items()):
        aliases.setdefault(target, []).append(alias)
    return [
        {
            "id": card.id,
            "name": card.name,
            "aliases": aliases.get(card.id, []),
            "is_pinned": card.id in found.cards,
            "licence": card.licence,
            "context_tokens": card.context_tokens,
            "weights_bytes": card.weights_bytes,
            "output_umlx_per_million": card.price.output_umlx_per_million,
            "input_umlx_per_million": card.price.input_umlx_per_million,
        }
        for card in cards
    ]


@catalogue_app.command()
def add(
    source: Annotated[
        str, typer.Argument(help="A model's folder, a hub repository (owner/name), or a card's file.")
    ],
    to: Annotated[Path, typer.Option("--to", help="The folder of cards to write into.")] = Path(),
    card_id: Annotated[str | None, typer.Option("--id", help="The card's id.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What people call it.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="chat or completion.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", help="As apache-2.0.")] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="Prompt and answer.")] = None,
    revision: Annotated[str, typer.Option("--revision", help="Of the repository.")] = "main",
    as_json: AsJson = False,
) -> None:
    """Make a card of a model's own files, pinned by hash, or say why it is refused."""
    from coordinator.catalogue.adding import Wishes
    from coordinator.catalogue.cards import CatalogueError
    from coordinator.catalogue.toml import card_toml

    if kind not in {None, "chat", "completion"}:
        raise _failed("--kind: must be chat or completion")
    wished: Literal["chat", "completion"] | None = (
        None if kind is None else "chat" if kind == "chat" else "completion"
    )
    wishes = Wishes(card_id, name, wished, licence, context)
    try:
        card = _card_of(source, revision, wishes)
        to.mkdir(parents=True, exist_ok=True)
        path = to / f"{card.id}.toml"
        with path.open("x", encoding="utf-8") as file:
            _ = file.write(card_toml(card, f"Made from {source}."))
    except FileExistsError as error:
        raise _failed(f"{error.filename}: is there already; give another --id, or remove it") from None
    except (CatalogueError, OSError) as error:
        raise _failed(str(error)) from None
    if as_json:
        body = {"id": card.id, "revision": card.revision, "file": str(path)}
        sys.stdout.write(json.dumps({**body, "weights_bytes": card.weights_bytes}) + "\n")
        return
    out.print(f"{card.id}: {card.weights_bytes / GB:.2f} GB, written to {path}", highlight=False)
    out.print(f"serve it with MLXNET_CATALOGUE_DIRS='[\"{to.resolve()}\"]'", highlight=False, soft_wrap=True)


def _card_of(source: str, revision: str, wishes: Wishes) -> ModelCard:
    from coordinator.catalogue.adding import look_at_folder, make_card
    from coordinator.catalogue.cards import CatalogueError, read_card
    from coordinator.catalogue.hub import look_at_repo
    from node_agent.protocol.cards import UnpinnedCard

    path = Path(source)
    if path.is_dir():
        return make_card(look_at_folder(path.resolve()), wishes)
    if path.suffix == ".toml":
        card = read_card(path)
        if isinstance(card, UnpinnedCard):
            raise CatalogueError(f"{path.name}: source: has no hashes; add {card.source.repo} itself")
        return card
    if source.count("/") != 1 or source.startswith((".", "/")):
        raise CatalogueError(f"{source}: no such folder, and not a repository (owner/name)")
    with tempfile.TemporaryDirectory() as cache:
        return make_card(look_at_repo(source, revision, Path(cache)), wishes)


def _failed(message: str) -> typer.Exit:
    err.print(f"[red]error:[/red] {message}", highlight=False, soft_wrap=True)
    return typer.Exit(EXIT_FAILED)
