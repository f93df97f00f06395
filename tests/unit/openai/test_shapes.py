"""Answers are what OpenAI's client expects, and the quick way of writing them is the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from coordinator import errors
from coordinator.answer import LoggedToken, TopToken
from coordinator.openai import shapes
from coordinator.openai.request import Kind
from coordinator.openai.shapes import AnswerHead, ChunkWriter, Usage

JOB = "0198f3a1b2c37d4e8f90123456789abc"
TEXTS = ["", "a", 'q"\\', "\n\t\x00\x1f", "é😀\u2028", '"content":""', "�", "</script>"]
TOKEN = LoggedToken(
    5, " é", b" \xc3\xa9", -0.5, (TopToken("�", b"\xc3", -0.5), TopToken("�", b"\xa9", -2.0)), 3
)


def head(kind: Kind) -> AnswerHead:
    return AnswerHead(kind, JOB, 1_700_000_000, 'm"content":""', "ab" * 32)


def assert_is(model: type[BaseModel], value: dict[str, Any]) -> None:
    """Valid, strictly, with no field the client's type does not have."""
    parsed = model.model_validate_json(json.dumps(value), strict=True)
    assert not parsed.model_extra
    assert json.loads(parsed.model_dump_json(exclude_unset=True)) == value


def test_whole_chat() -> None:
    answer = shapes.whole_answer(
        head("chat"), text="hi", finish_reason="stop", usage=Usage(3, 4), logprobs=[TOKEN]
    )
    assert_is(ChatCompletion, answer)
    parsed = ChatCompletion.model_validate(answer)
    assert parsed.id == f"chatcmpl-{JOB}"
    assert parsed.system_fingerprint == "abababababababab"
    assert parsed.choices[0].message.content == "hi"
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == 7
    assert parsed.choices[0].logprobs is not None
    assert parsed.choices[0].logprobs.content is not None
    logged = parsed.choices[0].logprobs.content[0]
    assert (logged.token, logged.bytes, logged.logprob) == (" é", [0x20, 0xC3, 0xA9], -0.5)
    assert [top.bytes for top in logged.top_logprobs] == [[0xC3], [0xA9]]


def test_whole_completion() -> None:
    answer = shapes.whole_answer(
        head("completion"), text="hi", finish_reason="length", usage=Usage(3, 4), logprobs=[TOKEN]
    )
    assert_is(Completion, answer)
    parsed = Completion.model_validate(answer)
    assert parsed.id == f"cmpl-{JOB}"
    logged = parsed.choices[0].logprobs
    assert logged is not None
    assert (logged.tokens, logged.token_logprobs, logged.text_offset) == ([" é"], [-0.5], [3])
    assert logged.top_logprobs == [{"�": -0.5}]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_no_logprobs_is_null(kind: Kind) -> None:
    answer: Any = shapes.whole_answer(head(kind), text="", finish_reason="stop", usage=Usage(1, 0))
    assert answer["choices"][0]["logprobs"] is None
    none_logged: Any = shapes.whole_answer(
        head(kind), text="", finish_reason="stop", usage=Usage(1, 0), logprobs=[]
    )
    assert none_logged["choices"][0]["logprobs"] is not None


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("text", TEXTS)
def test_quick_chunks_equal_slow_ones(kind: Kind, text: str, include_usage: bool) -> None:
    writer = ChunkWriter(head(kind), include_usage=include_usage)
    slow = shapes.chunk(head(kind), text=text, include_usage=include_usage)
    assert writer.delta(text) == shapes.dump(slow)
    logged = shapes.chunk(head(kind), text=text, logprobs=[TOKEN], include_usage=include_usage)
    assert writer.delta(text, [TOKEN]) == shapes.dump(logged)
    assert b"\n" not in writer.delta(text)


def stream_of(kind: Kind) -> list[dict[str, Any]]:
    writer = ChunkWriter(head(kind), include_usage=True)
    parts = [
        writer.first(),
        writer.delta("hi", [TOKEN]),
        writer.last("length"),
        writer.usage(Usage(1, 2)),
    ]
    return [json.loads(part) for part in parts if part is not None]


def test_a_chat_stream() -> None:
    chunks = stream_of("chat")
    for chunk in chunks:
        assert_is(ChatCompletionChunk, chunk)
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:-1]] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "hi"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, "length"]
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]
    assert chunks[-1]["choices"] == []


def test_a_completion_stream() -> None:
    chunks = stream_of("completion")
    # The chunks before the last have no finish reason, which the client's type has no room for.
    assert_is(Completion, chunks[1])
    assert_is(Completion, chunks[2])
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["hi", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, "length"]
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, False]


def test_no_usage_unless_wanted() -> None:
    writer = ChunkWriter(head("chat"), include_usage=False)
    assert writer.usage(Usage(1, 2)) is None
    assert b"usage" not in writer.delta("x")


def test_sse_framing() -> None:
    assert shapes.sse_event(b'{"a":1}', 7) == b'id: 7\ndata: {"a":1}\n\n'
    assert shapes.sse_event('{"a":"é"}') == 'data: {"a":"é"}\n\n'.encode()
    assert shapes.DONE == b"data: [DONE]\n\n"
    assert shapes.KEEP_ALIVE.startswith(b":")


def test_errors_in_a_stream_and_as_a_body() -> None:
    error = errors.host_lost("it went away")
    event = shapes.error_event(error)
    assert event.startswith(b"data: {")
    assert event.endswith(b"\n\n")
    body = json.loads(event[6:])
    assert body == errors.openai_body(error) == json.loads(shapes.error_json(error))
    assert set(body["error"]) == {"message", "type", "param", "code"}


def test_error_headers() -> None:
    limited = errors.rate_limited(retry_after_seconds=3, what="requests a minute")
    assert limited.headers() == {"Retry-After": "3", "x-should-retry": "true"}
    assert errors.no_host_available("none is large enough", retry_after_seconds=None).headers() == {
        "x-should-retry": "false"
    }
    assert errors.invalid_api_key().headers() == {"WWW-Authenticate": "Bearer"}
    assert errors.not_found("job", "job_1").code == "job_not_found"
    assert "qwen3-8b" in errors.model_not_found("qwen", ["qwen3-8b"]).message
