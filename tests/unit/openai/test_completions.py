"""Completion bodies: prompts in their many forms, and what differs from chats."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.openai.bodies import chat, completion, completion_error


def test_defaults() -> None:
    request = completion()
    assert (request.kind, request.prompt, request.messages) == ("completion", "Say", None)
    assert request.max_tokens == 16
    assert request.top_logprobs is None
    assert request.digest != chat().digest


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("a", "a"),
        (["a"], "a"),
        ([1, 2], (1, 2)),
        ([[1, 2]], (1, 2)),
        ([0], (0,)),
    ],
)
def test_prompts(prompt: Any, parsed: str | tuple[int, ...]) -> None:
    assert completion(prompt=prompt).prompt == parsed


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ...}, "missing_required_parameter", "prompt"),
    ({"prompt": None}, "missing_required_parameter", "prompt"),
    ({"prompt": ["a", "b"]}, "unsupported_parameter", "prompt"),
    ({"prompt": [[1], [2]]}, "unsupported_parameter", "prompt"),
    ({"prompt": ""}, "invalid_value", "prompt"),
    ({"prompt": [""]}, "invalid_value", "prompt"),
    ({"prompt": []}, "invalid_value", "prompt"),
    ({"prompt": [[]]}, "invalid_value", "prompt"),
    ({"prompt": {}}, "invalid_value", "prompt"),
    ({"prompt": [1, -1]}, "invalid_value", "prompt[1]"),
    ({"prompt": [1, True]}, "invalid_value", "prompt[1]"),
    ({"prompt": [1, 1.0]}, "invalid_value", "prompt[1]"),
    ({"prompt": [1, 2**31]}, "invalid_value", "prompt[1]"),
    ({"prompt": [1, "a"]}, "invalid_value", "prompt[1]"),
    ({"logprobs": 6}, "invalid_value", "logprobs"),
    ({"logprobs": True}, "invalid_value", "logprobs"),
    ({"top_logprobs": 1}, "unknown_parameter", "top_logprobs"),
    ({"messages": []}, "unknown_parameter", "messages"),
    ({"max_completion_tokens": 5}, "unknown_parameter", "max_completion_tokens"),
    ({"echo": True}, "unsupported_parameter", "echo"),
    ({"best_of": 2}, "unsupported_parameter", "best_of"),
    ({"suffix": "x"}, "unsupported_parameter", "suffix"),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSALS)
def test_refusals(fields: dict[str, Any], code: str, param: str) -> None:
    error = completion_error(**fields)
    assert (error.status, error.code, error.param) == (400, code, param)


def test_what_asks_for_nothing_passes() -> None:
    request = completion(echo=False, best_of=1, n=1, suffix="", logprobs=0, user="u")
    assert request.top_logprobs == 0
    assert request.want_logprobs
    assert request.ignored == ("user",)
