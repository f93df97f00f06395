"""Building request bodies, and reading back the error that one ends in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.errors import ApiError
from coordinator.openai.chat import parse_chat
from coordinator.openai.completions import parse_completion
from coordinator.openai.request import GenerationRequest

USER = {"role": "user", "content": "Say hi."}


def chat(**fields: Any) -> GenerationRequest:
    """Parse a chat body of a model, one message, and `fields` (`...` leaves a field out)."""
    body = {"model": "m", "messages": [USER], **fields}
    return parse_chat(_dump(body))


def completion(**fields: Any) -> GenerationRequest:
    """Parse a completion body of a model, a prompt, and `fields` (`...` leaves a field out)."""
    body = {"model": "m", "prompt": "Say", **fields}
    return parse_completion(_dump(body))


def chat_error(**fields: Any) -> ApiError:
    """The error of a chat body."""
    with pytest.raises(ApiError) as caught:
        _ = chat(**fields)
    return caught.value


def completion_error(**fields: Any) -> ApiError:
    """The error of a completion body."""
    with pytest.raises(ApiError) as caught:
        _ = completion(**fields)
    return caught.value


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps({key: value for key, value in body.items() if value is not ...}).encode()
