"""POST /v1/completions: a body parsed into the one internal request."""

from __future__ import annotations

from coordinator.errors import invalid_value, missing_parameter, unsupported_parameter
from coordinator.openai import reading
from coordinator.openai.fields import (
    COMPLETION_MAX_TOKENS_DEFAULT,
    FREQUENCY_PENALTY,
    LOGPROBS_COMPLETION,
    MAX_TOKENS_COMPLETION,
    PRESENCE_PENALTY,
    PROMPT_IDS_MAX,
    TEMPERATURE,
    TOP_P,
)
from coordinator.openai.reading import Body
from coordinator.openai.request import GenerationRequest, request_digest
from coordinator.openai.strict_json import Json


def parse_completion(body: bytes) -> GenerationRequest:
    """Parse a completion request. Raises `ApiError` with status 400, naming the field at fault."""
    whole, used, ignored = reading.open_body(body, "completions")
    model = reading.read_model(used)
    prompt = _prompt(used)
    stream = reading.read_bool(used, "stream")
    include_usage, ignored_in_options = reading.read_include_usage(used, stream=stream)
    max_tokens = reading.read_integer(used, MAX_TOKENS_COMPLETION)
    return GenerationRequest(
        kind="completion",
        model=model,
        prompt=prompt,
        max_tokens=COMPLETION_MAX_TOKENS_DEFAULT if max_tokens is None else max_tokens,
        temperature=reading.read_number(used, TEMPERATURE, 1.0),
        top_p=reading.read_number(used, TOP_P, 1.0),
        seed=reading.read_seed(used),
        presence_penalty=reading.read_number(used, PRESENCE_PENALTY, 0.0),
        frequency_penalty=reading.read_number(used, FREQUENCY_PENALTY, 0.0),
        logit_bias=reading.read_logit_bias(used),
        stop=reading.read_stop(used),
        top_logprobs=reading.read_integer(used, LOGPROBS_COMPLETION),
        stream=stream,
        include_usage=include_usage,
        ignored=ignored + ignored_in_options,
        digest=request_digest("completion", whole),
    )


def _prompt(used: Body) -> str | tuple[int, ...]:
    value = used.get("prompt")
    if value is None:
        raise missing_parameter("prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise unsupported_parameter("prompt", "one prompt a request; send one for each")
        value = value[0]
    if isinstance(value, list):
        return _ids(value)
    if not isinstance(value, str):
        raise invalid_value("prompt", "it must be a string or a list of token ids")
    if not value:
        raise invalid_value("prompt", "it must not be empty")
    return value


def _ids(value: list[Json]) -> tuple[int, ...]:
    if not 0 < len(value) <= PROMPT_IDS_MAX:
        raise invalid_value("prompt", f"it must have 1 to {PROMPT_IDS_MAX} token ids")
    ids: list[int] = []
    for index, item in enumerate(value):
        if type(item) is not int or not 0 <= item < 2**31:
            raise invalid_value(f"prompt[{index}]", "it must be a token id")
        ids.append(item)
    return tuple(ids)
