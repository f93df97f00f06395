"""How one run's next token is chosen from the model's logits.

Each run has its own `Chooser`, whose draws depend on its seed and the token's position alone
(`draws`). A chooser never raises into the batch: by the time it runs, the batch's caches already
hold the step, and an exception would leave every other run one token out of place. It notes its
failure instead, falls back to the likeliest token, and the batch ends that run alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, cast

import mlx.core as mx

from node_agent.protocol.messages import Sampling
from node_agent.runner.draws import draw_words
from node_agent.runner.messages import Run
from node_agent.runner.outbox import Scored

Sampler = Callable[[mx.array], mx.array]
Processor = Callable[[mx.array, mx.array], mx.array]

# Below this, dividing by the temperature would overflow; the draw is then the likeliest token.
TEMPERATURE_MIN: Final = 1e-4


def greedy(logprobs: mx.array) -> mx.array:
    """The likeliest token of each row.

    One function for all runs, so that the batch calls it once for all rows.
    """
    return mx.argmax(logprobs, axis=-1)


def draw(logprobs: mx.array, sampling: Sampling, position: int) -> mx.array:
    """One token for each row of `logprobs` [1, vocab], after temperature and then top-p."""
    scaled = logprobs.astype(mx.float32) * (1.0 / sampling.temperature)
    if sampling.top_p < 1.0:
        scaled = keep_top_p(scaled, sampling.top_p)
    key = mx.array(draw_words(sampling.seed, position), dtype=mx.uint32)
    return mx.random.categorical(scaled, axis=-1, key=key)


def keep_top_p(logits: mx.array, top_p: float) -> mx.array:
    """Set to minus infinity all but the smallest set of likeliest tokens holding `top_p`.

    `logits` is [rows, vocab], not necessarily normalised. The token that crosses `top_p` is
    kept, and with it any that are exactly as likely (Holtzman et al., 2020, section 3.1).
    """
    probabilities = mx.softmax(logits, axis=-1)
    falling = -mx.sort(-probabilities, axis=-1)
    mass_before = mx.cumsum(falling, axis=-1) - falling
    kept = mx.where(mass_before < top_p, falling, mx.inf)
    return mx.where(probabilities < kept.min(axis=-1, keepdims=True), -mx.inf, logits)


class Penalties:
    """OpenAI's presence and frequency penalties and logit bias, as one logits processor.

    logit[t] += bias[t] - presence * (count[t] > 0) - frequency * count[t]
    where count[t] is how often t is among the answer's tokens so far, the prefix included.
    """

    def __init__(self, sampling: Sampling, prefix_ids: tuple[int, ...], vocab: int) -> None:
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._counts = mx.zeros(vocab, dtype=mx.float32)
        if prefix_ids:
            self._counts = self._counts.at[mx.array(prefix_ids)].add(1.0)  # pyright: ignore[reportUnknownMemberType]
        self._bias: mx.array | None = None
        if sampling.logit_bias:
            ids, values = list(sampling.logit_bias), list(sampling.logit_bias.values())
            self._bias = mx.zeros(vocab, dtype=mx.float32).at[mx.array(ids)].add(mx.array(values))  # pyright: ignore[reportUnknownMemberType]
        self._first = True

    def __call__(self, context: mx.array, logits: mx.array) -> mx.array:
        # The first step's newest token is the prompt's or the prefix's, already dealt with.
        if not self._first:
            self._counts = self._counts.at[context[-1:]].add(1.0)  # pyright: ignore[reportUnknownMemberType]
        self._first = False
        seen = (self._counts > 0).astype(mx.float32)
        shift = -self._presence * seen - self._frequency * self._counts
        if self._bias is not None:
            shift = shift + self._bias
        return logits + shift.astype(logits.dtype)


class Chooser:
    """One run's sampler and processors, and the log-probabilities of what it chose."""

    def __init__(self, run: Run, vocab: int) -> None:
        self.failure: str | None = None
        self._sampling = run.sampling
        self._position = len(run.prefix_ids)
        self._top = run.top_logprobs
        self._raw: mx.array | None = None
        self._scores: deque[tuple[mx.array, mx.array, mx.array]] = deque()
        penalised = run.sampling.presence_penalty or run.sampling.frequency_penalty
        self._penalties = (
            Penalties(run.sampling, run.prefix_ids, vocab) if penalised or run.sampling.logit_bias else None
        )

    @property
    def sampler(self) -> Sampler:
        plain = self._sampling.temperature < TEMPERATURE_MIN and self._top is None
        return greedy if plain else self._guarded_choose

    @property
    def processors(self) -> list[Processor]:
        return [] if self._penalties is None else [self._guarded_process]

    @property
    def scores_tokens(self) -> bool:
        return self._top is not None

    def next_score(self) -> Scored:
        """The log-probabilities of the oldest token that was chosen and not asked for yet."""
        chosen, ids, values = self._scores.popleft()
        pairs = zip(cast("list[int]", ids.tolist()), cast("list[float]", values.tolist()), strict=True)
        return cast("float", chosen.item()), list(pairs)

    def process(self, context: mx.array, logits: mx.array) -> mx.array:
        if self._top is not None:
            self._raw = logits
        return logits if self._penalties is None else self._penalties(context, logits)

    def choose(self, logprobs: mx.array) -> mx.array:
        if self._sampling.temperature < TEMPERATURE_MIN:
            token = greedy(logprobs)
        else:
            token = draw(logprobs, self._sampling, self._position)
        self._position += 1
        if self._top is not None:
            self._score(logprobs, token, self._top)
        return token

    def _score(self, logprobs: mx.array, token: mx.array, top: int) -> None:
        # Log-probabilities are of the model itself, before penalties, bias and temperature.
        source = logprobs if self._raw is None else self._raw
        raw = source[0].astype(mx.float32)
        raw = raw - mx.logsumexp(raw)
        ids = mx.argpartition(-raw, kth=max(top - 1, 0))[:top]
        ids = ids[mx.argsort(-raw[ids])]
        score = (raw[token[0]], ids, raw[ids])
        # Started now, in this step's queue: asked for later, it would wait for the next step.
        mx.async_eval(token, *score)  # pyright: ignore[reportUnknownMemberType]
        self._scores.append(score)

    def _guarded_choose(self, logprobs: mx.array) -> mx.array:
        if self.failure is None:
            try:
                return self.choose(logprobs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this run's alone
                self.failure = f"sampling failed: {type(error).__name__}"
        return greedy(logprobs)

    def _guarded_process(self, context: mx.array, logits: mx.array) -> mx.array:
        if self.failure is None:
            try:
                return self.process(context, logits)
            except Exception as error:  # noqa: BLE001 - as above
                self.failure = f"penalties failed: {type(error).__name__}"
        return logits
