"""Bodies that well-known clients send (recorded, but where said), and the fields that OpenAI's own client has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params

from coordinator.errors import ApiError
from coordinator.openai.chat import parse_chat
from coordinator.openai.completions import parse_completion
from coordinator.openai.fields import FIELDS, field_table, fields_of

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "client_bodies.json").read_text("utf-8"))
DOCUMENT = Path(__file__).parents[3] / "docs" / "openai-fields.md"


@pytest.mark.parametrize("case", CASES, ids=[f"{case['client']}: {case['what']}" for case in CASES])
def test_clients_bodies(case: dict[str, Any]) -> None:
    body = json.dumps(case["body"]).encode()
    parse = parse_chat if case["path"] == "/v1/chat/completions" else parse_completion
    if "refused" in case:
        with pytest.raises(ApiError) as caught:
            _ = parse(body)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", case["refused"])
    else:
        assert parse(body).ignored == ()


def _names(union: Any) -> set[str]:
    return {name for kind in get_args(union) for name in kind.__annotations__}


def test_every_field_of_openais_client_is_in_the_table() -> None:
    assert set(fields_of("chat")) == _names(chat_params.CompletionCreateParams)
    assert set(fields_of("completions")) == _names(completion_create_params.CompletionCreateParams)


def test_no_field_is_listed_twice() -> None:
    for surface in ("chat", "completions"):
        names = [field.name for field in FIELDS if surface in field.surfaces]
        assert len(names) == len(set(names))


def test_the_document_shows_the_table() -> None:
    assert field_table() in DOCUMENT.read_text("utf-8")
