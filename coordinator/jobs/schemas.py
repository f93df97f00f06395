"""Shapes of a job inside the coordinator: the work itself, and how an attempt or job ends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coordinator.jobs.states import AttemptState, JobState
from coordinator.jobs.wishes import NO_WISHES, Wishes
from node_agent.protocol.messages import Sampling


@dataclass(frozen=True)
class Work:
    """All that is needed to run a job anywhere, at any time. Secret: lives encrypted only."""

    kind: Literal["chat", "completion"]
    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling
    top_logprobs: int | None
    is_kept: bool = False  # it goes on when its submitter's connection is lost
    wishes: Wishes = NO_WISHES

    def to_bytes(self) -> bytes:
        """JSON for the payload box."""
        changed = {"sampling": self.sampling.model_dump(), "wishes": self.wishes.to_json()}
        return json.dumps(asdict(self) | changed).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Work:
        """Inverse of `to_bytes`."""
        fields: dict[str, Any] = json.loads(content)
        return cls(
            kind=fields["kind"],
            prompt_ids=tuple(fields["prompt_ids"]),
            max_tokens=fields["max_tokens"],
            stop=tuple(fields["stop"]),
            sampling=Sampling.model_validate(fields["sampling"]),
            top_logprobs=fields["top_logprobs"],
            is_kept=fields.get("is_kept", False),
            wishes=Wishes.from_json(fields.get("wishes", {})),
        )


@dataclass(frozen=True)
class AttemptEnd:
    """How one attempt ended, and what the relay had taken of it by then.

    Of an attempt that is not proven nothing is paid and nothing charged, whatever it delivered.
    """

    fence: int
    state: AttemptState
    reason: str | None
    delivered_tokens: int
    accepted_us: int | None = None
    first_token_us: int | None = None
    node_signature: str | None = None
    is_proven: bool = True


@dataclass(frozen=True)
class JobEnd:
    """How a job ended. `output_tokens` were relayed; the first `received_tokens` of them reached the
    submitter. `late` are (fence, node) of attempts whose whole result came after they were lost.
    """

    state: JobState
    finish_reason: Literal["stop", "length"] | None
    error_code: str | None
    output_tokens: int
    received_tokens: int
    output_digest: str | None
    attempt: AttemptEnd | None
    late: frozenset[tuple[int, str]] = frozenset()
