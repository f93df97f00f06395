"""The public page and its snapshot. Knows nothing of the coordinator: it reads one value type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import FileResponse, JSONResponse, Response

from web_world.source import WorldSnapshot

STATIC: Final = Path(__file__).parent / "static"
SNAPSHOT_SECONDS: Final = 1
PUBLIC: Final[dict[str, Any]] = {"x-audience": "public"}
FILES: Final = {"world.css": "text/css", "world.js": "text/javascript"}
PAGE_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def make_router(take_snapshot: Callable[[], WorldSnapshot]) -> APIRouter:
    """Routes over `take_snapshot`, which is called on the event loop and must not block."""
    router = APIRouter()

    @router.get("/", openapi_extra=PUBLIC)
    async def page() -> Response:
        """The live page."""
        return FileResponse(STATIC / "index.html", media_type="text/html", headers=PAGE_HEADERS)

    @router.get("/world/static/{name}", openapi_extra=PUBLIC)
    async def static(name: str) -> Response:
        """The page's style and script."""
        if name not in FILES:
            return Response(status_code=404)
        return FileResponse(STATIC / name, media_type=FILES[name], headers=PAGE_HEADERS)

    @router.get("/world/v1/snapshot.json", openapi_extra=PUBLIC)
    async def snapshot() -> Response:
        """What is on the page, as JSON."""
        return JSONResponse(
            dataclasses.asdict(take_snapshot()),
            headers={"cache-control": f"public, max-age={SNAPSHOT_SECONDS}"},
        )

    return router
