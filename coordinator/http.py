"""What all endpoints share: who a route is for, the caller, bodies within limits, errors."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal, TypeVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from coordinator import errors
from coordinator.accounts.service import Caller, authenticate
from coordinator.db import DatabaseBusy, DatabaseFull, DatabaseUnavailable
from coordinator.errors import ApiError
from coordinator.ids import new_id
from coordinator.numbers import whole_of
from coordinator.openai.shapes import error_json
from coordinator.openai.strict_json import parse_object
from coordinator.runtime import Runtime

log = structlog.get_logger()

M = TypeVar("M", bound=BaseModel)

Audience = Literal["public", "account", "operator", "node"]
STATUS_CLIENT_GONE: Final = 499  # as nginx logs it; nobody reads the answer
API_DOCS: Final = "docs/api.md"
AUDIENCE_KEY: Final = "x-audience"


def audience(who: Audience) -> dict[str, Any]:
    """For a route's `openapi_extra`: who may call it. Every route has one; a test walks them."""
    return {AUDIENCE_KEY: who}


def runtime_of(request: Request) -> Runtime:
    """The process's runtime."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def identify(request: Request) -> Caller:
    """The caller by the Authorization header. Blocking. Raises 401."""
    runtime = runtime_of(request)
    with runtime.database.read() as session:
        return authenticate(session, request.headers.get("authorization"))


async def caller_of(request: Request) -> Caller:
    """`identify` for handlers that wait."""
    return await run_in_threadpool(identify, request)


def require_operator(caller: Caller) -> None:
    """Raise 403 unless the caller operates this network."""
    if not caller.is_operator:
        raise errors.permission_denied("do this: it is for operators")


async def read_body(request: Request) -> bytes:
    """The body, never more of it than the limit. Raises 413."""
    limit = runtime_of(request).settings.body_bytes_max
    if (whole_of(request.headers.get("content-length", "")) or 0) > limit:
        raise errors.body_too_large(limit)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise errors.compressed_body()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(runtime_of(request).settings.body_seconds_max):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise errors.body_too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise errors.body_too_slow() from None
    return b"".join(parts)


def parse_body(kind: type[M], body: bytes) -> M:
    """A JSON body of a fixed shape. Raises 400 naming the field, without its value."""
    _ = parse_object(body)  # refuses what the model's own parser lets pass, as a key that comes twice
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise errors.unknown_parameter(place, listed_in=API_DOCS) from None
        if first["type"] == "missing" or (first["input"] is None and _is_needed(kind, first["loc"])):
            raise errors.missing_parameter(place) from None
        raise errors.invalid_value(place or "body", _lowered(str(first["msg"]))) from None


def _is_needed(kind: type[BaseModel], place: tuple[int | str, ...]) -> bool:
    """Whether `place` is a field of the model, or of a model inside it, that has no default."""
    found: Any = kind
    for depth, name in enumerate(place, start=1):
        field = found.model_fields.get(str(name))
        if field is None or depth == len(place):
            return field is not None and field.is_required()
        found = field.annotation
        if not isinstance(found, type) or not issubclass(found, BaseModel):
            break
    return False


def _lowered(message: str) -> str:
    """A sentence's first letter made small, as ours go on behind a colon."""
    return message[:1].lower() + message[1:]


def respond_with(error: ApiError) -> Response:
    """The error as an HTTP answer in OpenAI's shape."""
    return Response(error_json(error), error.status, headers=error.headers(), media_type="application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Every error leaves in OpenAI's shape, and none with the text of an exception."""

    async def on_api_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return respond_with(error)

    async def on_invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(
            str(part) for part in first["loc"] if part not in {"body", "query", "path", "header"}
        )
        if first["type"] == "missing":
            return respond_with(errors.missing_parameter(place))
        return respond_with(errors.invalid_value(place or "body", _lowered(str(first["msg"]))))

    async def on_http(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        headers = dict(error.headers or {})
        return respond_with(ApiError(error.status_code, code, str(error.detail), type=kind, headers=headers))

    async def on_database(_request: Request, error: Exception) -> Response:
        log.error("database_error", error=str(error))
        return respond_with(
            ApiError(
                503,
                "database_unavailable",
                "The coordinator's database cannot be used right now. Nothing was charged; try again, "
                "with the same Idempotency-Key if there was one.",
                type="server_error",
                retry_after_seconds=5,
                should_retry=True,
            )
        )

    async def on_gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=STATUS_CLIENT_GONE)

    async def on_fault(request: Request, error: Exception) -> Response:
        reference = new_id("err")
        log.error("internal_error", reference=reference, path=request.url.path, exc_info=error)
        return respond_with(errors.internal_error(reference))

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    for kind in (DatabaseBusy, DatabaseFull, DatabaseUnavailable):
        app.add_exception_handler(kind, on_database)
    app.add_exception_handler(ClientDisconnect, on_gone)
    app.add_exception_handler(Exception, on_fault)
