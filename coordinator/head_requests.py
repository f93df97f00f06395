"""HEAD: every route that answers GET answers it, with GET's head and no body.

Link checkers and monitors ask so. What GET does after its answer has gone out is not done, so that
asking for the head of a result does not use the result up; streams are not begun.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _HeadSent(Exception):
    """The head has gone out, and what makes the body is not wanted."""


class HeadAsGet:
    """An ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                raise _HeadSent

        try:
            await self._app({**scope, "method": "GET"}, receive, send_head)
        except* _HeadSent:  # a group where the answer was sent by a task of its own
            pass
