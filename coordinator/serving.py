"""Running a coordinator in the foreground, and what is done beside it on its own machine."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from coordinator.accounts.service import AccountError, create_account, create_key
from coordinator.catalogue.cards import CatalogueError
from coordinator.client import ClientError
from coordinator.db import Database, DatabaseFull, DatabaseUnavailable, make_engine, migrate
from coordinator.http_limits import LimitedHttpProtocol
from coordinator.jobs.payloads import PayloadError
from coordinator.main import build_app
from coordinator.observability import configure_logging
from coordinator.policy.local_operators import ensure_local_budgets
from coordinator.policy.operator_keyfile import KeyFileError
from coordinator.runtime import Runtime
from coordinator.settings import Settings
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


def read_settings(home: Path, **given: object) -> Settings:
    """Settings from the environment and what was `given`. Raises `ClientError` naming the setting."""
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings.model_validate(Settings(home=home).model_dump() | chosen)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "MLXNET_" + "_".join(str(part) for part in first["loc"]).upper()
        raise ClientError(f"{name}: {first['msg']}") from None


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


def make_account(home: Path, name: str, *, grant_umlx: int, is_operator: bool) -> tuple[str, str]:
    """Make an account and a key in the coordinator's database: (account id, key).

    A grant is drawn from a budget; a network without operators' keys gets local ones in `home`
    that sign it. Raises `ClientError`.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = read_settings(home)
    try:
        engine = make_engine(settings.sqlalchemy_url)
        migrate(engine)
    except (DatabaseUnavailable, DatabaseFull, OSError, ValueError) as error:
        raise ClientError(str(error)) from error
    database = Database(engine)
    try:
        with database.write() as session:
            if grant_umlx:
                _ = ensure_local_budgets(session, home, now_us=database.now_us(session))
            account = create_account(session, name, grant_umlx=grant_umlx, is_operator=is_operator)
            return account.id, create_key(session, account, "first")
    except (AccountError, KeyFileError, OSError) as error:
        raise ClientError(str(error)) from None
    finally:
        database.close()
