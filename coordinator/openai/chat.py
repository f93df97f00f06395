"""POST /v1/chat/completions: a body parsed into the one internal request."""

from __future__ import annotations

from typing import Final

from coordinator.errors import (
    invalid_value,
    missing_parameter,
    unknown_parameter,
    unsupported_parameter,
)
from coordinator.openai import reading
from coordinator.openai.fields import (
    FREQUENCY_PENALTY,
    MAX_COMPLETION_TOKENS,
    MAX_TOKENS_CHAT,
    MESSAGES_MAX,
    PRESENCE_PENALTY,
    TEMPERATURE,
    TOP_LOGPROBS,
    TOP_P,
)
from coordinator.openai.reading import Body
from coordinator.openai.request import ChatMessage, GenerationRequest, Role, request_digest
from coordinator.openai.strict_json import Json

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# Clients that send an answer back as history send these along, empty.
_EMPTY_IN_HISTORY: Final = frozenset(
    {"refusal", "audio", "tool_calls", "function_call", "annotations", "tool_call_id"}
)


def parse_chat(body: bytes) -> GenerationRequest:
    """Parse a chat request. Raises `ApiError` with status 400, naming the field at fault."""
    whole, used, ignored = reading.open_body(body, "chat")
    model = reading.read_model(used)
    messages, ignored_in_messages = _messages(used)
    stream = reading.read_bool(used, "stream")
    include_usage, ignored_in_options = reading.read_include_usage(used, stream=stream)
    return GenerationRequest(
        kind="chat",
        model=model,
        messages=messages,
        max_tokens=_max_tokens(used),
        temperature=reading.read_number(used, TEMPERATURE, 1.0),
        top_p=reading.read_number(used, TOP_P, 1.0),
        seed=reading.read_seed(used),
        presence_penalty=reading.read_number(used, PRESENCE_PENALTY, 0.0),
        frequency_penalty=reading.read_number(used, FREQUENCY_PENALTY, 0.0),
        logit_bias=reading.read_logit_bias(used),
        stop=reading.read_stop(used),
        top_logprobs=_top_logprobs(used),
        stream=stream,
        include_usage=include_usage,
        ignored=ignored + ignored_in_messages + ignored_in_options,
        digest=request_digest("chat", whole),
    )


def _max_tokens(used: Body) -> int | None:
    older = reading.read_integer(used, MAX_TOKENS_CHAT)
    newer = reading.read_integer(used, MAX_COMPLETION_TOKENS)
    if older is not None and newer is not None and older != newer:
        raise invalid_value("max_tokens", "it differs from 'max_completion_tokens'; send only one of them")
    return older if newer is None else newer


def _top_logprobs(used: Body) -> int | None:
    wanted = reading.read_bool(used, "logprobs")
    count = reading.read_integer(used, TOP_LOGPROBS)
    if count is not None and not wanted:
        raise invalid_value("top_logprobs", "it is allowed only when 'logprobs' is true")
    return (count or 0) if wanted else None


def _messages(used: Body) -> tuple[tuple[ChatMessage, ...], tuple[str, ...]]:
    value = used.get("messages")
    if value is None:
        raise missing_parameter("messages")
    if not isinstance(value, list) or not value:
        raise invalid_value("messages", "it must be a list of at least one message")
    if len(value) > MESSAGES_MAX:
        raise invalid_value("messages", f"at most {MESSAGES_MAX} messages")
    named = False
    messages: list[ChatMessage] = []
    for index, message in enumerate(value):
        param = f"messages[{index}]"
        if not isinstance(message, dict):
            raise invalid_value(param, "it must be an object with 'role' and 'content'")
        messages.append(ChatMessage(_role(message, param), _content(message, param)))
        named = _has_name(message, param) or named
    return tuple(messages), ("messages.name",) if named else ()


def _role(message: Body, param: str) -> Role:
    value = message.get("role")
    param = f"{param}.role"
    if value is None:
        raise missing_parameter(param)
    if value in ("tool", "function"):
        raise unsupported_parameter(param, "models cannot call tools here")
    role = _ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        raise invalid_value(param, "it must be system, developer, user or assistant")
    return role


def _has_name(message: Body, param: str) -> bool:
    """Check the fields beside role and content; tell whether there is a name to ignore."""
    for key, value in message.items():
        if key in ("role", "content", "name"):
            continue
        if key not in _EMPTY_IN_HISTORY:
            raise unknown_parameter(f"{param}.{key}")
        if value is not None and value != []:
            raise unsupported_parameter(f"{param}.{key}", "messages are plain text here")
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise invalid_value(f"{param}.name", "it must be a string")
    return name is not None


def _content(message: Body, param: str) -> str:
    value = message.get("content")
    if isinstance(value, str):
        return value
    param = f"{param}.content"
    if value is None:
        raise missing_parameter(param)
    if not isinstance(value, list) or not value:
        raise invalid_value(param, "it must be a string or a list of parts of type text")
    return "".join(_part(part, f"{param}[{index}]") for index, part in enumerate(value))


def _part(part: Json, param: str) -> str:
    if not isinstance(part, dict):
        raise invalid_value(param, 'it must be an object, as {"type": "text", "text": "..."}')
    kind = part.get("type")
    if not isinstance(kind, str):
        raise missing_parameter(f"{param}.type")
    if kind != "text":
        raise unsupported_parameter(f"{param}.type", "only parts of type 'text' are taken")
    for key in part:
        if key not in ("type", "text"):
            raise unknown_parameter(f"{param}.{key}")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid_value(f"{param}.text", "it must be a string")
    return text
