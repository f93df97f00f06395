"""The application: `build_app(settings)` is the one place that chooses what runs behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio.to_thread
import structlog
from fastapi import Depends, FastAPI, Request
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from coordinator import observability
from coordinator.accounts.endpoints import router as accounts_router
from coordinator.accounts.ledger_endpoints import router as ledger_router
from coordinator.db import POOL_CONNECTIONS, DatabaseBusy, DatabaseUnavailable
from coordinator.embedded import TimerThread
from coordinator.head_requests import HeadAsGet
from coordinator.http import audience, caller_of, install_error_handlers, require_operator, runtime_of
from coordinator.jobs.endpoints import router as jobs_router
from coordinator.jobs.explanation import router as explanation_router
from coordinator.jobs.quote_endpoints import router as quotes_router
from coordinator.nodes.endpoints import router as nodes_router
from coordinator.nodes.places import router as places_router
from coordinator.nodes.why import router as why_router
from coordinator.openai.endpoints import router as openai_router
from coordinator.policy.endpoints import router as policy_router
from coordinator.policy.rate_endpoints import router as rates_router
from coordinator.recovery import recover
from coordinator.request_checks import check_headers, check_query
from coordinator.runtime import Runtime
from coordinator.seats.endpoints import router as seats_router
from coordinator.settings import Settings
from coordinator.world import feed_of
from web_world.routes import make_router as make_world_router

log = structlog.get_logger()

OWN_ROUTERS: Final = (
    jobs_router,
    explanation_router,
    quotes_router,
    nodes_router,
    places_router,
    why_router,
    seats_router,
    accounts_router,
    ledger_router,
    policy_router,
    rates_router,
)


def build_app(settings: Settings) -> FastAPI:
    """An ASGI application for one coordinator process. Blocks while it migrates the database."""
    runtime = Runtime(settings)
    world = feed_of(runtime)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        # A thread waiting for a connection that another thread holds helps nobody.
        anyio.to_thread.current_default_thread_limiter().total_tokens = POOL_CONNECTIONS
        await recover(runtime)
        await runtime.start()
        watching = asyncio.create_task(world.run())
        timers = TimerThread(runtime) if settings.redis_url is None else None
        if timers is None:
            log.info("upkeep_left_to_celery", start="celery -A coordinator.tasks worker -B")
        if timers is not None:
            timers.start()
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        if timers is not None:
            await run_in_threadpool(timers.stop)
        await runtime.stop()

    app = FastAPI(
        title="MLX Network",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(HeadAsGet)
    app.state.runtime = runtime
    app.state.world = world
    install_error_handlers(app)
    app.include_router(openai_router, dependencies=[Depends(check_headers)])
    for router in OWN_ROUTERS:
        app.include_router(router, dependencies=[Depends(check_headers), Depends(check_query)])
    app.include_router(make_world_router(world, origin=settings.origin))
    _add_probes(app)
    return app


def _add_probes(app: FastAPI) -> None:
    @app.get("/healthz", openapi_extra=audience("public"))
    async def healthz() -> Response:
        """The process runs and its event loop turns."""
        return PlainTextResponse("ok\n")

    @app.get("/readyz", openapi_extra=audience("public"))
    async def readyz(request: Request) -> Response:
        """The database answers: requests can be taken."""
        runtime = runtime_of(request)

        def look() -> bool:
            try:
                with runtime.database.read() as session:
                    return session.scalar(text("SELECT 1")) == 1
            except (DatabaseBusy, DatabaseUnavailable):
                return False

        is_ready = await run_in_threadpool(look)
        return PlainTextResponse("ready\n" if is_ready else "no database\n", 200 if is_ready else 503)

    @app.get("/metrics", openapi_extra=audience("operator"))
    async def metrics(request: Request) -> Response:
        """Prometheus' text format, for operators."""
        require_operator(await caller_of(request))
        return Response(
            observability.render_metrics(runtime_of(request)),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )
