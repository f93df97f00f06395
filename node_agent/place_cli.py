"""`mlx-node place`, and the same choice when joining: what the public map shows of this Mac."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from node_agent.place import Place
    from node_agent.settings import NodeConfig


def choose_place(
    kind: str | None, country: str | None, near: str | None, *, asks: bool, current: str = "none"
) -> Place:
    """The owner's choice, shown as the public will see it and, where `asks`, confirmed.

    Without a kind the owner is asked, if somebody sits there; else nothing is shown. Raises
    `PlaceError`.
    """
    from node_agent import place as places

    atlas = places.read_atlas()
    suggestion = places.suggested_country(atlas)
    asks = asks and sys.stdin.isatty()
    if kind is None and not asks:
        return places.Place()
    if kind is None:
        name = atlas.country_name(suggestion) if suggestion else "your country"
        typer.echo(f"What may the public map show of this Mac? Its country ({name}), an area, or none.")
        suggested = "country" if suggestion else current
        kind = str(typer.prompt("country, area or none", default=suggested)).strip().lower()
        if kind == "area" and near is None:
            near = str(typer.prompt("A town near it, or its position as LATITUDE,LONGITUDE"))
    found = places.choose(kind, country=country, near=near, atlas=atlas, suggestion=suggestion)
    typer.echo(places.preview(found, atlas), err=not asks)
    if asks and not typer.confirm("Show it like this?", default=True):
        raise places.PlaceError("nothing was chosen; the map shows what it did before")
    return found


def tell_place(home: Path, config: NodeConfig, found: Place) -> tuple[NodeConfig, str | None]:
    """Tell the coordinator and note it in the configuration, which is returned with this Mac's
    light. Raises `PlaceError`."""
    import httpx2

    from node_agent import place as places
    from node_agent.identity import load_identity
    from node_agent.settings import NodeConfig, save_config

    # A clock makes numbers that rise even after the folder was lost; it need not be right.
    sequence = max(config.place_sequence + 1, int(time.time()) - 1_700_000_000)
    with httpx2.Client(timeout=places.HTTP_TIMEOUT) as client:
        taken = places.tell(client, config.coordinator, load_identity(home), found, sequence=sequence)
    changed = config.model_dump() | {
        "place": found.kind,
        "place_country": found.country,
        "place_cell": found.cell,
        "place_sequence": taken.sequence,
    }
    kept = NodeConfig.model_validate(changed)
    save_config(home, kept)
    return kept, taken.light
