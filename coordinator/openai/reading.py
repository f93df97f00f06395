"""Reading the fields that chat and completions share, strictly and with their names in errors."""

from __future__ import annotations

import re
from typing import Final

from coordinator.errors import (
    invalid_value,
    missing_parameter,
    unknown_parameter,
    unsupported_parameter,
)
from coordinator.openai.fields import (
    LOGIT_BIAS_ENTRIES_MAX,
    MODEL_CHARACTERS_MAX,
    STOP_CHARACTERS_MAX,
    STOPS_MAX,
    Field,
    Surface,
    fields_of,
)
from coordinator.openai.strict_json import Json, parse_object

Body = dict[str, Json]

_FIELDS: Final[dict[Surface, dict[str, Field]]] = {
    "chat": fields_of("chat"),
    "completions": fields_of("completions"),
}
_TOKEN_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
SEED_BITS: Final = 63


def open_body(body: bytes, surface: Surface) -> tuple[Body, Body, tuple[str, ...]]:
    """Parse, and settle every field that is not used.

    Returns the whole body, its used fields that are not null, and the names of ignored ones.
    Raises `ApiError` (400) on bad JSON, unknown fields and fixed fields with other values.
    """
    whole = parse_object(body)
    known = _FIELDS[surface]
    used: Body = {}
    ignored: list[str] = []
    for name, value in whole.items():
        field = known.get(name)
        if field is None:
            raise unknown_parameter(name)
        if value is None:
            continue
        if field.treatment == "used":
            used[name] = value
        elif field.treatment == "ignored":
            _check_ignored(field, value)
            ignored.append(name)
        else:
            _check_fixed(field, value)
    return whole, used, tuple(ignored)


def _check_ignored(field: Field, value: Json) -> None:
    if not isinstance(value, field.kinds):
        raise invalid_value(field.name, f"it must be {field.rule}")


def _check_fixed(field: Field, value: Json) -> None:
    # JSON's 1, 1.0 and true are equal in Python, and only the first is meant.
    if not any(value == allowed and type(value) is type(allowed) for allowed in field.allowed):
        raise unsupported_parameter(field.name, f"{field.rule}; leave it out")


def read_model(used: Body) -> str:
    """The required name of the model."""
    value = used.get("model")
    if value is None:
        raise missing_parameter("model")
    if not isinstance(value, str):
        raise invalid_value("model", "it must be a string")
    if not 0 < len(value) <= MODEL_CHARACTERS_MAX:
        raise invalid_value("model", f"it must have 1 to {MODEL_CHARACTERS_MAX} characters")
    return value


def read_bool(used: Body, name: str, param: str | None = None) -> bool:
    """An optional true or false, false when absent."""
    value = used.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid_value(param or name, "it must be true or false")
    return value


def read_number(used: Body, field: Field, default: float) -> float:
    """An optional number within the field's bounds."""
    value = used.get(field.name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_value(field.name, "it must be a number")
    _check_bounds(field, value)
    return float(value)


def read_integer(used: Body, field: Field) -> int | None:
    """An optional integer within the field's bounds."""
    value = used.get(field.name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_value(field.name, "it must be an integer")
    _check_bounds(field, value)
    return value


def _check_bounds(field: Field, value: float) -> None:
    if value > field.high or value < field.low or (field.above_low and value == field.low):
        border = "over " if field.above_low else ""
        bounds = f"{border}{field.low:g} to {field.high:.10g}"
        raise invalid_value(field.name, f"it must be in the range {bounds}")


def read_seed(used: Body) -> int | None:
    """A signed 64-bit seed, folded to 63 bits without sign, which is what nodes draw from."""
    value = used.get("seed")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_value("seed", "it must be an integer")
    if not -(2**63) <= value < 2**63:
        raise invalid_value("seed", "it must fit in 64 bits with sign")
    return value & (2**SEED_BITS - 1)


def read_stop(used: Body) -> tuple[str, ...]:
    """Up to four stop strings, doubles dropped."""
    value = used.get("stop")
    if value is None:
        return ()
    stops = value if isinstance(value, list) else [value]
    if len(stops) > STOPS_MAX:
        raise invalid_value("stop", f"at most {STOPS_MAX} strings")
    found: list[str] = []
    for index, stop in enumerate(stops):
        param = f"stop[{index}]" if isinstance(value, list) else "stop"
        if not isinstance(stop, str):
            raise invalid_value(param, "it must be a string")
        if not 0 < len(stop) <= STOP_CHARACTERS_MAX:
            raise invalid_value(param, f"it must have 1 to {STOP_CHARACTERS_MAX} characters")
        found.append(stop)
    return tuple(dict.fromkeys(found))


def read_logit_bias(used: Body) -> dict[int, float]:
    """Token ids (not yet checked against a vocabulary) to biases."""
    value = used.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid_value("logit_bias", "it must be an object of token id to number")
    if len(value) > LOGIT_BIAS_ENTRIES_MAX:
        raise invalid_value("logit_bias", f"at most {LOGIT_BIAS_ENTRIES_MAX} entries")
    return {_bias_id(key): _bias(key, bias) for key, bias in value.items()}


def _bias_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):
        raise invalid_value("logit_bias", "every key must be a token id in decimal digits")
    return int(key)


def _bias(key: str, bias: Json) -> float:
    param = f"logit_bias.{key}"
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise invalid_value(param, "it must be a number")
    if not -100 <= bias <= 100:
        raise invalid_value(param, "it must be in the range -100 to 100")
    return float(bias)


def read_include_usage(used: Body, *, stream: bool) -> tuple[bool, tuple[str, ...]]:
    """`stream_options`: whether usage is wanted, and what in it was ignored."""
    value = used.get("stream_options")
    if value is None:
        return False, ()
    if not isinstance(value, dict):
        raise invalid_value("stream_options", "it must be an object")
    if not stream:
        raise invalid_value("stream_options", "it is allowed only when 'stream' is true")
    for name in value:
        if name not in ("include_usage", "include_obfuscation"):
            raise unknown_parameter(f"stream_options.{name}")
    include_usage = read_bool(value, "include_usage", "stream_options.include_usage")
    _ = read_bool(value, "include_obfuscation", "stream_options.include_obfuscation")
    dropped = value.get("include_obfuscation") is not None
    return include_usage, ("stream_options.include_obfuscation",) if dropped else ()
