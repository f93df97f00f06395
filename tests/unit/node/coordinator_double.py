"""A coordinator's side of the wire with a script in place of a scheduler, to provoke faults."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse

from node_agent.protocol import messages as wire
from node_agent.protocol.ids import node_id_of
from node_agent.protocol.signing import (
    decode_bytes,
    enrolment_statement,
    hello_statement,
    is_signed_by,
)


@dataclass
class CoordinatorDouble:
    """Checks signatures as the real one does; frames go into and come out of queues."""

    origin: str = ""
    enrolments: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    polls_until_approved: int = 1
    hellos: list[wire.Hello] = field(default_factory=list[wire.Hello])
    frames: asyncio.Queue[wire.ToCoordinator] = field(default_factory=asyncio.Queue[wire.ToCoordinator])
    socket: WebSocket | None = None
    close_with: int | None = None
    heartbeat_seconds: float = 0.5

    async def send(self, message: wire.Message) -> None:
        assert self.socket is not None
        await self.socket.send_text(wire.encode(message))

    async def until(
        self, wanted: Callable[[wire.ToCoordinator], bool], seconds: float = 60.0
    ) -> list[wire.ToCoordinator]:
        """Frames up to and with the first that is wanted."""
        seen: list[wire.ToCoordinator] = []
        async with asyncio.timeout(seconds):
            while True:
                seen.append(await self.frames.get())
                if wanted(seen[-1]):
                    return seen

    async def wait_connected(self, count: int, seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while len(self.hellos) < count or self.socket is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/nodes/v1/enrolments")
        async def enrol(request: Request) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
            body = await request.json()
            statement = enrolment_statement(
                audience=self.origin, public_key=body["public_key"], nonce=body["nonce"]
            )
            key = decode_bytes(body["public_key"])
            if not is_signed_by(key, body["signature"], statement):
                return JSONResponse({"error": "signature"}, status_code=403)
            wire.Hardware.model_validate(body["hardware"])
            self.enrolments.append(body)
            answer = {
                "code": "ABCD-EFGH",
                "poll_token": "t0ken",
                "expires_in_seconds": 60,
                "poll_seconds": 0.2,
            }
            return JSONResponse(answer, status_code=201)

        @app.get("/nodes/v1/enrolments/{code}")
        async def poll(code: str, request: Request) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
            if request.headers.get("authorization") != "Bearer t0ken":
                return JSONResponse({"error": "token"}, status_code=401)
            self.polls_until_approved -= 1
            if self.polls_until_approved >= 0:
                return JSONResponse({"state": "pending", "owner": None, "node_id": None})
            key = decode_bytes(str(self.enrolments[-1]["public_key"]))
            node_id, name = node_id_of(key), self.enrolments[-1]["name"]
            return JSONResponse({"state": "approved", "owner": "acct_1", "node_id": node_id, "name": name})

        @app.websocket("/nodes/v1/socket")
        async def hold(socket: WebSocket) -> None:  # pyright: ignore[reportUnusedFunction]
            await self._hold(socket)

        return app

    async def _hold(self, socket: WebSocket) -> None:
        await socket.accept()
        nonce = secrets.token_urlsafe(24)
        await socket.send_text(wire.encode(wire.Challenge(nonce=nonce)))
        hello = wire.parse_to_coordinator(await socket.receive_text())
        assert isinstance(hello, wire.Hello)
        statement = hello_statement(audience=self.origin, node_id=hello.node_id, nonce=nonce)
        assert is_signed_by(decode_bytes(hello.public_key), hello.signature, statement)
        if self.close_with is not None:
            await socket.close(self.close_with)
            return
        welcome = wire.Welcome(protocol=(1, 0), heartbeat_seconds=self.heartbeat_seconds)
        await socket.send_text(wire.encode(welcome))
        self.hellos.append(hello)
        self.socket = socket
        try:
            while True:
                self.frames.put_nowait(wire.parse_to_coordinator(await socket.receive_text()))
        except (WebSocketDisconnect, RuntimeError):
            self.socket = None


@asynccontextmanager
async def coordinator_double() -> AsyncGenerator[CoordinatorDouble]:
    """A double that listens on a free port of this machine."""
    double = CoordinatorDouble()
    config = uvicorn.Config(double.app(), host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    double.origin = f"http://127.0.0.1:{port}"
    try:
        yield double
    finally:
        server.should_exit = True
        await task
