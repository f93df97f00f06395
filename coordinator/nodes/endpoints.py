"""Enrolment over HTTP, the node's held socket, and what owners see of their nodes."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Generator
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Header, Request, WebSocket
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from coordinator import clock, errors
from coordinator.commits import Written
from coordinator.db import DatabaseBusy, DatabaseFull, DatabaseUnavailable
from coordinator.errors import ApiError
from coordinator.http import audience, identify, parse_body, read_body, runtime_of
from coordinator.nodes import channel as channels
from coordinator.nodes import service
from coordinator.nodes.models import Node
from coordinator.nodes.views import state_of
from coordinator.openai.shapes import dump
from coordinator.runtime import Runtime
from node_agent.protocol import messages as wire

log = structlog.get_logger()

router = APIRouter()

# Read here and not by the framework, which reads without a limit, and before it is known who asks.
Body = Annotated[bytes, Depends(read_body)]


class Approval(BaseModel):
    """The code that a node shows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: Annotated[str, Field(max_length=64)]


@router.post("/nodes/v1/enrolments", openapi_extra=audience("public"), status_code=201)
def start_enrolment(request: Request, body: Body) -> service.EnrolmentStarted:
    """A node shows its key; the answer has the code that its owner approves."""
    runtime = runtime_of(request)
    enrolment = parse_body(service.EnrolmentRequest, body)
    address = request.client.host if request.client is not None else ""
    wait_seconds = runtime.enrolment_limit.wait_seconds(address, clock.monotonic())
    if wait_seconds:
        raise errors.rate_limited(
            retry_after_seconds=math.ceil(wait_seconds), what="enrolments from one address"
        )
    with runtime.database.write() as session:
        return service.start_enrolment(session, enrolment, settings=runtime.settings)


@router.get("/nodes/v1/enrolments/{code}", openapi_extra=audience("node"))
def enrolment_status(
    request: Request, code: str, authorization: Annotated[str | None, Header()] = None
) -> service.EnrolmentStatus:
    """How an enrolment stands, for the node that holds its poll token."""
    runtime = runtime_of(request)
    token = (authorization or "").removeprefix("Bearer ")
    if not token:
        raise errors.missing_api_key()
    with runtime.database.read() as session:
        return service.enrolment_status(session, code, token)


@router.post("/v1/nodes/approve", openapi_extra=audience("account"))
def approve(request: Request, body: Body) -> Response:
    """Become the owner of the node that shows this code. Wrong codes are limited, right ones not."""
    caller = identify(request)
    runtime = runtime_of(request)
    approval = parse_body(Approval, body)
    if not service.CODE_PATTERN.fullmatch(approval.code.strip().upper()):
        raise errors.invalid_value("code", "a code looks like ABCD-EFGH; the node shows it when it joins")
    with _only_wrong_counted(runtime, caller.account_id), runtime.database.write() as session:
        node = service.approve(session, caller.account_id, approval.code)
        return _json(_view(runtime, node))


@contextlib.contextmanager
def _only_wrong_counted(runtime: Runtime, account_id: str) -> Generator[None]:
    """Let the account try a code. Raises 429 after too many that were wrong.

    Counted before it is looked up and given back after, so that many at once are no way around.
    """
    now = clock.monotonic()
    wait_seconds = runtime.approval_limit.wait_seconds(account_id, now)
    if wait_seconds:
        raise errors.rate_limited(retry_after_seconds=math.ceil(wait_seconds), what="wrong codes of Macs")
    is_wrong = False
    try:
        yield
    except ApiError:
        is_wrong = True
        raise
    finally:
        if not is_wrong:
            runtime.approval_limit.give_back(account_id, now)


@router.get("/v1/nodes", openapi_extra=audience("account"))
def own_nodes(request: Request) -> Response:
    """The caller's own nodes."""
    caller = identify(request)
    runtime = runtime_of(request)
    with runtime.database.read() as session:
        found = [_view(runtime, node) for node in service.nodes_of(session, caller.account_id)]
    return _json({"object": "list", "data": found})


@router.delete("/v1/nodes/{node_id}", openapi_extra=audience("account"))
async def remove_node(request: Request, node_id: str) -> Response:
    """Remove one of the caller's nodes; its socket is closed and its work goes elsewhere."""
    runtime = runtime_of(request)

    def revoke() -> None:
        caller = identify(request)
        with runtime.database.write() as session:
            _ = service.own_node(session, caller.account_id, node_id)
            service.revoke(session, node_id)

    await run_in_threadpool(revoke)
    channel = runtime.fleet.get(node_id)
    if channel is not None:
        await channel.close(channels.CLOSE_REVOKED, "removed by its owner")
        runtime.relay.node_disconnected(channel, goodbye=wire.Goodbye(reason="leave"))
    return _json({"id": node_id, "object": "node", "removed": True})


def _view(runtime: Runtime, node: Node) -> dict[str, Any]:
    channel = runtime.fleet.get(node.id)
    holds = channel.holds.values() if channel is not None else ()
    return {
        "id": node.id,
        "object": "node",
        "name": node.name,
        **state_of(node, channel, runtime.endings.health, runtime.settings),
        "seat": node.seat,
        "hardware": node.hardware,
        "lent_bytes": node.lent_bytes,
        "reserved_bytes": node.reserved_bytes,
        "models": [slot.card_id for slot in channel.slots] if channel is not None else [],
        "getting_ready": [hold.model_dump(mode="json") for hold in holds if hold.phase != "ready"],
        "seen_us": node.seen_us,
    }


def _json(content: Any) -> Response:
    return Response(dump(content), media_type="application/json")


# -- the socket ----------------------------------------------------------------------------------


@router.websocket("/nodes/v1/socket")
async def socket(websocket: WebSocket) -> None:
    """One node's socket: challenge, hello, welcome, then frames until it closes."""
    runtime: Runtime = websocket.app.state.runtime
    await websocket.accept()
    number, nonce = runtime.fleet.number_socket(), channels.make_nonce()
    hello = await channels.receive_hello(websocket, nonce)
    if hello is None:
        return
    channel = await _admit(runtime, websocket, hello, number)
    if channel is None:
        return
    writer = asyncio.create_task(channel.write_forever())
    try:
        if not await runtime.fleet.add(channel):
            return
        runtime.relay.node_connected(channel, hello.live)
        runtime.greet(channel)
        log.info("node_connected", node_id=channel.node_id, name=channel.name)
        await channels.read_frames(channel, runtime.relay, runtime.greet)
    finally:
        channel.is_closed = True
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError, RuntimeError, OSError):
            await writer
        if runtime.fleet.remove(channel):
            runtime.relay.node_disconnected(channel, goodbye=channel.goodbye)
            _note_gone(runtime, channel)
        said = channel.goodbye.reason if channel.goodbye is not None else None
        log.info("node_disconnected", node_id=channel.node_id, goodbye=said)


async def _admit(
    runtime: Runtime, websocket: WebSocket, hello: wire.Hello, number: int
) -> channels.Channel | None:
    protocol = channels.choose_protocol(hello)
    if protocol is None:
        await websocket.close(channels.CLOSE_PROTOCOL, "no common protocol version: update MLX Node")
        return None

    def admit() -> Node:
        with runtime.database.write() as session:
            return service.admit_hello(
                session,
                hello,
                settings=runtime.settings,
                unknown=channels.CLOSE_UNKNOWN_NODE,
                revoked=channels.CLOSE_REVOKED,
            )

    try:
        node = await run_in_threadpool(admit)
    except service.SocketRefusedError as refusal:
        await websocket.close(refusal.code, refusal.reason)
        return None
    except (DatabaseBusy, DatabaseFull, DatabaseUnavailable) as error:
        log.warning("node_not_admitted", error=type(error).__name__)
        await websocket.close(channels.CLOSE_TRY_LATER, "no database just now: dial again")
        return None
    channel = channels.Channel(
        node_id=node.id,
        owner_id=node.account_id,
        device=node.device,
        name=node.name,
        public_key=node.public_key,
        hardware=hello.hardware,
        socket=websocket,
        number=number,
        slots=hello.slots,
        region=node.place_country or "",
    )
    _ = channel.send(
        wire.Welcome(protocol=protocol, heartbeat_seconds=runtime.settings.heartbeat_seconds, name=node.name)
    )
    return channel


def _note_gone(runtime: Runtime, channel: channels.Channel) -> None:
    """Have it written, however often it takes, that the node is gone."""
    said = channel.goodbye.reason if channel.goodbye is not None else None

    def write(session: Session) -> Written[None]:
        if said == "leave":
            service.revoke(session, channel.node_id)
        elif runtime.fleet.get(channel.node_id) is None:  # else it is back already
            _ = service.mark(session, channel.node_id, "asleep" if said == "sleep" else "offline", said)
        return Written(None)

    runtime.endings.have_written(write, what="node_gone")
