"""The jobs under way in this process: their delivered prefix, their readers, their attempt.

Everything here lives in memory only and on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from coordinator import clock
from coordinator.answer import AnswerEnd, AnswerText, LoggedToken, Vocabulary
from coordinator.jobs.prefixes import Prefix
from coordinator.jobs.schemas import Work
from coordinator.jobs.stream import Delta, Ending, JobStream
from coordinator.jobs.wishes import with_wishes
from coordinator.placement.types import JobFacts
from coordinator.settings import Settings
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard

PACE_TOKENS: Final = 8  # of fewer the time between them says little


@dataclass
class LiveAttempt:
    """The attempt whose frames count; its chunks' offsets count from its own first token."""

    fence: int
    node_id: str
    device: str
    deadline_seconds: float
    answered: asyncio.Future[wire.DeclineReason | None]
    received: list[int] = field(default_factory=list[int])
    begun_at: float = field(default_factory=clock.monotonic)
    last_progress_at: float = field(default_factory=clock.monotonic)
    last_token_at: float = 0.0  # monotonic, once there was one
    progress: wire.Progress | None = None
    accepted_us: int | None = None
    first_token_us: int | None = None
    gone_since: float | None = None
    is_proven: bool = True
    had_company: bool = False  # other attempts ran on the node, at some time, beside it
    ends_at: float | None = None  # monotonic; as forecast when it was offered
    read_at: float | None = None  # the same of its prompt
    tokens_expected: int | None = None  # of its answer, when it was offered
    evicts: tuple[str, ...] = ()  # revisions that its host may drop for its model
    is_from_before: bool = False  # taken up from the database: its node has yet to come back
    was_taken_up: bool = False  # an earlier process began it, and may have told its node to stop

    @property
    def is_declined(self) -> bool:
        """Whether its node does not run it: whatever it says of it from now on is nothing."""
        return self.answered.done() and self.answered.result() is not None


@dataclass(frozen=True)
class Fault:
    """How an attempt of the job failed on a device, and whether no other job can have caused it."""

    reason: str
    device: str
    was_alone: bool
    begun_at: float  # monotonic


def lease_seconds(settings: Settings, *, prefill_seconds: float, step_seconds: float) -> float:
    """How long an attempt may show no progress: a multiple of what is forecast for the longest step
    that shows none, and never less than the floor."""
    step = prefill_seconds + step_seconds
    return max(settings.progress_floor_seconds, settings.progress_forecast_factor * step)


@dataclass
class LiveJob:
    """One job under way, with everything secret about it: in memory only."""

    job_id: str
    account_id: str
    card: ModelCard
    work: Work
    is_async: bool
    vocabulary: Vocabulary
    make_result: Callable[[JobStream, Ending], bytes] | None = None
    stream: JobStream = field(default_factory=JobStream)
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[wire.TokenLogprob] = field(default_factory=list[wire.TokenLogprob])
    attempt: LiveAttempt | None = None
    failed_attempts: int = 0
    losses: int = 0  # in a row, without a token between them
    faults: list[Fault] = field(default_factory=list[Fault])
    is_kept_apart: bool = False  # it may be what crashed a Mac: nobody shares the next one with it
    created_us: int = 0
    changes: int = 0  # of what was delivered, counted
    stored_changes: int = 0  # of these, in the database
    is_orphaned: bool = False  # its submitter's connection went with an earlier process
    unread_since: float | None = None
    last_delivery: tuple[int, int] = (0, 0)  # before a restart: the last fence, and its tokens
    unproven_tokens: int = 0  # relayed, but from an attempt whose result did not hold
    late: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """(fence, node) of attempts whose whole result came after they were lost."""
    waiting_since: float | None = None  # monotonic; set while the job looks for another host
    requeueing: asyncio.Task[None] | None = None
    excluded: dict[str, float] = field(default_factory=dict[str, float])
    is_ending: bool = False
    ended_at: float | None = None
    answer: AnswerText = field(init=False)
    card_revision: str = field(init=False)  # worked out once: it is a digest of all that the card says
    ends: frozenset[int] = field(init=False)  # tokens that end an answer

    def __post_init__(self) -> None:
        self.card_revision = self.card.revision
        self.ends = frozenset(self.card.tokenizer.eos_ids)
        self.answer = AnswerText(self.vocabulary, self.work.stop)

    # -- what was delivered ----------------------------------------------------------------------

    def push(self, ids: Sequence[int], logprobs: Sequence[wire.TokenLogprob] | None) -> AnswerEnd | None:
        """Take the answer's next tokens and show them to the readers; how it ended, if it did.

        Tokens behind one that completes a stop string are not taken. Raises `ValueError`, with
        nothing taken, for ids that the model does not have or log probabilities of another length.
        """
        self.vocabulary.check(ids)
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError("logprobs must be as long as ids")
        self.stream.append(self._made(ids, logprobs))
        self.changes += 1
        return self.answer.finished

    def _made(self, ids: Sequence[int], logprobs: Sequence[wire.TokenLogprob] | None) -> Delta:
        """One token after the other, since a reader may go on behind any of them."""
        texts: list[str] = []
        logged: list[LoggedToken] = []
        cuts: list[tuple[int, int, int]] = []
        characters = 0
        for index, token_id in enumerate(ids):
            if index:
                cuts.append((len(self.token_ids), characters, len(logged)))
            found = None if logprobs is None else logprobs[index : index + 1]
            made = self.answer.push((token_id,), found)
            self.token_ids.append(token_id)
            self.logprobs.extend(found or ())
            texts.append(made.text)
            logged.extend(made.logprobs)
            characters += len(made.text)
            if made.finished is not None:
                break
        return Delta(len(self.token_ids), "".join(texts), tuple(logged), tuple(cuts))

    def take_back(self, count: int) -> bool:
        """Forget the last `count` tokens if no reader can have had any of them; whether it did."""
        kept = len(self.token_ids) - count
        if self.stream.received_end > kept:
            return False
        ids, logprobs = self.token_ids[:kept], self.logprobs[:kept]
        self._rebuild(ids, logprobs)
        return True

    def _rebuild(self, ids: Sequence[int], logprobs: Sequence[wire.TokenLogprob]) -> None:
        self.token_ids.clear()
        self.logprobs.clear()
        self.answer = AnswerText(self.vocabulary, self.work.stop)
        made = self._made(ids, None if self.work.top_logprobs is None else logprobs)
        self.stream.replace([made] if ids else [])
        self.changes += 1

    def prefix(self) -> Prefix:
        """What was delivered until now, to be stored."""
        attempt = self.attempt
        return Prefix(
            token_ids=tuple(self.token_ids),
            logprobs=None if self.work.top_logprobs is None else tuple(self.logprobs),
            fence=attempt.fence if attempt is not None else 0,
            fence_tokens=len(attempt.received) if attempt is not None else 0,
            taken_tokens=self.stream.received_end,
            unproven_tokens=self.unproven_tokens,
            faults=self.failed_attempts,
        )

    def restore(self, prefix: Prefix) -> None:
        """Go on from what an earlier process had delivered. Raises `ValueError` if it cannot be."""
        self.vocabulary.check(prefix.token_ids)
        self._rebuild(prefix.token_ids, prefix.logprobs or ())
        self.stream.replace(self.stream.deltas, taken_end=prefix.taken_tokens)
        self.unproven_tokens = prefix.unproven_tokens
        self.failed_attempts = prefix.faults
        self.last_delivery = (prefix.fence, prefix.fence_tokens)
        self.stream.accept()
        self.stored_changes = self.changes

    def tokens_of(self, fence: int) -> int:
        """How many of the restored tokens an attempt had delivered that was under way."""
        last_fence, tokens = self.last_delivery
        return tokens if last_fence == fence else 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing more can come, whoever is asked."""
        return len(self.token_ids) >= self.work.max_tokens or self.answer.finished is not None

    @property
    def has_proven_tokens(self) -> bool:
        """Whether something was delivered that is paid for, however the job ends."""
        return len(self.token_ids) > self.unproven_tokens

    @property
    def is_being_queued(self) -> bool:
        """Whether the end of its last attempt is still on its way to the database."""
        return self.requeueing is not None and not self.requeueing.done()

    def facts(self, now: float, wall_us: int) -> JobFacts:
        """What placement decides from; `now` is monotonic seconds, `wall_us` this machine's clock."""
        delivered = len(self.token_ids)
        facts = JobFacts(
            job_id=self.job_id,
            card=self.card,
            card_revision=self.card_revision,
            prompt_tokens=len(self.work.prompt_ids) + delivered,
            max_tokens=self.work.max_tokens - delivered,
            is_kept_apart=self.is_kept_apart,
            excluded_node_ids=frozenset(n for n, until in self.excluded.items() if until > now),
            submitter_id=self.account_id,
            waited_seconds=max(wall_us - self.created_us, 0) / 1e6,
        )
        return with_wishes(facts, self.work.wishes, has_begun=delivered > 0)

    def seconds_left(self, now: float, wall_us: int) -> float | None:
        """Until its attempt has made the answer that is expected, at the pace of its tokens so far, or
        else as it was forecast. None if neither tells, or if it has been expected to end before."""
        attempt = self.attempt
        if attempt is None:
            return None
        made = len(attempt.received)
        if attempt.first_token_us is not None and made >= PACE_TOKENS:
            pace = max(wall_us - attempt.first_token_us, 0) / 1e6 / made
            longest = made + self.work.max_tokens - len(self.token_ids)
            expected = longest if attempt.tokens_expected is None else min(attempt.tokens_expected, longest)
            return pace * (expected - made) if expected > made else None
        if attempt.ends_at is None or attempt.ends_at <= now:
            return None
        return attempt.ends_at - now


@final
class LiveJobs:
    """The jobs under way, and those that ended lately and can still be read."""

    def __init__(self) -> None:
        self._jobs: Final[dict[str, LiveJob]] = {}
        self._open: Final[dict[str, LiveJob]] = {}

    def __iter__(self) -> Iterator[LiveJob]:
        """Over a copy: whoever walks may add and drop."""
        return iter(list(self._jobs.values()))

    def add(self, live: LiveJob) -> LiveJob:
        """The job as it is carried: `live`, unless it was carried already."""
        if live.job_id not in self._jobs:
            self._jobs[live.job_id] = self._open[live.job_id] = live
        return self._jobs[live.job_id]

    def get(self, job_id: str) -> LiveJob | None:
        """The job, or None."""
        return self._jobs.get(job_id)

    def drop(self, live: LiveJob) -> None:
        """Forget a job."""
        self._jobs.pop(live.job_id, None)
        self._open.pop(live.job_id, None)

    def open(self) -> list[LiveJob]:
        """Those that have not ended."""
        for live in [live for live in self._open.values() if live.ended_at is not None]:
            del self._open[live.job_id]
        return list(self._open.values())

    def on_node(self, node_id: str) -> Iterator[tuple[LiveJob, LiveAttempt]]:
        """The jobs whose attempt runs on this node and that are not ending."""
        for live in self:
            attempt = live.attempt
            if attempt is not None and attempt.node_id == node_id and not live.is_ending:
                yield live, attempt

    def is_any_read(self) -> bool:
        """Whether somebody reads an answer that a node works on or whose end is being written."""
        return any(
            live.stream.readers and live.ended_at is None and (live.attempt is not None or live.is_ending)
            for live in self._jobs.values()
        )

    def attempts_by_node(self) -> dict[str, int]:
        """How many attempts run on each node."""
        counts: dict[str, int] = {}
        for live in self.open():
            if live.attempt is not None:
                counts[live.attempt.node_id] = counts.get(live.attempt.node_id, 0) + 1
        return counts

    def forecast_seconds(self, unknown_seconds: float) -> float:
        """When the first seat may come free, from the progress of what runs; a guess, no promise.

        `unknown_seconds` where nothing runs that could tell.
        """
        now = clock.wall_us()
        left = [unknown_seconds]
        for live in self._jobs.values():
            first_us = live.attempt.first_token_us if live.attempt is not None else None
            if first_us is not None and live.token_ids:
                per_token = (now - first_us) / 1e6 / len(live.token_ids)
                left.append(per_token * (live.work.max_tokens - len(live.token_ids)))
        return min(left)
