"""Running a coordinator in the foreground, and what is done beside it on its own machine."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from coordinator.catalogue.cards import CatalogueError
from coordinator.client import ClientError
from coordinator.db import DatabaseFull, DatabaseUnavailable
from coordinator.home import read_settings
from coordinator.http_limits import LimitedHttpProtocol
from coordinator.jobs.payloads import PayloadError
from coordinator.main import build_app
from coordinator.observability import configure_logging
from coordinator.runtime import Runtime
from coordinator.sole_use import InUseError
from node_agent.protocol.messages import FRAME_BYTES_MAX
from web_world.feed import Feed

BACKLOG: Final = 2048
SHUTDOWN_SECONDS: Final = 10  # whatever is under way when all streams have ended gets so long
FORCE_LOOK_SECONDS: Final = 0.1


def serve_forever(home: Path, *, host: str | None, port: int | None, log_json: bool) -> None:
    """Serve until SIGTERM or SIGINT. `host` and `port` None: from the settings.

    Raises `ClientError` when a setting, port, disk, catalogue or database fails.
    """
    configure_logging(as_json=log_json)
    settings = read_settings(home, host=host, port=port)
    listener = _listen(settings.host, settings.port)
    settings = settings.model_copy(update={"port": listener.getsockname()[1]})
    try:
        app = build_app(settings)
    except (
        CatalogueError,
        DatabaseUnavailable,
        DatabaseFull,
        InUseError,
        PayloadError,
        OSError,
        ValueError,
    ) as error:
        raise ClientError(str(error)) from error
    make_server(app).run(sockets=[listener])


class DrainingServer(uvicorn.Server):
    """Lets answers end before it closes sockets and requests."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime, world: Feed) -> None:
        super().__init__(config)
        self._runtime: Final = runtime
        self._world: Final = world

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new work, let what runs end or be stored, then close. A second signal cuts it short."""
        self._world.end()
        draining = asyncio.create_task(self._runtime.drain())
        while not draining.done() and not self.force_exit:
            await asyncio.wait({draining}, timeout=FORCE_LOOK_SECONDS)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        await super().shutdown(sockets)


def make_server(app: FastAPI, *, shutdown_seconds: int = SHUTDOWN_SECONDS) -> uvicorn.Server:
    """The server with the limits that nodes and submitters rely on."""
    config = uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        log_level=logging.WARNING,
        access_log=False,
        ws_max_size=FRAME_BYTES_MAX,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=shutdown_seconds,
        server_header=False,
    )
    return DrainingServer(config, app.state.runtime, app.state.world)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        raise ClientError(
            f"cannot listen on {host} port {port} ({error.strerror}): end what listens there, "
            "or choose another with --port"
        ) from None
    return listener
