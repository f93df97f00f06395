"""What a Mac's owner lets the public map show of its place: told by the node, kept with it."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.errors import ApiError
from coordinator.http import audience, identify, parse_body, read_body, runtime_of
from coordinator.nodes import service
from coordinator.nodes.models import Node
from coordinator.settings import Settings
from node_agent.protocol.signing import decode_bytes, is_signed_by, place_statement
from web_world.cells import is_area
from web_world.countries import is_country
from web_world.feed import Feed
from web_world.privacy import Spot

SCHEME: Final = "MLX-Node"
AUTHORIZATION: Final = re.compile(rf"{SCHEME} (node_[0-9a-f]{{64}}) ([A-Za-z0-9_-]{{86}})")
SEQUENCE_MAX: Final = 2**31 - 1

router = APIRouter()

Body = Annotated[bytes, Depends(read_body)]


class PlaceChoice(BaseModel):
    """A choice, numbered by the node. Finer than a country is only an H3 cell of resolution 3."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sequence: Annotated[int, Field(ge=1, le=SEQUENCE_MAX)]
    kind: Literal["none", "country", "area"]
    country: Annotated[str, Field(max_length=2)] = ""
    cell: Annotated[str, Field(max_length=15)] = ""

    @model_validator(mode="after")
    def _check(self) -> PlaceChoice:
        if (self.kind == "none") != (self.country == "") or (self.kind == "area") != (self.cell != ""):
            raise ValueError("country goes with kind country or area, and cell with area alone")
        if self.country and not is_country(self.country):
            raise ValueError("country must be an ISO 3166 code of two capital letters")
        if self.cell and not is_area(self.cell):
            raise ValueError("cell must be an H3 cell of resolution 3")
        return self


class PlaceTaken(BaseModel):
    """What was chosen, and where the Mac's light is now: this answer is its owner's alone."""

    sequence: int
    kind: str
    light: str | None


def choose(
    session: Session, node_id: str, signature: str, choice: PlaceChoice, *, settings: Settings
) -> Node:
    """Keep the choice. Raises 403 for a wrong signature, 409 for a number that was used."""
    node = session.get(Node, node_id, with_for_update=True)
    if node is None or node.revoked_us is not None:
        raise _not_signed("This node is not enrolled here: run 'mlx-node join'.")
    statements = (
        place_statement(
            audience=origin,
            node_id=node_id,
            sequence=choice.sequence,
            kind=choice.kind,
            country=choice.country,
            cell=choice.cell,
        )
        for origin in settings.origins
    )
    key = decode_bytes(node.public_key)
    if not any(is_signed_by(key, signature, statement) for statement in statements):
        raise _not_signed(f"The signature does not fit the node's key and {settings.origin}.")
    if choice.sequence <= node.place_sequence:
        raise errors.conflict(
            "place_sequence_used",
            f"A choice must have a number above {node.place_sequence}, this one's last.",
        )
    node.place_kind, node.place_sequence = choice.kind, choice.sequence
    node.place_country, node.place_cell = choice.country or None, choice.cell or None
    return node


def _not_signed(message: str) -> ApiError:
    return ApiError(403, "permission_denied", message, type="permission_error")


def light_name(spot: Spot | None) -> str | None:
    """A light in one word and what it stands at: `star`, `country PL`, `alone PL`, `cell 831f…`."""
    if spot is None:
        return None
    return " ".join(part for part in (spot.kind, spot.cell or spot.country) if part)


@router.post("/nodes/v1/place", openapi_extra=audience("node"))
def choose_place(
    request: Request, body: Body, authorization: Annotated[str | None, Header()] = None
) -> PlaceTaken:
    """Choose what the map shows of a node, change it or withdraw it (`none`)."""
    signed = AUTHORIZATION.fullmatch(authorization or "")
    if signed is None:
        raise errors.missing_api_key()
    choice = parse_body(PlaceChoice, body)
    runtime = runtime_of(request)
    with runtime.database.write() as session:
        node = choose(session, signed[1], signed[2], choice, settings=runtime.settings)
        taken = PlaceTaken(
            sequence=node.place_sequence,
            kind=node.place_kind,
            light=light_name(_feed(request).light_of(node.id)),
        )
    channel = runtime.fleet.get(signed[1])
    if channel is not None:
        channel.region = choice.country
        channel.on_news(channel.node_id)
    return taken


@router.get("/v1/nodes/{node_id}/light", openapi_extra=audience("account"))
def own_light(request: Request, node_id: str) -> PlaceTaken:
    """Which light of the public map is this Mac of the caller's. Raises 404 for another's."""
    caller = identify(request)
    with runtime_of(request).database.read() as session:
        node = service.own_node(session, caller.account_id, node_id)
        return PlaceTaken(
            sequence=node.place_sequence,
            kind=node.place_kind,
            light=light_name(_feed(request).light_of(node_id)),
        )


def _feed(request: Request) -> Feed:
    feed: Feed = request.app.state.world
    return feed
