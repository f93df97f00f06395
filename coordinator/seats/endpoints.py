"""Seats over HTTP: ask for one, see how it stands, announce upkeep. For a Mac's owner alone."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from coordinator import errors
from coordinator.http import audience, identify, parse_body, read_body, runtime_of
from coordinator.nodes import service as nodes
from coordinator.nodes.models import Node
from coordinator.openai.shapes import dump
from coordinator.policy.rate_cards import card_in_force
from coordinator.seats import service, upkeep_windows, views
from ledger.ratecard import Seat

router = APIRouter()

Body = Annotated[bytes, Depends(read_body)]

AHEAD_SECONDS_MAX: Final = 30 * 86_400


class SeatRequest(BaseModel):
    """A seat and what is promised for it; what is left out is the least that the seat needs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seat: Seat
    promised_seconds_per_day: Annotated[int, Field(ge=0, le=86_400)] | None = None
    promised_days: Annotated[int, Field(ge=0, le=366)] | None = None
    owner_may_interrupt: bool | None = None


class UpkeepRequest(BaseModel):
    """A time in which the Mac will be down. Durations, so that no two clocks must agree."""

    model_config = ConfigDict(extra="forbid", strict=True)

    starts_in_seconds: Annotated[int, Field(ge=0, le=AHEAD_SECONDS_MAX)]
    seconds: Annotated[int, Field(ge=60)]


@router.get("/v1/nodes/{node_id}/seat", openapi_extra=audience("account"))
def seat(request: Request, node_id: str) -> Response:
    """The seat that a Mac holds and wants, what fails, how well it was kept, what it earned."""
    caller = identify(request)
    database = runtime_of(request).database
    with database.read() as session:
        node = nodes.own_node(session, caller.account_id, node_id)
        return _json(views.seat_view(session, node, now_us=database.now_us(session)))


@router.put("/v1/nodes/{node_id}/seat", openapi_extra=audience("account"))
def ask_for_seat(request: Request, node_id: str, body: Body) -> Response:
    """Ask for a seat. The highest that the Mac comes to is held from the next slot on; the wish
    stays, so that a better one follows by itself. `idle` is stepping back."""
    caller = identify(request)
    asked = parse_body(SeatRequest, body)
    wish = service.Wish(
        seat=asked.seat,
        promised_seconds_per_day=asked.promised_seconds_per_day,
        promised_days=asked.promised_days,
        owner_may_interrupt=asked.owner_may_interrupt,
    )
    database = runtime_of(request).database
    with database.write() as session:
        node = _locked(session, caller.account_id, node_id)
        now_us = database.now_us(session)
        _ = service.ask_for_seat(session, node, wish, now_us=now_us)
        return _json(views.seat_view(session, node, now_us=now_us))


@router.get("/v1/nodes/{node_id}/upkeep", openapi_extra=audience("account"))
def upkeep(request: Request, node_id: str) -> Response:
    """This week's allowance of upkeep and what is announced."""
    caller = identify(request)
    database = runtime_of(request).database
    with database.read() as session:
        node = nodes.own_node(session, caller.account_id, node_id)
        now_us = database.now_us(session)
        return _json(views.upkeep_view(session, node, card_in_force(session, now_us), now_us=now_us))


@router.post("/v1/nodes/{node_id}/upkeep", openapi_extra=audience("account"), status_code=201)
def announce_upkeep(request: Request, node_id: str, body: Body) -> Response:
    """Announce upkeep before it begins: it counts as kept."""
    caller = identify(request)
    asked = parse_body(UpkeepRequest, body)
    database = runtime_of(request).database
    with database.write() as session:
        node = _locked(session, caller.account_id, node_id)
        now_us = database.now_us(session)
        window = upkeep_windows.announce(
            session,
            node,
            starts_in_seconds=asked.starts_in_seconds,
            seconds=asked.seconds,
            card=card_in_force(session, now_us),
            now_us=now_us,
        )
        return _json(views.window_view(window), status=201)


@router.delete("/v1/nodes/{node_id}/upkeep/{upkeep_id}", openapi_extra=audience("account"))
def cancel_upkeep(request: Request, node_id: str, upkeep_id: str) -> Response:
    """Take back upkeep that has not begun."""
    caller = identify(request)
    database = runtime_of(request).database
    with database.write() as session:
        node = _locked(session, caller.account_id, node_id)
        window = upkeep_windows.cancel(session, node, upkeep_id, now_us=database.now_us(session))
        return _json({"id": window.id, "object": "node.upkeep", "cancelled": True})


def _locked(session: Session, account_id: str, node_id: str) -> Node:
    """The caller's node with its row locked, so that two requests for it take turns. Raises 404."""
    node = session.get(Node, node_id, with_for_update=True)
    if node is None or node.account_id != account_id or node.revoked_us is not None:
        raise errors.not_found("node", node_id)
    return node


def _json(content: Any, *, status: int = 200) -> Response:
    return Response(dump(content), status, media_type="application/json")
