"""Strict reading of a JSON body from a stranger: whatever is wrong with it is a 400."""

from __future__ import annotations

import json
import math
from typing import Final, NoReturn, TypeAlias, cast

from coordinator.errors import malformed_json, shown_name

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
DEPTH_MAX: Final = 32


def parse_object(body: bytes) -> dict[str, Json]:
    """Parse `body` into a dict of plain JSON values, all finite and all encodable as UTF-8.

    Raises `ApiError` (400 `malformed_json`) on bytes that are not UTF-8, on anything but an
    object, NaN and infinities (written out or by overflow), duplicate keys, nesting deeper than
    `DEPTH_MAX`, integers too long to convert, and lone surrogates.
    """
    value = _load(body)
    if not isinstance(value, dict):
        raise malformed_json("it must be an object, as in {...}")
    _check(value)
    return value


def _load(body: bytes) -> Json:
    try:
        return cast(
            "Json",
            json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant),
        )
    except UnicodeDecodeError as error:
        raise malformed_json(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise malformed_json(f"{error.msg} at {place}") from None
    except RecursionError:
        raise malformed_json(f"it is nested deeper than {DEPTH_MAX} levels") from None
    except ValueError:
        # The one ValueError left is CPython's limit on the digits of an integer.
        raise malformed_json("it holds an integer of thousands of digits") from None


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise malformed_json(f"the key '{shown_name(twice)}' appears twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise malformed_json(f"{name} is not a JSON number")


def _check(root: Json) -> None:
    level: list[Json] = [root]
    for _ in range(DEPTH_MAX):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise malformed_json(f"it is nested deeper than {DEPTH_MAX} levels")


def _children(value: Json) -> list[Json]:
    """The containers directly inside `value`, once its plain members have been checked."""
    members = value
    if isinstance(value, dict):
        _check_texts(value)
        members = list(value.values())
    containers: list[Json] = []
    for member in cast("list[Json]", members):
        if isinstance(member, str):
            _check_texts((member,))
        elif isinstance(member, float):
            if not math.isfinite(member):
                raise malformed_json("it holds a number too large for a 64-bit float")
        elif isinstance(member, list | dict):
            containers.append(member)
    return containers


def _check_texts(texts: dict[str, Json] | tuple[str]) -> None:
    for text in texts:
        if text.isascii():
            continue
        try:
            _ = text.encode("utf-8")
        except UnicodeEncodeError:
            raise malformed_json("a string holds half of a surrogate pair") from None
