"""Chat bodies: what is taken, what is refused, and which field an error names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from coordinator.openai.chat import parse_chat
from coordinator.openai.request import ChatMessage, GenerationRequest
from tests.unit.openai.bodies import USER, chat, chat_error


def test_defaults() -> None:
    request = chat()
    assert request.kind == "chat"
    assert request.model == "m"
    assert request.messages == (ChatMessage("user", "Say hi."),)
    assert request.prompt is None
    assert request.max_tokens is None
    assert (request.temperature, request.top_p, request.seed) == (1.0, 1.0, None)
    assert (request.presence_penalty, request.frequency_penalty) == (0.0, 0.0)
    assert (dict(request.logit_bias), request.stop, request.ignored) == ({}, (), ())
    assert (request.stream, request.include_usage, request.want_logprobs) == (False, False, False)


def test_every_used_field_arrives() -> None:
    request = chat(
        max_completion_tokens=7,
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=3,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"5": -100, "0": 1.5},
        stop=["a", "b", "a"],
        logprobs=True,
        top_logprobs=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert request.max_tokens == 7
    assert (request.temperature, request.top_p, request.seed) == (0.0, 0.5, 3)
    assert (request.presence_penalty, request.frequency_penalty) == (-2.0, 2.0)
    assert dict(request.logit_bias) == {5: -100.0, 0: 1.5}
    assert request.stop == ("a", "b")
    assert request.top_logprobs == 20
    assert request.stream
    assert request.include_usage


def test_roles_and_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "system", "content": parts},
            {"role": "user", "content": "", "name": "Ann"},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": []},
        ]
    )
    assert request.messages == (
        ChatMessage("system", "d"),
        ChatMessage("system", "ab"),
        ChatMessage("user", ""),
        ChatMessage("assistant", "c"),
    )
    assert request.ignored == ("messages.name",)


def test_null_is_absent() -> None:
    nulls = dict.fromkeys(("temperature", "stop", "tools", "n", "logprobs", "user", "store", "seed"))
    assert chat(**nulls).ignored == ()
    assert chat_error(messages=None).code == "missing_required_parameter"


def test_ignored_fields_are_named() -> None:
    request = chat(
        user="u",
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=True,
        stream=True,
        stream_options={"include_obfuscation": False},
    )
    assert request.ignored == (
        "user",
        "metadata",
        "service_tier",
        "parallel_tool_calls",
        "stream_options.include_obfuscation",
    )
    assert not request.include_usage


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"n": 1},
        {"store": False},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"verbosity": "medium"},
    ],
)
def test_fixed_fields_that_ask_for_nothing_pass(fields: dict[str, Any]) -> None:
    assert chat(**fields).ignored == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"functions": [{"name": "f"}]},
        {"n": 2},
        {"n": True},
        {"store": True},
        {"response_format": {"type": "json_object"}},
        {"modalities": ["text", "audio"]},
        {"reasoning_effort": "high"},
        {"web_search_options": {}},
        {"audio": {"voice": "x"}},
    ],
)
def test_fixed_fields_that_ask_for_more_are_refused(fields: dict[str, Any]) -> None:
    error = chat_error(**fields)
    assert (error.status, error.code, error.param) == (
        400,
        "unsupported_parameter",
        next(iter(fields)),
    )


@pytest.mark.parametrize("name", ["top_k", "min_p", "repetition_penalty", "Temperature", "", "é\n"])
def test_unknown_fields(name: str) -> None:
    error = chat_error(**{name: 1})
    assert (error.status, error.code) == (400, "unknown_parameter")
    assert error.message.isprintable()


def test_a_long_unknown_name_is_clipped() -> None:
    assert len(chat_error(**{"x" * 100_000: 1}).message) < 300


BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model"),
    ({"model": 5}, "model"),
    ({"model": "x" * 201}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [{**USER, "name": 5}]}, "messages[0].name"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 10**4000}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"temperature": 2.01}, "temperature"),
    ({"temperature": -0.01}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": 10**4000}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 1.0}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop[0]"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": "x" * 257}, "stop"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"top_logprobs": 0, "logprobs": False}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"01": 1}}, "logit_bias"),
    ({"logit_bias": {"\u0661": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"1": True}}, "logit_bias.1"),
    ({"logit_bias": {str(index): 1 for index in range(301)}}, "logit_bias"),
    ({"user": 5}, "user"),
    ({"metadata": "x"}, "metadata"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_VALUES)
def test_bad_values_name_their_field(fields: dict[str, Any], param: str) -> None:
    error = chat_error(**fields)
    assert (error.status, error.code, error.param) == (400, "invalid_value", param)
    assert f"'{param}'" in error.message


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": ...}, "missing_required_parameter", "model"),
        ({"messages": ...}, "missing_required_parameter", "messages"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "unsupported_parameter",
            "messages[0].role",
        ),
        (
            {
                "messages": [
                    USER,
                    USER,
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "image_url", "image_url": {"url": "u"}},
                        ],
                    },
                ]
            },
            "unsupported_parameter",
            "messages[2].content[1].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
            "unsupported_parameter",
            "messages[0].tool_calls",
        ),
        ({"messages": [{**USER, "mood": "glad"}]}, "unknown_parameter", "messages[0].mood"),
        (
            {"stream": True, "stream_options": {"x": 1}},
            "unknown_parameter",
            "stream_options.x",
        ),
    ],
)
def test_other_refusals(fields: dict[str, Any], code: str, param: str) -> None:
    error = chat_error(**fields)
    assert (error.status, error.code, error.param) == (400, code, param)


def test_seed_becomes_a_wire_seed() -> None:
    assert chat(seed=-1).seed == 2**63 - 1
    assert chat(seed=-(2**63)).seed == 0
    assert chat(seed=2**63 - 1).wire_sampling(seed_if_none=9).seed == 2**63 - 1
    assert chat(temperature=0.5, logit_bias={"7": 1}).wire_sampling(seed_if_none=9).model_dump() == {
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 9,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {7: 1.0},
    }


def test_digest_ignores_spelling_and_sees_content() -> None:
    one = parse_chat(b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"seed":1}')
    same = parse_chat('{"seed": 1, "messages": [{"content": "é", "role": "user"}], "model": "m"}'.encode())
    other = parse_chat(b'{"model":"m","messages":[{"role":"user","content":"e"}],"seed":1}')
    assert one.digest == same.digest
    assert one.digest != other.digest
    assert len(one.digest) == 64


def test_a_request_survives_being_stored() -> None:
    request = chat(logit_bias={"5": 1}, stop=["a"], seed=1, user="u")
    adapter = TypeAdapter(GenerationRequest)
    assert adapter.validate_json(adapter.dump_json(request)) == request
