"""Bodies that are not usable JSON end in a 400, never in a crash."""

from __future__ import annotations

import pytest

from coordinator.errors import ApiError
from coordinator.openai.strict_json import DEPTH_MAX, parse_object

BROKEN = {
    "empty": b"",
    "cut off": b'{"model": "m"',
    "trailing": b'{"model": "m"} x',
    "not an object": b"[1, 2]",
    "a bare number": b"5",
    "latin-1": '{"model": "é"}'.encode("latin-1"),
    "utf-16": '{"model": "m"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"model": "m"}',
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "overflow": b'{"temperature": 1e999}',
    "nested overflow": b'{"a": [[1, {"b": [1e400]}]]}',
    "duplicate key": b'{"model": "m", "model": "n"}',
    "nested duplicate key": b'{"a": [{"b": 1, "b": 1}]}',
    "deep arrays": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deeper than the limit": b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1),
    "5,000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "lone surrogate": b'{"model": "\\ud800"}',
    "lone surrogate in a key": b'{"\\udfff": 1}',
    "nested lone surrogate": b'{"a": [{"b": "x\\udc00"}]}',
    "control character": b'{"model": "a\nb"}',
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_broken_bodies_are_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        _ = parse_object(body)
    assert (caught.value.status, caught.value.code) == (400, "malformed_json")
    assert len(caught.value.message) < 200


def test_the_deepest_allowed_body_passes() -> None:
    body = b'{"a":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX
    assert "a" in parse_object(body)


def test_surrogate_pairs_and_raw_characters_pass() -> None:
    assert parse_object('{"a": "\\ud83d\\ude00", "b": "é😀"}'.encode()) == {"a": "😀", "b": "é😀"}


def test_the_message_does_not_quote_the_body() -> None:
    with pytest.raises(ApiError) as caught:
        _ = parse_object(b'{"messages": "my secret" my secret}')
    assert "secret" not in caught.value.message
