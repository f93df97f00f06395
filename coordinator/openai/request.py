"""The one internal request that every OpenAI surface is parsed into."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coordinator.openai.strict_json import Json
from node_agent.protocol.messages import Sampling

Kind = Literal["chat", "completion"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn. OpenAI's `developer` is `system` here: templates know no other word for it."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What is to be generated, whichever endpoint it came by.

    `messages` is set for a chat, `prompt` (text, or token ids not yet checked against a
    vocabulary) for a completion. `max_tokens` None means as many as the context leaves room for.
    `seed` is None or in 0 .. 2**63 - 1. `top_logprobs` is None when no log probabilities are
    wanted, else how many alternatives a token (0 .. 20). `ignored` names the fields that were
    accepted and dropped. `digest` is `request_digest` of the body.
    """

    kind: Kind
    model: str
    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()
    digest: str = ""

    @property
    def want_logprobs(self) -> bool:
        """Whether the answer carries log probabilities."""
        return self.top_logprobs is not None

    def wire_sampling(self, *, seed_if_none: int) -> Sampling:
        """The sampling of an offer; `seed_if_none` (0 .. 2**63 - 1) fixes an unseeded job's draws,
        so that a later attempt continues the same answer.
        """
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed_if_none if self.seed is None else self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(self.logit_bias),
        )


def request_digest(kind: str, body: Mapping[str, Json]) -> str:
    """SHA-256 in hex of kind and body, whatever the order of keys, the spacing and the escapes.

    Two requests with the same Idempotency-Key are the same when these digests are.
    """
    canonical = json.dumps([kind, body], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
