"""What is refused of any request before its route looks at it: headers and parameters that come twice,
and parameters that the route does not have.

Who reads only the first of two, or passes over a name, does something else than was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from coordinator import errors

OWN_HEADERS: Final = "x-mlxnet-"
# As they are written; all else that is read of a head is the framework's or means the same twice.
SINGLE_HEADERS: Final = {name.lower(): name for name in ("Idempotency-Key", "Authorization", "Last-Event-ID")}
STRICT_PREFIX: Final = "/v1/"  # newer nodes may send more than this coordinator knows
DOCS: Final = "docs/api.md"


async def check_headers(connection: HTTPConnection) -> None:
    """For every route. Raises 400 naming a header of ours that comes twice."""
    if connection.scope["type"] != "http":
        return
    seen = set[str]()
    for name in connection.headers:
        if name in seen and (name.startswith(OWN_HEADERS) or name in SINGLE_HEADERS):
            raise errors.invalid_value(SINGLE_HEADERS.get(name) or name, "it comes twice; send it once")
        seen.add(name)


async def check_query(connection: HTTPConnection) -> None:
    """For our own routes; clients of OpenAI's may send more than we read.

    Raises 400 naming a parameter that the route does not have, that comes twice or that is empty.
    """
    if not connection.query_params or not connection.scope["path"].startswith(STRICT_PREFIX):
        return
    route: APIRoute = connection.scope["route"]
    known, seen = frozenset(_query_names(route.dependant)), set[str]()
    for name, value in connection.query_params.multi_items():
        if name not in known:
            raise errors.unknown_parameter(name, listed_in=DOCS)
        if name in seen:
            raise errors.invalid_value(name, "it comes twice; send it once")
        if not value:
            raise errors.invalid_value(name, "it is empty; give it a value or leave it out")
        seen.add(name)


def _query_names(dependant: Dependant) -> Iterator[str]:
    """The names of all that a route reads of an address's query."""
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)
