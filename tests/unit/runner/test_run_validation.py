"""Runs that would crash the batch are refused by name of the field."""

from __future__ import annotations

from typing import Any

import pytest

from node_agent.protocol.messages import Sampling
from node_agent.runner.messages import Run
from node_agent.runner.validation import ModelLimits, RequestInvalidError, check_run, stated_limit

LIMITS = ModelLimits(vocab=100, context_tokens=50)


def make_run(**changes: Any) -> Run:
    fields: dict[str, Any] = {
        "key": "run",
        "prompt_ids": (1, 2, 99),
        "max_tokens": 10,
        "stop_token_ids": (2,),
        "sampling": Sampling(seed=1),
    }
    return Run(**{**fields, **changes})


def biased(bias: dict[int, float]) -> Sampling:
    return Sampling(seed=1, logit_bias=bias)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix_ids": (0, 99)},
        {"max_tokens": 47},
        {"top_logprobs": 0},
        {"top_logprobs": 100},
        {"sampling": biased({0: -100.0, 99: 100.0})},
        # An end token outside the vocabulary can never be drawn, so it is harmless.
        {"stop_token_ids": (100000,)},
    ],
)
def test_good_runs_pass(changes: dict[str, Any]) -> None:
    check_run(make_run(**changes), LIMITS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_ids": ()}, "prompt_ids"),
        ({"prompt_ids": (100,)}, "prompt_ids"),
        ({"prompt_ids": (1, -1)}, "prompt_ids"),
        ({"prefix_ids": (1, 100)}, "prefix_ids"),
        ({"sampling": biased({100: 1.0})}, "sampling.logit_bias"),
        ({"sampling": biased({-1: 1.0})}, "sampling.logit_bias"),
        ({"sampling": biased({1: float("inf")})}, "sampling.logit_bias"),
        ({"sampling": biased({1: float("nan")})}, "sampling.logit_bias"),
        ({"top_logprobs": 101}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"max_tokens": 48}, "max_tokens"),
        ({"prefix_ids": (1,), "max_tokens": 47}, "max_tokens"),
    ],
)
def test_bad_runs_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestInvalidError, match=f"^{field}: "):
        check_run(make_run(**changes), LIMITS)


def test_a_model_that_states_no_context_has_no_limit() -> None:
    check_run(make_run(max_tokens=10**6), ModelLimits(vocab=100, context_tokens=None))


def test_limits_are_found_outside_and_inside_a_text_config() -> None:
    assert stated_limit({"vocab_size": 7}, "vocab_size") == 7
    assert stated_limit({"text_config": {"vocab_size": 8}}, "vocab_size") == 8
    assert stated_limit({"n_ctx": 9}, "max_position_embeddings", "n_ctx") == 9
    assert stated_limit({"vocab_size": "many"}, "vocab_size") is None
