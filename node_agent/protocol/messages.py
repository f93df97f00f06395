"""Wire messages between coordinator and node: JSON text frames over one WebSocket.

Rules of the wire:
- Within a protocol major, unknown fields are ignored and an unknown `type` is answered with
  `unsupported`; so every message here ignores extra fields.
- Durations only, never instants. Sizes in bytes. Token ids as integers.
- `fence` is the attempt's number; whatever carries an older fence changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from node_agent.protocol.cards import ModelCard
from node_agent.protocol.hardware import (
    BANDWIDTH_MAX,
    MODELS_SIDE_BY_SIDE_MAX,
    Hardware,
    Message,
)

T = TypeVar("T")

PROTOCOL_MAJOR: Final = 1
PROTOCOL_MINOR: Final = 0
FRAME_BYTES_MAX: Final = 1 << 20
HOURS_OF_WEEK: Final = 168
REVISION_DIGITS: Final = 16  # of a card's revision name a model on a node's disk
MODELS_ON_DISK_MAX: Final = 1000

Version = tuple[int, int]
Fence = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Device = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A digest of the Mac's own identity, made for one coordinator alone."""
RevisionStart = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{REVISION_DIGITS}}}$")]
RevisionStarts = Annotated[tuple[RevisionStart, ...], Field(max_length=MODELS_ON_DISK_MAX)]
Chance = Annotated[float, Field(ge=0, le=1)]
Week = Annotated[tuple[Chance, ...], Field(min_length=HOURS_OF_WEEK, max_length=HOURS_OF_WEEK)]
Nonce = Annotated[str, Field(min_length=16, max_length=128)]

DeclineReason = Literal[
    "busy",
    "draining",
    "owner_present",
    "memory_short",
    "disk_short",
    "model_unavailable",
    "model_refused",
    "context_too_long",
    "card_mismatch",
    "unsupported",
]
FailureCode = Literal[
    "reclaimed",
    "given_up",  # the coordinator was not heard for too long
    "request_invalid",
    "runner_crashed",
    "runner_stalled",
    "load_failed",
    "download_failed",
    "internal",
]
FinishReason = Literal["eos", "length", "cancelled"]
NodeMode = Literal["ready", "busy", "draining", "away"]
Phase = Literal["downloading", "loading", "prefill"]


class Sampling(Message):
    """How the next token is chosen; `seed` and the position fix each draw."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[int, float] = Field(default_factory=dict[int, float])


class TokenLogprob(Message):
    """The chosen token's natural-log probability, and the most likely alternatives'."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SlotReport(Message):
    """One model revision that is loaded, with the memory it holds."""

    card_id: str
    card_revision: str
    bytes: Count
    width: Annotated[int, Field(ge=1)]
    live: Count


class LiveAttempt(Message):
    """An attempt that the node is running or holds the unsettled result of."""

    job_id: str
    fence: Fence
    offset: Count


# -- coordinator to node -------------------------------------------------------------------------


class Challenge(Message):
    """First frame of every socket: sign this to prove who you are."""

    type: Literal["challenge"] = "challenge"
    nonce: Annotated[str, Field(min_length=16, max_length=128)]
    protocol_min: Version = (PROTOCOL_MAJOR, 0)
    protocol_max: Version = (PROTOCOL_MAJOR, PROTOCOL_MINOR)


class Welcome(Message):
    type: Literal["welcome"] = "welcome"
    protocol: Version
    heartbeat_seconds: float
    name: str = ""


class Offer(Message):
    """One attempt. The node answers `accept` or `decline` before anything else.

    `evict`: revisions that the coordinator takes to go for this one. The node drops them first where
    it needs room, and not at all where it needs none.
    """

    type: Literal["offer"] = "offer"
    job_id: str
    fence: Fence
    card: ModelCard
    card_revision: str
    prompt_ids: tuple[int, ...]
    prefix_ids: tuple[int, ...] = ()
    max_tokens: Annotated[int, Field(ge=1)]
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    progress_deadline_seconds: Annotated[float, Field(gt=0)]
    evict: Annotated[tuple[str, ...], Field(max_length=MODELS_SIDE_BY_SIDE_MAX)] = ()


class Cancel(Message):
    """Stop between two tokens. `stop_string` is a good end, seen by the coordinator."""

    type: Literal["cancel"] = "cancel"
    job_id: str
    fence: Fence
    reason: Literal["client", "stop_string", "lost", "expired", "shutdown"]


class Resume(Message):
    """After a reconnect: send the chunks from this offset on."""

    type: Literal["resume"] = "resume"
    job_id: str
    fence: Fence
    offset: Count


class Settled(Message):
    """The attempt's end is committed; the node may forget its tokens."""

    type: Literal["settled"] = "settled"
    job_id: str
    fence: Fence


class Hold(Message):
    """Please fetch and keep this model ready, if memory and disk allow."""

    type: Literal["hold"] = "hold"
    card: ModelCard


class SelfTest(Message):
    """Please measure the memory's bandwidth now, if nothing runs; a job that comes ends the test.

    `warm_up_seconds` of the same work come before the `measure_seconds` that count.
    """

    type: Literal["self_test"] = "self_test"
    nonce: Nonce
    warm_up_seconds: Annotated[float, Field(ge=0, le=30)] = 2.0
    measure_seconds: Annotated[float, Field(gt=0, le=30)] = 2.0


# -- node to coordinator -------------------------------------------------------------------------


class Hello(Message):
    """Answer to `challenge`: signed, with versions, capabilities and what is still running."""

    type: Literal["hello"] = "hello"
    node_id: str
    public_key: str
    nonce: str
    signature: str
    protocol_min: Version = (PROTOCOL_MAJOR, 0)
    protocol_max: Version = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
    agent_version: str
    mlx_version: str = "none"
    mlx_lm_version: str = "none"
    capabilities: tuple[str, ...] = ()
    device: Device | None = None
    hardware: Hardware
    slots: tuple[SlotReport, ...] = ()
    live: tuple[LiveAttempt, ...] = ()


class Heartbeat(Message):
    """How the node is now; None stands for what was said before on this socket.

    `on_disk`: beginnings of the revisions whose models need not be fetched. `survival`: for each hour
    of the week (Monday 0:00 UTC first) how likely a Mac that is lent then still is when it ends.
    """

    type: Literal["heartbeat"] = "heartbeat"
    mode: NodeMode
    free_bytes: Count
    slots: tuple[SlotReport, ...] = ()
    live: tuple[LiveAttempt, ...] = ()
    disk_free_bytes: Count | None = None
    on_disk: RevisionStarts | None = None
    survival: Week | None = None


class Accept(Message):
    type: Literal["accept"] = "accept"
    job_id: str
    fence: Fence


class Decline(Message):
    type: Literal["decline"] = "decline"
    job_id: str
    fence: Fence
    reason: DeclineReason
    detail: Annotated[str, Field(max_length=300)] = ""


class Progress(Message):
    """Work before the first token: bytes while downloading and loading, tokens in prefill."""

    type: Literal["progress"] = "progress"
    job_id: str
    fence: Fence
    phase: Phase
    done: Count
    total: Count


class Chunk(Message):
    """Tokens from `offset` on, counted from the attempt's own first token. `logprobs` is as long as `token_ids`, or absent."""

    type: Literal["chunk"] = "chunk"
    job_id: str
    fence: Fence
    offset: Count
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


class Finished(Message):
    """The attempt ended well; repeated until `settled` comes back."""

    type: Literal["finished"] = "finished"
    job_id: str
    fence: Fence
    finish_reason: FinishReason
    token_count: Count
    output_digest: str
    signature: str


class Failed(Message):
    """The attempt ended badly. `message` never holds prompt or answer text."""

    type: Literal["failed"] = "failed"
    job_id: str
    fence: Fence
    code: FailureCode
    message: Annotated[str, Field(max_length=300)] = ""


class HoldReport(Message):
    """How the fetching and loading asked for by `hold` goes."""

    type: Literal["hold_report"] = "hold_report"
    card_id: str
    card_revision: str
    phase: Literal["downloading", "loading", "ready", "failed"]
    done: Count = 0
    total: Count = 0
    detail: Annotated[str, Field(max_length=300)] = ""


class SelfTestResult(Message):
    """What a self-test found: bytes read and written a second in the best round, how long all of it
    took, and whether the memory was busy for the whole warm-up before. A claim, bounded by what
    the chip can do."""

    type: Literal["self_test_result"] = "self_test_result"
    nonce: Nonce
    bandwidth_bytes_per_second: Annotated[int, Field(gt=0, le=BANDWIDTH_MAX)]
    is_warm: bool
    seconds: Annotated[float, Field(gt=0, le=600)]


class Goodbye(Message):
    """A graceful close, so that nobody waits for a time-out."""

    type: Literal["goodbye"] = "goodbye"
    reason: Literal["shutdown", "sleep", "leave"]


class Unsupported(Message):
    """Answer of either side to a message type that it does not know."""

    type: Literal["unsupported"] = "unsupported"
    message_type: Annotated[str, Field(max_length=64)]


ToNode = Annotated[
    Challenge | Welcome | Offer | Cancel | Resume | Settled | Hold | SelfTest | Unsupported,
    Field(discriminator="type"),
]
ToCoordinator = Annotated[
    Hello
    | Heartbeat
    | Accept
    | Decline
    | Progress
    | Chunk
    | Finished
    | Failed
    | HoldReport
    | SelfTestResult
    | Goodbye
    | Unsupported,
    Field(discriminator="type"),
]

_to_node: Final[TypeAdapter[ToNode]] = TypeAdapter(ToNode)
_to_coordinator: Final[TypeAdapter[ToCoordinator]] = TypeAdapter(ToCoordinator)


class MalformedFrameError(ValueError):
    """The frame is not a message of this protocol; the text says why, without its content."""


class UnknownTypeError(MalformedFrameError):
    """A well-formed frame of a type this side does not know; answer `unsupported`."""

    def __init__(self, message_type: str) -> None:
        super().__init__(f"unknown message type {message_type[:64]!r}")
        self.message_type = message_type[:64]


def _parse(adapter: TypeAdapter[T], frame: str | bytes) -> T:
    if len(frame) > FRAME_BYTES_MAX:
        raise MalformedFrameError(f"frame of {len(frame)} bytes is over {FRAME_BYTES_MAX}")
    try:
        return adapter.validate_json(frame)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        if first["type"] == "union_tag_invalid":
            raise UnknownTypeError(str(first.get("ctx", {}).get("tag", ""))) from None
        place = ".".join(str(part) for part in first["loc"])
        raise MalformedFrameError(f"{place or 'frame'}: {first['msg']}") from None


def parse_to_node(frame: str | bytes) -> ToNode:
    """Parse a frame from the coordinator. Raises `MalformedFrameError`, `UnknownTypeError`."""
    return _parse(_to_node, frame)


def parse_to_coordinator(frame: str | bytes) -> ToCoordinator:
    """Parse a frame from a node. Raises `MalformedFrameError`, `UnknownTypeError`."""
    return _parse(_to_coordinator, frame)


def encode(message: Message) -> str:
    """One message as a JSON text frame."""
    return message.model_dump_json(exclude_defaults=False)
