"""What the agent and its runner child say to each other: one JSON object a line, over pipes.

The child has no network, no secrets and no names: a run is known by an opaque `key`, the prompt
is token ids, the answer is token ids.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from node_agent.protocol.messages import FailureCode, FinishReason, Sampling, TokenLogprob


class RunnerMessage(BaseModel):
    """Base of both directions. Both ends are the same build, so unknown keys are a fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# -- agent to child ------------------------------------------------------------------------------


class Run(RunnerMessage):
    """Start a run.

    `prefix_ids` were already delivered by an earlier attempt: they are read as part of the
    prompt, `max_tokens` counts only what is still to come, and the draw for the first new token
    is the one at position `len(prefix_ids)`.
    """

    type: Literal["run"] = "run"
    key: str
    prompt_ids: tuple[int, ...]
    prefix_ids: tuple[int, ...] = ()
    max_tokens: Annotated[int, Field(ge=1)]
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    top_logprobs: int | None = None


class Stop(RunnerMessage):
    """End a run between two tokens. An unknown key is ignored: it may just have ended."""

    type: Literal["stop"] = "stop"
    key: str


class Limit(RunnerMessage):
    """Hold no more than this from now on: other models lie beside this one."""

    type: Literal["limit"] = "limit"
    memory_bytes: Annotated[int, Field(ge=1)]


# -- child to agent ------------------------------------------------------------------------------


class Loading(RunnerMessage):
    type: Literal["loading"] = "loading"
    done_bytes: int
    total_bytes: int


class LoadFailed(RunnerMessage):
    """The folder cannot be served; the child ends. `message` says why."""

    type: Literal["load_failed"] = "load_failed"
    message: str


class Ready(RunnerMessage):
    """The model is loaded and has produced a token of its own."""

    type: Literal["ready"] = "ready"
    load_seconds: float
    active_bytes: int
    vocab: int
    mlx_version: str
    mlx_lm_version: str


class Prefilled(RunnerMessage):
    type: Literal["prefilled"] = "prefilled"
    key: str
    done_tokens: int
    total_tokens: int


class Tokens(RunnerMessage):
    """New tokens of one run, in order. `logprobs` is as long as `ids`, or absent."""

    type: Literal["tokens"] = "tokens"
    key: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


class Ended(RunnerMessage):
    """The run ended. For `eos` the end token itself is not among the tokens."""

    type: Literal["ended"] = "ended"
    key: str
    finish_reason: FinishReason


class RunFailed(RunnerMessage):
    """One run failed; the child and its other runs go on."""

    type: Literal["run_failed"] = "run_failed"
    key: str
    code: FailureCode
    message: str


class Alive(RunnerMessage):
    """Sent by the generation loop itself (not by a side thread) while it has work, and once when it
    has none left: by then caches are given back, and what is held is the model."""

    type: Literal["alive"] = "alive"
    active_bytes: int
    steps: int


ToRunner = Annotated[Run | Stop | Limit, Field(discriminator="type")]
FromRunner = Annotated[
    Loading | LoadFailed | Ready | Prefilled | Tokens | Ended | RunFailed | Alive,
    Field(discriminator="type"),
]

to_runner: Final[TypeAdapter[ToRunner]] = TypeAdapter(ToRunner)
from_runner: Final[TypeAdapter[FromRunner]] = TypeAdapter(FromRunner)


def encode_line(message: RunnerMessage) -> bytes:
    """One message as a line."""
    return message.model_dump_json().encode() + b"\n"
