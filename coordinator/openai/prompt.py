"""From a parsed request to prompt ids and a bound on the answer, with errors a caller can read."""

from __future__ import annotations

from coordinator.errors import (
    ApiError,
    context_length_exceeded,
    invalid_value,
    template_failed,
    template_refused,
    unsupported_parameter,
    workers_busy,
)
from coordinator.openai.request import GenerationRequest
from coordinator.template_worker import TemplateBusyError, TemplateError, TemplateRefusedError
from coordinator.tokens import CardTokenizer


def prompt_ids(request: GenerationRequest, tokenizer: CardTokenizer, *, context_tokens: int) -> list[int]:
    """The ids of the request's prompt; all ids that the caller named are checked here.

    Blocks (the template runs in a worker process), so call it from a thread. Raises `ApiError`:
    400 for what the caller can mend, 500 for a broken template, 503 when no worker is free.
    """
    _check_ids(request, tokenizer.vocab_size)
    _check_size(request, tokenizer, context_tokens)
    if request.messages is not None:
        return _chat_ids(request, tokenizer)
    prompt = request.prompt or ""
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise invalid_value("prompt", "it is empty once tokenised")
    return ids


def _check_size(request: GenerationRequest, tokenizer: CardTokenizer, context_tokens: int) -> None:
    """Refuse what is too long however it is cut, before the costly work of cutting it."""
    if request.messages is not None:
        param, size = "messages", sum(len(turn.content) for turn in request.messages)
    elif isinstance(request.prompt, str):
        param, size = "prompt", len(request.prompt)
    else:
        return
    # A character is at least one byte, and no token stands for more bytes than the longest.
    tokens_least = -(-size // tokenizer.longest_token_bytes)
    if tokens_least > context_tokens:
        raise context_length_exceeded(
            prompt_tokens=tokens_least,
            max_tokens=1,
            context_tokens=context_tokens,
            param=param,
            is_least=True,
        )


def answer_tokens_max(
    request: GenerationRequest, *, prompt_tokens: int, context_tokens: int, default_tokens: int
) -> int:
    """How many tokens the answer may have: what was asked for, else `default_tokens` or what the
    context leaves, whichever is less.

    Raises `ApiError` (400 `context_length_exceeded`) when it does not fit.
    """
    asked = request.max_tokens
    if prompt_tokens + (1 if asked is None else asked) > context_tokens:
        raise context_length_exceeded(
            prompt_tokens=prompt_tokens,
            max_tokens=1 if asked is None else asked,
            context_tokens=context_tokens,
            param="messages" if request.kind == "chat" else "prompt",
        )
    return min(context_tokens - prompt_tokens, default_tokens) if asked is None else asked


def _chat_ids(request: GenerationRequest, tokenizer: CardTokenizer) -> list[int]:
    if not tokenizer.has_chat_template:
        raise unsupported_parameter("messages", "this model has no chat template; use /v1/completions")
    try:
        return tokenizer.render(request.messages or ())
    except TemplateRefusedError as error:
        raise template_refused(str(error)) from None
    except TemplateBusyError:
        raise workers_busy() from None
    except TemplateError:
        raise template_failed() from None


def _check_ids(request: GenerationRequest, vocab_size: int) -> None:
    bounds = f"this model's ids are 0 to {vocab_size - 1}"
    if isinstance(request.prompt, tuple) and request.prompt and max(request.prompt) >= vocab_size:
        raise _out_of_range("prompt", bounds)
    if request.logit_bias and max(request.logit_bias) >= vocab_size:
        raise _out_of_range("logit_bias", bounds)


def _out_of_range(param: str, bounds: str) -> ApiError:
    return invalid_value(param, f"it names a token id that does not exist; {bounds}")
