"""The one error that a request may end in, and constructors for those that we answer with.

Codes are stable: clients may branch on them. A message names the field and says what to do; it
never quotes the text of a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "insufficient_quota",
    "rate_limit_error",
    "server_error",
]
NAME_CHARACTERS_MAX: Final = 64


class ApiError(Exception):
    """A request's bad end, as HTTP status and OpenAI error object.

    `retry_after_seconds` and `should_retry` become the headers that OpenAI's clients obey.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        type: ErrorType = "invalid_request_error",  # noqa: A002
        param: str | None = None,
        retry_after_seconds: int | None = None,
        should_retry: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.type: ErrorType = type
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.should_retry = should_retry
        self.extra_headers: dict[str, str] = dict(headers or {})

    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer: Retry-After, x-should-retry, and the extra ones."""
        found = dict(self.extra_headers)
        if self.retry_after_seconds is not None:
            found["Retry-After"] = str(self.retry_after_seconds)
        if self.should_retry is not None:
            found["x-should-retry"] = "true" if self.should_retry else "false"
        return found


def openai_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """The body `{"error": {"message", "type", "param", "code"}}` that OpenAI's clients read."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def shown_name(name: str) -> str:
    """A name that a caller made up, fit for a message: printable ASCII, clipped."""
    clipped = name[:NAME_CHARACTERS_MAX]
    shown = clipped if clipped.isascii() and clipped.isprintable() else ascii(clipped)[1:-1]
    return shown if len(name) <= NAME_CHARACTERS_MAX else shown + "..."


# -- 400: the request ----------------------------------------------------------------------------


def malformed_json(why: str) -> ApiError:
    """The body cannot be read as one JSON object."""
    return ApiError(400, "malformed_json", f"The request body is not usable JSON: {why}.")


def missing_parameter(param: str) -> ApiError:
    """A field that the endpoint cannot do without is absent or null."""
    return ApiError(400, "missing_required_parameter", f"Missing required parameter: '{param}'.", param=param)


def unknown_parameter(param: str, *, listed_in: str = "docs/openai-fields.md") -> ApiError:
    """A field or a parameter of an address that this API does not have."""
    param = shown_name(param)
    return ApiError(
        400,
        "unknown_parameter",
        f"Unknown parameter: '{param}'. Remove it; {listed_in} lists what is accepted.",
        param=param,
    )


def unsupported_parameter(param: str, why: str) -> ApiError:
    """A field of OpenAI's API, asking for what this network does not do."""
    param = shown_name(param)
    return ApiError(400, "unsupported_parameter", f"Unsupported '{param}': {why}.", param=param)


def invalid_value(param: str, why: str) -> ApiError:
    """A field with a value of the wrong type or out of range."""
    param = shown_name(param)
    return ApiError(400, "invalid_value", f"Invalid '{param}': {why}.", param=param)


def context_length_exceeded(
    *, prompt_tokens: int, max_tokens: int, context_tokens: int, param: str, is_least: bool = False
) -> ApiError:
    """Prompt and asked-for answer together are longer than the model's context.

    `is_least`: the prompt was not cut into tokens, and has at least so many.
    """
    has = "has at least" if is_least else "has"
    return ApiError(
        400,
        "context_length_exceeded",
        f"This model's context is {context_tokens} tokens; the prompt {has} {prompt_tokens} and "
        f"{max_tokens} are asked for. Shorten the prompt or lower the limit on the answer.",
        param=param,
    )


def template_refused(why: str) -> ApiError:
    """The model's own chat template does not take these messages."""
    return ApiError(
        400,
        "chat_template_refused",
        f"The model's chat template cannot render these messages: {why}.",
        param="messages",
    )


# -- who asks, and what for ----------------------------------------------------------------------


def missing_api_key() -> ApiError:
    """No key was sent."""
    return ApiError(
        401,
        "missing_api_key",
        "No API key. Send it as 'Authorization: Bearer <key>'.",
        type="authentication_error",
        headers={"WWW-Authenticate": "Bearer"},
    )


def invalid_api_key() -> ApiError:
    """The key is unknown, expired or revoked; which of these is not told."""
    return ApiError(
        401,
        "invalid_api_key",
        "This API key is not valid. Check it, or make a new one.",
        type="authentication_error",
        headers={"WWW-Authenticate": "Bearer"},
    )


def permission_denied(what: str) -> ApiError:
    """The key is good and lacks the scope; `what` says which."""
    return ApiError(403, "permission_denied", f"This API key may not {what}.", type="permission_error")


def model_not_found(model: str, nearest: Sequence[str]) -> ApiError:
    """No card or alias has that name; `nearest` are offered instead."""
    offer = f" Nearest: {', '.join(nearest)}." if nearest else " GET /v1/models lists them all."
    return ApiError(
        404,
        "model_not_found",
        f"The model '{shown_name(model)}' is not in the catalogue.{offer}",
        param="model",
    )


def model_not_served(card_id: str, repo: str, nearest: Sequence[str]) -> ApiError:
    """The model is known, sized and priced, but its files are not pinned by hash: nobody may run it."""
    offer = f" Served now: {', '.join(nearest)}." if nearest else ""
    return ApiError(
        404,
        "model_not_served",
        f"The model '{card_id}' is in the catalogue and not served: its files are not pinned yet.{offer} "
        f"An operator can pin it with 'mlx-network catalogue add {repo}'.",
        param="model",
        should_retry=False,
    )


def not_found(kind: str, identifier: str) -> ApiError:
    """No such thing, or not the caller's. `kind` as in `job`: the code is `job_not_found`."""
    return ApiError(
        404,
        f"{kind}_not_found",
        f"No {kind} '{shown_name(identifier)}' of yours was found.",
        type="not_found_error",
    )


def idempotency_key_reused() -> ApiError:
    """The same Idempotency-Key came with another body."""
    return ApiError(
        409,
        "idempotency_key_reused",
        "This Idempotency-Key was used with a different request. Use a new key.",
        type="conflict_error",
        should_retry=False,
    )


def conflict(code: str, message: str) -> ApiError:
    """What is asked for does not fit the state that the thing is in."""
    return ApiError(409, code, message, type="conflict_error", should_retry=False)


def body_too_large(limit_bytes: int) -> ApiError:
    """The body is over the limit."""
    return ApiError(
        413,
        "body_too_large",
        f"The request body has more than {limit_bytes} bytes, which is the most that is taken. "
        "Send a shorter prompt, or several requests.",
    )


WAYS_TO_TOKENS: Final = (
    "lend a Mac (mlx-node join), redeem an operator's voucher (mlx-network voucher redeem), or let another"
    " account give you some (mlx-network give). Who runs the coordinator can make an account that has some"
    " (mlx-network accounts create NAME --grant MLX)"
)
"""Nobody sells tokens here: these are all the ways to some."""


def insufficient_balance(*, needed_umlx: int, available_umlx: int) -> ApiError:
    """The hold cannot be opened. Amounts in uMLX."""
    return ApiError(
        402,
        "insufficient_balance",
        f"This request may cost up to {needed_umlx} uMLX and {available_umlx} uMLX are free. "
        f"Lower 'max_tokens', or get tokens: {WAYS_TO_TOKENS}.",
        type="insufficient_quota",
        should_retry=False,
    )


def charge_above_limit(*, bound_umlx: int, limit_umlx: int, param: str) -> ApiError:
    """The job may cost more than its submitter allows. Amounts in uMLX."""
    return ApiError(
        402,
        "charge_above_limit",
        f"This request may cost up to {bound_umlx} uMLX, more than the {limit_umlx} uMLX of '{param}'. "
        "Lower 'max_tokens', take a cheaper model, or raise the limit.",
        type="insufficient_quota",
        param=param,
        should_retry=False,
    )


def rate_limited(*, retry_after_seconds: int, what: str) -> ApiError:
    """Over one of the key's limits; `what` names it."""
    return ApiError(
        429,
        "rate_limited",
        f"Over the limit of {what}. Try again in {retry_after_seconds} s.",
        type="rate_limit_error",
        retry_after_seconds=retry_after_seconds,
        should_retry=True,
    )


def compressed_body() -> ApiError:
    """The body is compressed, which could unpack to any size."""
    return ApiError(
        415, "compressed_body", "The body is compressed. Send it as it is, without Content-Encoding."
    )


def body_too_slow() -> ApiError:
    """The body did not arrive in time."""
    return ApiError(408, "body_too_slow", "The request body did not arrive in time. Send it again.")


def job_unservable(why: str) -> ApiError:
    """No Mac of the network can ever run this job; `why` has the numbers and what to change."""
    return ApiError(
        422,
        "job_unservable",
        f"No Mac of this network can ever run this job: {why}.",
        param="model",
        should_retry=False,
    )


# -- 5xx: the network ----------------------------------------------------------------------------


def no_host_available(why: str, *, retry_after_seconds: int | None) -> ApiError:
    """Nobody takes the job now. With no forecast, trying again is useless."""
    forecast = f" Forecast: {retry_after_seconds} s." if retry_after_seconds is not None else ""
    return ApiError(
        503,
        "no_host_available",
        f"No Mac can take this job: {why}.{forecast}",
        type="server_error",
        retry_after_seconds=retry_after_seconds,
        should_retry=retry_after_seconds is not None,
    )


def host_lost(why: str) -> ApiError:
    """The answer broke off and is not continued. 502, or in-band when the stream has begun."""
    return ApiError(
        502,
        "host_lost",
        f"The Mac that was answering was lost: {why}. You are not charged for what you did not get.",
        type="server_error",
        should_retry=True,
    )


def coordinator_restarting(job_id: str | None = None) -> ApiError:
    """The coordinator is told to stop: nothing new is taken, and what runs goes on afterwards."""
    how = "Send the request again."
    if job_id is not None:
        how = (
            f"The job goes on: follow GET /v1/jobs/{job_id}/events from the last event's id on, or send "
            "the request again with the same Idempotency-Key."
        )
    return ApiError(
        503,
        "coordinator_restarting",
        f"The coordinator restarts. {how}",
        type="server_error",
        retry_after_seconds=2,
        should_retry=job_id is None,
    )


def template_failed() -> ApiError:
    """The model's chat template crashed or ran over its limits: the card's fault, not the caller's."""
    return ApiError(
        500,
        "chat_template_failed",
        "The model's chat template failed on these messages. Use /v1/completions or another model.",
        type="server_error",
        param="messages",
        should_retry=False,
    )


def workers_busy() -> ApiError:
    """Requests come faster than prompts can be rendered."""
    return ApiError(
        503,
        "workers_busy",
        "Too many prompts are being prepared at once. Try again in a moment.",
        type="server_error",
        retry_after_seconds=1,
        should_retry=True,
    )


def internal_error(reference: str | None = None) -> ApiError:
    """A fault of ours; `reference` finds it in the logs."""
    note = f" Reference: {reference}." if reference else ""
    return ApiError(500, "internal_error", f"Something broke on our side.{note}", type="server_error")
