"""One attempt on this node: its phases as a table, its tokens, and the report of its end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, final

from node_agent.protocol.messages import (
    Chunk,
    Decline,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    LiveAttempt,
    Offer,
    TokenLogprob,
)
from node_agent.protocol.signing import result_statement, tokens_digest
from node_agent.runner.messages import Run

# Tokens in one resent frame; with 20 alternatives each it stays far below the frame limit.
RESEND_TOKENS: Final = 512
FENCES_MAX: Final = 4096


class Phase(Enum):
    ACCEPTED = "accepted"
    LOADING = "loading"
    PREFILL = "prefill"
    DECODING = "decoding"
    STOPPING = "stopping"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"
    LOST = "lost"
    SETTLED = "settled"


_ENDS: Final = frozenset({Phase.FAILED, Phase.LOST, Phase.SETTLED})

TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        Phase.ACCEPTED: _ENDS | {Phase.LOADING, Phase.PREFILL, Phase.CANCELLED},
        Phase.LOADING: _ENDS | {Phase.PREFILL, Phase.CANCELLED},
        Phase.PREFILL: _ENDS | {Phase.DECODING, Phase.STOPPING, Phase.DONE, Phase.CANCELLED},
        Phase.DECODING: _ENDS | {Phase.STOPPING, Phase.DONE, Phase.CANCELLED},
        # The natural end may cross the order to stop.
        Phase.STOPPING: _ENDS | {Phase.DONE, Phase.CANCELLED},
        Phase.DONE: frozenset({Phase.LOST, Phase.SETTLED}),
        Phase.CANCELLED: frozenset({Phase.LOST, Phase.SETTLED}),
        Phase.FAILED: frozenset({Phase.LOST, Phase.SETTLED}),
        Phase.LOST: frozenset(),
        Phase.SETTLED: frozenset(),
    }
)

WAITING: Final = frozenset({Phase.ACCEPTED, Phase.LOADING})
RUNNING: Final = frozenset({Phase.PREFILL, Phase.DECODING, Phase.STOPPING})
REPORTED: Final = frozenset({Phase.DONE, Phase.CANCELLED, Phase.FAILED})


class IllegalTransitionError(RuntimeError):
    """A phase change that the table does not allow: a fault of this program."""

    def __init__(self, attempt: Attempt, target: Phase) -> None:
        story = " -> ".join(phase.value for phase in attempt.story)
        super().__init__(f"{attempt.offer.job_id}#{attempt.offer.fence}: {story} -/-> {target.value}")


@dataclass(slots=True)
class Attempt:
    """An accepted offer until it is settled or lost. Times are the core's monotonic seconds."""

    offer: Offer
    key: str
    deadline_seconds: float
    phase: Phase = Phase.ACCEPTED
    story: list[Phase] = field(default_factory=lambda: [Phase.ACCEPTED])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    report: Finished | Failed | None = None
    # Why it is being stopped, unless that is a plain cancel.
    stop_code: FailureCode | None = None
    report_due_seconds: float = 0.0
    report_wait_seconds: float = 0.0
    # Set from the loss of the socket until the coordinator says where to go on.
    unheard_since_seconds: float | None = None

    @property
    def revision(self) -> str:
        """Of the model that it needs."""
        return self.offer.card_revision

    @property
    def is_waiting(self) -> bool:
        return self.phase in WAITING

    @property
    def is_running(self) -> bool:
        return self.phase in RUNNING

    @property
    def is_live(self) -> bool:
        """Whether it still works or will: it takes a place in the slot's width."""
        return self.phase in WAITING or self.phase in RUNNING

    @property
    def context_tokens(self) -> int:
        """Prompt, delivered prefix and everything that may still come."""
        offer = self.offer
        return len(offer.prompt_ids) + len(offer.prefix_ids) + offer.max_tokens

    def move(self, target: Phase) -> None:
        """Change the phase. Raises `IllegalTransitionError` unless the table allows it."""
        if target not in TRANSITIONS[self.phase]:
            raise IllegalTransitionError(self, target)
        self.phase = target
        self.story.append(target)

    def chunks_from(self, offset: int) -> list[Chunk]:
        """Everything from `offset` on, cut into frames."""
        return [
            self.chunk(start, min(start + RESEND_TOKENS, len(self.token_ids)))
            for start in range(offset, len(self.token_ids), RESEND_TOKENS)
        ]

    def chunk(self, start: int, end: int) -> Chunk:
        """The tokens `start` to `end` as a frame; made unchecked, this is the token path."""
        return Chunk.model_construct(
            job_id=self.offer.job_id,
            fence=self.offer.fence,
            offset=start,
            token_ids=tuple(self.token_ids[start:end]),
            logprobs=tuple(self.logprobs[start:end]) if self.logprobs else None,
        )

    def live(self) -> LiveAttempt:
        return LiveAttempt(job_id=self.offer.job_id, fence=self.offer.fence, offset=len(self.token_ids))

    def run(self) -> Run:
        """What the runner is told: no names, only ids and how to draw."""
        offer = self.offer
        return Run(
            key=self.key,
            prompt_ids=offer.prompt_ids,
            prefix_ids=offer.prefix_ids,
            max_tokens=offer.max_tokens,
            stop_token_ids=offer.stop_token_ids,
            sampling=offer.sampling,
            top_logprobs=offer.top_logprobs,
        )


def finished_of(attempt: Attempt, reason: FinishReason, sign: Callable[[bytes], str]) -> Finished:
    """The signed report of a good end: counts and digest of the tokens as they were sent."""
    offer, count = attempt.offer, len(attempt.token_ids)
    digest = tokens_digest(attempt.token_ids)
    statement = result_statement(
        job_id=offer.job_id,
        fence=offer.fence,
        card_revision=offer.card_revision,
        token_count=count,
        output_digest=digest,
    )
    return Finished(
        job_id=offer.job_id,
        fence=offer.fence,
        finish_reason=reason,
        token_count=count,
        output_digest=digest,
        signature=sign(statement),
    )


def failed_of(attempt: Attempt, code: FailureCode, detail: str) -> Failed:
    """The report of a bad end."""
    offer = attempt.offer
    return Failed(job_id=offer.job_id, fence=offer.fence, code=code, message=detail[:300])


@final
class Answers:
    """The highest fence answered for each job, and a decline so that it can be repeated.

    Bounded: the oldest are forgotten, long after the coordinator has.
    """

    def __init__(self) -> None:
        self._of_job: OrderedDict[str, tuple[int, Decline | None]] = OrderedDict()

    def fence_of(self, job_id: str) -> int:
        """The highest fence answered, 0 if none."""
        return self._of_job.get(job_id, (0, None))[0]

    def decline_of(self, job_id: str) -> Decline | None:
        return self._of_job.get(job_id, (0, None))[1]

    def remember(self, job_id: str, fence: int, decline: Decline | None) -> None:
        self._of_job[job_id] = (fence, decline)
        self._of_job.move_to_end(job_id)
        while len(self._of_job) > FENCES_MAX:
            self._of_job.popitem(last=False)
