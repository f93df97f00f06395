"""Is a run safe to put into the batch? MLX checks none of this, and one bad id ends the process.

Pure: the model's limits are given, nothing is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from node_agent.runner.messages import Run

# The keys under which configurations state their context, the usual one first.
CONTEXT_KEYS = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "n_positions",
    "n_ctx",
)


class RequestInvalidError(ValueError):
    """The run cannot be served by this model; the text names the field and the limit."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What bounds a request: ids are in [0, `vocab`); `context_tokens` is None if not stated."""

    vocab: int
    context_tokens: int | None


def stated_limit(config: Mapping[str, object], *keys: str) -> int | None:
    """The first of `keys` that the configuration, or its `text_config`, gives as a number."""
    inner = config.get("text_config")
    places = [config]
    if isinstance(inner, dict):
        places.append(cast("dict[str, object]", inner))
    for place in places:
        for key in keys:
            value = place.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return None


def check_run(run: Run, limits: ModelLimits) -> None:
    """Raises `RequestInvalidError` if the run would crash the batch or outgrow the model."""
    if not run.prompt_ids:
        raise RequestInvalidError("prompt_ids: empty, at least one token is needed")
    _check_ids("prompt_ids", run.prompt_ids, limits.vocab)
    _check_ids("prefix_ids", run.prefix_ids, limits.vocab)
    _check_ids("sampling.logit_bias", tuple(run.sampling.logit_bias), limits.vocab)
    if not all(math.isfinite(bias) for bias in run.sampling.logit_bias.values()):
        raise RequestInvalidError("sampling.logit_bias: every value must be a finite number")
    if run.top_logprobs is not None and not 0 <= run.top_logprobs <= limits.vocab:
        raise RequestInvalidError(f"top_logprobs: {run.top_logprobs} is not within 0 to {limits.vocab}")
    _check_context(run, limits.context_tokens)


def _check_ids(field: str, ids: tuple[int, ...], vocab: int) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocab):
        raise RequestInvalidError(f"{field}: a token id is not within 0 to {vocab - 1}")


def _check_context(run: Run, context_tokens: int | None) -> None:
    wanted_tokens = len(run.prompt_ids) + len(run.prefix_ids) + run.max_tokens
    if context_tokens is not None and wanted_tokens > context_tokens:
        raise RequestInvalidError(
            f"max_tokens: prompt, prefix and answer need {wanted_tokens} tokens, "
            f"the model's context is {context_tokens}"
        )
