"""Every field of OpenAI's two generation requests, and what happens to it here. Data only.

Three treatments: *used* fields shape the answer; *ignored* ones cannot change it, are accepted,
dropped and named in a response header; *fixed* ones are accepted only with the values that ask
for nothing this network does not do. A field that is not in the table is unknown: 400.
`null` is the same as absent, everywhere. `field_table` is what docs/openai-fields.md shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from coordinator.openai.strict_json import Json

Surface = Literal["chat", "completions"]
Treatment = Literal["used", "ignored", "fixed"]

STOPS_MAX: Final = 4
STOP_CHARACTERS_MAX: Final = 256
TOKENS_MAX: Final = 2**31 - 1
LOGIT_BIAS_ENTRIES_MAX: Final = 300
PROMPT_IDS_MAX: Final = 2**20
MESSAGES_MAX: Final = 10_000
MODEL_CHARACTERS_MAX: Final = 200
COMPLETION_MAX_TOKENS_DEFAULT: Final = 16

BOTH: Final[tuple[Surface, ...]] = ("chat", "completions")
CHAT: Final[tuple[Surface, ...]] = ("chat",)
COMPLETIONS: Final[tuple[Surface, ...]] = ("completions",)


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `low` and `high` bound a number, inclusive unless `above_low`; `allowed` are the
    values of a fixed field; `kinds` the JSON types of an ignored one.
    """

    name: str
    surfaces: tuple[Surface, ...]
    treatment: Treatment
    rule: str
    low: float = 0
    high: float = 0
    above_low: bool = False
    allowed: tuple[Json, ...] = ()
    kinds: tuple[type, ...] = ()

    @property
    def rule_shown(self) -> str:
        """The rule with its bounds or allowed values written out."""
        if self.treatment == "fixed":
            values = " or ".join(f"`{json.dumps(value)}`" for value in self.allowed)
            return f"only {values}: {self.rule}" if values else f"refused: {self.rule}"
        if self.high > self.low:
            border = f"over {self.low:g}" if self.above_low else f"{self.low:g}"
            return f"{self.rule}, {border} to {self.high:.10g}"
        return self.rule


def _used(name: str, surfaces: tuple[Surface, ...], rule: str) -> Field:
    return Field(name, surfaces, "used", rule)


def _number(
    name: str,
    surfaces: tuple[Surface, ...],
    rule: str,
    low: float,
    high: float,
    *,
    above_low: bool = False,
) -> Field:
    return Field(name, surfaces, "used", rule, low=low, high=high, above_low=above_low)


def _ignored(name: str, surfaces: tuple[Surface, ...], rule: str, *kinds: type) -> Field:
    return Field(name, surfaces, "ignored", rule, kinds=kinds)


def _fixed(name: str, surfaces: tuple[Surface, ...], rule: str, *allowed: Json) -> Field:
    return Field(name, surfaces, "fixed", rule, allowed=allowed)


TEMPERATURE: Final = _number("temperature", BOTH, "number, default 1", 0, 2)
TOP_P: Final = _number("top_p", BOTH, "number, default 1", 0, 1, above_low=True)
PRESENCE_PENALTY: Final = _number("presence_penalty", BOTH, "number, default 0", -2, 2)
FREQUENCY_PENALTY: Final = _number("frequency_penalty", BOTH, "number, default 0", -2, 2)
MAX_TOKENS_CHAT: Final = _number(
    "max_tokens",
    CHAT,
    "integer, default what the context leaves; may be given together with "
    "max_completion_tokens only if both are equal",
    1,
    TOKENS_MAX,
)
MAX_COMPLETION_TOKENS: Final = _number(
    "max_completion_tokens", CHAT, "integer, the newer name of max_tokens", 1, TOKENS_MAX
)
MAX_TOKENS_COMPLETION: Final = _number(
    "max_tokens", COMPLETIONS, f"integer, default {COMPLETION_MAX_TOKENS_DEFAULT}", 1, TOKENS_MAX
)
TOP_LOGPROBS: Final = _number("top_logprobs", CHAT, "integer, only with logprobs true, default 0", 0, 20)
LOGPROBS_COMPLETION: Final = _number(
    "logprobs", COMPLETIONS, "integer, alternatives per token, default none wanted", 0, 5
)

FIELDS: Final[tuple[Field, ...]] = (
    _used("model", BOTH, f"required string, up to {MODEL_CHARACTERS_MAX} characters"),
    _used(
        "messages",
        CHAT,
        "required list, not empty; roles system, developer (taken as system), user, assistant; "
        "content a string or parts of type text (joined with nothing between); name is ignored",
    ),
    _used(
        "prompt",
        COMPLETIONS,
        "required: a string, or a list of one string, or a list of token ids (or a list of one "
        "such list); not empty",
    ),
    MAX_TOKENS_CHAT,
    MAX_COMPLETION_TOKENS,
    MAX_TOKENS_COMPLETION,
    TEMPERATURE,
    TOP_P,
    _used("seed", BOTH, "integer of 64 bits with sign; the same seed gives the same draws"),
    _used(
        "stop",
        BOTH,
        f"a string or up to {STOPS_MAX}, each 1 to {STOP_CHARACTERS_MAX} characters; the answer "
        "ends before it",
    ),
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    _used(
        "logit_bias",
        BOTH,
        f"object of token id to number from -100 to 100, up to {LOGIT_BIAS_ENTRIES_MAX} entries",
    ),
    _used("logprobs", CHAT, "true or false, default false"),
    TOP_LOGPROBS,
    LOGPROBS_COMPLETION,
    _used("stream", BOTH, "true or false, default false"),
    _used(
        "stream_options",
        BOTH,
        "object, only with stream true: include_usage true or false; include_obfuscation is ignored",
    ),
    _ignored("user", BOTH, "string", str),
    _ignored("metadata", CHAT, "object", dict),
    _ignored("service_tier", CHAT, "string", str),
    _ignored("safety_identifier", CHAT, "string", str),
    _ignored("prompt_cache_key", CHAT, "string", str),
    _ignored("prompt_cache_options", CHAT, "object", dict),
    _ignored("prompt_cache_retention", CHAT, "string", str),
    _ignored("prediction", CHAT, "object; it could only make the answer faster", dict),
    _ignored("parallel_tool_calls", CHAT, "true or false; there are no tools", bool),
    _fixed("n", BOTH, "one answer a request", 1),
    _fixed("best_of", COMPLETIONS, "one answer is made", 1),
    _fixed("echo", COMPLETIONS, "the prompt is not given back", False),
    _fixed("suffix", COMPLETIONS, "text cannot be inserted before a suffix", ""),
    _fixed("store", CHAT, "answers are not kept", False),
    _fixed("response_format", CHAT, "answers are plain text", {"type": "text"}),
    _fixed("modalities", CHAT, "answers are text", ["text"]),
    _fixed("tools", CHAT, "models cannot call tools here", []),
    _fixed("tool_choice", CHAT, "models cannot call tools here", "none", "auto"),
    _fixed("functions", CHAT, "models cannot call functions here", []),
    _fixed("function_call", CHAT, "models cannot call functions here", "none", "auto"),
    _fixed("audio", CHAT, "answers are text"),
    _fixed("moderation", CHAT, "nothing is moderated"),
    _fixed("reasoning_effort", CHAT, "models have no such dial here"),
    _fixed("verbosity", CHAT, "models have no such dial here", "medium"),
    _fixed("web_search_options", CHAT, "models cannot search the web here"),
)


def fields_of(surface: Surface) -> dict[str, Field]:
    """The fields of one endpoint, by name."""
    return {field.name: field for field in FIELDS if surface in field.surfaces}


def field_table() -> str:
    """The table as Markdown, one row a field, ending in a newline."""
    lines = ["| field | endpoint | treatment | rule |", "| --- | --- | --- | --- |"]
    for field in FIELDS:
        where = " and ".join(field.surfaces)
        lines.append(f"| `{field.name}` | {where} | {field.treatment} | {field.rule_shown} |")
    return "\n".join(lines) + "\n"
