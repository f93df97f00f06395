"""Pages, their files, the snapshot and its stream over HTTP. Knows nothing of the coordinator."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from web_world.feed import Feed
from web_world.pages import PAGES, STATIC, WORLD_PAGE, Page, render
from web_world.share_pictures import Pictures
from web_world.texts import LANGUAGES, Language, choose

PUBLIC: Final[dict[str, Any]] = {"x-audience": "public"}
LANGUAGE_COOKIE: Final = "language"
COOKIE_SECONDS: Final = 365 * 24 * 3600
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
COMPRESSED: Final = {".css", ".js", ".json", ".svg", ".txt"}
SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; font-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "geolocation=(), camera=(), microphone=()",
}
PAGE_CACHE: Final = "public, max-age=30"
PICTURE_CACHE: Final = "public, max-age=3600"
SNAPSHOT_CACHE: Final = "public, max-age=30, stale-while-revalidate=60"
# Addresses of files carry a fingerprint, so what lies behind one never changes.
STATIC_CACHE: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A built file, read and compressed once."""

    plain: bytes
    gzipped: bytes | None
    media_type: str


@lru_cache(maxsize=1)
def static_files() -> dict[str, StaticFile]:
    """All built files by their path under `static/`."""
    return {
        str(path.relative_to(STATIC)): _read(path)
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in TYPES
    }


def _read(path: Path) -> StaticFile:
    plain = path.read_bytes()
    packed = gzip.compress(plain, 9, mtime=0) if path.suffix in COMPRESSED else None
    return StaticFile(plain, packed, TYPES[path.suffix])


@lru_cache(maxsize=1)
def static_version() -> str:
    """A fingerprint of all built files together."""
    digest = hashlib.sha256()
    for name, file in static_files().items():
        digest.update(name.encode() + b"\0" + file.plain)
    return digest.hexdigest()[:10]


def make_router(feed: Feed, *, origin: str) -> APIRouter:
    """Routes over the feed's view. `origin` is the address that the pages name as theirs."""
    router = APIRouter()
    rendered: dict[tuple[str, str], tuple[str, bytes, bytes]] = {}

    async def draw(page: Page, language: Language, query: Mapping[str, str]) -> bytes:
        encoded, view = await feed.encoded(), await feed.view()
        # A page takes milliseconds, in which streams of other readers should go on.
        return await run_in_threadpool(
            render,
            page,
            language,
            view,
            terms=await feed.terms(),
            standing=await feed.standing(),
            etag=encoded.etag,
            origin=origin,
            version=static_version(),
            market=await feed.market(),
            query=query,
        )

    async def html(request: Request, page: Page, language: Language) -> Response:
        if page.has_form and request.query_params:
            return await reckoned(request, page, language)
        encoded = await feed.encoded()
        key = (page.slug, language.code)
        made = rendered.get(key)
        if made is None or made[0] != encoded.etag:
            plain = await draw(page, language, {})
            made = rendered[key] = (encoded.etag, plain, gzip.compress(plain, 6, mtime=0))
        headers = _page_headers(page, language) | {"cache-control": PAGE_CACHE}
        return _answer(
            request, made[1], made[2], "text/html; charset=utf-8", made[0] + language.code, headers
        )

    async def reckoned(request: Request, page: Page, language: Language) -> Response:
        """The page with an answer to what was typed, which is nobody else's."""
        plain = await draw(page, language, dict(request.query_params))
        etag = hashlib.sha256(plain).hexdigest()[:16]
        headers = _page_headers(page, language) | {"cache-control": "private, no-cache"}
        return _answer(
            request, plain, gzip.compress(plain, 4, mtime=0), "text/html; charset=utf-8", etag, headers
        )

    for page in PAGES:
        router.add_api_route(f"/{page.slug}", _chosen(page, html), methods=["GET"], openapi_extra=PUBLIC)
        for language in LANGUAGES:
            router.add_api_route(
                page.address(language), _in(page, language, html), methods=["GET"], openapi_extra=PUBLIC
            )
    for language in LANGUAGES:
        router.add_api_route(
            f"/{language.code}", _to_first(language), methods=["GET"], openapi_extra=PUBLIC, status_code=308
        )
    _add_data(router, feed)
    _add_pictures(router, Pictures(feed, host=urlsplit(origin).netloc))
    return router


def _page_headers(page: Page, language: Language) -> dict[str, str]:
    headers = SECURITY_HEADERS | {"content-language": language.code}
    if page.has_form:
        policy = SECURITY_HEADERS["content-security-policy"]
        headers["content-security-policy"] = policy.replace("form-action 'none'", "form-action 'self'")
    return headers


Html = Callable[[Request, Page, Language], Any]


def _chosen(page: Page, html: Html) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        """The page in the language that the reader chose before or the browser asks for."""
        language = choose(request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language"))
        response: Response = await html(request, page, language)
        response.headers["vary"] = "accept-encoding, accept-language, cookie"
        return response

    return answer


def _in(page: Page, language: Language, html: Html) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        """The page in one language; if the browser would get another one, the choice is kept."""
        response: Response = await html(request, page, language)
        cookie, accepted = request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language")
        if choose(cookie, accepted) != language:
            response.set_cookie(LANGUAGE_COOKIE, language.code, max_age=COOKIE_SECONDS, samesite="lax")
            response.headers["cache-control"] = "private, max-age=30"
        return response

    return answer


def _to_first(language: Language) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        """The first page's address in this language, typed without its slash."""
        query = f"?{request.url.query}" if request.url.query else ""
        return Response(status_code=308, headers={"location": WORLD_PAGE.address(language) + query})

    return answer


def _add_pictures(router: APIRouter, pictures: Pictures) -> None:
    shown = {page.picture(language): (page, language) for page in PAGES for language in LANGUAGES}

    @router.api_route("/world/share/{name:path}", methods=["GET", "HEAD"], openapi_extra=PUBLIC)
    async def picture(request: Request) -> Response:
        """The picture that a link to a page carries, renewed once an hour."""
        wanted = shown.get(request.url.path)
        if wanted is None:
            return Response(status_code=404)
        made = await pictures.get(*wanted)
        headers = {"cache-control": PICTURE_CACHE, "x-content-type-options": "nosniff"}
        return _answer(request, made.data, None, "image/jpeg", made.etag, headers)


def _add_data(router: APIRouter, feed: Feed) -> None:
    @router.get("/world/static/{name:path}", openapi_extra=PUBLIC)
    async def static(request: Request, name: str) -> Response:
        """The pages' style, script, land and fonts."""
        file = static_files().get(name)
        if file is None:
            return Response(status_code=404)
        headers = {"cache-control": STATIC_CACHE, "x-content-type-options": "nosniff"}
        return _answer(request, file.plain, file.gzipped, file.media_type, static_version(), headers)

    @router.get("/world/v1/snapshot.json", openapi_extra=PUBLIC)
    async def snapshot(request: Request) -> Response:
        """What is on the map, as JSON; the same bytes for everybody."""
        encoded = await feed.encoded()
        headers = {"cache-control": SNAPSHOT_CACHE, "access-control-allow-origin": "*"}
        return _answer(request, encoded.plain, encoded.gzipped, "application/json", encoded.etag, headers)

    @router.get("/world/v1/events", openapi_extra=PUBLIC)
    async def events() -> Response:
        """The network's figures every few seconds, and word of each new snapshot, as events."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(feed.frames(), media_type="text/event-stream", headers=headers)


def _answer(
    request: Request,
    plain: bytes,
    gzipped: bytes | None,
    media_type: str,
    etag: str,
    headers: dict[str, str],
) -> Response:
    headers = headers | {"etag": f'W/"{etag}"', "vary": "accept-encoding"}
    known = request.headers.get("if-none-match", "")
    if etag in known:
        return Response(status_code=304, headers=headers)
    if gzipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(gzipped, media_type=media_type, headers=headers | {"content-encoding": "gzip"})
    return Response(plain, media_type=media_type, headers=headers)
