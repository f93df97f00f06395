"""The exact answers of OpenAI's API, from plain values: whole bodies, chunks, SSE framing.

`ChunkWriter` writes a stream's chunks as bytes: all that stays the same in a stream is put
together once, so that a delta costs one JSON string. `chunk` builds the same chunks as dicts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from coordinator.answer import LoggedToken, TopToken
from coordinator.errors import ApiError, openai_body
from coordinator.openai.request import Kind
from coordinator.openai.strict_json import Json

FinishWord = Literal["stop", "length"]

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
FINGERPRINT_DIGITS: Final = 16

_ID_PREFIXES: Final[dict[Kind, str]] = {"chat": "chatcmpl-", "completion": "cmpl-"}
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every part of one answer repeats.

    `job_hex` are the 32 digits of the job's id, `model` the card's id, `revision` its digest.
    """

    kind: Kind
    job_hex: str
    created_unix_seconds: int
    model: str
    revision: str

    @property
    def answer_id(self) -> str:
        """`chatcmpl-` or `cmpl-`, and the job's digits."""
        return _ID_PREFIXES[self.kind] + self.job_hex

    def as_json(self, object_name: str) -> dict[str, Json]:
        """The leading fields, in the order that is written."""
        return {
            "id": self.answer_id,
            "object": object_name,
            "created": self.created_unix_seconds,
            "model": self.model,
            "system_fingerprint": self.revision[:FINGERPRINT_DIGITS],
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens counted here, never by the node."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def as_json(self) -> dict[str, Json]:
        """OpenAI's usage object; what this network does not have is zero."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


def dump(value: Json | Mapping[str, Json]) -> bytes:
    """Compact JSON in UTF-8. Raises ValueError on NaN and infinities."""
    return _encode(value).encode("utf-8")


# -- log probabilities ---------------------------------------------------------------------------


def chat_logprobs(tokens: Sequence[LoggedToken]) -> dict[str, Json]:
    """The `logprobs` object of a chat choice."""
    content: list[Json] = [
        {**_chat_token(token), "top_logprobs": [_chat_token(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: LoggedToken | TopToken) -> dict[str, Json]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.data)}


def completion_logprobs(tokens: Sequence[LoggedToken]) -> dict[str, Json]:
    """The `logprobs` object of a completion choice. Tokens of the same text, as parts of
    characters are, share one entry of `top_logprobs`: the likeliest.
    """
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_completion_top(token) for token in tokens],
        "text_offset": [token.text_offset for token in tokens],
    }


def _completion_top(token: LoggedToken) -> dict[str, Json]:
    best: dict[str, Json] = {}
    for other in sorted(token.top, key=lambda top: top.logprob):
        best[other.token] = other.logprob
    return dict(reversed(best.items()))


def _logprobs(kind: Kind, tokens: Sequence[LoggedToken] | None) -> Json:
    if tokens is None:
        return None
    return chat_logprobs(tokens) if kind == "chat" else completion_logprobs(tokens)


# -- whole answers -------------------------------------------------------------------------------


def whole_answer(
    head: AnswerHead,
    *,
    text: str,
    finish_reason: FinishWord,
    usage: Usage,
    logprobs: Sequence[LoggedToken] | None = None,
) -> dict[str, Json]:
    """A `chat.completion` or `text_completion`. `logprobs` None: none were wanted."""
    logged = _logprobs(head.kind, logprobs)
    choice: dict[str, Json]
    if head.kind == "chat":
        message: dict[str, Json] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": [],
        }
        choice = {"index": 0, "message": message}
    else:
        choice = {"index": 0, "text": text}
    choice |= {"logprobs": logged, "finish_reason": finish_reason}
    name = "chat.completion" if head.kind == "chat" else "text_completion"
    return {**head.as_json(name), "choices": [choice], "usage": usage.as_json()}


# -- streams -------------------------------------------------------------------------------------


def chunk(
    head: AnswerHead,
    *,
    text: str | None,
    role: bool = False,
    finish_reason: FinishWord | None = None,
    logprobs: Sequence[LoggedToken] | None = None,
    include_usage: bool = False,
) -> dict[str, Json]:
    """One chunk of a stream. `text` None leaves a chat's delta empty. With `include_usage` every
    chunk but the last carries `usage: null`.
    """
    choice: dict[str, Json] = {"index": 0}
    if head.kind == "chat":
        delta: dict[str, Json] = {"role": "assistant"} if role else {}
        if text is not None:
            delta["content"] = text
        if role:
            delta["refusal"] = None
        choice["delta"] = delta
    else:
        choice["text"] = text or ""
    choice |= {"logprobs": _logprobs(head.kind, logprobs), "finish_reason": finish_reason}
    found: dict[str, Json] = {**head.as_json(_chunk_name(head.kind)), "choices": [choice]}
    return {**found, "usage": None} if include_usage else found


def usage_chunk(head: AnswerHead, usage: Usage) -> dict[str, Json]:
    """The chunk before `[DONE]` when usage is wanted: no choices."""
    return {**head.as_json(_chunk_name(head.kind)), "choices": [], "usage": usage.as_json()}


def _chunk_name(kind: Kind) -> str:
    return "chat.completion.chunk" if kind == "chat" else "text_completion"


@final
class ChunkWriter:
    """The chunks of one stream as JSON bytes, equal to `chunk`'s and `usage_chunk`'s.

    Order: `first()` (chats only: None for a completion), `delta()` any number of times,
    `last()`, `usage()` (None unless wanted), then `DONE`.
    """

    __slots__ = ("_after_text", "_before_text", "_head", "_include_usage")

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._head: Final = head
        self._include_usage: Final = include_usage
        # The text is the only string that can be empty where this one stands.
        model_chunk = _encode(chunk(head, text="", include_usage=include_usage))
        field = '"content":' if head.kind == "chat" else '"text":'
        at = model_chunk.rindex(field + '""') + len(field)
        self._before_text: Final = model_chunk[:at]
        self._after_text: Final = model_chunk[at + 2 :]

    def first(self) -> bytes | None:
        """The chunk with the role and no text."""
        if self._head.kind != "chat":
            return None
        return dump(chunk(self._head, text="", role=True, include_usage=self._include_usage))

    def delta(self, text: str, logprobs: Sequence[LoggedToken] | None = None) -> bytes:
        """A chunk with text."""
        if logprobs is None:
            return (self._before_text + _encode(text) + self._after_text).encode("utf-8")
        return dump(chunk(self._head, text=text, logprobs=logprobs, include_usage=self._include_usage))

    def last(self, finish_reason: FinishWord) -> bytes:
        """The chunk with the finish reason and no text."""
        return dump(
            chunk(
                self._head,
                text=None,
                finish_reason=finish_reason,
                include_usage=self._include_usage,
            )
        )

    def usage(self, usage: Usage) -> bytes | None:
        """The chunk with the usage, if it is wanted."""
        return dump(usage_chunk(self._head, usage)) if self._include_usage else None


def sse_event(data_json: bytes | str, event_id: int | None = None) -> bytes:
    """One server-sent event. `data_json` is JSON without line breaks; `event_id` lets a reader
    that lost the connection say where to go on (Last-Event-ID).
    """
    data = data_json.encode("utf-8") if isinstance(data_json, str) else data_json
    if event_id is None:
        return b"data: %b\n\n" % data
    return b"id: %d\ndata: %b\n\n" % (event_id, data)


def error_event(error: ApiError) -> bytes:
    """An error inside a stream that has begun; `DONE` follows it."""
    return sse_event(_encode(openai_body(error)))


def error_json(error: ApiError) -> bytes:
    """The body of an answer that is an error."""
    return dump({"error": dict(openai_body(error)["error"])})
